"""The docs as a site: every page has its place, every link an end, every public name an entry.

`make docs` builds the site with warnings as errors; what is quick to see is seen here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bestk

ROOT = Path(bestk.__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
GROUPS = ["Start", "How-to", "Concepts", "Evidence", "Reference"]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_every_page_has_a_place() -> None:
    index = text_of(DOCS / "index.md")
    assert re.findall(r":caption: (.+)", index) == GROUPS
    listed = re.findall(r"^[a-z][a-z-]*$", index, re.MULTILINE)
    assert sorted(listed) == sorted({page.stem for page in PAGES} - {"index"}), (
        "list the page in a toctree of docs/index.md, once"
    )


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(there), f"{target}: no heading of that name"


def test_every_public_name_has_an_entry() -> None:
    told = text_of(DOCS / "api.md")
    for name in set(bestk.__all__) - {"__version__"}:
        assert re.search(rf":: {name}$", told, re.MULTILINE), f"docs/api.md lacks {name}"
