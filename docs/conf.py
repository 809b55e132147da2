"""The site: Markdown of this folder through Sphinx, with the reference made from docstrings.

`make docs` builds it into `build/site`, warnings being errors. The pages are plain Markdown, to be
read on a code host too; what only a site needs (groups, search, look) is said here and in index.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from bestk.version import __version__

project = "bestk"
copyright = "the authors of bestk"
release = version = __version__
html_title = f"bestk {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3  # as code hosts make them
myst_enable_extensions = ["colon_fence"]
highlight_language = "none"
default_role = "literal"  # docstrings are written as Markdown: `name` is code
exclude_patterns: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False

# Where the sources are, as a workflow of GitHub tells it; elsewhere links out of docs/ are text.
_HOST, _NAME = (os.environ.get(f"GITHUB_{part}", "") for part in ("SERVER_URL", "REPOSITORY"))
_SOURCES = f"{_HOST}/{_NAME}/blob/main/" if _HOST and _NAME else None
_ROOT = Path(__file__).parent.parent
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)#]+)\)")
_AT_THE_ROOT = re.compile(r"\]\((?!https?:|#)(docs/)?")


def _read(app: Any, name: str, source: list[str]) -> None:
    """Put the README on the first page, and make links out of docs/ links to the sources."""
    if name == "index":
        readme = (_ROOT / "README.md").read_text(encoding="utf-8")
        source[0] = _AT_THE_ROOT.sub(_from_docs, readme) + source[0]
    source[0] = _OUTSIDE.sub(_linked, source[0])


def _from_docs(found: re.Match[str]) -> str:
    return "](" if found[1] else "](../"


def _linked(found: re.Match[str]) -> str:
    text, path = found.groups()
    if _SOURCES is not None:
        return f"[{text}]({_SOURCES}{path})"
    return text if text.startswith("`") else f"`{text}`"


def _docstring(app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Leave modules' docstrings out; keep stars that reStructuredText would take for emphasis."""
    if kind == "module":
        lines.clear()
    lines[:] = [re.sub(r"(?<![`\w])(\*+)(?=\w)", r"\\\1", line) for line in lines]


# What screen readers and keyboards miss in the theme's pages, and what it becomes.
_READABLE = {
    'role="heading"': 'role="heading" aria-level="2"',
    "<pre>": '<pre tabindex="0">',  # it scrolls
    '<th class="head"><p></p></th>': "<td></td>",
    '<th class="head"></th>': "<td></td>",
}


def _page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Make a page readable for all."""
    for part in {"body", "furo_navigation_tree"} & context.keys():
        for old, new in _READABLE.items():
            context[part] = context[part].replace(old, new)


def setup(app: Any) -> None:
    """Connect what is done to pages and docstrings."""
    app.connect("html-page-context", _page, priority=900)  # behind the theme
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring)
