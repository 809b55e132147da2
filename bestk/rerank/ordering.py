"""Finds rerankers by name, and puts a result in one's order.

Scores of the search stay in `Hypothesis.score`, the new ones go to `rerank_score`, so both orders
can be had from one result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from bestk.errors import OptionError, unknown
from bestk.rerank.base import ByFunction, Reranker, numbers, source_text
from bestk.rerank.comet import DEFAULT_MODEL, CometQE
from bestk.rerank.mbr import MBR
from bestk.rerank.reward import RewardModel
from bestk.result import SearchResult

RERANKERS = ("mbr-chrf", "mbr-bleu", "reward:NAME", "comet-qe")


def reranker_of(reranker: str | Reranker | Callable[[str, str], float]) -> Reranker:
    """Find a reranker by name; a function becomes one, a `Reranker` is itself.

    Names: `mbr-chrf`, `mbr-bleu` (with `:uniform` all texts count the same, else each by its
    probability), `reward:NAME` for a sequence-classification model, `comet-qe`.
    """
    if isinstance(reranker, Reranker):
        return reranker
    if callable(reranker):
        return ByFunction(reranker)
    kind, _, rest = str(reranker).partition(":")
    if kind in ("mbr-chrf", "mbr-bleu"):
        return MBR(kind.removeprefix("mbr-"), weights=rest or "prob")
    if kind == "reward" and rest:
        return RewardModel(rest)
    if kind == "comet-qe":
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
    scores = numbers(ranker.name, ranker(source, texts, log_probs)) if texts else []
    _check(ranker, scores, len(texts))
    scored = [
        dataclasses.replace(hypothesis, rerank_score=score)
        for hypothesis, score in zip(result.hypotheses, scores, strict=True)
    ]
    scored.sort(key=lambda h: -(h.rerank_score or 0.0))  # stable
    return dataclasses.replace(
        result, hypotheses=tuple(scored), signature=f"{result.signature}|rerank:{ranker.name}"
    )


def _check(ranker: Reranker, scores: Sequence[float], count: int) -> None:
    if len(scores) != count:
        raise OptionError(
            f"reranker {ranker.name} must give a score per text, got {len(scores)} for {count}"
        )
    for score in scores:
        if not math.isfinite(score):
            raise OptionError(f"reranker {ranker.name} must give finite scores, got {score}")
