"""A finished search tree on the CPU: what the pictures, the JSON and the hypotheses are made from.

Columns of plain tensors, one entry per expanded node and one per child that the model listed. Knows
tokens and probabilities, no text.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bestk.errors import SchemaError
from bestk.tree import State, Tree

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
    def of(cls, tree: Tree, row: int, count: int) -> TreeRecord:
        """Copy one search out of a batch, without its unused slots."""
        state = tree.child_state[row, :count]
        parent, index = (state != State.NONE).nonzero(as_tuple=True)
        nodes = {
            name: getattr(tree, name)[row, :count]
            for name in ("token", "parent", "depth", "step", "expanded_at")
        }
        reals = {
            name: getattr(tree, name)[row, :count]
            for name in ("log_prob", "last_log_prob", "priority")
        }
        children = {
            "child_parent": parent,
            "child_index": index,
            "child_token": tree.child_token[row, parent, index],
            "child_state": state[parent, index],
        }
        whole = {name: x.to("cpu", torch.int32) for name, x in (nodes | children).items()}
        for name in ("child_log_prob", "child_score"):
            reals[name] = getattr(tree, name)[row, parent, index]
        return cls(**whole, **{name: x.to("cpu", copy=True) for name, x in reals.items()})

    def __len__(self) -> int:
        return len(self.token)

    def tokens_to(self, slot: int) -> list[int]:
        """Return the tokens from the root to a slot."""
        path = []
        while slot > 0:
            path.append(int(self.token[slot]))
            slot = int(self.parent[slot])
        return path[::-1]

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
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"a saved tree lacks or spoils a column: {error}") from None
        return cls(**columns)
