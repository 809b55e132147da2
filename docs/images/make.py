"""Makes the pictures of this folder from real searches: all, or those that are named.

    python docs/images/make.py tree replay page
    python docs/images/make.py screens      # the page's screens, at every width, into build/screens

Needs the embedded SmolLM2 model, Debian's `chromium`, and the packages `playwright` and `pillow`;
for the picture of the page those of `bestk[serve]` too, and the font Inter (`fonts-inter`).
"""

from __future__ import annotations

import io
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import bestk
from bestk.server.app import create_app
from bestk.server.limits import Limits
from bestk.server.main import ServeOptions, make_server

FOLDER = Path(__file__).parent
PROMPT = "The best thing about having a dog is"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
STEP_MS = 600
FRAMES_PER_STEP = 4
ASKED = "Write a tagline for a bakery."
SCREENS = Path("build/screens")
SIZES = ((390, 844), (1440, 900), (2560, 1440))


def main() -> None:
    """Take the pictures that are asked for, all unless some are named."""
    wanted = sys.argv[1:] or ["tree", "replay", "page"]
    lm = bestk.load("smollm2")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        if {"tree", "replay"} & set(wanted):
            file_pictures(browser, lm, wanted)
        if "page" in wanted:
            with served(lm) as address:
                live_page(browser.new_page(viewport={"width": 1440, "height": 900}), address)
        if "screens" in wanted:
            with served(lm) as address:
                screens(browser, address)
        browser.close()


def file_pictures(browser: Browser, lm: bestk.LanguageModel, wanted: list[str]) -> None:
    """Take the pictures of the file that opens offline."""
    result = bestk.search(lm, PROMPT, raw=True, max_new_tokens=14, beam_size=8, stop=["."])
    with tempfile.TemporaryDirectory() as folder:
        page_file = Path(folder) / "tree.html"
        result.to_html(page_file)
        for name, size, take in (("tree", (1360, 800), picture), ("replay", (1120, 640), replay)):
            if name in wanted:
                page = browser.new_page(viewport={"width": size[0], "height": size[1]})
                page.goto(page_file.as_uri())
                take(page)


@contextmanager
def served(lm: bestk.LanguageModel) -> Iterator[str]:
    """Serve a model on a free port."""
    app = create_app({lm.name: lm}, Limits(seconds=900))
    listening = socket.create_server(("127.0.0.1", 0))
    server = make_server(app, ServeOptions(grace=0.0))
    app.state.loop.start()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def live_page(page: Page, address: str) -> None:
    """Save the page of `bestk serve` as it is when ten answers are there."""
    page.goto(f"{address}#{urlencode({'prompt': ASKED, 'run': 1})}")
    page.locator(".search-view[data-state=done]").wait_for(timeout=900_000)
    page.wait_for_timeout(800)
    small = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(128)
    small.save(FOLDER / "page.png", optimize=True)


def screens(browser: Browser, address: str) -> None:
    """Save every screen of the page, on a phone, a desk and a wide screen, light and dark."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    found = look_up(browser, address)
    for width, height in SIZES:
        for scheme in ("light", "dark"):
            settings: dict[str, Any] = {"color_scheme": scheme, "is_mobile": width < 500}
            size = {"width": width, "height": height}
            context = browser.new_context(viewport=size, storage_state=found, **settings)
            page = context.new_page()
            page.goto(address)
            page.locator("#settings .field").first.wait_for(state="attached")
            page.screenshot(path=SCREENS / f"ask-{width}-{scheme}.png")
            for name, number in (("answers", 1), ("compare", 0)):
                page.click("#open-history")
                page.locator(".history-open").nth(number).click()
                page.wait_for_timeout(500)
                page.screenshot(path=SCREENS / f"{name}-{width}-{scheme}.png", full_page=True)
            context.close()


def look_up(browser: Browser, address: str) -> Any:
    """Ask once and compare once; the history of the browser keeps what was found."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}#{urlencode({'prompt': ASKED, 'run': 1})}")
    page.locator(".search-view[data-state=done]").wait_for(timeout=900_000)
    page.click("#view-compare")
    page.click("#run")
    page.locator(".lane:last-child[data-state=done]").wait_for(timeout=1_800_000)
    page.locator("#stop").wait_for(state="hidden")
    kept = context.storage_state()
    context.close()
    return kept


def picture(page: Page) -> None:
    """Save the search as it is some steps in, its best open node chosen."""
    page.evaluate("bestk.viewer.goto(9)")
    page.wait_for_timeout(600)
    page.evaluate("bestk.viewer.select(bestk.viewer.frontier()[0].id)")
    page.wait_for_timeout(600)
    save(page, "tree.png")


def save(page: Page, name: str) -> None:
    """Save what is on the screen, small."""
    Image.open(io.BytesIO(page.screenshot())).save(FOLDER / name, optimize=True)


def replay(page: Page) -> None:
    """Save every step, the camera's moves included, as an animation."""
    frames: list[Image.Image] = []
    for step in range(page.evaluate("bestk.viewer.lastStep") + 1):
        page.evaluate(
            "(step) => { bestk.viewer.motion.isFollowing = true; bestk.viewer.goto(step) }", step
        )
        for _ in range(FRAMES_PER_STEP):
            page.wait_for_timeout(STEP_MS / FRAMES_PER_STEP)
            frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    page.evaluate("bestk.viewer.select(bestk.viewer.graph.completions[0].node)")
    page.wait_for_timeout(600)
    frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    frames[0].save(
        FOLDER / "replay.webp",
        save_all=True,
        append_images=frames[1:],
        duration=[STEP_MS // FRAMES_PER_STEP] * (len(frames) - 1) + [3000],
        loop=0,
        quality=58,
        method=4,
    )


if __name__ == "__main__":
    main()
