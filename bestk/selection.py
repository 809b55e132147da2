"""Choosing the few texts to show from a large pool: the best, or good ones that differ.

A greedy choice. Each turn takes the text with the highest

    (1 − diversity) · quality + diversity · novelty

where `quality` is the text's score (a reranker's, if there was one) from 0, the worst of the pool,
to 1, the best; and `novelty` is the share of its 1-, 2- and 3-grams that no chosen text has, the
mean over the three. `diversity=0` is the order of the pool, `diversity=1` looks at novelty alone.
With an `embed` function novelty is 1 minus the highest cosine similarity to a chosen text instead.

Equal gains go to the text that comes first in the pool, so the choice is deterministic. Choosing m
of n texts costs n·m looks at a text. Pure functions; knows no model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bestk.config import DIVERSITY, SELECTIONS
from bestk.errors import OptionError, unknown
from bestk.ngrams import ORDERS, ngrams, words
from bestk.result import Hypothesis, SearchResult

Embed = Callable[[list[str]], Any]  # texts to one vector each: lists, an array or a tensor


def select(
    hypotheses: Sequence[Hypothesis],
    num_texts: int,
    select: str = "diverse",
    *,
    diversity: float = DIVERSITY,
    embed: Embed | None = None,
) -> list[Hypothesis]:
    """Choose texts from a ranked pool; they come in the order chosen, the best text first.

    With `select="best"` these are the first of the pool, and `diversity` is not looked at.
    """
    check_selection(num_texts, select, diversity)
    pool = list(hypotheses)
    if select == "best":
        return pool[:num_texts]
    scores = [h.score if h.rerank_score is None else h.rerank_score for h in pool]
    places = diverse([h.text for h in pool], scores, num_texts, diversity, embed)
    return [pool[place] for place in places]


def diverse(
    texts: Sequence[str],
    scores: Sequence[float],
    num_texts: int,
    diversity: float = DIVERSITY,
    embed: Embed | None = None,
) -> list[int]:
    """Return the places of good texts that differ, in the order chosen.

    >>> diverse(["a dog", "a dog runs", "two cats"], [-0.1, -0.2, -0.3], 2, diversity=0.9)
    [0, 2]
    """
    if len(texts) <= 1:
        return list(range(len(texts)))[:num_texts]
    quality = _scaled(scores)
    novelty = _UnseenNgrams(texts) if embed is None else _Distance(list(texts), embed)
    chosen: list[int] = []
    left = list(range(len(texts)))
    while left and len(chosen) < num_texts:
        # `max` takes the first of equals, which is the better ranked.
        best = max(left, key=lambda i: (1 - diversity) * quality[i] + diversity * novelty.of(i))
        left.remove(best)
        chosen.append(best)
        novelty.add(best)
    return chosen


def narrow(
    result: SearchResult,
    num_texts: int | None,
    how: str = "best",
    *,
    diversity: float = DIVERSITY,
    embed: Embed | None = None,
) -> SearchResult:
    """Return the result with the chosen hypotheses alone; `raw` still holds all that was found."""
    if num_texts is None:
        return result
    chosen = select(result.hypotheses, num_texts, how, diversity=diversity, embed=embed)
    by = how if how == "best" else f"{how},{diversity:g}{',embed' if embed else ''}"
    return dataclasses.replace(
        result,
        hypotheses=tuple(chosen),
        certified=sum(h.is_certified for h in chosen),
        signature=f"{result.signature}|select:{by},{num_texts}",
    )


def check_selection(num_texts: int | None, select: str, diversity: float) -> None:
    """Raise if a setting of the choice breaks its rule."""
    if num_texts is not None and (isinstance(num_texts, bool) or not isinstance(num_texts, int)):
        raise OptionError(f"num_texts must be a whole number, got {num_texts!r}")
    if num_texts is not None and num_texts < 1:
        raise OptionError(f"num_texts must be at least 1, got {num_texts}")
    if select not in SELECTIONS:
        raise OptionError(unknown("select", str(select), SELECTIONS))
    if select == "diverse" and num_texts is None:
        raise OptionError("select='diverse' needs num_texts: how many texts to choose")
    if isinstance(diversity, bool) or not isinstance(diversity, int | float):
        raise OptionError(f"diversity must be a number from 0 to 1, got {diversity!r}")
    if not 0 <= diversity <= 1:
        raise OptionError(f"diversity goes from 0 (quality alone) to 1, got {diversity}")


class _Novelty(Protocol):
    """How new a text is beside those chosen, from 0 to 1."""

    def of(self, index: int) -> float: ...

    def add(self, index: int) -> None: ...


class _UnseenNgrams(_Novelty):
    def __init__(self, texts: Sequence[str]) -> None:
        rows = [words(text) for text in texts]
        self.grams = [[set(ngrams(row, n)) for n in ORDERS] for row in rows]
        self.seen: set[tuple[str, ...]] = set()

    def of(self, index: int) -> float:
        shares = [len(grams - self.seen) / len(grams) for grams in self.grams[index] if grams]
        return sum(shares) / len(shares) if shares else 0.0

    def add(self, index: int) -> None:
        for grams in self.grams[index]:
            self.seen |= grams


class _Distance(_Novelty):
    def __init__(self, texts: list[str], embed: Embed) -> None:
        vectors = [[float(x) for x in vector] for vector in embed(texts)]
        if len(vectors) != len(texts):
            raise OptionError(
                f"embed must return one vector per text, got {len(vectors)} for {len(texts)} texts"
            )
        self.vectors = [_unit(vector) for vector in vectors]
        self.nearest = [0.0] * len(vectors)

    def of(self, index: int) -> float:
        return 1 - self.nearest[index]

    def add(self, index: int) -> None:
        new = self.vectors[index]
        for i, vector in enumerate(self.vectors):
            similarity = sum(x * y for x, y in zip(vector, new, strict=True))
            self.nearest[i] = max(self.nearest[i], min(similarity, 1.0))


def _scaled(scores: Sequence[float]) -> list[float]:
    """Map scores to 0 … 1; equal ones are all best."""
    worst, best = min(scores), max(scores)
    if best == worst:
        return [1.0 for _ in scores]
    return [(score - worst) / (best - worst) for score in scores]


def _unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length else vector
