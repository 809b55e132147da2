"""Makes the pictures of this folder from a real search: python docs/images/make.py

Needs the embedded SmolLM2 model, Debian's `chromium`, and the packages `playwright` and `pillow`.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import bestk

FOLDER = Path(__file__).parent
PROMPT = "The best thing about having a dog is"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
STEP_MS = 600
FRAMES_PER_STEP = 4


def main() -> None:
    """Search once, then take the pictures."""
    lm = bestk.load("smollm2")
    result = bestk.search(lm, PROMPT, max_new_tokens=14, beam_size=8, stop=["."])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "tree.html"
        result.to_html(page_file)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        page = browser.new_page(viewport={"width": 1360, "height": 800})
        page.goto(page_file.as_uri())
        picture(page)
        page = browser.new_page(viewport={"width": 1120, "height": 640})
        page.goto(page_file.as_uri())
        replay(page)
        browser.close()


def picture(page: Page) -> None:
    """Save the search as it is some steps in, its best open node chosen."""
    page.evaluate("bestk.viewer.goto(9)")
    page.wait_for_timeout(600)
    page.evaluate("bestk.viewer.select(bestk.viewer.frontier()[0].id)")
    page.wait_for_timeout(600)
    Image.open(io.BytesIO(page.screenshot())).save(FOLDER / "tree.png", optimize=True)


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
        quality=70,
        method=4,
    )


if __name__ == "__main__":
    main()
