"""Differences of every method to a baseline, with p-values corrected for the number of methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bestk_eval.board import Board, digits
from bestk_eval.metrics.base import Column
from bestk_eval.statistics import Comparison, holm
from bestk_eval.tables import LAYOUTS, Table, view_title


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A method less the baseline, and the p-value that is corrected for the other methods."""

    comparison: Comparison
    p_holm: float


@dataclass(frozen=True, kw_only=True)
class Differences:
    """All that differs in one view of the texts."""

    board: Board
    baseline: str
    cells: dict[str, dict[str, Difference]]  # by row, then column

    def to_json(self) -> dict[str, Any]:
        """Return every difference with its interval and its p-values, alone and corrected."""
        return {
            "baseline": self.baseline,
            "methods": {
                row: {
                    key: {**cell.comparison.to_json(), "p_holm": cell.p_holm}
                    for key, cell in cells.items()
                }
                for row, cells in self.cells.items()
            },
        }


def differences(board: Board, baseline: str) -> Differences:
    """Test every method against a baseline; a column that cannot be resampled is left out.

    The columns are those of the table that the task's kind is summed up in.
    """
    told = LAYOUTS["translation" if board.evaluation.kind == "translation" else "condensed"]
    others = [row for row in board.rows if row != baseline]
    cells: dict[str, dict[str, Difference]] = {row: {} for row in others}
    for key in told:
        if key not in board.columns:
            continue
        found = [board.compare(row, baseline, key) for row in others]
        known = [comparison for comparison in found if comparison is not None]
        if len(known) < len(found):
            continue
        corrected = holm([comparison.p_value for comparison in known])
        for row, comparison, p_holm in zip(others, known, corrected, strict=True):
            cells[row][key] = Difference(comparison=comparison, p_holm=p_holm)
    return Differences(board=board, baseline=baseline, cells=cells)


def comparison_table(found: Differences) -> Table:
    """Lay out differences to a baseline with Holm-corrected p-values; * is p < 0.05."""
    board, rows = found.board, list(found.cells)
    columns = [board.columns[key] for key in next(iter(found.cells.values()), {})]
    return Table(
        title=f"{board.evaluation.task}: difference to {found.baseline}, {view_title(board)}",
        columns=columns,
        rows=[
            [(row, ""), *(_cell(found.cells[row][column.key], column) for column in columns)]
            for row in rows
        ],
        notes=[
            "paired sign-flip permutation tests over examples (BLEU, chrF: paired bootstrap), "
            "two-sided, Holm-corrected over methods; * is p < 0.05"
        ],
    )


def _cell(cell: Difference, column: Column) -> tuple[str, str]:
    difference = cell.comparison.difference
    star = "*" if cell.p_holm < 0.05 else ""
    better = difference * column.better
    mark = "" if not star else "best" if better > 0 else "worst" if better < 0 else ""
    return f"{difference:+.{digits(column)}f}{star} (p={cell.p_holm:.3f})", mark
