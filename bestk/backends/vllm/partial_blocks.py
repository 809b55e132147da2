"""Lets vLLM reuse a prefix to its last token, not only to its last whole block.

vLLM's prefix cache holds whole blocks. A search asks for thousands of prefixes that differ in their
last token, so the rest of the block, half of it on average, would be computed again for every node.
This connector puts the block in which a finished request ended, its *tail*, into the prefix cache
too, under a key of its own. A request that goes on from there gets a copy of that block, and
computes one token.

    blocks of 4   request A: t0 t1 t2 t3 | t4 t5       finished; its tail holds t4 t5
                  request B: t0 t1 t2 t3 | t4 t5 t6    whole block shared, tail copied, t6 computed

Tails cost no memory of their own: like all cached blocks they count as free, and vLLM takes them
back when it needs them, the oldest first; a tail that is gone is computed again. It is a KV
connector, vLLM's own place for such things, and runs inside the engine, wherever that is. Knows
blocks, no search.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace


@dataclass
class Copies(KVConnectorMetadata):
    """What the workers copy before a step: pairs of block ids, from and to."""

    pairs: list[tuple[int, int]] = field(default_factory=list)


class TailConnector(KVConnectorBase_V1, SupportsHMA):
    """Finds tails in the scheduler, copies them in the workers.

    Does nothing for models whose cache is more than one group of full attention.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._applies = _applies(vllm_config, kv_cache_config)
        self._block_size: int = vllm_config.cache_config.block_size
        self._pool: Any = None
        self._plans: dict[str, tuple[int, int]] = {}  # by request: block to copy, place in its own
        self._sources: list[Any] = []  # blocks that nobody may take before they are copied
        self._copies = Copies()
        self._caches: list[torch.Tensor] = []

    # In the scheduler.

    @property
    def requires_kv_delivery(self) -> bool:
        """Say that a tail which is lost costs time, no more."""
        return False

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take the pool of blocks, whose cache tails go into."""
        self._pool = gpu_block_pool

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Find the longest tail from which the request goes on; one token at least comes after."""
        self._plans.pop(request.request_id, None)
        start, size = num_computed_tokens, self._block_size
        # A source that is held is one block less for the request: it must fit all the same.
        has_room = self._pool.get_num_free_blocks() > -(-request.num_tokens // size)
        if not self._applies or not has_room or _is_more_than_text(request):
            return 0, False
        end = min(request.num_tokens - 1, start + size - 1)
        keys = self._keys(request, start, request.all_token_ids[start:end])
        for length in range(len(keys), 0, -1):
            source = self._pool.cached_block_hash_to_block.get_one_block(keys[length - 1])
            if source is not None:
                self._plans[request.request_id] = (source.block_id, start // size)
                self._pool.touch([source])  # the request's own blocks are taken next
                self._sources.append(source)
                return length, False
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the copy, now that the request has a block of its own."""
        plan = self._plans.pop(request.request_id, None)
        if num_external_tokens and plan is not None:
            source, place = plan
            self._copies.pairs.append((source, blocks.get_block_ids()[0][place]))

    def build_connector_meta(self, scheduler_output: Any) -> Copies:
        """Hand the step's copies to the workers; later steps write after them, so let go now."""
        self._pool.free_blocks(self._sources)
        self._sources = []
        copies, self._copies = self._copies, Copies()
        return copies

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Cache the request's tail, as far as it has been computed."""
        if not self._applies or _is_more_than_text(request):
            return False, None
        end = request.num_computed_tokens - request.num_in_flight_tokens
        start = end - end % self._block_size
        place = start // self._block_size
        if start < end and place < len(block_ids[0]):
            block = self._pool.blocks[block_ids[0][place]]
            if block.block_hash is None and not block.is_null:
                key = self._keys(request, start, request.all_token_ids[start:end])[-1]
                block.set_block_hash(key, num_tokens=end)
                self._pool.cached_block_hash_to_block.insert(key, block)
        return False, None

    def _keys(self, request: Any, start: int, tokens: Sequence[int]) -> list[Any]:
        """Return the key of each tail that starts there: of the first token, the first two, …

        It stands for all that came before too: vLLM's hash of the blocks, the adapter, the salt.
        """
        before = request.block_hashes[start // self._block_size - 1] if start else b""
        adapter = request.lora_request.name if request.lora_request else None
        state = hashlib.sha256(before)
        state.update(repr((start, adapter, request.cache_salt)).encode())
        keys = []
        for token in tokens:
            state.update(b",%d" % token)
            keys.append(make_block_hash_with_group_id(state.digest(), 0))
        return keys

    # In the workers.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the tensors whose first axis is the blocks."""
        if self._caches:  # vLLM has one connector per process, whichever engine makes it
            raise RuntimeError(
                "another engine with this connector runs in this process: give this one a process "
                "of its own (VLLM_ENABLE_V1_MULTIPROCESSING=1), or close the first"
            )
        self._caches = list(kv_caches.values())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy the tails that this step goes on from."""
        copies = self._get_connector_metadata()
        assert isinstance(copies, Copies)
        copy_kv_cache_blocks_inplace(self._caches, self._kv_cache_config.num_blocks, copies.pairs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Copies are done when the step begins."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing is written: tails lie where vLLM put them."""

    def wait_for_save(self) -> None:
        """Nothing is written."""


def _applies(vllm_config: Any, kv_cache_config: Any) -> bool:
    groups = kv_cache_config.kv_cache_groups
    return (
        len(groups) == 1
        and isinstance(groups[0].kv_cache_spec, FullAttentionSpec)
        and vllm_config.parallel_config.decode_context_parallel_size == 1
        and vllm_config.speculative_config is None
    )


def _is_more_than_text(request: Any) -> bool:
    """Tell requests with pictures or embeddings, which their tokens alone do not identify."""
    return bool(request.mm_features) or request.prompt_embeds is not None
