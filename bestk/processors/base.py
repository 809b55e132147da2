"""What every node of a group has said so far, as one tensor: the ids that processors look at.

`Contexts` holds what stands before the first generated token of every search, `Prefixes` adds the
nodes' own tokens. A context is padded on the left, so that it and a node's tokens are one piece:

    context [2, 3]: − − 7 8      prefix of a node at depth 2: 5 6 −      ids: − − 7 8 5 6 −
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.backends.base import Group

NOTHING = -1  # no token here


class Contexts:
    """The ids before the first generated one of every search, never empty.

    With an encoder-decoder they are the decoder's prompt; `sources` are then what the encoder read,
    otherwise the same ids. `counted` is how long `generate` takes all contexts to be: it counts the
    padding of a batch, a search does not. Filled once the session knows the decoder's prompts.
    """

    ids: Int[Tensor, "batch context"]
    sources: Int[Tensor, "batch source"]
    lengths: Int[Tensor, " batch"]
    counted: Int[Tensor, " batch"]

    def __init__(self, device: torch.device, counted: int | None = None) -> None:
        self.device = device
        self.counted_length = counted

    def fill(
        self, contexts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Say what stands before each search, and what its encoder read if it has one."""
        assert all(len(context) for context in contexts)
        self.ids = _pad_left(contexts, self.device)
        self.sources = self.ids if sources is None else _pad_left(sources, self.device)
        self.lengths = torch.tensor([len(context) for context in contexts], device=self.device)
        counted = self.counted_length
        self.counted = self.lengths if counted is None else torch.full_like(self.lengths, counted)

    @property
    def width(self) -> int:
        """Count the columns that contexts take up, padding included."""
        return self.ids.shape[1]


class Prefixes:
    """The whole prefixes of a group's nodes."""

    def __init__(self, contexts: Contexts, group: Group) -> None:
        self.contexts = contexts
        self.group = group

    @cached_property
    def ids(self) -> Int[Tensor, "batch group width"]:
        """All ids, −1 before and after."""
        prefix = self.group.prefix
        context = self.contexts.ids[:, None].expand(-1, prefix.shape[1], -1)
        return torch.cat([context, prefix], dim=2)

    @cached_property
    def seen(self) -> Int[Tensor, "batch group width"]:
        """All ids, gaps filled with an id that is there anyway: safe to gather and scatter by."""
        return self.ids.where(self.ids >= 0, self.contexts.ids[:, -1, None, None])

    @property
    def depth(self) -> Int[Tensor, "batch group"]:
        """Count the generated tokens."""
        return self.group.depth

    @property
    def length(self) -> Int[Tensor, "batch group"]:
        """Count all tokens, as `generate` would."""
        return self.contexts.counted[:, None] + self.group.depth

    def tail(self, size: int) -> Int[Tensor, "batch group size"]:
        """Return the last tokens of every node, −1 where it has fewer."""
        back = torch.arange(-size, 0, device=self.depth.device)
        place = self.contexts.width + self.depth[..., None] + back
        return self.ids.gather(2, place.clamp(min=0)).where(place >= 0, NOTHING)

    def by_length(
        self, wanted: Bool[Tensor, "batch group"]
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
class Step(Protocol):
    """One processor: changes the scores of a whole group, in place if it likes.

    `is_static` says that it is a fixed sequence of tensor operations: a CUDA graph can hold it.
    """

    is_static: bool

    def __call__(
        self, prefixes: Prefixes, scores: Float[Tensor, "batch group vocab"]
    ) -> Float[Tensor, "batch group vocab"]:
        """Return new scores; −inf forbids a token."""
        ...


class Pipeline:
    """A shaper that applies its steps in order, writing into the log-probabilities it is given."""

    def __init__(self, contexts: Contexts, steps: Sequence[Step]) -> None:
        self.contexts = contexts
        self.steps = tuple(steps)

    @property
    def is_static(self) -> bool:
        """Say whether every step is a fixed sequence of tensor operations."""
        return all(step.is_static for step in self.steps)

    def __call__(
        self, group: Group, log_probs: Float[Tensor, "batch group vocab"]
    ) -> Float[Tensor, "batch group vocab"]:
        """Apply all steps to the distributions of a group."""
        prefixes = Prefixes(self.contexts, group)
        for step in self.steps:
            log_probs = step(prefixes, log_probs)
        return log_probs


def _pad_left(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    width = max(map(len, sequences))
    rows = [[*[NOTHING] * (width - len(row)), *row] for row in sequences]
    return torch.tensor(rows, dtype=torch.int64, device=device)
