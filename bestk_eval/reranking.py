"""Before, after, Δ: what choosing the first text anew does to a corpus score (the paper's Table 6).

Knows not how rerankers work, only that they score the texts of a source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bestk.errors import MissingDataError
from bestk.rerank import Reranker
from bestk_eval.board import Board, Scorer
from bestk_eval.examples import Pool
from bestk_eval.loading import Evaluated
from bestk_eval.metrics.base import Column
from bestk_eval.metrics.registry import build
from bestk_eval.statistics import NUM_SAMPLES, Comparison, compare
from bestk_eval.tables import Table, number

COLUMN = "BLEU"  # what reranking is judged by
_BESIDE = ("|S|", "D")  # columns that it does not change


@dataclass(frozen=True, kw_only=True)
class Reranking:
    """The numbers before and after, and the change of every method where it can be tested."""

    name: str  # of the reranker
    before: Board
    after: Board
    changes: dict[str, Comparison | None]  # by row

    @property
    def signature(self) -> str:
        """Name everything that the numbers depend on."""
        return f"{self.before.signature(COLUMN)}|rerank:{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return every number with its interval, and the change with its p-value."""
        return {
            "reranker": self.name,
            "column": COLUMN,
            "signature": self.signature,
            "methods": {
                row: {
                    **{key: self.before.cells[row][key].estimate.to_json() for key in _BESIDE},
                    "before": self.before.cells[row][COLUMN].estimate.to_json(),
                    "after": self.after.cells[row][COLUMN].estimate.to_json(),
                    "change": None if change is None else change.to_json(),
                }
                for row, change in self.changes.items()
            },
        }


def rerank(evaluation: Evaluated, reranker: Reranker) -> Evaluated:
    """Put the texts of every example in the reranker's order; methods share what it has scored."""
    known: dict[tuple[object, ...], Sequence[float]] = {}
    pools: dict[str, list[Pool]] = {}
    for row, found in evaluation.pools.items():
        pools[row] = []
        for pool in found:
            key = pool.example.input, pool.texts, pool.log_probs
            if key not in known:
                known[key] = reranker(*key) if pool.texts else []
            pools[row].append(pool.reordered(known[key]))
    return evaluation.with_order(pools)


def reranking(evaluation: Evaluated, reranker: Reranker, samples: int = NUM_SAMPLES) -> Reranking:
    """Score the first texts before and after reranking."""
    metrics = build(["counts", "distinct", "bleu"])
    before = Scorer(evaluation, metrics, samples=samples).board()
    if COLUMN not in before.columns:
        reason = metrics.left_out.get("bleu", "no example has references")
        raise MissingDataError(f"reranking is judged by {COLUMN}: {reason}. Leave --rerank out")
    after = Scorer(rerank(evaluation, reranker), metrics, samples=samples).board()
    size = evaluation.num_examples
    changes = {
        row: compare(after.values[row][COLUMN], before.values[row][COLUMN], size, samples)
        for row in before.rows
    }
    return Reranking(name=reranker.name, before=before, after=after, changes=changes)


def rerank_table(found: Reranking) -> Table:
    """Lay out |S|, D̄ and a corpus score before and after reranking, with the change."""
    before = found.before
    return Table(
        title=f"{before.evaluation.task}: {COLUMN} of the first text, reranked by {found.name}",
        columns=[
            *(dataclasses.replace(before.columns[key], group="") for key in _BESIDE),
            Column(key="before", title="the first text as found", group=COLUMN),
            Column(key="after", title="the first text as reranked", group=COLUMN),
            Column(key="Δ", title="the change", group=COLUMN, latex=r"$\Delta$"),
        ],
        rows=[_row(found, row) for row in before.rows],
        notes=[found.signature, "* the change has p < 0.05 in a paired bootstrap"],
    )


def _row(found: Reranking, row: str) -> list[tuple[str, str]]:
    cells = [(row, ""), *((f"{found.before.value(row, key):.1f}", "") for key in _BESIDE)]
    for board in (found.before, found.after):
        cell = board.cells[row][COLUMN]
        shown = number(cell.estimate.value, cell.estimate.low, cell.estimate.high, 1)
        cells.append((shown, cell.mark))
    change = found.changes[row]
    if change is None:
        return [*cells, ("-", "")]
    star = "*" if change.p_value < 0.05 else ""
    return [*cells, (f"{change.difference:+.1f}{star}", "")]
