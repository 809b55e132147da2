"""GPU kernels in Triton: tree attention, and the small operations around it in one launch each.

A node attends to its prompt and to its own path: nothing else is read, so the cost of a step does
not grow with the number of slots that the search has filled. One program serves one node and one
key/value head, for all query heads that share it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


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
    batch, heads, width, head = query.shape
    kv_heads = keys.shape[1]
    output = query.new_empty(batch, width, heads, values.shape[-1])
    grid = (batch * width, kv_heads)
    _tree_attention[grid](
        query,
        keys,
        values,
        path,
        prompt_length,
        output,
        *query.stride()[:3],
        *keys.stride()[:3],
        *values.stride()[:3],
        *output.stride()[:3],
        path.stride(0),
        path.stride(1),
        width,
        prompt_size,
        path.shape[2],
        heads // kv_heads,
        scaling * 1.4426950408889634,  # log2(e): the kernel works in powers of two
        head,
        values.shape[-1],
        block_heads=max(16, triton.next_power_of_2(heads // kv_heads)),
        block_keys=64,
        block_path=triton.next_power_of_2(max(16, path.shape[2])),
        block_head=triton.next_power_of_2(max(16, head, values.shape[-1])),
        precision="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=2,
    )
    return output


@triton.jit
def _tree_attention(
    query, keys, values, path, prompt_length, output,
    query_row, query_head, query_place,
    keys_row, keys_head, keys_place,
    values_row, values_head, values_place,
    output_row, output_place, output_head,
    path_row, path_place,
    width, prompt_size, depth, shared_heads, scaling, head, value_head,
    block_heads: tl.constexpr, block_keys: tl.constexpr, block_path: tl.constexpr,
    block_head: tl.constexpr, precision: tl.constexpr,
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

    length = tl.load(prompt_length + row)
    for start in range(0, length, block_keys):
        index = start + tl.arange(0, block_keys)
        seen = index < length
        best, total, mixed = _attend(
            q, key_base, value_base, index.to(tl.int64), seen, of_head, is_head, is_value,
            keys_place, values_place, scaling, best, total, mixed, precision,
        )  # fmt: skip

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
    # The first block always holds the prompt's first token, so `highest` is finite.
    weight = tl.exp2(weight - highest[:, None])
    fade = tl.exp2(best - highest)
    v = tl.load(
        value_base + index[:, None] * values_place + of_head,
        mask=seen[:, None] & is_value, other=0.0,
    )  # fmt: skip
    mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=precision)
    return highest, total * fade + tl.sum(weight, axis=1), mixed


def rotate(
    query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    """Turn queries and keys by their positions, in one launch: Llama's `apply_rotary_pos_emb`."""
    batch, heads, width, head = query.shape
    kv_heads = keys.shape[1]
    turned_query = query.new_empty(batch, heads, width, head)
    turned_keys = keys.new_empty(batch, kv_heads, width, head)
    cos, sin = cos.expand(batch, width, head), sin.expand(batch, width, head)
    _rotate[(batch * width, heads + kv_heads)](
        query, keys, cos, sin, turned_query, turned_keys,
        *query.stride()[:3], *keys.stride()[:3],
        *turned_query.stride()[:3], *turned_keys.stride()[:3],
        cos.stride(0), cos.stride(1), sin.stride(0), sin.stride(1),
        width, heads, head // 2,
        block=triton.next_power_of_2(head // 2),
        num_warps=1,
    )  # fmt: skip
    return turned_query, turned_keys


@triton.jit
def _rotate(
    query, keys, cos, sin, out_query, out_keys,
    query_row, query_head, query_place, keys_row, keys_head, keys_place,
    oq_row, oq_head, oq_place, ok_row, ok_head, ok_place,
    cos_row, cos_place, sin_row, sin_place,
    width, heads, half, block: tl.constexpr,
):  # fmt: skip
    node, which = tl.program_id(0), tl.program_id(1)
    row, place = (node // width).to(tl.int64), (node % width).to(tl.int64)
    index = tl.arange(0, block)
    inside = index < half
    cos_at = cos + row * cos_row + place * cos_place + index
    sin_at = sin + row * sin_row + place * sin_place + index
    cos_low = tl.load(cos_at, mask=inside, other=0.0)
    cos_high = tl.load(cos_at + half, mask=inside, other=0.0)
    sin_low = tl.load(sin_at, mask=inside, other=0.0)
    sin_high = tl.load(sin_at + half, mask=inside, other=0.0)
    if which < heads:
        source = query + row * query_row + which * query_head + place * query_place + index
        target = out_query + row * oq_row + which * oq_head + place * oq_place + index
    else:
        head = which - heads
        source = keys + row * keys_row + head * keys_head + place * keys_place + index
        target = out_keys + row * ok_row + head * ok_head + place * ok_place + index
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + half, mask=inside, other=0.0)
    # Rounded after each product, as the unfused operations are.
    kind = low.dtype
    turned_low = (low * cos_low).to(kind) - (high * sin_low).to(kind)
    turned_high = (high * cos_high).to(kind) + (low * sin_high).to(kind)
    tl.store(target, turned_low.to(kind), mask=inside)
    tl.store(target + half, turned_high.to(kind), mask=inside)


def store(keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, at: Tensor) -> None:
    """Write a group's keys and values to their places, `at` [batch, group], in one launch."""
    batch, kv_heads, width, head = new_keys.shape
    value_head = new_values.shape[-1]
    _store[(batch * width, kv_heads)](
        keys, values, new_keys, new_values, at,
        *keys.stride()[:3], *values.stride()[:3],
        *new_keys.stride()[:3], *new_values.stride()[:3], at.stride(0), at.stride(1),
        width, head, value_head,
        block=triton.next_power_of_2(max(head, value_head)),
        num_warps=1,
    )  # fmt: skip


@triton.jit
def _store(
    keys, values, new_keys, new_values, at,
    keys_row, keys_head, keys_place, values_row, values_head, values_place,
    nk_row, nk_head, nk_place, nv_row, nv_head, nv_place, at_row, at_place,
    width, head, value_head, block: tl.constexpr,
):  # fmt: skip
    node, which = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, place = (node // width).to(tl.int64), (node % width).to(tl.int64)
    target = tl.load(at + row * at_row + place * at_place)
    index = tl.arange(0, block)
    key = tl.load(
        new_keys + row * nk_row + which * nk_head + place * nk_place + index, mask=index < head
    )
    value = tl.load(
        new_values + row * nv_row + which * nv_head + place * nv_place + index,
        mask=index < value_head,
    )
    key_at = keys + row * keys_row + which * keys_head + target * keys_place + index
    value_at = values + row * values_row + which * values_head + target * values_place + index
    tl.store(key_at, key, mask=index < head)
    tl.store(value_at, value, mask=index < value_head)


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Scale rows by their root mean square, then by `weight`, rounding where the models do."""
    hidden = hidden.contiguous()
    output = torch.empty_like(hidden)
    size = hidden.shape[-1]
    block = triton.next_power_of_2(size)
    _rms_norm[(hidden.numel() // size,)](
        hidden, weight, output, size, epsilon, block=block, num_warps=8 if block >= 2048 else 4
    )
    return output


@triton.jit
def _rms_norm(hidden, weight, output, size, epsilon, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, block)
    inside = index < size
    x = tl.load(hidden + row * size + index, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt((tl.sum(x * x, axis=0) / size + epsilon).to(tl.float32))
    w = tl.load(weight + index, mask=inside, other=0.0)
    tl.store(output + row * size + index, (x * scale).to(w.dtype) * w, mask=inside)


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up in one launch."""
    gate, up = gate.contiguous(), up.contiguous()
    output = torch.empty_like(gate)
    count = gate.numel()
    _silu_times[(triton.cdiv(count, 1024),)](gate, up, output, count, block=1024, num_warps=4)
    return output


@triton.jit
def _silu_times(gate, up, output, count, block: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = index < count
    g = tl.load(gate + index, mask=inside, other=0.0)
    x = g.to(tl.float32)
    silu = (x / (1 + tl.exp(-x))).to(g.dtype)
    tl.store(output + index, silu * tl.load(up + index, mask=inside, other=0.0), mask=inside)
