"""One key/value cache per prompt, shared by all branches of its search tree.

The prompt's keys and values come first, padded on the right; after them every expanded node has one
slot, in the order of expansion. Nothing is copied or reordered when the search jumps between
branches: the attention mask of a node names the prompt and the node's own ancestors.

Three prompt places (P = 3, one of them padding), tree slots 1 and 2 siblings, 3 a child of 1:

    place        0   1   2   3   4   5
    holds        p   p   -   1   2   3
    mask of 2    x   x           x
    mask of 3    x   x       x       x
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from bestk.nodes import NodeBatch


@dataclass
class CacheLayout:
    """Where things lie in the cache: shared by all layers, so each step sets it once."""

    prompt_length: Int[Tensor, " batch"]
    prompt_size: int  # places for the prompt: the longest of the batch, or its bucket
    capacity: int  # places after the prompt; the last one is scratch
    with_kernel: bool = False  # kernels store new nodes, and every place stays in view
    used: int = 0  # places that hold something, scratch aside
    write: Int[Tensor, "batch nodes"] | None = None  # None while prompts are read
    rows: Int[Tensor, " read"] | None = None  # which searches' prompts are read; None for all

    @property
    def size(self) -> int:
        """Count all places."""
        return self.prompt_size + self.capacity

    def place(self, slot: Int[Tensor, "*nodes"]) -> Int[Tensor, "*nodes"]:
        """Map tree slots to places; the tree's scratch slot becomes the last place."""
        return self.prompt_size + slot - 1

    def resized(self, rows: Sequence[int], batch: int, prompt_size: int) -> CacheLayout:
        """Lay another number of searches out, these in its first rows; prompts must still fit."""
        length = self.prompt_length.new_ones(batch)
        length[: len(rows)] = self.prompt_length[list(rows)]
        return dataclasses.replace(
            self,
            prompt_length=length,
            prompt_size=prompt_size,
            used=self.used - self.prompt_size + prompt_size,
            write=None,
            rows=None,
        )

    def advance(self, nodes: NodeBatch) -> None:
        """Point at the places of nodes, and bring them into view."""
        self.write = self.place(nodes.slot)
        if self.with_kernel:
            self.used = self.size
        elif nodes.slot.device.type == "cpu":
            highest = nodes.path.masked_fill(~nodes.is_valid[..., None], 0).max()
            self.used = int(self.place(highest.clamp(min=0))) + 1
        else:  # a bound that needs no answer from the device
            self.used = min(self.used + nodes.slot.shape[1], self.size - 1)

    def positions(self, nodes: NodeBatch) -> Int[Tensor, "batch nodes"]:
        """Return the position of every node: its depth after the prompt's own length."""
        return (self.prompt_length[:, None] + nodes.depth - 1).clamp(min=0)

    def distance(self, nodes: NodeBatch) -> Int[Tensor, "batch nodes used"]:
        """Count the tokens from each place back to each node; only ancestors' places matter."""
        batch, width, depth = nodes.path.shape
        device = nodes.path.device
        position = torch.arange(self.used, device=device).repeat(batch, width, 1)
        is_node = (nodes.path >= 0) & (nodes.path < self.capacity)
        level = torch.arange(depth, device=device) + self.prompt_length[:, None, None]
        # Where there is no ancestor, place 0 is written: it is the prompt's first, position 0.
        place = self.place(nodes.path).where(is_node, 0)
        position.scatter_(2, place, level.expand_as(place).where(is_node, 0))
        return self.positions(nodes)[..., None] - position

    def mask(
        self, nodes: NodeBatch, hidden: int | None = None
    ) -> Bool[Tensor, "batch 1 nodes used"]:
        """Mark which places each node may look at: the prompt, its ancestors and itself.

        Nobody looks at a text's tokens that are `hidden`.
        """
        width, device = nodes.path.shape[1], nodes.path.device
        in_prompt = torch.arange(self.used, device=device) < self.prompt_length[:, None]
        visible = in_prompt[:, None].repeat(1, width, 1)
        # Where there is no ancestor, point at place 0, which every node may see anyway.
        is_node = (nodes.path >= 0) & (nodes.path < self.capacity)
        if hidden is not None:
            is_node &= nodes.prefix != hidden
        visible.scatter_(2, self.place(nodes.path).where(is_node, 0), True)
        return visible[:, None]


class StaticLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, with `size` places for every search."""

    is_sliding = False

    def __init__(self, layout: CacheLayout) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layout = layout

    @property
    def size(self) -> int:
        """Places of a search."""
        return self.layout.size

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        _, heads, _, head_size = key_states.shape
        batch, size = len(self.layout.prompt_length), self.size
        self.keys = key_states.new_zeros(batch, heads, size, head_size)
        self.values = value_states.new_zeros(batch, heads, size, value_states.shape[-1])
        self.is_initialized = True

    def get_max_length(self) -> int:
        return self.size

    def store(self, key_states: Tensor, value_states: Tensor, rows: Tensor | None) -> None:
        """Write what was read from the first place on, into some rows or all."""
        length = key_states.shape[2]
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            assert held is not None
            if rows is None:
                held[:, :, :length] = new
            else:
                held[:, :, :length].index_copy_(0, rows.to(self.device), new)

    def take(self, old: StaticLayer, rows: Sequence[int]) -> None:
        """Copy what another layer holds of these searches."""
        assert old.keys is not None
        assert old.values is not None
        self.lazy_initialization(old.keys, old.values)
        index = list(rows)
        for held, was in ((self.keys, old.keys), (self.values, old.values)):
            assert held is not None
            for here, there in self.moved(old):
                held[: len(index), :, here] = was[index, :, there]

    def moved(self, old: StaticLayer) -> list[tuple[slice, slice]]:
        """Return which places here are which of a layer of another size."""
        both = slice(min(old.size, self.size))
        return [(both, both)]


class TreeLayer(StaticLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one attention layer."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store the new keys and values, and return all that the current queries may look at."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        write = self.layout.write
        if write is None:
            self.store(key_states, value_states, self.layout.rows)
            return key_states, value_states
        assert self.keys is not None
        assert self.values is not None
        used = self.layout.used
        if self.layout.with_kernel:
            from bestk.backends.transformers.kernels import elementwise as kernels

            kernels.store(self.keys, self.values, key_states, value_states, write)
            return self.keys[:, :, :used], self.values[:, :, :used]
        place = write.to(self.device)[:, None, :, None]
        # Others look past a broken node, which multiplies it by 0: NaN would stay NaN.
        self.keys.scatter_(2, place.expand_as(key_states), key_states.nan_to_num())
        self.values.scatter_(2, place.expand_as(value_states), value_states.nan_to_num())
        return self.keys[:, :, :used], self.values[:, :, :used]

    def moved(self, old: StaticLayer) -> list[tuple[slice, slice]]:
        """Prompts begin where they did, nodes come after the longest prompt."""
        before, now = old.layout.prompt_size, self.layout.prompt_size
        both = slice(min(before, now))
        return [(both, both), (slice(now, None), slice(before, None))]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self.layout.write is None else self.layout.used), 0

    def get_seq_length(self) -> int:
        return 0 if self.layout.write is None else self.layout.used


@torch.inference_mode()
def resized(cache: Any, rows: Sequence[int], other: Cache) -> Cache:
    """Let a new cache, of another layout, hold these searches of the given one."""
    for old in cache.layers:
        layer: Any = other.layer_class_to_replicate()  # type: ignore[misc]
        if old.is_initialized:
            layer.take(old, rows)
        other.layers.append(layer)
    return other


def tree_cache(layout: CacheLayout) -> Cache:
    """Make a cache for any number of layers; each allocates itself at its first use."""
    make_layer: Any = functools.partial(TreeLayer, layout)
    return Cache(layer_class_to_replicate=make_layer)
