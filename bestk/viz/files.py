"""Writes the picture of a search to a file; the name's ending says what kind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from bestk.errors import BestKError, OptionError, SchemaError
from bestk.result import SearchResult
from bestk.viz.dot import to_dot, to_svg
from bestk.viz.graph import to_graph
from bestk.viz.html import to_html

KINDS: dict[str, Callable[[SearchResult], str]] = {
    ".html": to_html,
    ".dot": to_dot,
    ".svg": to_svg,
    ".json": lambda result: json.dumps(to_graph(result), ensure_ascii=False),
}


def write_picture(result: SearchResult, path: str | os.PathLike[str]) -> None:
    """Write a search as .html, .dot, .svg, or .json (the graph itself)."""
    target = Path(path)
    draw = KINDS.get(target.suffix.lower())
    if draw is None:
        raise OptionError(
            f"a picture's name must end in one of {', '.join(KINDS)}, got {target.name!r}"
        )
    picture = drawn(lambda: draw(result))
    try:
        target.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {target}: {error.strerror or error}") from None


def drawn(draw: Callable[[], str]) -> str:
    """Return a picture of what somebody may have made by hand, which can be wrong in any way."""
    try:
        return draw()
    except BestKError:
        raise
    except Exception as error:
        raise SchemaError(f"the result cannot be drawn: {error}") from error


def read_result(path: str | os.PathLike[str]) -> SearchResult:
    """Read a saved result."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise OptionError(f"cannot read {path}: {reason}") from None
    return SearchResult.from_json(text)
