"""A finished search tree on the CPU: what the pictures, the JSON and the hypotheses are made from.

Columns of plain tensors, one entry per expanded node and one per child that the model listed. Knows
tokens and probabilities, no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bestk.errors import SchemaError
from bestk.tree import State, Tree

_WHOLES = ("token", "parent", "depth", "step", "expanded_at")
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
        counts = tree.count[index].tolist()
        size = max(counts, default=0)
        names = [*_WHOLES, "log_prob", "last_log_prob", "priority"]
        names += _CHILDREN
        # One copy from the device per column, whatever the number of searches.
        columns = {
            name: getattr(tree, name)[:, :size].index_select(0, index).cpu() for name in names
        }
        return [
            cls._cut({name: column[i, :count] for name, column in columns.items()})
            for i, count in enumerate(counts)
        ]

    @classmethod
    def _cut(cls, columns: dict[str, Tensor]) -> TreeRecord:
        parent, index = (columns["child_state"] != State.NONE).nonzero(as_tuple=True)
        for name in _CHILDREN:
            columns[name] = columns[name][parent, index]
        columns |= {"child_parent": parent, "child_index": index}
        return cls(
            **{
                name: column.clone() if name in _REALS else column.to(torch.int32)
                for name, column in columns.items()
            }
        )

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
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"a saved tree lacks or spoils a column: {error}") from None
        return cls(**columns)
