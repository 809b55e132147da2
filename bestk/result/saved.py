"""Results as JSON: written, and read back with the eyes of somebody who does not trust the file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestk.config import SearchConfig
from bestk.core.mass import Mass
from bestk.core.record import Drawn, TreeRecord
from bestk.core.tree import State
from bestk.errors import OptionError, SchemaError
from bestk.result.texts import Cost, Hypothesis

if TYPE_CHECKING:
    from bestk.result.search_result import SearchResult

FORMAT = "bestk.result"
FORMAT_VERSION = 1

# What is told of a text, and what more where there is any.
_TOLD = (
    *("text", "score", "log_prob", "num_tokens", "token_ids", "log_probs", "step"),
    *("count", "is_certified", "is_complete", "rerank_score"),
)


def to_json(result: SearchResult, *, tree: bool = False) -> dict[str, Any]:
    """Return a result as plain data that `read` reads back."""
    prompt = result.prompt
    data = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "prompt": prompt if isinstance(prompt, Sequence) else prompt.to_json(),
        "hypotheses": [hypothesis_json(h) for h in result.hypotheses],
        "mass": result.mass.brief(),
        "pruned_by": {
            "min_prob": result.mass.pruned_prob,
            "max_frontier": result.mass.pruned_frontier,
        },
        "cost": dataclasses.asdict(result.cost),
        "signature": result.signature,
        "config": dataclasses.asdict(result.config),
        "stop_reason": result.stop_reason,
        "num_completions": result.num_completions,
        "num_truncated": result.num_truncated,
        "certified": result.certified,
        "notice": result.notice,
    }
    if result.bound is not None and result.bound < math.inf:  # JSON has no infinity
        data["bound"] = result.bound if math.isfinite(result.bound) else None
    if tree and result.tree is not None:
        data["tree"] = result.tree.to_json()
        data["token_texts"] = {str(token): text for token, text in result.token_texts.items()}
    return data


def hypothesis_json(hypothesis: Hypothesis) -> dict[str, Any]:
    """Return a text as plain data."""
    told = {name: getattr(hypothesis, name) for name in _TOLD}
    told |= {} if hypothesis.item is None else {"item": hypothesis.item}
    told |= {} if hypothesis.drawn is None else {"drawn": dataclasses.asdict(hypothesis.drawn)}
    return {name: list(x) if isinstance(x, tuple) else x for name, x in told.items()}


def columns(hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Name what there is to be told of these texts, the text first."""
    told = [name for name in _TOLD if name != "rerank_score"]
    more = [
        name
        for name in ("rerank_score", "item", "drawn")
        if any(getattr(one, name) is not None for one in hypotheses)
    ]
    return told + more


def dumps(data: dict[str, Any], indent: int | None = None) -> str:
    """Write plain data as JSON."""
    return json.dumps(data, ensure_ascii=False, indent=indent)


def write(target: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    try:
        scratch = tempfile.NamedTemporaryFile(  # noqa: SIM115
            "w", encoding="utf-8", dir=target.parent, prefix=target.name, delete=False
        )
        try:
            with scratch:
                scratch.write(text + "\n")
            os.replace(scratch.name, target)
        finally:
            Path(scratch.name).unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write {target}: {error.strerror}") from error


def read(cls: type[SearchResult], data: dict[str, Any] | str) -> SearchResult:
    """Read back what was written, or say in a line what is wrong with it."""
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


def _read_cost(data: dict[str, Any]) -> Cost:
    # Once a node was evaluated when it was popped, and a step was a pass.
    return Cost(**{"steps": data["model_calls"], "evaluated": data["expanded"], **data})


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
        cost=_read_cost(data["cost"]),
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
