"""Minimum Bayes risk: the text that the other texts agree with most.

Each text is scored by its expected utility with every text of the pool as the reference, itself
included; n texts take n² utilities (Eikema and Aziz, 2020). Knows no prompt.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from bestk.errors import MissingExtraError, OptionError, unknown
from bestk.rerank.base import Reranker

UTILITIES = ("chrf", "bleu")
WEIGHTS = ("uniform", "prob")

Utility = Callable[[str, str], float]


class MBR(Reranker):
    """Expected chrF, BLEU, or any `utility(hypothesis, reference)`.

    `weights="uniform"`: all texts count the same; `"prob"`: each by its share of the probability.
    """

    needs_source = False

    def __init__(self, utility: str | Utility = "chrf", *, weights: str = "uniform") -> None:
        if weights not in WEIGHTS:
            raise OptionError(unknown("MBR weights", weights, WEIGHTS))
        self.weights = weights
        if isinstance(utility, str):
            named = f"mbr-{utility}"
            self.utility = _named(utility)
        else:
            named = f"mbr-{getattr(utility, '__name__', type(utility).__name__)}"
            self.utility = utility
        self.name = named if weights == "uniform" else f"{named}:{weights}"

    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        weights = self._weights(texts, log_probs)
        return [
            math.fsum(
                weight * self.utility(text, reference)
                for weight, reference in zip(weights, texts, strict=True)
            )
            for text in texts
        ]

    def _weights(self, texts: Sequence[str], log_probs: Sequence[float] | None) -> list[float]:
        if self.weights == "uniform":
            return [1 / len(texts) for _ in texts]
        if log_probs is None:
            raise OptionError(f"{self.name} needs the model's log-probabilities of the texts")
        best = max(log_probs)
        shares = [math.exp(log_prob - best) for log_prob in log_probs]
        return [share / math.fsum(shares) for share in shares]


def _named(name: str) -> Utility:
    if name not in UTILITIES:
        raise OptionError(unknown("MBR utility", name, UTILITIES))
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise MissingExtraError("sacrebleu is not installed: pip install 'bestk[eval]'") from None
    # Without effective order a sentence that has no 4-gram in common would get 0.
    return functools.partial(_sentence, CHRF() if name == "chrf" else BLEU(effective_order=True))


def _sentence(metric: object, hypothesis: str, reference: str) -> float:
    return float(metric.sentence_score(hypothesis, [reference]).score)  # type: ignore[attr-defined]
