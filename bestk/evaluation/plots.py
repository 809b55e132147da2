"""The paper's figures of a scoreboard, by matplotlib: each where the board has its methods.

Nothing is shown on a screen. Colours tell families of methods apart, bars are 95% intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bestk.config import SearchConfig
from bestk.evaluation.board import Board
from bestk.evaluation.extras import require
from bestk.evaluation.methods import NamedMethod
from bestk.evaluation.tables import family

COLOURS = {
    "beam": "#7f7f7f",
    "beam sample": "#bc8f3f",
    "sample": "#3f8f5f",
    "best-first": "#2f5fbf",
}
_SCORINGS = {0.0: "α=0", 0.5: "α=0.5", 1.0: "α=1 (mean)", None: "last"}


def save_figures(board: Board, folder: Path, suffix: str = "png") -> list[Path]:
    """Draw every figure that the board has the methods for."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    for name, draw in FIGURES.items():
        figure = draw(board)
        if figure is not None:
            saved.append(folder / f"{name}.{suffix}")
            figure.savefig(
                saved[-1], dpi=150, metadata={"Software": None} if suffix == "png" else {}
            )
    return saved


def diversity_quality(board: Board, x: str = "D-1", y: str = "R1") -> Any:
    """Figure 1: diversity against quality, one point per method."""
    if x not in board.columns or y not in board.columns or len(board.rows) < 2:
        return None
    figure, axes = _canvas(
        board, f"{x}: {board.columns[x].title}", f"{y}: {board.columns[y].title}"
    )
    for row in board.rows:
        colour = COLOURS[family(row)]
        across, up = board.cells[row][x].estimate, board.cells[row][y].estimate
        axes.errorbar(
            across.value,
            up.value,
            xerr=_bars([across]),
            yerr=_bars([up]),
            fmt="o",
            color=colour,
            elinewidth=0.7,
            alpha=0.85,
        )
        axes.annotate(
            row,
            (across.value, up.value),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=7,
            color=colour,
        )
    return figure


def completion_by_decay(board: Board) -> Any:
    """Completion rate against κ for α = 0.5, α = 1 and the memoryless score."""
    lines: dict[float | None, list[tuple[float, str]]] = {}
    for row, config in _best_k(board).items():
        lines.setdefault(config.alpha, []).append((config.decay_weight, row))
    lines = {alpha: points for alpha, points in lines.items() if _varies(points)}
    if not lines:
        return None
    figure, axes = _canvas(board, "weight of the decay κ", "examples completed, %")
    for alpha, points in lines.items():
        _line(axes, board, sorted(points), "Done", _SCORINGS.get(alpha, f"α={alpha}"))
    axes.legend()
    return figure


def incompletion_by_scoring(board: Board) -> Any:
    """Lowest incompletion rate by scoring function, over its decays, with other families'."""
    rates: dict[str, float] = {}
    for row, config in _best_k(board).items():
        label = _SCORINGS.get(config.alpha, f"α={config.alpha}")
        rates[label] = min(rates.get(label, 100.0), 100 - board.value(row, "Done"))
    if len(rates) < 2:
        return None
    colours = [COLOURS["best-first"]] * len(rates)
    for name in ("beam", "beam sample", "sample"):
        members = [100 - board.value(row, "Done") for row in board.rows if family(row) == name]
        if members:
            rates[name] = sum(members) / len(members)
            colours.append(COLOURS[name])
    figure, axes = _canvas(board, "score of a node", "examples without a text, %")
    bars = axes.bar(list(rates), list(rates.values()), color=colours)
    axes.bar_label(bars, fmt="%.1f", fontsize=8)
    return figure


def best_first_by_budget(board: Board) -> Any:
    """Incompletion rate and time of vanilla best-first search by its budget."""
    points = []
    for row, method in board.evaluation.methods.items():
        if method.base == "BFS":
            points.append((float(_config(board, method).beam_size), row))
    if not _varies(points):
        return None
    figure, axes = _canvas(board, "equivalent beam size", "examples without a text, %")
    points.sort()
    sizes = [size for size, _ in points]
    rates = [100 - board.value(row, "Done") for _, row in points]
    axes.plot(sizes, rates, "o-", color=COLOURS["best-first"], label="incomplete")
    if "Time" in board.columns:
        right = axes.twinx()
        right.plot(sizes, [board.value(r, "Time") for _, r in points], "s--", color=COLOURS["beam"])
        right.set_ylabel("seconds per example (dashed)")
    return figure


def efficiency(board: Board) -> Any:
    """Different texts against time."""
    if "Time" not in board.columns or len(board.rows) < 2:
        return None
    figure, axes = _canvas(board, "seconds per example", "different texts |S|")
    for row in board.rows:
        across, up = board.value(row, "Time"), board.value(row, "|S|")
        axes.plot(across, up, "o", color=COLOURS[family(row)])
        axes.annotate(row, (across, up), xytext=(4, 4), textcoords="offset points", fontsize=7)
    return figure


FIGURES: dict[str, Callable[[Board], Any]] = {
    "diversity_quality": diversity_quality,
    "completion_by_decay": completion_by_decay,
    "incompletion_by_scoring": incompletion_by_scoring,
    "best_first_by_budget": best_first_by_budget,
    "efficiency": efficiency,
}


def _canvas(board: Board, across: str, up: str) -> tuple[Any, Any]:
    figures = require("matplotlib.figure", "matplotlib")
    figure = figures.Figure(figsize=(6, 4.2), layout="constrained")  # draws to files by itself
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    found = board.evaluation
    axes.set_title(f"{found.task}, {found.num_examples} examples", fontsize=9)
    axes.grid(alpha=0.25)
    return figure, axes


def _best_k(board: Board) -> dict[str, SearchConfig]:
    """Return the settings of the rows that are best-k search."""
    found = {}
    for row, method in board.evaluation.methods.items():
        if method.base.startswith("BKS"):
            config = _config(board, method)
            scoring = method.base.removeprefix("BKS").removeprefix("_")
            found[row] = SearchConfig.of({"scoring": scoring}, config) if scoring else config
    return found


def _config(board: Board, method: NamedMethod) -> SearchConfig:
    beam_size = int(board.evaluation.settings[0]["beam_size"])
    return method.config(SearchConfig.max_new_tokens, beam_size)


def _line(
    axes: Any, board: Board, points: list[tuple[float, str]], column: str, label: str
) -> None:
    estimates = [board.cells[row][column].estimate for _, row in points]
    axes.errorbar(
        [x for x, _ in points],
        [estimate.value for estimate in estimates],
        yerr=_bars(estimates),
        marker="o",
        capsize=2,
        label=label,
    )


def _bars(estimates: list[Any]) -> list[list[float]] | None:
    if any(estimate.low is None for estimate in estimates):
        return None
    # A percentile interval may leave a skewed estimate just outside; a bar cannot be negative.
    below = [max(0.0, estimate.value - estimate.low) for estimate in estimates]
    above = [max(0.0, estimate.high - estimate.value) for estimate in estimates]
    return [below, above]


def _varies(points: list[tuple[float, str]]) -> bool:
    return len({x for x, _ in points}) > 1
