"""The cross-attention's keys and values: one row per search, written when its source is read.

What the layers of a decoder cache by themselves grows with every call and knows no rows; here a new
source can take the place of another while the other rows stay.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from bestk.backends.transformers.kv_cache import CacheLayout, StaticLayer


@dataclass
class SourcePlaces:
    """How many places the longest source may take; known when the first ones are read."""

    size: int = 0


class SourceLayer(StaticLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one cross-attention layer."""

    def __init__(self, layout: CacheLayout, places: SourcePlaces) -> None:
        super().__init__(layout)
        self.places = places

    @property
    def size(self) -> int:
        return self.places.size

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the sources that are being read, and return just those."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.layout.rows is not None
        self.store(key_states, value_states, self.layout.rows)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.places.size, 0

    def get_seq_length(self) -> int:
        return self.places.size if self.is_initialized else 0


def source_cache(layout: CacheLayout, places: SourcePlaces) -> Cache:
    """Make a cache for any number of layers; each allocates itself at its first use."""
    make_layer: Any = functools.partial(SourceLayer, layout, places)
    return Cache(layer_class_to_replicate=make_layer)
