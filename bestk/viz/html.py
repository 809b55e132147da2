"""A search as one HTML file that opens offline: the tree grows, the frontier stands beside it.

The page's template, style and scripts lie in `static/` and are put into the file as they are; the
graph goes in as JSON that the scripts read. Text of prompts and models is data there, never markup.
"""

from __future__ import annotations

import html
import json
import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from bestk.result import Hypothesis, SearchResult
from bestk.viz.graph import Graph, prompt_text, to_graph

STYLES = ("viewer.css",)
# In the order in which they must run; each adds its part to `window.bestk`.
SCRIPTS = (
    "model.js",
    "layout.js",
    "colour.js",
    "canvas.js",
    "motion.js",
    "panels.js",
    "input.js",
    "viewer.js",
    "page.js",
)

# A page with more nodes than this leaves out the children below min_prob, and says so.
MANY_NODES = 20_000
_NOTEBOOK_HEIGHT = 560


def to_html(result: SearchResult, path: str | os.PathLike[str] | None = None) -> str:
    """Return a result's search as a self-contained page; write it to `path` where one is given."""
    size = 0 if result.tree is None else len(result.tree.child_token)
    page = render(to_graph(result, frontiers=False, pruned_prob=size <= MANY_NODES))
    if path is not None:
        Path(path).write_text(page, encoding="utf-8")
    return page


def render(graph: Graph) -> str:
    """Put a graph into the page."""
    title = " ".join(graph["prompt"].split())
    title = title if len(title) <= 60 else title[:59] + "…"
    return _fill(
        static("page.html"),
        title=html.escape(f"{title} · bestk"),
        style="\n".join(static(name) for name in STYLES),
        graph=script_json(graph),
        script="\n".join(static(name) for name in SCRIPTS),
    )


def notebook(result: SearchResult) -> str:
    """Return the markup that shows a result in a notebook: its texts, and the tree to be opened."""
    items = "".join(f"<li>{_markup(one)}</li>" for one in result)
    asked = f"<p><b>{html.escape(prompt_text(result.prompt))}</b></p>"
    notice = f"<p><i>{html.escape(result.notice)}</i></p>" if result.notice else ""
    return asked + (f"<ol>{items}</ol>" if items else "") + notice + _folded(result)


def _markup(hypothesis: Hypothesis) -> str:
    end = "" if hypothesis.is_complete else " …"
    return f'<span style="white-space:pre-wrap">{html.escape(hypothesis.text.strip())}</span>{end}'


def _folded(result: SearchResult) -> str:
    """Return the page with the tree, closed until somebody opens it."""
    if result.tree is None:
        return ""
    page = render(to_graph(result, frontiers=False, pruned_prob=False))
    return (
        "<details><summary>How they were found</summary>"
        f'<iframe title="best-k search" sandbox="allow-scripts" loading="lazy" '
        f'style="width:100%;height:{_NOTEBOOK_HEIGHT}px;border:0" '
        f'srcdoc="{html.escape(page)}"></iframe></details>'
    )


def script_json(data: Any) -> str:
    r"""Write JSON that cannot end or open anything in the HTML around it.

    >>> script_json("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def static(name: str) -> str:
    """Read one of the page's files."""
    return resources.files("bestk.viz").joinpath("static", name).read_text(encoding="utf-8")


def _fill(template: str, **parts: str) -> str:
    """Replace each `{{name}}` once, left to right; what is put in is not looked at again."""
    filled = []
    for piece in template.split("{{"):
        name, closing, rest = piece.partition("}}")
        filled.append(parts[name] + rest if closing else piece)
    return "".join(filled)
