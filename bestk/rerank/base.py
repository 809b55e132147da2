"""What a reranker is, and `rerank`, which puts a result in its order.

A reranker gives every text of one prompt a score, higher is better. Scores of the search stay in
`Hypothesis.score`, the new ones go to `rerank_score`, so both orders can be had from one result.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from bestk.errors import OptionError, PromptError, unknown
from bestk.result import SearchResult

RERANKERS = ("mbr-chrf", "mbr-bleu", "reward:NAME", "comet-qe")


class Reranker(abc.ABC):
    """Scores the texts of one prompt."""

    name: str = "reranker"
    needs_source: bool = True  # whether the prompt's text is looked at

    @abc.abstractmethod
    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        """Return a score per text, higher is better; `log_probs` are the model's."""


class ByFunction(Reranker):
    """Scores each text by a function of the prompt and the text.

    >>> ByFunction(lambda source, text: -len(text))("", ["long text", "short"])
    [-9.0, -5.0]
    """

    def __init__(self, function: Callable[[str, str], float], name: str | None = None) -> None:
        self.function = function
        self.name = str(name or getattr(function, "__name__", type(function).__name__))

    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        return [float(self.function(source, text)) for text in texts]


def reranker_of(reranker: str | Reranker | Callable[[str, str], float]) -> Reranker:
    """Find a reranker by name; a function becomes one, a `Reranker` is itself.

    Names: `mbr-chrf`, `mbr-bleu` (with `:prob` texts count by their probability), `reward:NAME` for
    a sequence-classification model, `comet-qe`.
    """
    if isinstance(reranker, Reranker):
        return reranker
    if callable(reranker):
        return ByFunction(reranker)
    kind, _, rest = str(reranker).partition(":")
    if kind in ("mbr-chrf", "mbr-bleu"):
        from bestk.rerank.mbr import MBR

        return MBR(kind.removeprefix("mbr-"), weights=rest or "uniform")
    if kind == "reward" and rest:
        from bestk.rerank.reward import RewardModel

        return RewardModel(rest)
    if kind == "comet-qe":
        from bestk.rerank.comet import DEFAULT_MODEL, CometQE

        return CometQE(rest or DEFAULT_MODEL)
    if kind == "reward":
        raise OptionError("rerank='reward:NAME' needs the name or folder of a model")
    raise OptionError(unknown("reranker", str(reranker), RERANKERS))


def rerank(
    result: SearchResult,
    reranker: str | Reranker | Callable[[str, str], float],
    *,
    source: str | None = None,
) -> SearchResult:
    """Return the result in the reranker's order; equal scores keep their old order.

    `source` is what the texts are judged against where that is not the whole prompt, such as the
    sentence to translate.
    """
    ranker = reranker_of(reranker)
    texts = [hypothesis.text for hypothesis in result.hypotheses]
    if source is None:
        source = source_text(result.prompt) if ranker.needs_source else ""
    log_probs = [hypothesis.log_prob for hypothesis in result.hypotheses]
    scores = ranker(source, texts, log_probs) if texts else []
    _check(ranker, scores, len(texts))
    scored = [
        dataclasses.replace(hypothesis, rerank_score=score)
        for hypothesis, score in zip(result.hypotheses, scores, strict=True)
    ]
    scored.sort(key=lambda h: -(h.rerank_score or 0.0))  # stable
    return dataclasses.replace(
        result, hypotheses=tuple(scored), signature=f"{result.signature}|rerank:{ranker.name}"
    )


def source_text(prompt: Any) -> str:
    """Return the text of a prompt: itself, or what the user said last in a chat."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[-1], dict):
        for message in reversed(prompt):
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                return str(message["content"])
    raise PromptError("a prompt of token ids cannot be judged as text: give rerank its source")


def _check(ranker: Reranker, scores: Sequence[float], count: int) -> None:
    if len(scores) != count:
        raise OptionError(
            f"reranker {ranker.name} must give a score per text, got {len(scores)} for {count}"
        )
    for score in scores:
        if not math.isfinite(score):
            raise OptionError(f"reranker {ranker.name} must give finite scores, got {score}")
