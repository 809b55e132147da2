"""The paper's figures of a scoreboard, by matplotlib: each where the board has its methods.

Nothing is shown on a screen. Colours tell families of methods apart, bars are 95% intervals.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bestk.config import SearchConfig
from bestk.errors import MissingDataError, OptionError
from bestk_eval.board import Board
from bestk_eval.extras import require
from bestk_eval.paper import (
    SCORING_NAMES,
    best_first_rows,
    best_k_rows,
    lowest_by_scoring,
    other_families,
    rows_by_scoring,
)
from bestk_eval.tables import family, view_title

logger = logging.getLogger("bestk")

SUFFIXES = ("png", "pdf", "svg")
COLOURS = {
    "beam": "#7f7f7f",
    "beam sample": "#bc8f3f",
    "sample": "#3f8f5f",
    "best-first": "#2f5fbf",
}
_ROUNDS = 200  # of moving names apart
_DECAY_STYLES = {"power": "-", "log": "--"}


def save_figures(boards: Sequence[Board], folder: Path, suffix: str = "png") -> list[Path]:
    """Draw every figure that the boards have the methods for.

    Of several views the first is drawn, but diversity against quality in each: at an equal number
    of texts it tells another story than over all of them. One whose numbers there are not is left
    out by name.
    """
    check_suffix(suffix)
    folder.mkdir(parents=True, exist_ok=True)
    drawings = [(name, draw, boards[0]) for name, draw in FIGURES.items()]
    for board in boards[1:]:
        drawings.append((f"diversity_quality_{board.view}", diversity_quality, board))
    saved = []
    left_out: dict[str, list[str]] = {}  # by reason
    for name, draw, board in drawings:
        try:
            figure = draw(board)
        except MissingDataError as error:
            left_out.setdefault(str(error), []).append(name)
            continue
        if figure is not None:
            saved.append(folder / f"{name}.{suffix}")
            figure.savefig(
                saved[-1], dpi=150, metadata={"Software": None} if suffix == "png" else {}
            )
    for reason, names in left_out.items():
        logger.warning("left out: figure %s: %s", ", ".join(names), reason)
    return saved


def check_suffix(suffix: str) -> None:
    """Raise if figures cannot be saved in a format."""
    if suffix not in SUFFIXES:
        raise OptionError(f"figures are saved as {', '.join(SUFFIXES)}, got {suffix!r}")


def diversity_quality(board: Board) -> Any:
    """Figure 1: diversity against quality, one point per method."""
    x, y = "D-1", "R1"
    if len(board.rows) < 2:
        return None
    _need(board, x, y)
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
            elinewidth=0.4,
            alpha=0.85,
        )
    axes.set_title(f"{axes.get_title()}: {view_title(board)}", fontsize=9)
    _name_rows(axes, board, x, y)
    return figure


def completion_by_decay(board: Board) -> Any:
    """Completion rate against κ for α = 0.5, α = 1 and the memoryless score, by form of decay."""
    by_settings: dict[SearchConfig, list[tuple[float, str]]] = {}
    for row, config in best_k_rows(board).items():
        rest = SearchConfig.of({"decay_weight": SearchConfig.decay_weight}, config)
        by_settings.setdefault(rest, []).append((config.decay_weight, row))
    # One line per score and form: of methods that differ in more than κ, those of the most weights.
    lines: dict[tuple[float | None, str], list[tuple[float, str]]] = {}
    for rest, points in by_settings.items():
        line = rest.alpha, rest.decay
        if _varies(points) and len(points) > len(lines.get(line, [])):
            lines[line] = points
    if not lines:
        return None
    _need(board, "Done")
    figure, axes = _canvas(board, "weight of the decay κ", "examples completed, %")
    for (alpha, decay), points in lines.items():
        points.sort()
        estimates = [board.cells[row]["Done"].estimate for _, row in points]
        axes.errorbar(
            [x for x, _ in points],
            [estimate.value for estimate in estimates],
            yerr=_bars(estimates),
            marker="o",
            capsize=2,
            linestyle=_DECAY_STYLES.get(decay, ":"),
            label=SCORING_NAMES.get(alpha, f"α={alpha}") + (", log" if decay == "log" else ""),
        )
    axes.set_ylim(max(-3, min(axes.get_ylim()[0], 87)), 103)
    axes.legend()
    return figure


def incompletion_by_scoring(board: Board) -> Any:
    """Lowest incompletion rate by scoring function, over its decays, with other families'."""
    if len(rows_by_scoring(board)) < 2:
        return None
    _need(board, "Done")
    lowest = lowest_by_scoring(board)
    rates = {label: 100 - board.value(row, "Done") for label, row in lowest.items()}
    colours = [COLOURS["best-first"]] * len(rates)
    for name, members in other_families(board).items():
        rates[name] = sum(100 - board.value(row, "Done") for row in members) / len(members)
        colours.append(COLOURS[family(members[0])])
    figure, axes = _canvas(
        board, "score of best-k search; other methods", "examples without a text, %"
    )
    bars = axes.bar(list(rates), list(rates.values()), color=colours)
    axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.set_ylim(0, max(1.0, 1.1 * max(rates.values())))
    axes.grid(visible=False, axis="x")
    return figure


def best_first_by_budget(board: Board) -> Any:
    """Incompletion rate and time of vanilla best-first search by its budget."""
    points = best_first_rows(board)
    if not _varies(points):
        return None
    _need(board, "Done")
    figure, axes = _canvas(board, "equivalent beam size", "examples without a text, %")
    points.sort()
    sizes = [size for size, _ in points]
    rates = [100 - board.value(row, "Done") for _, row in points]
    axes.plot(sizes, rates, "o-", color=COLOURS["best-first"])
    axes.set_ylim(0, max(1.0, 1.1 * max(rates)))
    axes.yaxis.label.set_color(COLOURS["best-first"])
    if "Time" in board.columns:
        seconds = [board.value(row, "Time") for _, row in points]
        right = axes.twinx()
        right.plot(sizes, seconds, "s--", color=COLOURS["beam"])
        right.set_ylim(0, 1.1 * max(seconds))
        right.set_ylabel("seconds per example (dashed)", color=COLOURS["beam"])
    return figure


def efficiency(board: Board) -> Any:
    """Different texts against time."""
    if len(board.rows) < 2:
        return None
    _need(board, "Time", "|S|")
    figure, axes = _canvas(board, "seconds per example", "different texts |S|")
    for row in board.rows:
        axes.plot(
            board.value(row, "Time"), board.value(row, "|S|"), "o", color=COLOURS[family(row)]
        )
    seconds = [board.value(row, "Time") for row in board.rows]
    if 0 < 5 * min(seconds) < max(seconds):
        axes.set_xscale("log")
        ticker = require("matplotlib.ticker", "matplotlib")
        axes.xaxis.set_major_formatter(ticker.LogFormatter())
        axes.xaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))
    axes.set_ylim(bottom=0)
    _name_rows(axes, board, "Time", "|S|")
    return figure


FIGURES: dict[str, Callable[[Board], Any]] = {
    "diversity_quality": diversity_quality,
    "completion_by_decay": completion_by_decay,
    "incompletion_by_scoring": incompletion_by_scoring,
    "best_first_by_budget": best_first_by_budget,
    "efficiency": efficiency,
}


def _need(board: Board, *columns: str) -> None:
    """Raise if a figure's numbers are not there: not asked for, or left out themselves."""
    if missing := [column for column in columns if column not in board.columns]:
        raise MissingDataError(f"the report has no {' and no '.join(missing)}")


def _canvas(board: Board, across: str, up: str) -> tuple[Any, Any]:
    figures = require("matplotlib.figure", "matplotlib")
    figure = figures.Figure(figsize=(7.5, 5), layout="constrained")  # draws to files by itself
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    found = board.evaluation
    axes.set_title(f"{found.task}, {found.num_examples} examples", fontsize=9)
    axes.grid(alpha=0.25)
    return figure, axes


def _name_rows(axes: Any, board: Board, x: str, y: str) -> None:
    """Write the methods beside their points; ten draws are short for `num_draws=10`."""
    values = [(row, board.value(row, x), board.value(row, y)) for row in board.rows]
    points = [
        (re.sub(r":num_draws=(\d+)$", r" ×\1", row), across, up, COLOURS[family(row)])
        for row, across, up in values
        if math.isfinite(across) and math.isfinite(up)
    ]
    write_names(axes, points)


def write_names(axes: Any, points: Sequence[tuple[str, float, float, str]]) -> None:
    """Write (name, x, y, colour) beside each point, clear of the others, far ones with a line."""
    canvas = require("matplotlib.backends.backend_agg", "matplotlib").FigureCanvasAgg
    canvas(axes.figure)
    axes.figure.draw_without_rendering()  # settles the layout that pixels are counted in
    axes.figure.set_layout_engine("none")
    names = [axes.text(x, y, name, fontsize=7, color=colour) for name, x, y, colour in points]
    # Rounds, not seconds: figures are the same on any machine.
    require("adjustText", "adjustText").adjust_text(
        names, ax=axes, iter_lim=_ROUNDS, arrowprops={"arrowstyle": "-", "lw": 0.4}
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
