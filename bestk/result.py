"""What a search returns: ranked, merged hypotheses, the mass ledger, the cost, and JSON of them.

Knows texts only as strings that somebody else decoded.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bestk.best_k import Searches
from bestk.config import SearchConfig
from bestk.errors import SchemaError
from bestk.record import TreeRecord
from bestk.tree import State
from bestk.version import __version__

FORMAT = "bestk.result"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One complete text.

    `token_ids` end with the id that completed the text; `log_probs` has one entry for each of them.
    """

    text: str
    score: float  # what the results are ranked by
    log_prob: float
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    step: int  # the model call that found it; 0 is the prompt's
    count: int = 1  # token sequences that gave this text
    is_certified: bool = False  # proven: no text that was not found is likelier

    @property
    def num_tokens(self) -> int:
        """Count the tokens, the one that completed the text included."""
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True)
class Mass:
    """Where the model's probability went; all of it adds up to 1."""

    completed: float
    frontier: float
    pruned_prob: float  # never opened: below min_prob
    pruned_frontier: float  # pruned by max_frontier
    truncated: float

    @property
    def pruned(self) -> float:
        """Return what was pruned, for either reason."""
        return self.pruned_prob + self.pruned_frontier

    @property
    def total(self) -> float:
        """Add everything up; 1 but for rounding."""
        return self.completed + self.frontier + self.pruned + self.truncated


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a search spent."""

    expanded: int
    model_calls: int
    seconds: float  # of the batch that the search ran in


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The outcome of one search, best hypothesis first."""

    prompt: Any
    hypotheses: tuple[Hypothesis, ...]
    mass: Mass
    cost: Cost
    signature: str
    config: SearchConfig
    stop_reason: str
    num_completions: int  # before texts were merged
    num_truncated: int
    certified: int  # how many hypotheses are proven to be the model's likeliest
    tree: TreeRecord | None = None
    # How to show the tokens of `tree`, so that pictures of it need no tokenizer.
    token_texts: Mapping[int, str] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """Return the texts alone, best first."""
        return [hypothesis.text for hypothesis in self.hypotheses]

    def to_json(self, *, tree: bool = False) -> dict[str, Any]:
        """Return the result as plain data that `from_json` reads back."""
        data = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "prompt": self.prompt,
            "hypotheses": [_hypothesis_json(h) for h in self.hypotheses],
            "mass": {
                "completed": self.mass.completed,
                "frontier": self.mass.frontier,
                "pruned": self.mass.pruned,
                "truncated": self.mass.truncated,
            },
            "pruned_by": {
                "min_prob": self.mass.pruned_prob,
                "max_frontier": self.mass.pruned_frontier,
            },
            "cost": dataclasses.asdict(self.cost),
            "signature": self.signature,
            "config": dataclasses.asdict(self.config),
            "stop_reason": self.stop_reason,
            "num_completions": self.num_completions,
            "num_truncated": self.num_truncated,
            "certified": self.certified,
        }
        if tree and self.tree is not None:
            data["tree"] = self.tree.to_json()
            data["token_texts"] = {str(token): text for token, text in self.token_texts.items()}
        return data

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the search as a self-contained page; write it to a file where a path is given."""
        from bestk.viz.html import to_html

        return to_html(self, path)

    def _repr_html_(self) -> str:
        """Show the search in a notebook."""
        from bestk.viz.html import notebook

        return notebook(self)

    def dumps(self, *, tree: bool = False, indent: int | None = None) -> str:
        """Return `to_json` as a string."""
        return json.dumps(self.to_json(tree=tree), ensure_ascii=False, indent=indent)

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> SearchResult:
        """Read back what `to_json` or `dumps` wrote."""
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except json.JSONDecodeError as error:
                raise SchemaError(f"a saved result must be JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise SchemaError(f"a saved result must have format {FORMAT!r}")
        if data.get("version") != FORMAT_VERSION:
            raise SchemaError(
                f"this bestk reads version {FORMAT_VERSION} of {FORMAT}, "
                f"got {data.get('version')!r}: save the result again"
            )
        try:
            return _read(cls, data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(f"a saved result lacks or spoils a field: {error}") from None


def signature(config: SearchConfig, model: str) -> str:
    """Name everything that a number made from this search depends on."""
    return f"bestk|model:{model}|{config.describe()}|v:{__version__}"


def collect(
    searches: Searches,
    *,
    prompts: Sequence[Any],
    decode: Callable[[Sequence[Sequence[int]]], list[str]],
    model: str,
    seconds: float,
    keep_tree: bool = True,
    token_texts: Callable[[Sequence[int]], dict[int, str]] | None = None,
) -> list[SearchResult]:
    """Turn the state of a batch of searches, finished or not, into results."""
    counts = searches.tree.count.tolist()
    clocks = searches.clock.tolist()
    reasons = searches.stop_reasons()
    ledger, frontier = searches.ledger, searches.frontier_mass().tolist()
    completed, truncated = ledger.completed.tolist(), ledger.truncated.tolist()
    pruned_prob, pruned_frontier = ledger.pruned_prob.tolist(), ledger.pruned_frontier.tolist()
    num_truncated, bounds = searches.num_truncated.tolist(), searches.bound().tolist()
    results = []
    for row, prompt in enumerate(prompts):
        record = TreeRecord.of(searches.tree, row, counts[row])
        found = completions(record, searches.config, bounds[row], decode)
        merged = rank(merge(found))
        results.append(
            SearchResult(
                prompt=prompt,
                hypotheses=tuple(merged),
                mass=Mass(
                    completed=completed[row],
                    frontier=frontier[row],
                    pruned_prob=pruned_prob[row],
                    pruned_frontier=pruned_frontier[row],
                    truncated=truncated[row],
                ),
                cost=Cost(expanded=counts[row], model_calls=clocks[row] + 1, seconds=seconds),
                signature=signature(searches.config, model),
                config=searches.config,
                stop_reason=reasons[row],
                num_completions=len(found),
                num_truncated=num_truncated[row],
                certified=sum(h.is_certified for h in merged),
                tree=record if keep_tree else None,
                token_texts=(
                    token_texts(record.child_token.tolist())
                    if keep_tree and token_texts is not None
                    else {}
                ),
            )
        )
    return results


def completions(
    record: TreeRecord,
    config: SearchConfig,
    bound: float,
    decode: Callable[[Sequence[Sequence[int]]], list[str]],
    *,
    since: int = 0,
) -> list[Hypothesis]:
    """Return the complete texts of a tree in the order found, from slot `since` on."""
    is_wanted = (record.child_state == State.COMPLETE) & (record.child_parent >= since)
    entries = is_wanted.nonzero()[:, 0]
    parents = record.child_parent[entries].tolist()
    tokens = record.child_token[entries].tolist()
    last = record.child_log_prob[entries].tolist()
    token_ids, log_probs, totals = [], [], []
    for parent, token, log_prob in zip(parents, tokens, last, strict=True):
        token_ids.append((*record.tokens_to(parent), token))
        log_probs.append((*_log_probs_to(record, parent), log_prob))
        totals.append(float(record.log_prob[parent]) + log_prob)
    return [
        Hypothesis(
            text=text,
            score=_score(config, totals[i], log_probs[i], int(record.expanded_at[parents[i]])),
            log_prob=totals[i],
            token_ids=token_ids[i],
            log_probs=log_probs[i],
            step=int(record.expanded_at[parents[i]]),
            is_certified=totals[i] >= bound,
        )
        for i, text in enumerate(decode(token_ids))
    ]


def merge(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Make texts unique: of equal ones the likelier stays, with the count of all."""
    best: dict[str, Hypothesis] = {}
    counts: dict[str, int] = {}
    for hypothesis in hypotheses:
        counts[hypothesis.text] = counts.get(hypothesis.text, 0) + hypothesis.count
        known = best.get(hypothesis.text)
        if known is None or hypothesis.log_prob > known.log_prob:
            best[hypothesis.text] = hypothesis
    return [dataclasses.replace(h, count=counts[h.text]) for h in best.values()]


def rank(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Order hypotheses by score; equal scores by likelihood, then by when they were found."""
    return sorted(hypotheses, key=lambda h: (-h.score, -h.log_prob, h.step, h.token_ids))


def _score(config: SearchConfig, log_prob: float, log_probs: Sequence[float], step: int) -> float:
    length = len(log_probs)
    if config.rank_by == "mean":
        return log_prob / length
    if config.rank_by == "sum":
        return log_prob
    if config.rank_by == "step":
        return -float(step)
    return log_probs[-1] if config.alpha is None else log_prob / float(length) ** config.alpha


def _log_probs_to(record: TreeRecord, slot: int) -> list[float]:
    path = []
    while slot > 0:
        path.append(float(record.last_log_prob[slot]))
        slot = int(record.parent[slot])
    return path[::-1]


def _hypothesis_json(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "text": hypothesis.text,
        "score": hypothesis.score,
        "log_prob": hypothesis.log_prob,
        "num_tokens": hypothesis.num_tokens,
        "token_ids": list(hypothesis.token_ids),
        "log_probs": list(hypothesis.log_probs),
        "step": hypothesis.step,
        "count": hypothesis.count,
        "is_certified": hypothesis.is_certified,
    }


def _read(cls: type[SearchResult], data: dict[str, Any]) -> SearchResult:
    def hypothesis(entry: dict[str, Any]) -> Hypothesis:
        known = {f.name: entry[f.name] for f in dataclasses.fields(Hypothesis)}
        known["token_ids"] = tuple(known["token_ids"])
        known["log_probs"] = tuple(known["log_probs"])
        if not math.isfinite(known["score"]):
            raise TypeError(f"score {known['score']}")
        return Hypothesis(**known)

    return cls(
        prompt=data["prompt"],
        hypotheses=tuple(hypothesis(entry) for entry in data["hypotheses"]),
        mass=Mass(
            completed=data["mass"]["completed"],
            frontier=data["mass"]["frontier"],
            truncated=data["mass"]["truncated"],
            pruned_prob=data["pruned_by"]["min_prob"],
            pruned_frontier=data["pruned_by"]["max_frontier"],
        ),
        cost=Cost(**data["cost"]),
        signature=data["signature"],
        config=SearchConfig.of(data["config"]),
        stop_reason=data["stop_reason"],
        num_completions=data["num_completions"],
        num_truncated=data["num_truncated"],
        certified=data["certified"],
        tree=TreeRecord.from_json(data["tree"]) if "tree" in data else None,
        token_texts={int(token): text for token, text in data.get("token_texts", {}).items()},
    )
