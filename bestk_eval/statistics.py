"""Intervals and tests over examples: the bootstrap, and the paired sign-flip permutation test.

Everything is seeded and vectorised. Knows numbers only; NaN means that an example has no value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Resample = Callable[[NDArray[np.int64] | None], float]  # rows of a sample; None: all, once
Values = Numbers | Resample | float  # by example, of any sample, or one number for all

NUM_SAMPLES = 1000
NUM_FLIPS = 10_000
SEED = 0
_BLOCK = 1_000_000  # random numbers held at a time


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """Numbers that go together."""

    def to_json(self) -> dict[str, float | None]:
        """Return the numbers as plain data; NaN is none."""
        told = dataclasses.asdict(self).items()
        return {name: None if value is None or math.isnan(value) else value for name, value in told}


@dataclass(frozen=True, kw_only=True)
class Estimate(Statistic):
    """A mean with its 95% bootstrap interval; an interval of None could not be had."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison(Statistic):
    """One method less another, over the examples that both have a value for."""

    difference: float
    low: float
    high: float
    p_value: float
    num_examples: int


def estimate(values: Values, num_examples: int, samples: int = NUM_SAMPLES) -> Estimate:
    """Average over examples, with the percentile interval over resampled examples.

    The score of a whole corpus, which is not a mean, is asked for each sample; a number that cannot
    be resampled has no interval.
    """
    if isinstance(values, float):
        return Estimate(value=values)
    if isinstance(values, np.ndarray):
        known = values[~np.isnan(values)]
        if not len(known):
            return Estimate(value=float("nan"))
        value = float(known.mean())
        scores = known[resamples(len(known), samples)].mean(axis=1)
    else:
        value = values(None)
        scores = np.array([values(rows) for rows in resamples(num_examples, samples)])
    low, high = np.percentile(scores, [2.5, 97.5])
    return Estimate(value=value, low=float(low), high=float(high))


def compare(
    ours: Values, theirs: Values, num_examples: int, samples: int = NUM_SAMPLES
) -> Comparison | None:
    """Test whether two methods differ; None where a number cannot be resampled."""
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        return compare_means(ours, theirs, samples)
    if callable(ours) and callable(theirs):
        return compare_corpus(ours, theirs, num_examples, samples)
    return None


def compare_means(ours: Numbers, theirs: Numbers, samples: int = NUM_SAMPLES) -> Comparison:
    """Test whether two methods differ: under the null a difference may as well be negative.

    The p-value counts the sign flips, of all 2^n or of 10,000 random ones, whose mean is at least
    as far from 0 as the one seen.
    """
    differences = ours - theirs
    differences = differences[~np.isnan(differences)]
    if not len(differences):
        nan = float("nan")
        return Comparison(difference=nan, low=nan, high=nan, p_value=nan, num_examples=0)
    interval = estimate(differences, len(differences), samples)
    assert interval.low is not None
    assert interval.high is not None
    return Comparison(
        difference=interval.value,
        low=interval.low,
        high=interval.high,
        p_value=sign_flip(differences),
        num_examples=len(differences),
    )


def compare_corpus(
    ours: Resample, theirs: Resample, num_examples: int, samples: int = NUM_SAMPLES
) -> Comparison:
    """Compare two scores of a whole corpus by the paired bootstrap (Koehn, 2004).

    The two-sided p-value is twice the share of samples whose difference has not the sign seen.
    """
    rows = resamples(num_examples, samples)
    differences = np.array([ours(row) - theirs(row) for row in rows])
    low, high = np.percentile(differences, [2.5, 97.5])
    against = min(float(np.mean(differences <= 0)), float(np.mean(differences >= 0)))
    return Comparison(
        difference=ours(None) - theirs(None),
        low=float(low),
        high=float(high),
        p_value=float(min(1.0, 2 * max(against, 1 / (2 * samples)))),
        num_examples=num_examples,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for being many (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [float("nan")] * len(p_values), 0.0
    for done, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        scaled = (len(p_values) - done) * float(p_values[place])
        least = max(least, min(1.0, scaled))
        corrected[place] = least
    return corrected


def sign_flip(differences: Numbers) -> float:
    """Return the two-sided p-value of the mean of paired differences."""
    size = len(differences)
    seen = abs(differences.sum()) * (1 - 1e-12)  # equal sums must count in spite of rounding
    if 2**size <= NUM_FLIPS:
        patterns = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
        return float(np.mean(np.abs((1.0 - 2.0 * patterns) @ differences) >= seen))
    generator = np.random.default_rng(SEED)
    hits, left = 0, NUM_FLIPS
    while left:
        block = min(left, max(1, _BLOCK // size))
        signs = generator.integers(0, 2, size=(block, size)) * 2.0 - 1.0
        hits += int(np.sum(np.abs(signs @ differences) >= seen))
        left -= block
    return (1 + hits) / (1 + NUM_FLIPS)


def resamples(size: int, samples: int) -> NDArray[np.int64]:
    """Draw the examples of each bootstrap sample; equal arguments draw equal samples."""
    drawn: Any = np.random.default_rng(SEED).integers(0, size, size=(samples, size))
    return np.asarray(drawn, dtype=np.int64)
