"""Results of what policies have found: decoded, ranked, merged, with their signature."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from bestk.config import SearchConfig
from bestk.core.record import Finding, Found, TreeRecord
from bestk.engine.request import Request
from bestk.result import (
    Cost,
    Hypothesis,
    SearchResult,
    emptiness,
    merge,
    rank,
    ranking_score,
    unproven,
)

_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]*_]*(?=\s|$)|[。！？][」』）】”]*")

Decode = Callable[[Sequence[Sequence[int]]], list[str]]


class LazyTexts(Mapping[int, str]):
    """How to show the tokens of a tree, looked up when somebody first asks."""

    def __init__(
        self, lookup: Callable[[Sequence[int]], dict[int, str]], record: TreeRecord
    ) -> None:
        self._lookup = lookup
        self._record = record

    @functools.cached_property
    def _texts(self) -> dict[int, str]:
        return self._lookup(self._record.child_token.tolist())

    def __getitem__(self, token: int) -> str:
        return self._texts[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def result_of(
    request: Request, finding: Finding, seconds: float, spent: tuple[int, int] | None = None
) -> SearchResult:
    """Turn what was found into a result, whether or not the search has ended.

    `spent` are its passes and the nodes evaluated, where these are not its steps and expansions.
    """
    raw = request.named(hypotheses_of(finding.texts, request.config, request.decode))
    rules = request.evaluation.constraints
    if rules is not None:  # what was cut off nobody has judged yet
        raw = [one for one in raw if one.is_complete or rules.is_fit(one.text)]
    merged = rank(merge(raw) if request.hooks.allowed is None else raw)
    record = finding.record if request.keep_tree else None
    model_calls, evaluated = spent or (finding.steps, finding.expanded)
    notice: str | None = None
    token_texts: Mapping[int, str] = {}
    if finding.bound is not None:  # a search knows why there is nothing, and what its tree says
        lm, reason = request.lm, finding.stop_reason
        if not merged:
            truncated = finding.num_truncated
            notice = emptiness(request.config, reason, truncated, finding.bound)
        elif request.config.certify is not None:
            proven = sum(hypothesis.is_certified for hypothesis in merged)
            notice = unproven(request.config, proven, finding.bound)
        if record is not None:
            token_texts = LazyTexts(lm.token_texts, record)
    return SearchResult(
        prompt=request.prompt,
        hypotheses=tuple(merged),
        mass=finding.mass,
        cost=Cost(
            expanded=finding.expanded,
            steps=finding.steps,
            model_calls=model_calls,
            evaluated=evaluated,
            seconds=seconds,
        ),
        signature=request.signature,
        config=request.config,
        stop_reason=finding.stop_reason,
        num_completions=sum(hypothesis.is_complete for hypothesis in raw),
        num_truncated=finding.num_truncated,
        certified=sum(hypothesis.is_certified for hypothesis in merged),
        bound=finding.bound,
        notice=notice,
        tree=record,
        raw=tuple(raw),
        token_texts=token_texts,
    )


def hypotheses_of(found: Sequence[Found], config: SearchConfig, decode: Decode) -> list[Hypothesis]:
    """Decode token sequences, and score them by what the results are ranked by."""
    texts = decode([one.token_ids for one in found])
    if config.on_cut == "trim":
        texts = [
            text if one.is_complete else whole_sentences(text)
            for one, text in zip(found, texts, strict=True)
        ]
    return [
        Hypothesis(
            text=text,
            score=_score(one, config),
            log_prob=one.log_prob,
            token_ids=one.token_ids,
            log_probs=one.log_probs,
            step=one.step,
            is_certified=one.is_certified,
            is_complete=one.is_complete,
            drawn=one.drawn,
        )
        for one, text in zip(found, texts, strict=True)
    ]


def whole_sentences(text: str) -> str:
    """Cut a text behind its last whole sentence; one that has none stays as it is.

    >>> whole_sentences('She said "No." Then he')
    'She said "No."'
    """
    ends = list(_SENTENCE_END.finditer(text))
    return text[: ends[-1].end()] if ends else text


def complaint(finding: Finding, number: int) -> str:
    """Return where the model gave NaN or infinity."""
    return (
        f"the model gave NaN or infinite logits at step {finding.broken_at} of prompt "
        f"{number}: load it in a wider dtype (float32), or check its weights"
    )


def _score(found: Found, config: SearchConfig) -> float:
    if found.score is not None:
        return found.score
    return ranking_score(config, found.log_prob, found.log_probs, found.step)
