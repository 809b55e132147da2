"""The three kinds of metric, by what they look at: one text, the texts of an example, all of them.

A metric says its columns and its signature: everything that its numbers depend on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bestk_eval.examples import Example, Pool
from bestk_eval.statistics import Numbers, Resample


@dataclass(frozen=True, kw_only=True)
class Column:
    """A number that a table can show."""

    key: str  # in files, options and code: "R1"
    title: str  # what the number is, in words
    group: str  # Stat, Diversity, Oracle, Natural, Quality, Search
    better: int = 1  # 1: higher is better, -1: lower is, 0: neither
    latex: str = ""  # the heading, where it is not the key

    @property
    def heading(self) -> str:
        """Return the heading for LaTeX."""
        return self.latex or self.key


class Metric(ABC):
    """What all kinds share."""

    family: str
    columns: tuple[Column, ...]
    signature: str  # everything that the numbers depend on, sacrebleu-style
    is_slow = False  # worth keeping with the run: `bestk report --keep-scores`


class TextMetric(Metric):
    """Scores each text on its own, from 0 to 100.

    A set has the mean of its texts and the score of its best one (the oracle). A set without texts
    has 0 for both: leaving it out would reward methods for failing where it is hard.
    """

    is_needed: Callable[[Example], bool] = staticmethod(lambda example: bool(example.references))

    @abstractmethod
    def score(self, texts: Sequence[str], example: Example) -> Sequence[Sequence[float]]:
        """Return the scores of each text."""

    def summarise(self, mean: Numbers, best: Numbers) -> Sequence[float]:
        """Turn the scores of a set into this metric's columns."""
        return [*mean, *best]


class SetMetric(Metric):
    """Scores the texts of one example together. NaN: there is no such number for this set."""

    @abstractmethod
    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        """Return one number per column."""


class CorpusMetric(Metric):
    """Scores all examples of a method at once.

    `score` returns, per column, a function from the rows of a bootstrap sample (None: every
    example once) to the number, or a plain number where resampling costs too much.
    """

    @abstractmethod
    def score(self, pools: Sequence[Pool], view: str, top: int) -> Sequence[Resample | float]:
        """Return one score per column."""
