"""The scoreboard: every metric of every method, with intervals, marks and comparisons.

Scores each text once, however many views look at it. Knows no rendering.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bestk.errors import BestKError, MissingDataError, MissingExtraError, OptionError, unknown
from bestk_eval.examples import Example, Pool
from bestk_eval.kept import KeptScores, Label, digest_of, rounded
from bestk_eval.loading import Evaluated
from bestk_eval.metrics.base import Column, CorpusMetric, Metric, SetMetric, TextMetric
from bestk_eval.metrics.registry import MetricSet
from bestk_eval.statistics import (
    NUM_SAMPLES,
    SEED,
    Comparison,
    Estimate,
    Numbers,
    Values,
    compare,
    estimate,
)

DEFAULT_TOP = 10


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number in a table; `mark` is best, second, worst or nothing."""

    estimate: Estimate
    mark: str = ""


@dataclass(frozen=True, kw_only=True)
class Board:
    """The numbers of one view of the texts."""

    evaluation: Evaluated
    view: str
    top: int
    columns: dict[str, Column]
    cells: dict[str, dict[str, Cell]]  # by row, then column
    values: dict[str, dict[str, Values]]
    signatures: dict[str, str]  # by column
    left_out: dict[str, str]
    samples: int

    @property
    def rows(self) -> list[str]:
        """List the methods."""
        return list(self.cells)

    def value(self, row: str, column: str) -> float:
        """Return one number."""
        return self.cells[row][column].estimate.value

    def signature(self, column: str) -> str:
        """Name everything that a column's numbers depend on."""
        return f"{column}|{self.signatures[column]}|{self.conditions}"

    @property
    def conditions(self) -> str:
        """Name what all numbers of the board depend on."""
        texts = _texts(self.view, self.top)
        return f"texts:{texts}|ci:bootstrap{self.samples},seed{SEED}|{self.evaluation.signature}"

    def compare(self, row: str, baseline: str, column: str) -> Comparison | None:
        """Test a method against another; None where a number cannot be resampled."""
        for name in (row, baseline):
            if name not in self.values:
                raise OptionError(unknown("method", name, self.values))
        ours, theirs = self.values[row][column], self.values[baseline][column]
        return compare(ours, theirs, self.evaluation.num_examples, self.samples)


class Scorer:
    """Scores an evaluation, view after view.

    What the folders of its runs have kept of slow metrics is not computed again; with
    `keep_scores` they keep what is.
    """

    def __init__(
        self,
        evaluation: Evaluated,
        metrics: MetricSet,
        *,
        top: int = DEFAULT_TOP,
        samples: int = NUM_SAMPLES,
        keep_scores: bool = False,
    ) -> None:
        if top < 1:
            raise OptionError(f"the number of texts to compare must be at least 1, got {top}")
        self.evaluation = evaluation
        self.metrics = metrics
        self.top = top
        self.samples = samples
        self.keep_scores = keep_scores
        self._kept = KeptScores()
        self._missing: dict[str, BestKError] = {}  # by family
        self._texts: dict[tuple[str, str], dict[str, Sequence[float]]] = {}  # by metric, example

    def board(self, view: str = "all") -> Board:
        """Return the numbers of one view; a column that no example has a value for is dropped."""
        values: dict[str, dict[str, Values]] = {row: {} for row in self.evaluation.pools}
        columns: dict[str, Column] = {}
        signatures: dict[str, str] = {}
        left_out = dict(self.metrics.left_out)
        for metric in self.metrics.built:
            try:
                scored = {row: self._values(metric, row, view) for row in values}
            except (MissingDataError, MissingExtraError) as error:
                self._missing[metric.family] = error
                left_out[metric.family] = str(error)
                continue
            for row, found in scored.items():
                values[row] |= found
            for column in metric.columns:
                columns[column.key] = column
                signatures[column.key] = metric.signature
        size, samples = self.evaluation.num_examples, self.samples
        estimates = {
            row: {key: estimate(found, size, samples) for key, found in by_column.items()}
            for row, by_column in values.items()
        }
        kept = {
            key: column
            for key, column in columns.items()
            if any(not np.isnan(cells[key].value) for cells in estimates.values())
        }
        marks = {key: _marks(estimates, column) for key, column in kept.items()}
        return Board(
            evaluation=self.evaluation,
            view=view,
            top=self.top,
            columns=kept,
            cells={
                row: {key: Cell(estimate=cells[key], mark=marks[key].get(row, "")) for key in kept}
                for row, cells in estimates.items()
            },
            values=values,
            signatures=signatures,
            left_out=left_out,
            samples=self.samples,
        )

    def _values(self, metric: Metric, row: str, view: str) -> dict[str, Values]:
        """Return the values of a method by column, kept or computed."""
        pools, keys = self.evaluation.pools[row], [column.key for column in metric.columns]
        if not metric.is_slow:
            return dict(zip(keys, self._score(metric, pools, view), strict=True))
        folder, method = self.evaluation.folders[row], self.evaluation.methods[row].name
        label = Label(metric=metric.signature, texts=_texts(view, self.top), method=method)
        texts = digest_of(pools, view, self.top)
        kept = self._kept.find(folder, label, texts, keys, len(pools))
        if kept is not None:
            return dict(zip(keys, kept, strict=True))
        if metric.family in self._missing:
            raise self._missing[metric.family]  # looked for once, whatever the view
        found = [rounded(values) for values in self._score(metric, pools, view)]
        values = dict(zip(keys, found, strict=True))
        if self.keep_scores:
            self._kept.add(folder, label, texts, values)
            self._kept.save()  # now: the next one may take an hour
        return values

    def _score(self, metric: Metric, pools: Sequence[Pool], view: str) -> Sequence[Values]:
        if isinstance(metric, CorpusMetric):
            return metric.score(pools, view, self.top)
        if isinstance(metric, SetMetric):
            by_example = [metric.score(pool, view, self.top) for pool in pools]
        else:
            assert isinstance(metric, TextMetric)
            by_example = [self._summarise(metric, pool, view) for pool in pools]
        return list(np.array(by_example, dtype=np.float64).T)

    def _summarise(self, metric: TextMetric, pool: Pool, view: str) -> Sequence[float]:
        if not metric.is_needed(pool.example):
            return [float("nan")] * len(metric.columns)
        weighed = zip(pool.texts, pool.weights(view, self.top), strict=True)
        shown = {text: weight for text, weight in weighed if weight}
        if not shown:
            return [0.0] * len(metric.columns)
        scores = self._scores(metric, list(shown), pool.example)
        weights = np.array(list(shown.values()), dtype=np.float64)
        return metric.summarise(weights @ scores / weights.sum(), scores.max(axis=0))

    def _scores(self, metric: TextMetric, texts: Sequence[str], example: Example) -> Numbers:
        """Score some texts; what any method or view has shown before is not scored again."""
        known = self._texts.setdefault((metric.family, example.id), {})
        new = [text for text in texts if text not in known]
        if new:
            known.update(zip(new, metric.score(new, example), strict=True))
        return np.array([known[text] for text in texts], dtype=np.float64)


def _texts(view: str, top: int) -> str:
    """Name a view in signatures."""
    return f"{view}{top}" if view in ("top", "diverse") else view


def _marks(estimates: dict[str, dict[str, Estimate]], column: Column) -> dict[str, str]:
    """Mark the best, second and worst number of a column, as shown; equal ones are marked alike."""
    if not column.better:
        return {}
    shown = {
        row: round(column.better * cells[column.key].value, digits(column))
        for row, cells in estimates.items()
        if not np.isnan(cells[column.key].value)
    }
    places = sorted(set(shown.values()), reverse=True)
    if len(places) < 2:
        return {}
    names = {places[-1]: "worst", places[0]: "best"}
    if len(places) > 2:
        names[places[1]] = "second"
    return {row: names[value] for row, value in shown.items() if value in names}


def digits(column: Column) -> int:
    """Return how many decimals a column shows."""
    return 3 if column.key == "Time" else 1


def views_of(evaluation: Evaluated) -> Iterator[str]:
    """Name the views that differ: `all` from `unique` only where a text came twice."""
    yield "all"
    pools = [pool for row in evaluation.pools.values() for pool in row]
    if any(pool.num_texts != len(pool.texts) for pool in pools):
        yield "unique"
    yield "top"
    yield "diverse"
