"""GPU kernels in Triton for the decoders of encoder-decoders, each one launch of a fused layer.

Rows are the nodes of all searches, `batch · width` of them; a row of queries, keys or values holds
its heads one after the other, as a product leaves them. Sums are kept in float32 and rounded where
the models round.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2E = 1.4426950408889634  # the kernels work in powers of two
# Programs that are few leave most of a GPU idle; then a long source is shared out among more.
_FEW_PROGRAMS = 128
_LONG_SOURCE = 512


def path_attention(
    query: Tensor,  # [rows, heads · head], its rows may lie apart
    new_keys: Tensor,
    new_values: Tensor,
    keys: Tensor,  # [batch, heads, places, head]
    values: Tensor,
    path: Tensor,  # [batch, width, depth] tree slots, −1 where there is none
    depth: Tensor,  # [batch, width]
    at: Tensor,  # [batch, width] places of the nodes
    prompt_length: Tensor,  # [batch]
    prompt_size: int,
    scaling: float,
    bias: Tensor | None = None,  # [heads, distances]
) -> Tensor:
    """Keep every node's keys and values, and attend from it to the prompt and its own path.

    The nodes of a call must not be ancestors of each other: each reads only itself and what earlier
    calls have kept.
    """
    batch, width, _ = path.shape
    _, heads, _, head = keys.shape
    output = query.new_empty(batch * width, heads * head)
    table = query if bias is None else bias.contiguous()
    _path_attention[(batch * width, heads)](
        query, new_keys, new_values, keys, values, path, depth, at, prompt_length, table, output,
        query.stride(0), new_keys.stride(0), new_values.stride(0),
        *keys.stride()[:3], *values.stride()[:3],
        *path.stride()[:2], *depth.stride(), *at.stride(),
        0 if bias is None else bias.shape[1],
        width, prompt_size, path.shape[2], heads, head, scaling * _LOG2E,
        has_bias=bias is not None,
        block=max(16, min(64, triton.next_power_of_2(prompt_size + path.shape[2] - 1))),
        block_head=triton.next_power_of_2(head),
        num_warps=2,
    )  # fmt: skip
    return output


@triton.jit
def _path_attention(
    query, new_keys, new_values, keys, values, path, depth, at, prompt_length, bias, output,
    query_row, new_keys_row, new_values_row,
    keys_row, keys_head, keys_place, values_row, values_head, values_place,
    path_row, path_place, depth_row, depth_place, at_row, at_place,
    num_distances, width, prompt_size, most, heads, head, scaling,
    has_bias: tl.constexpr, block: tl.constexpr, block_head: tl.constexpr,
):  # fmt: skip
    node, which = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row, place = node // width, node % width
    of_head = tl.arange(0, block_head)
    is_head = of_head < head
    in_row = which * head + of_head
    q = tl.load(query + node * query_row + in_row, mask=is_head, other=0.0).to(tl.float32)
    own_key = tl.load(new_keys + node * new_keys_row + in_row, mask=is_head, other=0.0)
    own_value = tl.load(new_values + node * new_values_row + in_row, mask=is_head, other=0.0)
    key_base = keys + row * keys_row + which * keys_head
    value_base = values + row * values_row + which * values_head
    target = tl.load(at + row * at_row + place * at_place)
    tl.store(key_base + target * keys_place + of_head, own_key, mask=is_head)
    tl.store(value_base + target * values_place + of_head, own_value, mask=is_head)

    # A node sees itself first, so the running softmax starts with one finite entry.
    best = tl.sum(q * own_key.to(tl.float32), axis=0) * scaling
    if has_bias:
        best += tl.load(bias + which * num_distances).to(tl.float32) * 1.4426950408889634
    total = 1.0
    mixed = own_value.to(tl.float32)
    length = tl.load(prompt_length + row)
    above = tl.load(depth + row * depth_row + place * depth_place) - 1  # ancestors in the tree
    above = tl.minimum(above, most - 1)  # a place that holds no node may say anything
    path_base = path + row * path_row + place * path_place
    for start in range(0, prompt_size + above, block):
        index = start + tl.arange(0, block)
        level = index - prompt_size
        is_above = (level >= 0) & (level < above)
        slot = tl.load(path_base + level, mask=is_above, other=-1)
        seen = (index < tl.minimum(length, prompt_size)) | (slot >= 0)
        where = tl.where(is_above, prompt_size + slot - 1, index)
        where = tl.where(seen, where, 0).to(tl.int64)
        k = tl.load(
            key_base + where[:, None] * keys_place + of_head[None, :],
            mask=seen[:, None] & is_head[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        weight = tl.sum(q[None, :] * k, axis=1) * scaling
        if has_bias:
            distance = above - tl.where(is_above, level, index - length)
            distance = tl.minimum(tl.maximum(distance, 0), num_distances - 1)
            near = tl.load(bias + which * num_distances + distance, mask=seen, other=0.0)
            weight += near.to(tl.float32) * 1.4426950408889634
        weight = tl.where(seen, weight, float("-inf"))
        highest = tl.maximum(best, tl.max(weight, axis=0))
        weight = tl.exp2(weight - highest)
        fade = tl.exp2(best - highest)
        v = tl.load(
            value_base + where[:, None] * values_place + of_head[None, :],
            mask=seen[:, None] & is_head[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        mixed = mixed * fade + tl.sum(weight[:, None] * v, axis=0)
        total = total * fade + tl.sum(weight, axis=0)
        best = highest
    tl.store(
        output + node * heads * head + in_row,
        (mixed / total).to(output.dtype.element_ty),
        mask=is_head,
    )


def source_attention(
    query: Tensor,  # [rows, heads · head]
    keys: Tensor,  # [batch, heads, places, head]
    values: Tensor,
    length: Tensor,  # [batch] places that a source fills
    scaling: float,
) -> Tensor:
    """Attend from every node to its search's source, which all nodes of a search read together."""
    batch, heads, places, head = keys.shape
    width = len(query) // batch
    block_width = min(64, max(16, triton.next_power_of_2(width)))
    blocks = triton.cdiv(width, block_width)
    is_exact = query.dtype == torch.float32
    block_places = 32 if is_exact else 128 if head <= 64 else 64
    programs = batch * heads * blocks
    splits = 1
    if places > _LONG_SOURCE and programs < _FEW_PROGRAMS:
        splits = min(triton.cdiv(2 * _FEW_PROGRAMS, programs), triton.cdiv(places, block_places))
    span = triton.cdiv(triton.cdiv(places, splits), block_places) * block_places
    splits = triton.cdiv(places, span)
    output = query.new_empty(len(query), heads * head)
    if splits == 1:
        mixed, best, total = output, output, output
    else:
        mixed = query.new_empty(splits, len(query), heads * head, dtype=torch.float32)
        best = query.new_empty(splits, len(query), heads, dtype=torch.float32)
        total = torch.empty_like(best)
    _source_attention[(batch * heads, blocks, splits)](
        query, keys, values, length, mixed, best, total,
        query.stride(0), *keys.stride()[:3], *values.stride()[:3],
        width, len(query), heads, head, span, scaling * _LOG2E,
        is_split=splits > 1,
        block_width=block_width,
        block_places=block_places,
        block_head=triton.next_power_of_2(max(16, head)),
        precision="ieee" if is_exact else "tf32",
        num_warps=4,
        num_stages=2,
    )  # fmt: skip
    if splits > 1:
        _merge[(len(query), heads)](
            mixed, best, total, output, len(query), heads, head, splits,
            block_splits=triton.next_power_of_2(splits),
            block_head=triton.next_power_of_2(head),
            num_warps=1,
        )  # fmt: skip
    return output


@triton.jit
def _source_attention(
    query, keys, values, lengths, output, best_of, total_of,
    query_row, keys_row, keys_head, keys_place, values_row, values_head, values_place,
    width, rows, heads, head, span, scaling,
    is_split: tl.constexpr, block_width: tl.constexpr,
    block_places: tl.constexpr, block_head: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    pair, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    row, which = pair // heads, pair % heads
    lanes = tl.program_id(1) * block_width + tl.arange(0, block_width)
    is_lane = lanes < width
    nodes = row * width + lanes
    of_head = tl.arange(0, block_head)
    is_head = of_head < head
    in_row = which * head + of_head
    is_query = is_lane[:, None] & is_head[None, :]
    q = tl.load(query + nodes[:, None] * query_row + in_row[None, :], mask=is_query, other=0.0)
    key_base = keys + row * keys_row + which * keys_head
    value_base = values + row * values_row + which * values_head
    best = tl.full([block_width], float("-inf"), tl.float32)
    total = tl.zeros([block_width], tl.float32)
    mixed = tl.zeros([block_width, block_head], tl.float32)
    first = split * span
    last = tl.minimum(tl.load(lengths + row), first + span).to(tl.int32)
    for start in range(first, last, block_places):
        index = start + tl.arange(0, block_places)
        seen = index < last
        is_part = seen[:, None] & is_head[None, :]
        place = index.to(tl.int64)[:, None]
        k = tl.load(key_base + place * keys_place + of_head[None, :], mask=is_part, other=0.0)
        weight = tl.dot(q, tl.trans(k), input_precision=precision) * scaling
        weight = tl.where(seen[None, :], weight, float("-inf"))
        # Every block that is begun holds a place of the source, so `highest` is finite.
        highest = tl.maximum(best, tl.max(weight, axis=1))
        weight = tl.exp2(weight - highest[:, None])
        fade = tl.exp2(best - highest)
        v = tl.load(value_base + place * values_place + of_head[None, :], mask=is_part, other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=precision)
        total = total * fade + tl.sum(weight, axis=1)
        best = highest
    if is_split:
        nodes = split.to(tl.int64) * rows + nodes
        tl.store(best_of + nodes * heads + which, best, mask=is_lane)
        tl.store(total_of + nodes * heads + which, total, mask=is_lane)
    else:
        mixed = mixed / total[:, None]
    tl.store(
        output + nodes[:, None] * heads * head + in_row[None, :],
        mixed.to(output.dtype.element_ty),
        mask=is_query,
    )


@triton.jit
def _merge(
    mixed, best, total, output, rows, heads, head, splits,
    block_splits: tl.constexpr, block_head: tl.constexpr,
):  # fmt: skip
    """Put the parts of one node and head together, each weighed by its share of the softmax."""
    node, which = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index, of_head = tl.arange(0, block_splits), tl.arange(0, block_head)
    is_split, is_head = index < splits, of_head < head
    part = index.to(tl.int64) * rows + node
    high = tl.load(best + part * heads + which, mask=is_split, other=float("-inf"))
    share = tl.exp2(high - tl.max(high, axis=0))
    whole = tl.sum(share * tl.load(total + part * heads + which, mask=is_split, other=0.0), axis=0)
    in_row = which * head + of_head
    parts = tl.load(
        mixed + part[:, None] * heads * head + in_row[None, :],
        mask=is_split[:, None] & is_head[None, :], other=0.0,
    )  # fmt: skip
    result = tl.sum(share[:, None] * parts, axis=0) / whole
    tl.store(
        output + node * heads * head + in_row, result.to(output.dtype.element_ty), mask=is_head
    )
