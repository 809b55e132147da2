"""Before, after, Δ: what choosing the first text anew does to a corpus score (the paper's Table 6).

Knows not how rerankers work, only that they score the texts of a source.
"""

from __future__ import annotations

from collections.abc import Sequence

from bestk.evaluation.board import Board, Scorer
from bestk.evaluation.examples import Pool
from bestk.evaluation.loading import Evaluation
from bestk.evaluation.metrics.registry import build
from bestk.evaluation.statistics import NUM_SAMPLES, compare_corpus
from bestk.evaluation.tables import Table, breaks, number
from bestk.rerank import Reranker


def rerank(evaluation: Evaluation, reranker: Reranker) -> Evaluation:
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


def rerank_table(
    evaluation: Evaluation,
    reranker: Reranker,
    *,
    column: str = "BLEU",
    samples: int = NUM_SAMPLES,
    seed: int = 0,
) -> Table:
    """Lay out |S|, D̄ and a corpus score before and after reranking, with the change."""
    metrics = build(["counts", "distinct", "bleu"])
    before = Scorer(evaluation, metrics, samples=samples, seed=seed).board()
    after = Scorer(rerank(evaluation, reranker), metrics, samples=samples, seed=seed).board()
    return Table(
        title=f"{evaluation.task}: {column} of the first text, reranked by {reranker.name}",
        headings=["", "|S|", "D", "before", "after", "Δ"],
        latex_headings=["", "$|S|$", r"$\overline{\rm D}$", "before", "after", r"$\Delta$"],
        groups=["", "", "", column, column, column],
        rows=[_row(before, after, row, column) for row in before.rows],
        breaks=breaks(before.rows),
        notes=[
            before.signature(column) + f"|rerank:{reranker.name}",
            "* the change has p < 0.05 in a paired bootstrap",
        ],
    )


def _row(before: Board, after: Board, row: str, column: str) -> list[tuple[str, str]]:
    cells = [(row, ""), *((f"{before.value(row, key):.1f}", "") for key in ("|S|", "D"))]
    for board in (before, after):
        cell = board.cells[row][column]
        shown = number(cell.estimate.value, cell.estimate.low, cell.estimate.high, 1)
        cells.append((shown, cell.mark))
    old, new = before.values[row][column], after.values[row][column]
    if not callable(old) or not callable(new):
        return [*cells, ("-", "")]
    size = before.evaluation.num_examples
    change = compare_corpus(new, old, size, samples=before.samples, seed=before.seed)
    star = "*" if change.p_value < 0.05 else ""
    return [*cells, (f"{change.difference:+.1f}{star}", "")]
