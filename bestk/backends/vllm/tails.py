"""Lets vLLM reuse a prefix to its last token, not only to its last whole block.

vLLM's prefix cache holds whole blocks. A search asks for thousands of prefixes that differ in their
last token, so the rest of the block, half of it on average, would be computed again for every node.
This connector remembers the block in which a finished request ended, its *tail*. A request that
goes on from there gets a copy of that block, and computes one token.

    blocks of 4   request A: t0 t1 t2 t3 | t4 t5       finished; its tail holds t4 t5
                  request B: t0 t1 t2 t3 | t4 t5 t6    whole block shared, tail copied, t6 computed

Tails cost no memory of their own: they lie in blocks that vLLM counts as free and takes back when
it needs them, the oldest first; a tail that is gone is computed again. It is a KV connector, vLLM's
own place for such things, and runs inside the engine, wherever that is. Knows blocks, no search.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

# What comes before the tail (a block's hash, or what sets the first block apart), and its tokens.
Tail = tuple[Any, tuple[int, ...]]


@dataclass
class Copies(KVConnectorMetadata):
    """What the workers copy before a step: pairs of block ids, from and to."""

    pairs: list[tuple[int, int]] = field(default_factory=list)


class TailConnector(KVConnectorBase_V1, SupportsHMA):
    """Remembers tails in the scheduler, copies them in the workers.

    Does nothing for models whose cache is more than one group of full attention.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._applies = _applies(vllm_config, kv_cache_config)
        self._block_size: int = vllm_config.cache_config.block_size
        self._pool: Any = None
        self._block_of: dict[Tail, int] = {}
        self._tail_of: dict[int, Tail] = {}
        self._held: dict[int, Any] = {}  # blocks that nobody may take for now
        self._plans: dict[str, tuple[int, int]] = {}  # by request: block to copy, place in its own
        self._copies = Copies()
        self._caches: list[torch.Tensor] = []

    # In the scheduler.

    @property
    def requires_kv_delivery(self) -> bool:
        """Say that a tail which is lost costs time, no more."""
        return False

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take the pool that says which blocks are free."""
        self._pool = gpu_block_pool

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Find the longest tail from which the request goes on; one token at least comes after."""
        self._plans.pop(request.request_id, None)
        if not self._applies or _is_more_than_text(request):
            return 0, False
        start, size = num_computed_tokens, self._block_size
        before = self._before(request, start)
        tokens = tuple(request.all_token_ids[start : min(request.num_tokens - 1, start + size - 1)])
        for length in range(len(tokens), 0, -1):
            source = self._block_of.get((before, tokens[:length]))
            if source is not None:
                self._plans[request.request_id] = (source, start // size)
                self._hold(source)  # the request's own blocks are taken next
                return length, False
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the copy, now that the request has a block of its own."""
        plan = self._plans.pop(request.request_id, None)
        if num_external_tokens and plan is not None:
            source, place = plan
            self._copies.pairs.append((source, blocks.get_block_ids()[0][place]))

    def build_connector_meta(self, scheduler_output: Any) -> Copies:
        """Hand the step's copies to the workers. What later steps overwrite is copied by then."""
        self._release()
        copies, self._copies = self._copies, Copies()
        return copies

    def on_new_request(self, request: Any) -> None:
        """Let go of what finished requests left, before others are given blocks."""
        self._release()

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Remember the request's tail, as far as it has been computed."""
        if not self._applies or _is_more_than_text(request):
            return False, None
        end = request.num_computed_tokens - request.num_in_flight_tokens
        start = end - end % self._block_size
        place = start // self._block_size
        if start < end and place < len(block_ids[0]):
            tail = (self._before(request, start), tuple(request.all_token_ids[start:end]))
            self._remember(tail, block_ids[0][place])
        return False, None

    def _before(self, request: Any, start: int) -> Any:
        """Say what a block that starts here follows: the same for the same text and adapter."""
        last = request.block_hashes[start // self._block_size - 1] if start else None
        return last, request.lora_request and request.lora_request.name, request.cache_salt

    def _remember(self, tail: Tail, block_id: int) -> None:
        self._block_of[tail] = block_id
        self._tail_of[block_id] = tail
        self._hold(block_id)  # else it would be the first to be taken

    def _hold(self, block_id: int) -> None:
        if block_id not in self._held:
            block = self._held[block_id] = self._pool.blocks[block_id]
            self._pool.touch([block])

    def _release(self) -> None:
        """Count blocks that only we hold as free again, the last to be taken."""
        free = [block for block in self._held.values() if block.ref_cnt == 1]
        self._pool.unpin_blocks(free, self._forget)
        for block in free:
            del self._held[block.block_id]

    def _forget(self, block: Any) -> None:
        tail = self._tail_of.pop(block.block_id, None)
        if tail is not None and self._block_of.get(tail) == block.block_id:
            del self._block_of[tail]

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
