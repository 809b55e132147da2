"""What a search returns: ranked, merged hypotheses, the mass ledger, the cost, and JSON of them.

Knows texts only as strings that somebody else decoded.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bestk.config import SearchConfig
from bestk.core.mass import Mass
from bestk.core.record import Drawn, TreeRecord
from bestk.core.tree import State
from bestk.errors import OptionError, SchemaError
from bestk.version import __version__

FORMAT = "bestk.result"
FORMAT_VERSION = 1

# What the JSON says of a text.
_TOLD = (
    *("text", "score", "log_prob", "num_tokens", "token_ids", "log_probs", "step"),
    *("count", "is_certified", "is_complete", "rerank_score"),
)


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One text; where n were asked for, or of beams and samples, it may have been cut off.

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
    is_complete: bool = True  # false: cut off at max_new_tokens
    rerank_score: float | None = None  # what a reranker gave; the results are then in its order
    item: Any = None  # with `allowed`, the row of the trie, or what that is named
    drawn: Drawn | None = None  # with `sample="texts"`, how it came into the sample

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

    expanded: int
    model_calls: int
    seconds: float | None  # of the batch that the search ran in; None where it was not kept


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
    bound: float | None = None  # what was not found is no likelier; −inf: all was, None: not known
    notice: str | None = None  # why there is no text, or fewer are proven than were asked for
    tree: TreeRecord | None = None
    # As found, before texts were merged; not in the JSON.
    raw: tuple[Hypothesis, ...] = field(default=(), repr=False, compare=False)
    # How to show the tokens of `tree`, so that pictures of it need no tokenizer.
    token_texts: Mapping[int, str] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """Return the texts alone, best first."""
        return [hypothesis.text for hypothesis in self.hypotheses]

    def to_json(self, *, tree: bool = False) -> dict[str, Any]:
        """Return the result as plain data that `from_json` reads back."""
        prompt = self.prompt
        data = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "prompt": prompt if isinstance(prompt, Sequence) else prompt.to_json(),
            "hypotheses": [_hypothesis_json(h) for h in self.hypotheses],
            "mass": self.mass.brief(),
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
            "notice": self.notice,
        }
        if self.bound is not None and self.bound < math.inf:  # JSON has no infinity
            data["bound"] = self.bound if math.isfinite(self.bound) else None
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

    def brief(self) -> dict[str, Any]:
        """Return what a reader of the texts needs, as plain data; `to_json` has everything."""
        data = self.to_json()
        kept = ["text", "score", "log_prob", "num_tokens", "token_ids", "step"]
        if any(hypothesis.rerank_score is not None for hypothesis in self.hypotheses):
            kept.append("rerank_score")
        return {
            "prompt": self.prompt,
            "hypotheses": [{name: entry[name] for name in kept} for entry in data["hypotheses"]],
            "mass": data["mass"],
            "cost": data["cost"],
            "signature": self.signature,
        }

    def save(self, path: str | Path) -> None:
        """Write everything, the tree included, to a file that appears whole or not at all."""
        target = Path(path)
        try:
            scratch = tempfile.NamedTemporaryFile(  # noqa: SIM115
                "w", encoding="utf-8", dir=target.parent, prefix=target.name, delete=False
            )
            try:
                with scratch:
                    scratch.write(self.dumps(tree=True) + "\n")
                os.replace(scratch.name, target)
            finally:
                Path(scratch.name).unlink(missing_ok=True)
        except OSError as error:
            raise OptionError(f"cannot write {target}: {error.strerror}") from error

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> SearchResult:
        """Read back what `to_json` or `dumps` wrote."""
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except (ValueError, RecursionError) as error:
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
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SchemaError(f"a saved result lacks or spoils a field: {error}") from None


def signature(config: SearchConfig, model: str, hooks: Sequence[str] = ()) -> str:
    """Name everything that a number made from this search depends on."""
    told = f"hooks:{','.join(hooks)}|" if hooks else ""
    return f"bestk|model:{model}|{config.describe()}|{told}v:{__version__}"


def not_started(prompt: Any, config: SearchConfig, model: str) -> SearchResult:
    """Make the result of a search that something broke off before its prompt was read."""
    return SearchResult(
        prompt=prompt,
        hypotheses=(),
        mass=Mass(completed=0.0, frontier=1.0, pruned_prob=0.0, pruned_frontier=0.0, truncated=0.0),
        cost=Cost(expanded=0, model_calls=0, seconds=0),
        signature=signature(config, model),
        config=config,
        stop_reason="interrupted",
        num_completions=0,
        num_truncated=0,
        certified=0,
        notice=emptiness(config, "interrupted", 0, 0.0),
    )


def emptiness(config: SearchConfig, stop_reason: str, num_truncated: int, bound: float) -> str:
    """Return why a search found no text, and what would help.

    >>> emptiness(SearchConfig(regex="a+"), "budget", 0, -1.0)
    'no text met regex within the budget of 300 expansions: raise beam_size or budget'
    """
    names = " and ".join(config.constraints)
    none = f"no text met {names}" if names else "no text was complete"
    if stop_reason == "exhausted" and bound == -math.inf and not num_truncated:
        can = f"can meet {names}" if names else "can be complete"
        return f"no text {can}: every branch of the search came to a dead end"
    if num_truncated:
        where = f"within max_new_tokens={config.max_new_tokens}"
        return f"{none} {where}, which cut {num_truncated} branches: raise it"
    if stop_reason == "budget":
        budget = config.total_budget
        return f"{none} within the budget of {budget} expansions: raise beam_size or budget"
    if stop_reason == "exhausted":
        return f"{none} among children of at least min_prob={config.min_prob:g}: lower it"
    return f"{none} before the search ended ({stop_reason})"


def shortage(config: SearchConfig, stop_reason: str, num_found: int) -> str:
    """Return why a search found fewer texts than were asked for, and what would help.

    >>> shortage(SearchConfig(num_texts=10, regex="a|b"), "exhausted", 2)
    'found 2 of 10 texts: no other meets regex among what was opened'
    """
    names = " and ".join(config.constraints)
    told = f"found {num_found} of {config.num_texts} texts"
    if stop_reason == "budget":
        budget = config.total_budget
        return f"{told} within the budget of {budget} expansions: raise budget or max_new_tokens"
    if stop_reason == "exhausted":
        return f"{told}: no other {f'meets {names}' if names else 'is left'} among what was opened"
    return f"{told} before the search ended ({stop_reason})"


def unproven(config: SearchConfig, proven: int, bound: float) -> str | None:
    """Return why fewer texts are proven than `certify` asks for, and what would help.

    >>> unproven(SearchConfig(certify=9, scoring="sum", decay="none"), 2, -3.5)
    '2 of the 9 texts of certify are proven: use min_prob=0'
    """
    assert config.certify is not None
    if proven >= config.certify or bound == -math.inf:
        return None
    right = {"scoring": "sum", "decay": "none", "min_prob": 0}
    wrong = {name: value for name, value in right.items() if getattr(config, name) != value}
    use = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
    if not use:
        use = f"a larger max_frontier ({config.max_frontier}) or budget ({config.total_budget})"
    return f"{proven} of the {config.certify} texts of certify are proven: use {use}"


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


def _hypothesis_json(hypothesis: Hypothesis) -> dict[str, Any]:
    told = {name: getattr(hypothesis, name) for name in _TOLD}
    told |= {} if hypothesis.item is None else {"item": hypothesis.item}
    told |= {} if hypothesis.drawn is None else {"drawn": dataclasses.asdict(hypothesis.drawn)}
    return {name: list(x) if isinstance(x, tuple) else x for name, x in told.items()}


def _read_bound(data: dict[str, Any]) -> float | None:
    if "bound" not in data:
        return None
    return -math.inf if data["bound"] is None else float(data["bound"])


def _read(cls: type[SearchResult], data: dict[str, Any]) -> SearchResult:
    def hypothesis(entry: dict[str, Any]) -> Hypothesis:
        entry = {"item": None, "drawn": None, **entry}
        known = {f.name: entry[f.name] for f in dataclasses.fields(Hypothesis)}
        known["drawn"] = Drawn(**entry["drawn"]) if entry["drawn"] else None
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
        bound=_read_bound(data),
        notice=data.get("notice"),
        tree=_checked(TreeRecord.from_json(data["tree"])) if "tree" in data else None,
        token_texts={int(token): text for token, text in data.get("token_texts", {}).items()},
    )


def _checked(tree: TreeRecord) -> TreeRecord:
    """Refuse a tree that would make work: nobody follows a number out of it, or in a circle."""
    columns = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
    sizes = {(name.startswith("child"), *column.shape) for name, column in columns.items()}
    if len(sizes) != 2 or any(len(size) != 2 for size in sizes) or not len(tree):
        raise SchemaError("a saved tree must have a root, and columns of one length without lists")
    number = columns["parent"].new_tensor(range(len(tree)))
    # A parent comes before its children, and there are no more steps than nodes.
    most = {"parent": number + (number == 0), "child_parent": len(tree), "depth": len(tree)}
    most |= {"expanded_at": len(tree), "child_state": len(State)}
    columns["parent"] = columns["parent"] * (number > 0)  # the root's is none
    spoilt = [name for name in most if ((columns[name] < 0) | (columns[name] >= most[name])).any()]
    spoilt += [name for name, column in columns.items() if (column != column).any()]  # NaN
    if spoilt:
        raise SchemaError(f"a saved tree has no such {' or '.join(spoilt)}: save it again")
    return tree
