"""Choosing the few texts to show from a large pool: the best, or good ones that differ.

A greedy choice. Each turn takes the text with the highest

    (1 − diversity) · quality + diversity · novelty

among those that are no near-copy of a chosen one; of these a complete one while there is any. Loops
come last, and not at all where there are enough others.

`agreement` of two texts is how much they share: the F1 of their sets of 1- and of 2-grams of stems,
the mean of the two; a *near-copy* agrees by more than 0.6. Each text of the pool counts by its
share of the probability, flattened where log-probabilities lie far apart: those of long texts are
such sums that one text would have all the say.

- `quality` is the mean of two numbers. *Worth* is how much the pool agrees with a text (minimum
  Bayes risk), from 0, the worst of the pool, to 1, the best. *Gain* is how much closer the pool is
  to the chosen texts with this one among them, each text to the nearest (facility location: what
  makes it likely that one of those chosen is right); 1 for the text with the most. Where there was
  a reranker, its score is the quality, from 0 to 1.
- `novelty` is the share of its 1-, 2- and 3-grams that no chosen text has, the mean over the three.

`diversity=1` looks at novelty alone, `diversity=0` at quality alone, near-copies and all. With
`embed` agreement is the cosine similarity of vectors, novelty 1 minus the highest to a chosen text.
Equal values go to the text that comes first in the pool. A turn costs n² additions, so that of very
many texts the best ranked are looked at, and where very many are asked for the last come in the
order of the pool. Pure functions; knows no language model.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bestk.config import DIVERSITY, SELECTIONS
from bestk.errors import OptionError, unknown
from bestk.rerank.embed import sentence_model
from bestk.rerank.ngrams import agreements_of, gram_sets, is_loop
from bestk.result import Hypothesis, SearchResult

# Texts to one vector each (lists, an array or a tensor), or the name of a sentence model.
Embed = Callable[[list[str]], Any] | str

_DIGITS = 9  # of a value: what differs less is equal, on every machine
_COPY = 0.6  # agreement above which a text is a near-copy
_SPREAD = 1.5  # nats: the most by which log-probabilities deviate, before they are flattened
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
    check_selection(select, diversity, num_texts)
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
        is_complete=[h.is_complete for h in pool],
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
    is_complete: Sequence[bool] | None = None,
    embed: Embed | None = None,
) -> list[int]:
    """Return the places of good texts that differ, in the order chosen, cut ones and loops last.

    `scores` say what texts are worth, where that is not how much the pool agrees with them. Without
    `log_probs` all texts count the same, without `is_complete` all are complete.

    >>> diverse(["a dog runs", "a dog", "two cats"], [-0.1, -0.2, -0.3], 2)
    [0, 2]
    """
    for name, values in {"log_probs": log_probs, "scores": scores, "complete": is_complete}.items():
        if values is not None and len(values) != len(texts):
            raise OptionError(
                f"{name} must be one number per text, got {len(values)} for {len(texts)} texts"
            )
    if len(texts) <= 1:
        return list(range(len(texts)))[:num_texts]
    known = [0.0] * len(texts) if log_probs is None else log_probs
    is_cut = [is_complete is not None and not is_complete[place] for place in range(len(texts))]
    loops = {place for place, text in enumerate(texts) if is_loop(text)}
    rest = [place for place in range(len(texts)) if place not in loops] or sorted(loops)
    head = rest[:_MOST]
    chosen = _greedy(
        [texts[place] for place in head],
        _finite("log_probs", known)[head],
        min(num_texts, _TURNS),
        diversity,
        None if scores is None else _finite("scores", scores)[head],
        torch.tensor(is_cut)[head],
        embed,
    )
    order = dict.fromkeys([*(head[index] for index in chosen), *rest, *sorted(loops)])
    return sorted([*order][:num_texts], key=lambda place: (place in loops, is_cut[place]))


def _greedy(
    texts: list[str],
    log_probs: Tensor,
    num_texts: int,
    diversity: float,
    scores: Tensor | None,
    is_cut: Tensor,
    embed: Embed | None,
) -> list[int]:
    words = _ByNgrams(texts)
    kind: _Kind = words if embed is None else _ByVectors(texts, embed)
    judge: _Quality = (
        _Agreed(kind.agreements, _shares(log_probs)) if scores is None else _Judged(scores)
    )
    is_copy = torch.zeros_like(is_cut)
    chosen: list[int] = []
    left = list(range(len(texts)))
    while left and len(chosen) < num_texts:
        value = (1 - diversity) * judge.quality() + diversity * kind.novelty()
        # Values lie between 0 and 1: what is to come after others lies below them all.
        values = (value.round(decimals=_DIGITS) - 4 * is_copy - 2 * is_cut).tolist()
        best = max(left, key=values.__getitem__)  # the first of equals, which is the better ranked
        left.remove(best)
        chosen.append(best)
        kind.add(best)
        judge.add(best)
        if diversity > 0:
            is_copy |= words.agreements[best] > _COPY
    return chosen


def _shares(log_probs: Tensor) -> Tensor:
    """Return how much each text of a pool counts."""
    spread = log_probs.std(correction=0).clamp(min=_SPREAD)
    return (log_probs * (_SPREAD / spread)).softmax(0)


def narrow(
    result: SearchResult,
    num_texts: int | None,
    how: str | None = None,
    *,
    diversity: float = DIVERSITY,
    embed: Embed | None = None,
) -> SearchResult:
    """Return the result with the chosen hypotheses alone; `raw` still holds all that was found."""
    check_selection(how, diversity, num_texts)
    if num_texts is None:
        return result
    if how is None:
        how = "diverse" if result.config.policy == "diverse" else "best"
    chosen = select(result.hypotheses, num_texts, how, diversity=diversity, embed=embed)
    judge = f",embed:{embed}" if isinstance(embed, str) else ",embed" if embed else ""
    by = how if how == "best" else f"{how},{diversity:g}{judge}"
    return dataclasses.replace(
        result,
        hypotheses=tuple(chosen),
        certified=sum(h.is_certified for h in chosen),
        signature=f"{result.signature}|select:{by},{num_texts}",
    )


def check_selection(select: str | None, diversity: float, num_texts: int | None) -> None:
    """Raise if a setting of the choice breaks its rule."""
    if num_texts is None and select == "diverse":
        raise OptionError("select='diverse' needs num_texts: how many texts to choose")
    if num_texts is not None and (isinstance(num_texts, bool) or not isinstance(num_texts, int)):
        raise OptionError(f"num_texts must be a whole number, got {num_texts!r}")
    if num_texts is not None and num_texts < 1:
        raise OptionError(f"num_texts must be at least 1, got {num_texts}")
    if select is not None and select not in SELECTIONS:
        raise OptionError(unknown("select", str(select), SELECTIONS))
    if isinstance(diversity, bool) or not isinstance(diversity, int | float):
        raise OptionError(f"diversity must be a number from 0 to 1, got {diversity!r}")
    if not 0 <= diversity <= 1:
        raise OptionError(f"diversity goes from 0 (quality alone) to 1, got {diversity}")


def check_embed(embed: Embed | None) -> None:
    """Raise if nothing turns texts into vectors; a sentence model is loaded."""
    if isinstance(embed, str):
        sentence_model(embed)
    elif embed is not None and not callable(embed):
        raise OptionError(
            "embed must be a function from texts to vectors or the name of a sentence model, "
            f"got {embed!r:.60}"
        )


class _Quality(Protocol):
    """How good each text is beside those chosen, from 0 to 1."""

    def quality(self) -> Tensor: ...

    def add(self, index: int) -> None: ...


class _Agreed:
    """Worth and gain, by what the pool agrees on."""

    def __init__(self, agreements: Tensor, weights: Tensor) -> None:
        self.agreements, self.weights = agreements, weights
        self.worth = _scaled(agreements @ weights)
        self.near = torch.zeros_like(weights)  # of each text, to the nearest chosen

    def quality(self) -> Tensor:
        gain = (self.agreements - self.near).clamp_(min=0) @ self.weights
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
        self.agreements = agreements_of(self.grams)
        self.holders: dict[tuple[str, ...], list[int]] = defaultdict(
            list
        )  # of what is not said yet
        for place, orders in enumerate(self.grams):
            for gram in itertools.chain(*orders):
                self.holders[gram].append(place)
        self.fresh = [[len(grams) for grams in orders] for orders in self.grams]
        self.sizes = torch.tensor(self.fresh, dtype=torch.float64)

    def novelty(self) -> Tensor:
        shares = torch.tensor(self.fresh, dtype=torch.float64) / self.sizes.clamp(min=1)
        return shares.sum(1) / (self.sizes > 0).sum(1).clamp(min=1)

    def add(self, index: int) -> None:
        for order, grams in enumerate(self.grams[index]):
            for gram in grams:
                for place in self.holders.pop(gram, ()):
                    self.fresh[place][order] -= 1


class _ByVectors:
    def __init__(self, texts: list[str], embed: Embed) -> None:
        check_embed(embed)
        found = (sentence_model(embed) if isinstance(embed, str) else embed)(texts)
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
