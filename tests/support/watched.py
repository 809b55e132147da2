"""A browser, and pages opened in it that are watched for errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser import ARGUMENTS, CHROMIUM
from opened import Opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Opened]]:
    opened: list[Opened] = []

    def open_page(address: str, link: str = "", **context: Any) -> Opened:
        opened.append(Opened(browser, address, link, **context))
        return opened[-1]

    yield open_page
    for page in opened:
        page.context.close()
        unexpected = [e for e in page.errors if not e.startswith(page.expected or ("\0",))]
        assert unexpected == [], "also what the content security policy refused"
        away = [
            url for url in page.requests if not url.startswith((page.address, "blob:", "about:"))
        ]
        assert away == [], "the page needs nothing from elsewhere"
