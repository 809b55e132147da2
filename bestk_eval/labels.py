"""Names beside the points of a figure, each where it covers the least of the others.

Knows pixels, no scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bestk_eval.extras import require

SIZE = 7  # of the letters, in points

_MARGIN = 3.0  # around a point, in pixels
_RINGS = (5, 12, 20, 30, 42)  # how far a name may stand from its point, in points
_DIRECTIONS = 12


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def shared(self, other: Box) -> float:
        """Return the area that two rectangles have in common.

        >>> Box(0, 0, 2, 2).shared(Box(1, 1, 5, 5))
        1
        """
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0, wide) * max(0, high)

    def outside(self, other: Box) -> float:
        """Return the area that does not lie in another rectangle."""
        return (self.right - self.left) * (self.top - self.bottom) - self.shared(other)


def write_names(axes: Any, points: Sequence[tuple[str, float, float, str]]) -> list[Box]:
    """Write (name, x, y, colour) beside each point; return where the names are.

    A name that had to go far from its point is tied to it by a thin line.
    """
    figure = axes.figure
    renderer = require("matplotlib.backends.backend_agg", "matplotlib").FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # settles the layout that pixels are counted in
    scale = figure.dpi / 72
    frame = Box(*axes.get_window_extent().extents)
    places = [axes.transData.transform((x, y)) for _, x, y, _ in points]
    taken = [Box(x - _MARGIN, y - _MARGIN, x + _MARGIN, y + _MARGIN) for x, y in places]
    names: list[Box] = []
    for (name, x, y, colour), (across, up) in zip(points, places, strict=True):
        width, height = _extent(axes, name, renderer.get_renderer())
        best = min(
            _offsets(),
            key=lambda at: _cost(_box(across, up, at, scale, width, height), taken + names, frame),
        )
        names.append(_box(across, up, best, scale, width, height))
        axes.annotate(
            name,
            (x, y),
            xytext=best,
            textcoords="offset points",
            fontsize=SIZE,
            color=colour,
            ha=_side(best[0]),
            va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": colour, "shrinkA": 0, "shrinkB": 2}
            if math.hypot(*best) > _RINGS[1]
            else None,
        )
    return names


def _offsets() -> Iterator[tuple[float, float]]:
    for ring in _RINGS:
        for number in range(_DIRECTIONS):
            angle = math.pi / 4 + 2 * math.pi * number / _DIRECTIONS
            yield round(ring * math.cos(angle), 3), round(ring * math.sin(angle), 3)


def _box(
    across: float, up: float, at: tuple[float, float], scale: float, width: float, height: float
) -> Box:
    x, y = across + at[0] * scale, up + at[1] * scale
    left = {"left": x, "center": x - width / 2, "right": x - width}[_side(at[0])]
    return Box(left, y - height / 2, left + width, y + height / 2)


def _cost(box: Box, taken: Sequence[Box], frame: Box) -> float:
    # `min` takes the first of equals, which is the nearest.
    return sum(box.shared(other) for other in taken) + 2 * box.outside(frame)


def _side(across: float) -> str:
    return "center" if abs(across) < 1 else "left" if across > 0 else "right"


def _extent(axes: Any, name: str, renderer: Any) -> tuple[float, float]:
    text = axes.text(0, 0, name, fontsize=SIZE)
    box = text.get_window_extent(renderer)
    text.remove()
    return float(box.width), float(box.height)
