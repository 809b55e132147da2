"""A page of a server in a browser: opened, watched for errors, filled in and read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT = "Once upon a time"
# Algorithm 2 with little to do.
TOY: dict[str, Any] = {
    "num_texts": None,
    "k": 2,
    "beam_size": 4,
    "max_new_tokens": 6,
    "min_prob": 0.08,
}
PATIENCE = 60.0  # seconds that a search may take on a busy machine
TEXTS = """[...document.querySelectorAll("#panel-answers .answer-text")].map((at) => {
  const copy = at.cloneNode(true);
  for (const cut of copy.querySelectorAll(".answer-cut")) cut.remove();
  return copy.textContent.trim(); })"""


class Opened:
    """A page of a server, with what went wrong in it and what it asked of the network."""

    def __init__(
        self, browser: Any, address: str, link: str = "", token: Any = (), **context: Any
    ) -> None:
        settings = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
        self.context = browser.new_context(**settings | context)
        self.errors: list[str] = []
        self.expected: tuple[str, ...] = ()  # beginnings of messages that a test provokes
        self.requests: list[str] = []
        self.address = address.rstrip("/") + "/"
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.open(link, token)

    def open(self, link: str = "", token: Any = ()) -> None:
        self.page.goto("about:blank")
        self.page.goto(self.address + link)
        for number, given in enumerate(token):
            note = "did not take" if number else "Whoever started"
            self.until(lambda note=note: note in self.page.inner_text("#token-note"), note)
            self.page.fill("#token-value", given)
            self.page.keyboard.press("Enter")
        self.page.locator("#settings .field").first.wait_for(state="attached")

    def js(self, expression: str, argument: Any = None) -> Any:
        return self.page.evaluate(expression, argument)

    def until(self, is_so: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := is_so():
                return found
            time.sleep(0.02)
        raise AssertionError(f"waited in vain for {what}: {self.page.inner_text('main')[:400]}")

    @property
    def state(self) -> str | None:
        state: str | None = self.js("window.bestk.app?.search.run?.state ?? null")
        return state

    def ended(self, state: str = "done") -> None:
        over = ("done", "stopped", "failed")
        self.until(lambda: self.state in over, f"a search that is {state}")
        assert self.state == state

    def compared(self, count: int) -> None:
        done = ".lane[data-state=done]"
        self.until(lambda: self.page.locator(done).count() == count, f"{count} lanes")
        self.until(lambda: not self.js("bestk.app.isBusy"), "the comparison's end")

    def fill(self, prompt: str = PROMPT, **settings: Any) -> None:
        self.page.fill("#prompt", prompt)
        for name, value in settings.items():
            self.set(name, value)

    def set(self, name: str, value: Any) -> None:
        field = self.page.locator(f"[data-setting={name}]").first
        field.evaluate(
            """(at) => { for (; at; at = at.parentElement)
                           if (at.tagName === "DETAILS") at.open = true; }"""
        )
        if "pick" in str(field.get_attribute("class")):
            choice = json.dumps(value)
            if field.locator(f"option[value='{choice}']").count():
                field.locator("select").select_option(choice)
                return
            field.locator("select").select_option("other")
            field.locator("input").fill(str(value))
            return
        control = field.locator("input:not([type=range]), textarea, select")
        if control.evaluate("(at) => at.tagName") == "SELECT":
            control.select_option(str(value))
        else:
            control.fill(str(value))

    def advanced(self) -> None:
        """Open what lies behind "Advanced"."""
        self.js("document.querySelector('#advanced').open = true")

    def show_tree(self) -> None:
        """Turn to the tree."""
        self.page.click("#tab-tree")

    def run(self, prompt: str = PROMPT, **settings: Any) -> None:
        self.fill(prompt, **{**TOY, **settings})
        self.page.click("#run")
        self.until(lambda: self.state is not None, "a search")
        self.ended()

    def texts(self) -> list[str]:
        """Read the answers, best first."""
        found: list[str] = self.js(TEXTS)
        return [text for text in found if text]

    def focused(self) -> str:
        """Name what has the focus, by its id or its label."""
        named: str = self.js(
            """() => { const at = document.activeElement;
                       return at.id || at.getAttribute("aria-label") || at.textContent.trim(); }"""
        )
        return named


def as_shown(texts: list[str]) -> list[str]:
    """Write texts as the page shows them."""
    return [text.strip() or "(empty answer)" for text in texts]


def download(shown: Opened, name: str) -> Path:
    """Take what a button gives away."""
    with shown.page.expect_download() as waiting:
        shown.page.get_by_role("button", name=name, exact=True).click()
    return Path(waiting.value.path())
