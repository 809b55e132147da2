"""What every node has said so far, as one tensor: the ids that processors look at.

`ContextTable` holds what stands before the first generated token of every search, a row each, so
that a search can take the place of another; `NodeContext` adds the nodes' own tokens. A row is
padded on the left, so that it and a node's tokens are one piece:

    context [2, 3]: − − 7 8      prefix of a node at depth 2: 5 6 −      ids: − − 7 8 5 6 −
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.nodes import NodeBatch

NOTHING = -1  # no token here


class ContextTable:
    """The ids before the first generated one of every search.

    With an encoder-decoder they are the decoder's prompt; `sources` are then what the encoder read,
    otherwise the same ids. `counted` is how long `generate` takes a context to be: it counts the
    padding of a batch, a search does not. `number` is the prompt's place among the caller's. Of a
    trie, `barred` are marked nodes, sorted, and `states` the nodes of `slots` tree nodes.
    """

    def __init__(self, batch: int, device: torch.device, width: int = 0, slots: int = 0) -> None:
        whole = torch.zeros(batch, dtype=torch.int64, device=device)
        self.ids: Int[Tensor, "batch context"] = whole.new_full((batch, width), NOTHING)
        self.sources: Int[Tensor, "batch source"] = self.ids.clone()
        self.lengths: Int[Tensor, " batch"] = whole
        self.counted: Int[Tensor, " batch"] = whole.clone()
        self.number: Int[Tensor, " batch"] = whole.clone()
        self.barred: Int[Tensor, "batch barred"] = whole.new_empty(batch, 0)
        self.states: Int[Tensor, "batch slots"] = whole.new_zeros(batch, slots)

    def fill(
        self,
        row: int,
        context: Sequence[int],
        source: Sequence[int],
        counted: int | None = None,
        number: int = 0,
        barred: Sequence[int] = (),
    ) -> None:
        """Put a search's ids into its row."""
        assert len(context), "a text follows on something"
        self.ids = _filled(self.ids, row, context)
        self.sources = _filled(self.sources, row, source)
        self.lengths[row] = len(context)
        self.counted[row] = len(context) if counted is None else counted
        self.number[row] = number
        self.barred = _filled(self.barred, row, barred)

    def take(self, rows: Tensor) -> ContextTable:
        """Return the rows of some searches."""
        other = ContextTable.__new__(ContextTable)
        other.__dict__ |= {name: column[rows] for name, column in vars(self).items()}
        return other

    @property
    def width(self) -> int:
        """Count the columns that contexts take up, padding included."""
        return self.ids.shape[1]


class NodeContext:
    """The whole prefixes of some nodes."""

    def __init__(self, contexts: ContextTable, nodes: NodeBatch) -> None:
        self.contexts = contexts
        self.nodes = nodes

    @cached_property
    def ids(self) -> Int[Tensor, "batch nodes width"]:
        """All ids, −1 before and after."""
        prefix = self.nodes.prefix
        context = self.contexts.ids[:, None].expand(-1, prefix.shape[1], -1)
        return torch.cat([context, prefix], dim=2)

    @cached_property
    def seen(self) -> Int[Tensor, "batch nodes width"]:
        """All ids, gaps filled with an id that is there anyway: safe to gather and scatter by."""
        return self.ids.where(self.ids >= 0, self.contexts.ids[:, -1, None, None])

    @property
    def depth(self) -> Int[Tensor, "batch nodes"]:
        """Count the generated tokens."""
        return self.nodes.depth

    @property
    def length(self) -> Int[Tensor, "batch nodes"]:
        """Count all tokens, as `generate` would."""
        return self.contexts.counted[:, None] + self.nodes.depth

    def tail(self, size: int) -> Int[Tensor, "batch nodes size"]:
        """Return the last tokens of every node, −1 where it has fewer."""
        back = torch.arange(-size, 0, device=self.depth.device)
        place = self.contexts.width + self.depth[..., None] + back
        return self.ids.gather(2, place.clamp(min=0)).where(place >= 0, NOTHING)

    def by_length(
        self, wanted: Bool[Tensor, "batch nodes"]
    ) -> Iterator[tuple[Tensor, Tensor, Int[Tensor, "nodes length"]]]:
        """Yield rows, places and exact ids of the wanted nodes, those of equal length together."""
        rows, places = wanted.nonzero(as_tuple=True)
        lengths = self.contexts.lengths[rows] + self.depth[rows, places]
        for length in sorted(set(lengths.tolist())):
            some = lengths == length
            row, place = rows[some], places[some]
            start = self.contexts.width - self.contexts.lengths[row]
            columns = start[:, None] + torch.arange(length, device=rows.device)
            yield row, place, self.ids[row[:, None], place[:, None], columns]


@runtime_checkable
class LogitsProcessor(Protocol):
    """Changes the scores of many nodes at once, in place if it likes.

    `is_static` says that it is a fixed sequence of tensor operations: a CUDA graph can hold it.
    """

    is_static: bool

    def __call__(
        self, context: NodeContext, scores: Float[Tensor, "batch nodes vocab"]
    ) -> Float[Tensor, "batch nodes vocab"]:
        """Return new scores; −inf forbids a token."""
        ...


def _filled(table: Tensor, row: int, ids: Sequence[int]) -> Tensor:
    """Put ids at the right end of a row; the table grows to the left where it must."""
    if len(ids) > table.shape[1]:
        wider = table.new_full((len(table), len(ids)), NOTHING)
        wider[:, len(ids) - table.shape[1] :] = table
        table = wider
    start = table.shape[1] - len(ids)
    table[row, :start] = NOTHING
    table[row, start:] = torch.tensor(ids, dtype=torch.int64)
    return table
