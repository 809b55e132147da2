"""Choosing the few texts to show from a large pool: the best, or good ones that differ.

A greedy choice. Each turn takes the text with the highest

    (1 − diversity) · quality + diversity · novelty

`agreement` of two texts is how much they share: the F1 of their sets of 1- and of 2-grams, the mean
of the two. Each text of the pool counts by its share of the probability.

- `quality` is the mean of two numbers. *Worth* is how much the pool agrees with a text (minimum
  Bayes risk), from 0, the worst of the pool, to 1, the best. *Gain* is how much closer the pool is
  to the chosen texts with this one among them, each text to the nearest (facility location: what
  makes it likely that one of those chosen is right); 1 for the text with the most. Where there was
  a reranker, its score is the quality, from 0 to 1.
- `novelty` is the share of its 1-, 2- and 3-grams that no chosen text has, the mean over the three.

`diversity=1` looks at novelty alone. With an `embed` function agreement is the cosine similarity
of the texts' vectors, and novelty 1 minus the highest to a chosen text.

Equal values go to the text that comes first in the pool, so the choice is deterministic. A turn
costs n² additions, so that of very many texts the best ranked are looked at, and where very many
are asked for the last come in the order of the pool. Pure functions; knows no model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bestk.config import DIVERSITY, SELECTIONS
from bestk.errors import OptionError, unknown
from bestk.rerank.ngrams import agreements_of, gram_sets
from bestk.result import Hypothesis, SearchResult

Embed = Callable[[list[str]], Any]  # texts to one vector each: lists, an array or a tensor

_DIGITS = 9  # of a value: what differs less is equal, on every machine
_MOST = 1000  # texts that are compared with one another: memory and time grow with their square
_TURNS = 300  # texts that are chosen one by one


def select(
    hypotheses: Sequence[Hypothesis],
    num_texts: int,
    select: str = "diverse",
    *,
    diversity: float = DIVERSITY,
    embed: Embed | None = None,
) -> list[Hypothesis]:
    """Choose texts from a ranked pool; they come in the order chosen.

    With `select="best"` these are the first of the pool, and `diversity` is not looked at.
    """
    check_selection(num_texts, select, diversity)
    pool = list(hypotheses)
    if select == "best":
        return pool[:num_texts]
    reranked = [h.rerank_score for h in pool if h.rerank_score is not None]
    places = diverse(
        [h.text for h in pool],
        [h.log_prob for h in pool],
        num_texts,
        diversity,
        scores=reranked if len(reranked) == len(pool) else None,
        embed=embed,
    )
    return [pool[place] for place in places]


def diverse(
    texts: Sequence[str],
    log_probs: Sequence[float] | None,
    num_texts: int,
    diversity: float = DIVERSITY,
    *,
    scores: Sequence[float] | None = None,
    embed: Embed | None = None,
) -> list[int]:
    """Return the places of good texts that differ, in the order chosen.

    `scores` say what texts are worth, where that is not how much the pool agrees with them. Without
    `log_probs` all texts count the same.

    >>> diverse(["a dog runs", "a dog", "two cats"], [-0.1, -0.2, -0.3], 2)
    [0, 2]
    """
    for name, values in (("log_probs", log_probs), ("scores", scores)):
        if values is not None and len(values) != len(texts):
            raise OptionError(
                f"{name} must be one number per text, got {len(values)} for {len(texts)} texts"
            )
    if len(texts) <= 1:
        return list(range(len(texts)))[:num_texts]
    known = [0.0] * len(texts) if log_probs is None else log_probs
    chosen = _greedy(
        texts[:_MOST],
        _finite("log_probs", known[:_MOST]),
        min(num_texts, _TURNS),
        diversity,
        None if scores is None else _finite("scores", scores[:_MOST]),
        embed,
    )
    taken = set(chosen)
    others = [place for place in range(len(texts)) if place not in taken]
    return [*chosen, *others][:num_texts]


def _greedy(
    texts: Sequence[str],
    log_probs: Tensor,
    num_texts: int,
    diversity: float,
    scores: Tensor | None,
    embed: Embed | None,
) -> list[int]:
    kind: _Kind = _ByNgrams(texts) if embed is None else _ByVectors(list(texts), embed)
    judge: _Quality = (
        _Agreed(kind.agreements, log_probs.softmax(0)) if scores is None else _Judged(scores)
    )
    chosen: list[int] = []
    left = list(range(len(texts)))
    while left and len(chosen) < num_texts:
        value = (1 - diversity) * judge.quality() + diversity * kind.novelty()
        values = value.round(decimals=_DIGITS).tolist()
        best = max(left, key=values.__getitem__)  # the first of equals, which is the better ranked
        left.remove(best)
        chosen.append(best)
        kind.add(best)
        judge.add(best)
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
    check_selection(num_texts, how, diversity)
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


def check_embed(embed: Embed | None) -> None:
    """Raise if what should turn texts into vectors is no function."""
    if embed is not None and not callable(embed):
        raise OptionError(f"embed must be a function from texts to vectors, got {embed!r:.60}")


class _Quality(Protocol):
    """How good each text is beside those chosen, from 0 to 1."""

    def quality(self) -> Tensor: ...

    def add(self, index: int) -> None: ...


class _Agreed:
    """Worth and gain, by what the pool agrees on."""

    def __init__(self, agreements: Tensor, weights: Tensor) -> None:
        self.agreements, self.weights = agreements, weights
        self.worth = _scaled((agreements * weights).sum(1))
        self.near = torch.zeros_like(weights)  # of each text, to the nearest chosen

    def quality(self) -> Tensor:
        gain = ((self.agreements - self.near).clamp(min=0) * self.weights).sum(1)
        return (self.worth + gain / gain.max().clamp(min=1e-300)) / 2

    def add(self, index: int) -> None:
        self.near = torch.maximum(self.near, self.agreements[index])


class _Judged:
    """A reranker's scores."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = _scaled(scores)

    def quality(self) -> Tensor:
        return self.scores

    def add(self, index: int) -> None:
        pass


class _Kind(Protocol):
    """How near texts are to one another, and how new each is beside those chosen; from 0 to 1."""

    @property
    def agreements(self) -> Tensor: ...  # texts × texts

    def novelty(self) -> Tensor: ...

    def add(self, index: int) -> None: ...


class _ByNgrams:
    def __init__(self, texts: Sequence[str]) -> None:
        self.grams = [gram_sets(text) for text in texts]
        self.seen: set[tuple[str, ...]] = set()

    @functools.cached_property
    def agreements(self) -> Tensor:
        return agreements_of(self.grams)

    def novelty(self) -> Tensor:
        return torch.tensor([self._of(grams) for grams in self.grams], dtype=torch.float64)

    def _of(self, orders: list[set[tuple[str, ...]]]) -> float:
        shares = [len(grams - self.seen) / len(grams) for grams in orders if grams]
        return sum(shares) / len(shares) if shares else 0.0

    def add(self, index: int) -> None:
        for grams in self.grams[index]:
            self.seen |= grams


class _ByVectors:
    def __init__(self, texts: list[str], embed: Embed) -> None:
        check_embed(embed)
        found = embed(texts)
        try:
            vectors = list(found)
        except TypeError:
            raise OptionError(f"embed must return one vector per text, got {found!r:.60}") from None
        if len(vectors) != len(texts):
            raise OptionError(
                f"embed must return one vector per text, got {len(vectors)} for {len(texts)} texts"
            )
        try:
            rows = torch.tensor([[float(x) for x in vector] for vector in vectors]).double()
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last
            raise OptionError(f"embed must return vectors of one length: {error}") from None
        if not rows.isfinite().all():
            raise OptionError("embed must return finite numbers, got NaN or infinity")
        units = torch.nn.functional.normalize(rows, dim=1)
        self.agreements = (units @ units.T).clamp(0, 1).fill_diagonal_(1.0)
        self.nearest = torch.zeros(len(texts), dtype=torch.float64)

    def novelty(self) -> Tensor:
        return 1 - self.nearest

    def add(self, index: int) -> None:
        self.nearest = torch.maximum(self.nearest, self.agreements[index])


def _finite(name: str, values: Sequence[float]) -> Tensor:
    found = torch.tensor(values, dtype=torch.float64)
    if not found.isfinite().all():
        raise OptionError(f"{name} must be finite to choose by them, got {list(values)[:5]}")
    return found


def _scaled(values: Tensor) -> Tensor:
    """Map values to 0 … 1; equal ones are all best."""
    worst, best = values.min(), values.max()
    if best - worst <= 1e-12 * best.abs().clamp(min=1):
        return torch.ones_like(values)
    return (values - worst) / (best - worst)
