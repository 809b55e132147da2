"""Before, after, Δ: what choosing the first text anew does to a corpus score (the paper's Table 6).

A reranker is a function from a source and its texts to a score per text, highest first. Knows not
how rerankers work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bestk.evaluation.board import Scorer
from bestk.evaluation.examples import Pool
from bestk.evaluation.loading import Evaluation
from bestk.evaluation.metrics.registry import Metrics, build
from bestk.evaluation.statistics import NUM_SAMPLES, compare_corpus
from bestk.evaluation.tables import Table, family, number

Reranker = Callable[[str, Sequence[str]], Sequence[float]]


def rerank(evaluation: Evaluation, reranker: Reranker) -> Evaluation:
    """Put the texts of every example in the reranker's order; methods share what it has scored."""
    known: dict[tuple[str, tuple[str, ...]], Sequence[float]] = {}
    pools: dict[str, list[Pool]] = {}
    for row, found in evaluation.pools.items():
        pools[row] = []
        for pool in found:
            key = pool.example.input, pool.texts
            if key not in known:
                known[key] = reranker(pool.example.input, pool.texts) if pool.texts else []
            pools[row].append(pool.reordered(known[key]))
    return evaluation.with_order(pools)


def rerank_table(
    evaluation: Evaluation,
    reranker: Reranker,
    name: str,
    *,
    column: str = "BLEU",
    samples: int = NUM_SAMPLES,
    seed: int = 0,
) -> Table:
    """Lay out |S|, D̄ and a corpus score before and after reranking, with the change."""
    metrics: Metrics = build(["counts", "distinct", "bleu"])
    before = Scorer(evaluation, metrics, samples=samples, seed=seed).board()
    after = Scorer(rerank(evaluation, reranker), metrics, samples=samples, seed=seed).board()
    rows = []
    changes = {}
    for row in before.rows:
        old, new = before.values[row][column], after.values[row][column]
        assert callable(old)
        assert callable(new)
        size = evaluation.num_examples
        changes[row] = compare_corpus(new, old, size, samples=samples, seed=seed)
    for row in before.rows:
        cells = [(row, "")]
        for key in ("|S|", "D"):
            cells.append((f"{before.value(row, key):.1f}", ""))
        for board in (before, after):
            cell = board.cells[row][column]
            estimate = cell.estimate
            cells.append((number(estimate.value, estimate.low, estimate.high, 1), cell.mark))
        change = changes[row]
        star = "*" if change.p_value < 0.05 else ""
        cells.append((f"{change.difference:+.1f}{star}", ""))
        rows.append(cells)
    names = before.rows
    return Table(
        title=f"{evaluation.task}: {column} of the first text, reranked by {name}",
        headings=["", "|S|", "D", "before", "after", "Δ"],
        latex_headings=["", "$|S|$", r"$\overline{\rm D}$", "before", "after", r"$\Delta$"],
        groups=["", "", "", column, column, column],
        rows=rows,
        breaks={i for i in range(1, len(names)) if family(names[i]) != family(names[i - 1])},
        notes=[
            before.signature(column) + f"|rerank:{name}",
            "* the change has p < 0.05 in a paired bootstrap",
        ],
    )
