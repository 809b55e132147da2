"""What a result is made of: texts, merged where they are equal and ranked, and their cost.

Knows texts only as strings that somebody else decoded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bestk.config import SearchConfig
from bestk.core.record import Drawn


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One text; where n were asked for, or of beams and samples, it may have been cut off.

    `token_ids` end with the id that completed the text; `log_probs` has one entry for each of them.
    """

    text: str
    score: float  # what the results are ranked by
    log_prob: float
    token_ids: tuple[int, ...] = field(repr=False)
    log_probs: tuple[float, ...] = field(repr=False)
    step: int  # the model call that found it; 0 is the prompt's
    count: int = 1  # token sequences that gave this text
    is_certified: bool = False  # proven: no text that was not found is likelier
    is_complete: bool = True  # false: cut off at max_new_tokens
    rerank_score: float | None = None  # what a reranker gave; the results are then in its order
    item: Any = None  # with `allowed`, the row of the trie, or what that is named
    drawn: Drawn | None = None  # with `sample="texts"`, how it came into the sample

    def __str__(self) -> str:
        return self.text

    @property
    def finish_reason(self) -> str:
        """Return how the text ended, in OpenAI's words: stop, or length where it was cut off."""
        return "stop" if self.is_complete else "length"

    @property
    def num_tokens(self) -> int:
        """Count the tokens, the one that completed the text included."""
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a search spent."""

    expanded: int  # nodes of the tree
    steps: int  # groups that were popped, and the prompt
    # Passes, fewer than steps where nodes were evaluated before they were popped; and how many
    # nodes these evaluated, some of which were never popped. Both depend on who shared a pass.
    model_calls: int = field(compare=False)
    evaluated: int = field(compare=False)
    # Of the batch that the search ran in; None where it was not kept.
    seconds: float | None = field(compare=False)


def merge(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Make texts unique: of equal ones the likelier stays, complete ones first, with the count."""
    best: dict[str, Hypothesis] = {}
    counts: dict[str, int] = {}
    for hypothesis in hypotheses:
        counts[hypothesis.text] = counts.get(hypothesis.text, 0) + hypothesis.count
        known = best.get(hypothesis.text)
        if known is None or _standing(hypothesis) > _standing(known):
            best[hypothesis.text] = hypothesis
    weights: dict[str, float] = {}
    for hypothesis in hypotheses:
        if hypothesis.drawn is not None:
            weights[hypothesis.text] = weights.get(hypothesis.text, 0.0) + hypothesis.drawn.weight
    return [
        dataclasses.replace(
            h,
            count=counts[h.text],
            drawn=h.drawn and dataclasses.replace(h.drawn, weight=weights[h.text]),
        )
        for h in best.values()
    ]


def _standing(hypothesis: Hypothesis) -> tuple[bool, float]:
    return hypothesis.is_complete, hypothesis.log_prob


def rank(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Order hypotheses by score; equal scores by likelihood, then by when they were found."""
    return sorted(hypotheses, key=lambda h: (-h.score, -h.log_prob, h.step, h.token_ids))


def ranking_score(
    config: SearchConfig, log_prob: float, log_probs: Sequence[float], step: int
) -> float:
    """Return what `rank_by` orders a text by."""
    length = len(log_probs)
    if config.rank_by == "mean":
        return log_prob / length
    if config.rank_by == "sum":
        return log_prob
    if config.rank_by == "step":
        return -float(step)
    return log_probs[-1] if config.alpha is None else log_prob / float(length) ** config.alpha
