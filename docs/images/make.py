"""Makes the pictures of this folder from real searches: all, or those that are named.

    python docs/images/make.py tree replay page
    python docs/images/make.py screens      # page and docs at every width, into build/screens

`screens` takes them light and dark, in Chromium and, where it is there, Firefox, and prints what
axe finds; `make docs` makes the docs before. Needs the embedded SmolLM2 model, Debian's `chromium`,
and the packages of `bestk[dev]`; the font is Inter (`fonts-inter`).
"""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from axe_playwright_python.sync_playwright import Axe
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
SITE = Path("build/site")
SCHEMES = ("light", "dark")


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
                in_firefox(
                    {"ask": address, "docs-index": (SITE / "index.html").absolute().as_uri()}
                )
            of_docs(browser)
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
    # How long it took tells how busy this machine was.
    page.locator(".outcome-sub").evaluate("sub => { sub.style.visibility = 'hidden' }")
    page.wait_for_timeout(800)
    small = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(128)
    small.save(FOLDER / "page.png", optimize=True)


def screens(browser: Browser, address: str) -> None:
    """Save every screen of the page, on a phone, a desk and a wide screen, light and dark."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    found = look_up(browser, address)
    for width, height in SIZES:
        for scheme in SCHEMES:
            page = screen(browser, width, height, scheme, storage_state=found)
            page.goto(address)
            page.locator("#settings .field").first.wait_for(state="attached")
            keep(page, f"ask-{width}-{scheme}")
            for name, number in (("answers", 1), ("compare", 0)):
                page.click("#open-history")
                page.locator(".history-open").nth(number).click()
                page.wait_for_timeout(500)
                keep(page, f"{name}-{width}-{scheme}", full_page=True)
            page.context.close()


def of_docs(browser: Browser) -> None:
    """Save pages of the docs in the same way."""
    for width, height in SIZES:
        for scheme in SCHEMES:
            page = screen(browser, width, height, scheme)
            for name in ("index", "quickstart", "python-api"):
                page.goto((SITE / f"{name}.html").absolute().as_uri())
                keep(page, f"docs-{name}-{width}-{scheme}")
            page.context.close()


def screen(browser: Browser, width: int, height: int, scheme: Any, **options: Any) -> Page:
    """Open a page of a size, in a scheme of colours."""
    size: Any = {"width": width, "height": height}
    settings = {"viewport": size, "color_scheme": scheme, "is_mobile": width < 500}
    return browser.new_context(**settings, **options).new_page()


def keep(page: Page, name: str, *, full_page: bool = False) -> None:
    """Save what is on the screen, and tell what axe finds there."""
    page.screenshot(path=SCREENS / f"{name}.png", full_page=full_page)
    found = Axe().run(page).response["violations"]
    print(name, ", ".join(f"{one['impact']}: {one['id']}" for one in found) or "axe finds nothing")


def in_firefox(addresses: dict[str, str]) -> None:
    """Save the first screens as Firefox shows them."""
    firefox = shutil.which("firefox") or shutil.which("firefox-esr")
    for scheme in SCHEMES if firefox else ():
        with tempfile.TemporaryDirectory() as profile:
            dark = f'user_pref("ui.systemUsesDarkTheme", {SCHEMES.index(scheme)});'
            (Path(profile) / "user.js").write_text(dark)
            for width, height in SIZES:
                for name, address in addresses.items():
                    place = (SCREENS / f"{name}-{width}-{scheme}-firefox.png").absolute()
                    asked = ["--screenshot", str(place), "--window-size", f"{width},{height}"]
                    subprocess.run(
                        [firefox, "--headless", "--profile", profile, *asked, address],
                        check=True,
                        capture_output=True,
                    )


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
