"""What a search has found, on the CPU: its tree, its token sequences, its books.

The pictures, the JSON and the hypotheses are made from it. A tree is columns of plain tensors, one
entry per expanded node and one per child that the model listed. Knows tokens and probabilities, no
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bestk.core.mass import Mass
from bestk.core.tree import State, Tree
from bestk.errors import SchemaError

_NODES = (
    "token",
    "parent",
    "depth",
    "step",
    "expanded_at",
    "log_prob",
    "last_log_prob",
    "priority",
)
_CHILDREN = ("child_token", "child_log_prob", "child_score", "child_state")
_REALS = ("log_prob", "last_log_prob", "priority", "child_log_prob", "child_score")


@dataclass(frozen=True)
class TreeRecord:
    """The nodes and children of one search; slot 0 is the root.

    `child_*` columns are flat: entry i is child number `child_index[i]` of slot `child_parent[i]`.
    """

    token: Tensor
    parent: Tensor
    depth: Tensor
    step: Tensor
    expanded_at: Tensor
    log_prob: Tensor
    last_log_prob: Tensor
    priority: Tensor
    child_parent: Tensor
    child_index: Tensor
    child_token: Tensor
    child_log_prob: Tensor
    child_score: Tensor
    child_state: Tensor

    @classmethod
    def of(cls, tree: Tree, rows: Sequence[int]) -> list[TreeRecord]:
        """Copy some searches out of a batch, without their unused slots."""
        index = torch.tensor(rows, dtype=torch.int64, device=tree.count.device)
        counts = tree.count[index].cpu()
        size = int(counts.max()) if len(rows) else 0

        def copied(name: str) -> Tensor:
            column: Tensor = getattr(tree, name)[:, :size].index_select(0, index)
            return (column if name in _REALS else column.to(torch.int32)).cpu()

        # Everything is copied, cut to what is used, for all searches at once.
        state = tree.child_state[:, :size].index_select(0, index)
        is_used = torch.arange(size, device=state.device) < tree.count[index][:, None]
        row, slot, child = ((state != State.NONE) & is_used[..., None]).nonzero(as_tuple=True)
        flat = {name: getattr(tree, name)[index[row], slot, child] for name in _CHILDREN}
        flat |= {"child_parent": slot, "child_index": child}
        flat = {
            name: (column if name in _REALS else column.to(torch.int32)).cpu()
            for name, column in flat.items()
        }
        row = row.cpu()
        sizes = torch.bincount(row, minlength=len(rows)).tolist()
        parts = {name: column.split_with_sizes(sizes) for name, column in flat.items()}
        nodes = {name: copied(name) for name in _NODES}
        # A record has its own memory: one that is kept does not hold on to the others.
        return [
            cls(
                **{name: column[i, :count].clone() for name, column in nodes.items()},
                **{name: part[i].clone() for name, part in parts.items()},
            )
            for i, count in enumerate(counts.tolist())
        ]

    def __len__(self) -> int:
        return len(self.token)

    def tokens_to(self, slot: int) -> list[int]:
        """Return the tokens from the root to a slot."""
        return self.token[self.paths_to([slot])[0]].tolist() if slot > 0 else []

    def paths_to(self, slots: Sequence[int]) -> list[list[int]]:
        """Return the slots from the root's child down to each of the given slots."""
        parents = self.parent.tolist()
        paths = []
        for slot in slots:
            path = []
            while slot > 0:
                path.append(slot)
                slot = parents[slot]
            paths.append(path[::-1])
        return paths

    def to_json(self) -> dict[str, list[float]]:
        """Return the columns as lists."""
        return {f.name: getattr(self, f.name).tolist() for f in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TreeRecord:
        """Read back what `to_json` wrote."""
        try:
            columns = {
                f.name: torch.tensor(
                    data[f.name], dtype=torch.float64 if f.name in _REALS else torch.int32
                )
                for f in fields(cls)
            }
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SchemaError(f"a saved tree lacks or spoils a column: {error}") from None
        return cls(**columns)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """How a text of a sample without replacement was drawn.

    The sum of `weight` × f over a sample estimates, without bias, the sum of p × f over all texts.
    """

    key: float  # its log-probability with Gumbel noise: the sample has the n highest
    inclusion: float  # probability that it is in the sample, given the highest key outside
    weight: float  # p / inclusion; added up where texts were merged


@dataclass(frozen=True, kw_only=True)
class Found:
    """One token sequence, complete unless `is_complete` is false."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    log_prob: float
    step: int
    is_complete: bool = True
    is_certified: bool = False
    score: float | None = None  # None: by `rank_by`
    drawn: Drawn | None = None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a search stands: what can be told at every step, since it costs little."""

    step: int
    expanded: int
    num_completions: int
    mass: Mass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """All that a policy has to say of one search, finished or not."""

    texts: Sequence[Found]
    mass: Mass
    expanded: int
    steps: int
    stop_reason: str
    num_truncated: int
    bound: float | None = None  # no text that was not found is likelier; None: not known
    broken_at: int = -1  # the step at which the model gave NaN
    record: TreeRecord | None = None


def texts_of(
    record: TreeRecord,
    bound: float,
    *,
    since: int = 0,
    state: State = State.COMPLETE,
    by_score: bool = False,
) -> list[Found]:
    """Return the complete token sequences of a tree in the order found, from slot `since` on.

    With another `state` these were cut off, are still open, or were not opened. They are proven,
    and ranked, by their log-probability, or by their score.
    """
    is_wanted = (record.child_state == state) & (record.child_parent >= since)
    entries = is_wanted.nonzero()[:, 0]
    parents = record.child_parent[entries].tolist()
    ends = record.child_token[entries].tolist()
    last = record.child_log_prob[entries].tolist()
    tokens, steps = record.token.tolist(), record.expanded_at.tolist()
    log_prob, node_log_prob = record.log_prob.tolist(), record.last_log_prob.tolist()
    scores = record.child_score[entries].tolist()
    return [
        Found(
            token_ids=(*(tokens[slot] for slot in path), end),
            log_probs=(*(node_log_prob[slot] for slot in path), own),
            log_prob=log_prob[parent] + own,
            step=steps[parent],
            is_complete=state == State.COMPLETE,
            is_certified=(score if by_score else log_prob[parent] + own) >= bound,
            score=score if by_score else None,
        )
        for path, parent, end, own, score in zip(
            record.paths_to(parents), parents, ends, last, scores, strict=True
        )
    ]
