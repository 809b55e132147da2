"""Minimum Bayes risk: the text that the other texts agree with most.

Each text is scored by its expected utility with every text of the pool as the reference, itself
included; n texts take n² utilities (Eikema and Aziz, 2020). The expectation is the model's: a text
counts by its probability. Draws that are all kept, duplicates too, are as many as they are likely
and may count the same; where each text comes once, the unlikely are in the majority. Knows no
prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bestk.errors import MissingExtraError, OptionError, unknown
from bestk.rerank.base import Reranker, numbers
from bestk.rerank.chrf import chrf_of_pairs

UTILITIES = ("chrf", "bleu")
WEIGHTS = ("prob", "uniform")

Utility = Callable[[str, str], float]
Pairs = Callable[[Sequence[str]], Tensor]  # texts to the utility of each (row) by each (column)


class MBR(Reranker):
    """Expected chrF, BLEU, or any `utility(hypothesis, reference)`.

    `weights="prob"`: each text counts by its share of the probability; `"uniform"`: all the same.
    """

    needs_source = False

    def __init__(self, utility: str | Utility = "chrf", *, weights: str = "prob") -> None:
        if weights not in WEIGHTS:
            raise OptionError(unknown("MBR weights", weights, WEIGHTS))
        self.weights = weights
        if isinstance(utility, str):
            named = f"mbr-{utility}"
            self.pairs = _named(utility)
        else:
            named = f"mbr-{getattr(utility, '__name__', type(utility).__name__)}"
            self.pairs = _of_each(utility, named)
        self.name = named if weights == "prob" else f"{named}:{weights}"

    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        if not texts:
            return []
        weights = self._weights(texts, log_probs)
        return [
            math.fsum(weight * utility for weight, utility in zip(weights, row, strict=True))
            for row in self.pairs(texts).tolist()
        ]

    def _weights(self, texts: Sequence[str], log_probs: Sequence[float] | None) -> list[float]:
        if self.weights == "uniform":
            return [1 / len(texts) for _ in texts]
        if log_probs is None:
            raise OptionError(
                f"{self.name} needs the model's log-probabilities of the texts: where they are not "
                "known, take weights='uniform' (mbr-chrf:uniform)"
            )
        best = max(log_probs)
        shares = [math.exp(log_prob - best) for log_prob in log_probs]
        return [share / math.fsum(shares) for share in shares]


def _named(name: str) -> Pairs:
    if name not in UTILITIES:
        raise OptionError(unknown("MBR utility", name, UTILITIES))
    if name == "chrf":
        return chrf_of_pairs
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise MissingExtraError("sacrebleu is not installed: pip install 'bestk[eval]'") from None
    # Without effective order a sentence that has no 4-gram in common would get 0.
    metric: Any = BLEU(effective_order=True)
    return _of_each(lambda text, other: float(metric.sentence_score(text, [other]).score), name)


def _of_each(utility: Utility, name: str) -> Pairs:
    def pairs(texts: Sequence[str]) -> Tensor:
        rows = [numbers(name, [utility(text, other) for other in texts]) for text in texts]
        return torch.tensor(rows, dtype=torch.float64)

    return pairs
