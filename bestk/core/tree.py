"""The search trees of a batch, as append-only columns of tensors.

One row per search, one slot per expanded node; slot 0 is the root, which stands for the prompt. The
last slot is scratch: places of a group that hold no node are written there. Every child that the
model was asked about is kept with what became of it, so a finished tree tells the whole search.
Knows nothing of priorities.

A worked example, k = 2: root → "A" (slot 1), "The" (slot 2); "A" → "dog" (slot 3).

    slot      0     1     2     3
    token    −1     A   The   dog
    parent   −1     0     0     1
    depth     0     1     1     2
    path     --   1,--  2,--  1,3
"""

from __future__ import annotations

from enum import IntEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.core.frontier import Nodes
from bestk.nodes import Children, NodeBatch


class State(IntEnum):
    """What became of a child."""

    NONE = 0  # no child: probability 0, or past the end of the list
    BELOW = 1  # not opened: its probability is below γ, or it may not end a text yet
    OPEN = 2  # in the frontier
    EXPANDED = 3
    COMPLETE = 4
    TRUNCATED = 5  # reached max_new_tokens without completing
    DROPPED = 6  # pruned from the frontier


class Tree:
    """The expanded nodes of a batch of searches and all their children."""

    def __init__(
        self, batch: int, capacity: int, depth: int, num_children: int, device: torch.device
    ) -> None:
        self.capacity = capacity

        def column(*shape: int, fill: int | float = -1, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full((batch, capacity + 1, *shape), fill, dtype=dtype, device=device)

        # Columns of one kind lie side by side, so that a node is written in two launches.
        self._whole: Int[Tensor, "batch slots 5"] = column(5)
        self._real: Float[Tensor, "batch slots 3"] = column(3, fill=0, dtype=torch.float64)
        self.token, self.parent, self.depth, self.step, self.expanded_at = self._whole.unbind(-1)
        self.log_prob, self.last_log_prob, self.priority = self._real.unbind(-1)
        self.depth.fill_(0)  # step: found at; expanded_at: popped at
        self.path: Int[Tensor, "batch slots depth"] = column(depth)
        # A slot's children are written whole before they are read, so nothing fills these.
        children = self.token.new_empty(batch, capacity + 1, num_children)
        self.child_token: Int[Tensor, "batch slots children"] = children
        self.child_log_prob: Float[Tensor, "batch slots children"] = torch.empty_like(
            children, dtype=torch.float64
        )
        self.child_score: Float[Tensor, "batch slots children"] = torch.empty_like(
            self.child_log_prob
        )
        self.child_state: Int[Tensor, "batch slots children"] = torch.empty_like(children)
        if device.type != "cpu":
            self.child_state.fill_(int(State.NONE))
        self.count: Int[Tensor, " batch"] = torch.zeros(batch, dtype=torch.int64, device=device)

    @property
    def used(self) -> int:
        """Count the slots that may hold a node, without waiting for a device."""
        return int(self.count.max()) if self.count.device.type == "cpu" else self.capacity

    def columns(self) -> list[Tensor]:
        """Name every tensor that has a row per search."""
        children = [self.child_token, self.child_log_prob, self.child_score, self.child_state]
        return [self._whole, self._real, self.path, *children, self.count]

    def roots(self, rows: Int[Tensor, " begun"]) -> NodeBatch:
        """Empty these trees, and return their roots and no other node."""
        self.count.index_fill_(0, rows, 0)
        if self.count.device.type != "cpu":
            self.child_state.index_fill_(0, rows, int(State.NONE))
        self.expanded_at[:, 0].index_fill_(0, rows, 0)
        nothing = torch.zeros_like(self.parent[:, :1])
        is_valid = torch.zeros_like(nothing, dtype=torch.bool).index_fill_(0, rows, True)
        path = self.path[:, :1].clone()
        return NodeBatch(
            token=self.token[:, :1].clone(),
            slot=torch.where(is_valid, 0, self.capacity),
            depth=nothing,
            path=path,
            prefix=path,
            is_valid=is_valid,
        )

    def place(self, nodes: Nodes) -> NodeBatch:
        """Return nodes with the slots that they will have; nothing is written."""
        places = torch.arange(nodes.token.shape[1], device=nodes.token.device)
        slot = torch.where(nodes.is_open, self.count[:, None] + places, self.capacity)
        parent = torch.where(nodes.is_open, nodes.parent, 0)
        path = self.path.gather(1, _wide(parent, self.path))  # [batch, nodes, depth]
        path.scatter_(2, (nodes.depth - 1).clamp(min=0)[..., None], slot[..., None])
        # Its own token is in no slot yet; what a place without a node holds means nothing.
        is_own = path == slot[..., None]
        prefix = self.token.gather(1, path.clamp(min=0).flatten(1)).view_as(path)
        prefix = prefix.where(~is_own, nodes.token[..., None])
        return NodeBatch(
            token=nodes.token,
            slot=slot,
            depth=nodes.depth,
            path=path,
            prefix=prefix.where(path >= 0, -1),
            is_valid=nodes.is_open,
        )

    def append(
        self,
        batch: NodeBatch,
        nodes: Nodes,
        priority: Float[Tensor, "batch nodes"],
        clock: Int[Tensor, " batch"],
    ) -> None:
        """Write placed nodes into their slots."""
        parent = torch.where(batch.is_valid, nodes.parent, 0)
        clocks = clock[:, None].expand_as(parent)
        whole = torch.stack([nodes.token, parent, nodes.depth, nodes.step, clocks], dim=-1)
        self._whole.scatter_(1, _wide(batch.slot, self._whole), whole)
        real = torch.stack([nodes.log_prob, nodes.last_log_prob, priority], dim=-1)
        self._real.scatter_(1, _wide(batch.slot, self._real), real)
        self.path.scatter_(1, _wide(batch.slot, self.path), batch.path)
        self.count += batch.is_valid.sum(dim=1)

    def record(
        self,
        nodes: NodeBatch,
        children: Children,
        score: Float[Tensor, "batch nodes children"],
        state: Int[Tensor, "batch nodes children"],
    ) -> None:
        """Keep the children of nodes, with their scores and what became of them."""
        slot = _wide(nodes.slot, self.child_state)
        if children.token.shape[2] < slot.shape[2]:
            self.child_state.scatter_(1, slot, int(State.NONE))
            slot = slot[..., : children.token.shape[2]]
        self.child_token.scatter_(1, slot, children.token)
        self.child_log_prob.scatter_(1, slot, children.log_prob)
        self.child_score.scatter_(1, slot, score)
        self.child_state.scatter_(1, slot, state)

    def mark(
        self,
        parent: Int[Tensor, "batch nodes"],
        child: Int[Tensor, "batch nodes"],
        state: State,
        where: Bool[Tensor, "batch nodes"],
    ) -> None:
        """Set what became of some children; the others in the call are left as they are."""
        parent = torch.where(where, parent, self.capacity)
        index = parent * self.child_state.shape[2] + child
        self.child_state.flatten(1).scatter_(1, index, int(state))


def _wide(slot: Int[Tensor, "batch nodes"], table: Tensor) -> Tensor:
    """Repeat slots along a table's last axis, as gather and scatter want them."""
    return slot[..., None].expand(-1, -1, table.shape[2])
