"""GPU kernels in Triton for tree attention.

A node attends to its prompt and to its own path: nothing else is read, so the cost of a step does
not grow with the number of slots that the search has filled. Two ways give the same numbers:

- *whole*: one program serves one node and one key/value head, for all query heads that share it.
- *split*: all nodes of a search look at the same prompt, so one program takes a part of the prompt
  for all of them at once; a second kernel adds each node's own path and merges the parts. The
  prompt is read once instead of once per node, by many programs side by side.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

_LOG2_E = 1.4426950408889634  # the kernels work in powers of two
_BLOCK_KEYS = {torch.float32: 32}  # 64 in half precision
# Programs that keep a large card busy; more parts of a prompt than that only have to be merged.
_BUSY = 264
_MOST_PARTS = 16
# Rows of queries that one program takes at most, 64 in half precision.
_MOST_ROWS = {torch.float32: 32}
# Shorter prompts are read faster than a second kernel starts.
_SHORT_PROMPT = 128
# Kinds of queries that the split kernels cannot take on this card.
_TOO_LARGE: set[tuple[torch.dtype, int, int]] = set()


def tree_attention(
    query: Tensor,  # [batch, heads, group, head]
    keys: Tensor,  # [batch, kv_heads, places, head]
    values: Tensor,
    path: Tensor,  # [batch, group, depth] tree slots, −1 where there is none
    prompt_length: Tensor,  # [batch]
    prompt_size: int,
    scaling: float,
) -> Tensor:
    """Attend from every node to the prompt and the node's path: [batch, group, heads, head]."""
    kind = (query.dtype, query.shape[-1], query.shape[1] * query.shape[2] // keys.shape[1])
    if prompt_size > _SHORT_PROMPT and kind not in _TOO_LARGE:
        try:
            return split_attention(query, keys, values, path, prompt_length, prompt_size, scaling)
        except OutOfResources:  # a card with less memory in its processors
            _TOO_LARGE.add(kind)
    return whole_attention(query, keys, values, path, prompt_length, prompt_size, scaling)


def whole_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    path: Tensor,
    prompt_length: Tensor,
    prompt_size: int,
    scaling: float,
    parts: tuple[Tensor, Tensor] | None = None,  # of the prompt: what `split_attention` sums up
) -> Tensor:
    """Attend with one program for each node and key/value head, after parts if there are any."""
    batch, heads, width, head = query.shape
    kv_heads = keys.shape[1]
    output = query.new_empty(batch, width, heads, values.shape[-1])
    empty = query.new_empty(1, dtype=torch.float32)
    sums, mixed = (empty, empty) if parts is None else parts
    num_parts = 0 if parts is None else len(sums)
    _path_attention[(batch * width, kv_heads)](
        query, keys, values, path, prompt_length, sums, mixed, output,
        *query.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *output.stride()[:3],
        path.stride(0), path.stride(1),
        width, prompt_size, path.shape[2], kv_heads, batch * kv_heads * width * (heads // kv_heads),
        heads // kv_heads, scaling * _LOG2_E, head, values.shape[-1],
        parts=num_parts,
        unrolled=min(num_parts, 8),  # all at once would not fit a program's registers
        block_heads=max(16, triton.next_power_of_2(heads // kv_heads)),
        block_keys=64,
        block_path=triton.next_power_of_2(max(16, path.shape[2])),
        block_head=triton.next_power_of_2(max(16, head, values.shape[-1])),
        precision=_precision(query),
        num_warps=4,
        num_stages=2,
    )  # fmt: skip
    return output


def split_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    path: Tensor,
    prompt_length: Tensor,
    prompt_size: int,
    scaling: float,
) -> Tensor:
    """Attend with programs for parts of the prompt, then with programs for paths."""
    batch, heads, width, head = query.shape
    kv_heads, value_head = keys.shape[1], values.shape[-1]
    rows = width * (heads // kv_heads)
    block_rows = min(_MOST_ROWS.get(query.dtype, 64), max(16, triton.next_power_of_2(rows)))
    block_keys = _BLOCK_KEYS.get(query.dtype, 64)
    row_blocks = triton.cdiv(rows, block_rows)
    blocks = triton.cdiv(prompt_size, block_keys)
    wanted = triton.cdiv(_BUSY, batch * kv_heads * row_blocks)
    # A power of two, since a kernel is built for each number; parts after the end are empty.
    parts = triton.next_power_of_2(min(wanted, blocks, _MOST_PARTS))
    part_size = triton.cdiv(blocks, parts) * block_keys
    # The highest weight and the sum of a row, and its mixed values.
    sums = query.new_empty(parts, batch, kv_heads, rows, 2, dtype=torch.float32)
    mixed = query.new_empty(parts, batch, kv_heads, rows, value_head, dtype=torch.float32)
    _prompt_part[(batch * kv_heads, parts, row_blocks)](
        query, keys, values, prompt_length, sums, mixed,
        *query.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
        kv_heads, batch * kv_heads * rows, rows, part_size, heads // kv_heads,
        scaling * _LOG2_E, head, value_head,
        block_rows=block_rows,
        block_keys=block_keys,
        block_head=triton.next_power_of_2(max(16, head, value_head)),
        precision=_precision(query),
        num_warps=4,
        num_stages=2,
    )  # fmt: skip
    return whole_attention(
        query, keys, values, path, prompt_length, prompt_size, scaling, (sums, mixed)
    )


def _precision(query: Tensor) -> str:
    return "ieee" if query.dtype == torch.float32 else "tf32"


@triton.jit
def _prompt_part(
    query, keys, values, prompt_length, sums, mixed_out,
    query_row, query_head, query_place,
    keys_row, keys_head, keys_place,
    values_row, values_head, values_place,
    kv_heads, all_rows, num_rows, part_size, shared_heads, scaling, head, value_head,
    block_rows: tl.constexpr, block_keys: tl.constexpr,
    block_head: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    search, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, kv_head = search // kv_heads, search % kv_heads
    lanes = tl.program_id(2) * block_rows + tl.arange(0, block_rows)  # a node's heads side by side
    is_lane = lanes < num_rows
    of_head = tl.arange(0, block_head)
    is_head, is_value = of_head < head, of_head < value_head
    place = (lanes // shared_heads).to(tl.int64)
    heads = kv_head * shared_heads + lanes % shared_heads
    q = tl.load(
        query + row * query_row + heads[:, None] * query_head + place[:, None] * query_place
        + of_head,
        mask=is_lane[:, None] & is_head, other=0.0,
    )  # fmt: skip
    key_base = keys + row * keys_row + kv_head * keys_head
    value_base = values + row * values_row + kv_head * values_head
    best = tl.full([block_rows], float("-inf"), tl.float32)
    total = tl.zeros([block_rows], tl.float32)
    mixed = tl.zeros([block_rows, block_head], tl.float32)

    first = part * part_size
    last = tl.minimum(tl.load(prompt_length + row), first + part_size)
    for start in range(first, last, block_keys):
        index = start + tl.arange(0, block_keys)
        best, total, mixed = _attend(
            q, key_base, value_base, index.to(tl.int64), index < last, of_head, is_head, is_value,
            keys_place, values_place, scaling, best, total, mixed, precision,
        )  # fmt: skip

    # A part that begins after the prompt's end stays at −inf, 0 and 0.
    at = part.to(tl.int64) * all_rows + search * num_rows + lanes
    tl.store(sums + at * 2, best, mask=is_lane)
    tl.store(sums + at * 2 + 1, total, mask=is_lane)
    tl.store(
        mixed_out + at[:, None] * value_head + of_head, mixed, mask=is_lane[:, None] & is_value
    )


@triton.jit
def _path_attention(
    query, keys, values, path, prompt_length, sums, mixed_parts, output,
    query_row, query_head, query_place,
    keys_row, keys_head, keys_place,
    values_row, values_head, values_place,
    output_row, output_place, output_head,
    path_row, path_place,
    width, prompt_size, depth, kv_heads, all_rows, shared_heads, scaling, head, value_head,
    parts: tl.constexpr, unrolled: tl.constexpr, block_heads: tl.constexpr,
    block_keys: tl.constexpr, block_path: tl.constexpr, block_head: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    node, kv_head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, place = (node // width).to(tl.int64), (node % width).to(tl.int64)
    of_head = tl.arange(0, block_head)
    lanes = tl.arange(0, block_heads)
    heads = kv_head * shared_heads + lanes
    is_head, is_value = of_head < head, of_head < value_head
    is_lane = lanes < shared_heads

    q = tl.load(
        query + row * query_row + heads[:, None] * query_head + place * query_place + of_head,
        mask=is_lane[:, None] & is_head, other=0.0,
    )  # fmt: skip
    key_base = keys + row * keys_row + kv_head * keys_head
    value_base = values + row * values_row + kv_head * values_head
    best = tl.full([block_heads], float("-inf"), tl.float32)
    total = tl.zeros([block_heads], tl.float32)
    mixed = tl.zeros([block_heads, block_head], tl.float32)

    if parts == 0:
        length = tl.load(prompt_length + row)
        for start in range(0, length, block_keys):
            index = start + tl.arange(0, block_keys)
            best, total, mixed = _attend(
                q, key_base, value_base, index.to(tl.int64), index < length, of_head, is_head,
                is_value, keys_place, values_place, scaling, best, total, mixed, precision,
            )  # fmt: skip
    else:
        search_at = (row * kv_heads + kv_head) * width * shared_heads  # int64, as `row` is
        at = search_at + place * shared_heads + lanes
        for _ in range(0, parts, unrolled):
            for _part in tl.static_range(unrolled):
                highest = tl.load(sums + at * 2, mask=is_lane, other=0.0)
                share = tl.load(sums + at * 2 + 1, mask=is_lane, other=1.0)
                mix = tl.load(
                    mixed_parts + at[:, None] * value_head + of_head,
                    mask=is_lane[:, None] & is_value, other=0.0,
                )  # fmt: skip
                # The first part holds the prompt's first token, so the maximum is finite.
                both = tl.maximum(best, highest)
                fade, fade_part = tl.exp2(best - both), tl.exp2(highest - both)
                mixed = mixed * fade[:, None] + mix * fade_part[:, None]
                total = total * fade + share * fade_part
                best = both
                at += all_rows

    steps = tl.arange(0, block_path)
    slot = tl.load(path + row * path_row + place * path_place + steps, mask=steps < depth, other=-1)
    best, total, mixed = _attend(
        q, key_base, value_base, tl.where(slot >= 0, prompt_size + slot - 1, 0), slot >= 0,
        of_head, is_head, is_value, keys_place, values_place, scaling, best, total, mixed,
        precision,
    )  # fmt: skip

    tl.store(
        output + row * output_row + place * output_place + heads[:, None] * output_head + of_head,
        (mixed / total[:, None]).to(output.dtype.element_ty),
        mask=is_lane[:, None] & is_value,
    )


@triton.jit
def _attend(
    q, key_base, value_base, index, seen, of_head, is_head, is_value,
    keys_place, values_place, scaling, best, total, mixed, precision: tl.constexpr,
):  # fmt: skip
    """Fold one block of keys into the running softmax."""
    k = tl.load(
        key_base + index[:, None] * keys_place + of_head, mask=seen[:, None] & is_head, other=0.0
    )
    # A compiled caller hands the scale over in double precision.
    weight = (tl.dot(q, tl.trans(k), input_precision=precision) * scaling).to(tl.float32)
    weight = tl.where(seen[None, :], weight, float("-inf"))
    highest = tl.maximum(best, tl.max(weight, axis=1))
    # The prompt's first token comes first, or a block of its own part, so `highest` is finite.
    weight = tl.exp2(weight - highest[:, None])
    fade = tl.exp2(best - highest)
    v = tl.load(
        value_base + index[:, None] * values_place + of_head,
        mask=seen[:, None] & is_value, other=0.0,
    )  # fmt: skip
    mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=precision)
    return highest, total * fade + tl.sum(weight, axis=1), mixed
