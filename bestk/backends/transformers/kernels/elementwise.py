"""GPU kernels in Triton: the small operations around a model's products, in one launch each.

Everything is rounded to the model's dtype where the unfused operations round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


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


@dataclass(frozen=True)
class Norm:
    """A layer norm, or one by the root mean square, which has no bias."""

    weight: Tensor
    bias: Tensor | None
    epsilon: float
    is_rms: bool


def rms_norm(hidden: Tensor, norm: Norm) -> Tensor:
    """Scale rows by their root mean square, then by weights, rounding where the models do."""
    hidden = hidden.contiguous()
    output = torch.empty_like(hidden)
    size = hidden.shape[-1]
    block = triton.next_power_of_2(size)
    _rms_norm[(hidden.numel() // size,)](
        hidden, norm.weight, output, size, norm.epsilon,
        block=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
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


def add_norm(
    update: Tensor,  # [..., size]
    residual: Tensor | None,  # the same
    norm: Norm | None,
) -> tuple[Tensor, Tensor]:
    """Add an update to the residual stream and norm it: the sum, and the normed sum."""
    size = update.shape[-1]
    update = update.contiguous()
    residual = None if residual is None else residual.contiguous()
    total = torch.empty_like(update if residual is None else residual)
    normed = total if norm is None else torch.empty_like(total)
    weight = update if norm is None else norm.weight
    block = triton.next_power_of_2(size)
    _add_norm[(update.numel() // size,)](
        update, total if residual is None else residual,
        weight, weight if norm is None or norm.bias is None else norm.bias, total, normed,
        size, 0.0 if norm is None else norm.epsilon,
        has_residual=residual is not None,
        has_norm=norm is not None,
        has_norm_bias=norm is not None and norm.bias is not None,
        is_rms=norm is not None and norm.is_rms,
        block=block,
        num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    return total, normed


@triton.jit
def _add_norm(
    update, residual, weight, norm_bias, total, normed, size, epsilon,
    has_residual: tl.constexpr, has_norm: tl.constexpr, has_norm_bias: tl.constexpr,
    is_rms: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, block)
    inside = index < size
    kind = total.dtype.element_ty
    x = tl.load(update + row * size + index, mask=inside, other=0.0).to(tl.float32)
    if has_residual:
        # A product is rounded before it is added, and the sum before it is normed.
        x = x.to(kind).to(tl.float32)
        x += tl.load(residual + row * size + index, mask=inside, other=0.0).to(tl.float32)
    rounded = x.to(kind)
    tl.store(total + row * size + index, rounded, mask=inside)
    if has_norm:
        x = rounded.to(tl.float32)
        w = tl.load(weight + index, mask=inside, other=0.0)
        if is_rms:
            scale = tl.rsqrt(tl.sum(x * x, axis=0) / size + epsilon)
            y = (x * scale).to(w.dtype) * w
        else:
            x = tl.where(inside, x - tl.sum(x, axis=0) / size, 0.0)
            scale = tl.rsqrt(tl.sum(x * x, axis=0) / size + epsilon)
            y = x * scale * w.to(tl.float32)
            if has_norm_bias:
                y += tl.load(norm_bias + index, mask=inside, other=0.0).to(tl.float32)
        tl.store(normed + row * size + index, y.to(kind), mask=inside)


def place(
    product: Tensor,  # [batch, group, (heads + 2 * kv_heads) * head]
    cos: Tensor,  # [batch or 1, group, head]
    sin: Tensor,
    keys: Tensor,  # [batch, kv_heads, places, head]
    values: Tensor,
    at: Tensor,  # [batch, group]
    norms: Sequence[Norm] = (),  # of the heads of queries and of keys
) -> Tensor:
    """Turn queries and keys, store keys and values: return the queries [batch, heads, group, head].

    Reads the one product that holds queries, keys and values side by side.
    """
    batch, width = at.shape
    kv_heads, head = keys.shape[1], keys.shape[3]
    heads = product.shape[2] // head - 2 * kv_heads
    query = keys.new_empty(batch, width, heads, head)
    cos, sin = cos.expand(batch, width, head), sin.expand(batch, width, head)
    query_norm, key_norm = [norm.weight for norm in norms] or [keys, keys]
    _place[(batch * width, heads + 2 * kv_heads)](
        product, cos, sin, keys, values, at, query, query_norm, key_norm,
        product.stride(1), cos.stride(0), cos.stride(1), sin.stride(0), sin.stride(1),
        *keys.stride()[:3], *values.stride()[:3], at.stride(0), at.stride(1),
        width, heads, kv_heads, head // 2, norms[0].epsilon if norms else 0.0,
        with_norms=bool(norms),
        block=triton.next_power_of_2(head // 2),
        num_warps=1,
    )  # fmt: skip
    return query.transpose(1, 2)


@triton.jit
def _place(
    product, cos, sin, keys, values, at, query, query_norm, key_norm,
    product_row, cos_row, cos_place, sin_row, sin_place,
    keys_row, keys_head, keys_place, values_row, values_head, values_place, at_row, at_place,
    width, heads, kv_heads, half, epsilon,
    with_norms: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    node, which = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, place = node // width, node % width
    index = tl.arange(0, block)
    inside = index < half
    kind = keys.dtype.element_ty
    source = product + node * product_row + which * 2 * half + index
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + half, mask=inside, other=0.0)
    target = tl.load(at + row * at_row + place * at_place).to(tl.int64)
    if which >= heads + kv_heads:
        of_value = (which - heads - kv_heads).to(tl.int64)
        out = values + row * values_row + of_value * values_head + target * values_place + index
    else:
        if which < heads:
            out = query + (node * heads + which) * 2 * half + index
            norm = query_norm + index
        else:
            of_key = (which - heads).to(tl.int64)
            out = keys + row * keys_row + of_key * keys_head + target * keys_place + index
            norm = key_norm + index
        if with_norms:
            low, high = _normed(low, high, norm, half, inside, epsilon)
        cos_at = cos + row * cos_row + place * cos_place + index
        sin_at = sin + row * sin_row + place * sin_place + index
        cos_low = tl.load(cos_at, mask=inside, other=0.0)
        cos_high = tl.load(cos_at + half, mask=inside, other=0.0)
        sin_low = tl.load(sin_at, mask=inside, other=0.0)
        sin_high = tl.load(sin_at + half, mask=inside, other=0.0)
        # Rounded after each product, as the unfused operations are.
        turned = (low * cos_low).to(kind) - (high * sin_low).to(kind)
        high = ((high * cos_high).to(kind) + (low * sin_high).to(kind)).to(kind)
        low = turned.to(kind)
    tl.store(out, low, mask=inside)
    tl.store(out + half, high, mask=inside)


@triton.jit
def _normed(low, high, norm, half, inside, epsilon):
    """Scale the two halves of a head by their common root mean square."""
    kind = low.dtype
    a, b = low.to(tl.float32), high.to(tl.float32)
    mean = (tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)) / (2 * half)
    scale = tl.rsqrt((mean + epsilon).to(tl.float32))
    weight_low = tl.load(norm, mask=inside, other=0.0)
    weight_high = tl.load(norm + half, mask=inside, other=0.0)
    return ((a * scale).to(kind) * weight_low).to(kind), ((b * scale).to(kind) * weight_high).to(
        kind
    )


def gated(product: Tensor) -> Tensor:
    """Return silu(gate) · up of the one product [..., gate and up side by side]."""
    size = product.shape[-1] // 2
    output = product.new_empty(*product.shape[:-1], size)
    rows = output.numel() // size
    _gated[(rows, triton.cdiv(size, 1024))](
        product.contiguous(), output, size, block=1024, num_warps=4
    )
    return output


@triton.jit
def _gated(product, output, size, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * block + tl.arange(0, block)
    inside = index < size
    kind = output.dtype.element_ty
    at = product + row * 2 * size + index
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + size, mask=inside, other=0.0)
    silu = (gate / (1 + tl.exp(-gate))).to(kind)
    tl.store(output + row * size + index, silu * up, mask=inside)


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
