"""GPU kernels in Triton for the few rows of a step: products with large weights, and norms.

A product of a few rows reads its weights once and does next to nothing with them, so what counts is
how many programs read at the same time, and what else needs no launch of its own: several products
of the same rows, biases, activations. Where a product has few outputs its sums are shared out, and
the norm after it adds the parts up, in the same order every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from bestk.backends.transformers.handover import fetch_first, handover, take_over

# With more rows the libraries' products are the faster ones.
MOST_ROWS = 32
# Programs that a GPU runs side by side, roughly; with fewer, sums are shared out.
_PROGRAMS = 128
_ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


def product(
    rows: Tensor,  # [rows, inner]
    weights: Sequence[Tensor],  # up to three, each [outputs, inner]
    biases: Sequence[Tensor | None],
) -> list[Tensor]:
    """Multiply the same rows with several weights of one shape, in one launch."""
    outputs, inner = weights[0].shape
    result = rows.new_empty(len(weights), len(rows), outputs)
    padded = [*weights, *[weights[0]] * (3 - len(weights))]
    # A weight without a bias among others with one: what is read there is not added.
    some = next((bias for bias in biases if bias is not None), rows)
    given = [some if bias is None else bias for bias in biases]
    given += [some] * (3 - len(given))
    block = 16 if outputs * len(weights) < 32 * _PROGRAMS else 32
    _product[(triton.cdiv(outputs, block), len(weights), 1)](
        rows, *padded, *given, result, rows.stride(0), len(rows), outputs, inner, inner,
        *[bias is not None for bias in [*biases, None, None][:3]],
        activation=0, is_gated=False, is_part=False,
        **_blocks(len(rows), block, inner), **handover(rows),
    )  # fmt: skip
    return list(result.unbind())


def activated(
    rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str, gate: Tensor | None = None
) -> Tensor:
    """Multiply rows with a weight, add the bias, apply the activation; times a second product.

    With `gate` the result is activation(rows · weightᵀ) · (rows · gateᵀ), as in gated layers.
    """
    outputs, inner = weight.shape
    result = rows.new_empty(len(rows), outputs)
    other = weight if gate is None else gate
    some = rows if bias is None else bias
    block = 16 if outputs < 32 * _PROGRAMS else 32
    _product[(triton.cdiv(outputs, block), 1, 1)](
        rows, weight, other, other, some, some, some, result,
        rows.stride(0), len(rows), outputs, inner, inner,
        bias is not None, False, False,
        activation=_ACTIVATIONS[activation], is_gated=gate is not None, is_part=False,
        **_blocks(len(rows), block, inner), **handover(rows),
    )  # fmt: skip
    return result


def partial_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows with a weight, the sums shared out: float32 parts [parts, rows, outputs]."""
    outputs, inner = weight.shape
    options = _blocks(len(rows), 16, inner, most=128)
    step = options["block_inner"]
    parts = max(1, min(2 * _PROGRAMS // triton.cdiv(outputs, 16), inner // step, 8))
    span = triton.cdiv(triton.cdiv(inner, parts), step) * step
    parts = triton.cdiv(inner, span)
    result = rows.new_empty(parts, len(rows), outputs, dtype=torch.float32)
    _product[(triton.cdiv(outputs, 16), 1, parts)](
        rows, weight, weight, weight, rows, rows, rows, result,
        rows.stride(0), len(rows), outputs, inner, span,
        False, False, False,
        activation=0, is_gated=False, is_part=True, **options, **handover(rows),
    )  # fmt: skip
    return result


def _blocks(rows: int, block_outputs: int, inner: int, most: int = 256) -> dict[str, int]:
    return {
        "block_rows": max(16, triton.next_power_of_2(rows)),
        "block_outputs": block_outputs,
        "block_inner": max(16, min(most, triton.next_power_of_2(inner))),
        "num_warps": 4,
        "num_stages": 3,
    }


@triton.jit
def _product(
    rows, weight_0, weight_1, weight_2, bias_0, bias_1, bias_2, output,
    row_stride, num_rows, outputs, inner, span,
    has_bias_0: tl.constexpr, has_bias_1: tl.constexpr, has_bias_2: tl.constexpr,
    is_early: tl.constexpr,
    activation: tl.constexpr, is_gated: tl.constexpr, is_part: tl.constexpr,
    block_rows: tl.constexpr, block_outputs: tl.constexpr, block_inner: tl.constexpr,
):  # fmt: skip
    which, part = tl.program_id(1), tl.program_id(2)
    lanes = tl.arange(0, block_rows)
    columns = tl.program_id(0) * block_outputs + tl.arange(0, block_outputs)
    is_row, is_column = lanes < num_rows, columns < outputs
    weight = weight_0
    if not is_gated:
        if which == 1:
            weight = weight_1
        if which == 2:
            weight = weight_2
    row_base = rows + lanes[:, None].to(tl.int64) * row_stride
    weight_base = weight + columns[:, None].to(tl.int64) * inner
    gate_base = weight_1 + columns[:, None].to(tl.int64) * inner
    sums = tl.zeros([block_rows, block_outputs], tl.float32)
    gates = tl.zeros([block_rows, block_outputs], tl.float32)
    first = part * span
    if is_early:
        lines: tl.constexpr = block_inner // 64 if block_inner > 64 else 1
        fetch_first(weight, columns, outputs, first, inner, inner, lines)
        if is_gated:
            fetch_first(weight_1, columns, outputs, first, inner, inner, lines)
    take_over(is_early)
    for start in range(first, tl.minimum(first + span, inner), block_inner):
        index = start + tl.arange(0, block_inner)
        inside = index < inner
        x = tl.load(row_base + index[None, :], mask=is_row[:, None] & inside[None, :], other=0.0)
        is_weight = is_column[:, None] & inside[None, :]
        w = tl.load(weight_base + index[None, :], mask=is_weight, other=0.0)
        sums = tl.dot(x, tl.trans(w), sums, input_precision="ieee")
        if is_gated:
            g = tl.load(gate_base + index[None, :], mask=is_weight, other=0.0)
            gates = tl.dot(x, tl.trans(g), gates, input_precision="ieee")

    if has_bias_0:  # noqa: SIM102 (known when the kernel is built, the next is not)
        if which == 0:
            sums += tl.load(bias_0 + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if has_bias_1:  # noqa: SIM102 (known when the kernel is built, the next is not)
        if which == 1:
            sums += tl.load(bias_1 + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if has_bias_2:  # noqa: SIM102 (known when the kernel is built, the next is not)
        if which == 2:
            sums += tl.load(bias_2 + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    kind = output.dtype.element_ty
    if activation > 0:
        sums = _activated(sums.to(kind).to(tl.float32), activation)
    if is_gated:
        sums = sums.to(kind).to(tl.float32) * gates.to(kind).to(tl.float32)
    copy = which + part  # of the result: one for each weight, or for each part of the sums
    at = (copy * num_rows + lanes)[:, None].to(tl.int64) * outputs + columns[None, :]
    tl.store(output + at, sums.to(kind), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _activated(x, activation: tl.constexpr):
    if activation == 1:
        x = tl.maximum(x, 0.0)
    elif activation == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif activation == 3:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * (1.0 - 1.0 / (1.0 + tl.exp(2.0 * inner)))  # 0.5 · (1 + tanh(inner))
    else:
        x = x / (1.0 + tl.exp(-x))
    return x


@dataclass(frozen=True)
class Norm:
    """A layer norm, or one by the root mean square, which has no bias."""

    weight: Tensor
    bias: Tensor | None
    epsilon: float
    is_rms: bool


def add_norm(
    update: Tensor,  # [rows, size], or float32 parts of it [parts, rows, size]
    residual: Tensor | None,  # [rows, size]
    norm: Norm | None,
    bias: Tensor | None = None,  # of the product that the parts belong to
) -> tuple[Tensor, Tensor]:
    """Add an update to the residual stream and norm it: the sum, and the normed sum."""
    parts = update.shape[0] if update.ndim == 3 else 1
    num_rows, size = update.shape[-2:]
    kind = update.dtype if residual is None else residual.dtype
    total = update.new_empty(num_rows, size, dtype=kind)
    normed = total if norm is None else torch.empty_like(total)
    weight = update if norm is None else norm.weight
    block = triton.next_power_of_2(size)
    _add_norm[(num_rows,)](
        update, update if bias is None else bias, total if residual is None else residual,
        weight, weight if norm is None or norm.bias is None else norm.bias, total, normed,
        num_rows, size, 0.0 if norm is None else norm.epsilon,
        parts=parts,
        has_bias=bias is not None,
        has_residual=residual is not None,
        has_norm=norm is not None,
        has_norm_bias=norm is not None and norm.bias is not None,
        is_rms=norm is not None and norm.is_rms,
        block=block,
        num_warps=8 if block >= 2048 else 4,
        **handover(update),
    )  # fmt: skip
    return total, normed


@triton.jit
def _add_norm(
    update, bias, residual, weight, norm_bias, total, normed,
    num_rows, size, epsilon, is_early: tl.constexpr,
    parts: tl.constexpr, has_bias: tl.constexpr, has_residual: tl.constexpr, has_norm: tl.constexpr,
    has_norm_bias: tl.constexpr, is_rms: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    take_over(is_early)
    index = tl.arange(0, block)
    inside = index < size
    kind = total.dtype.element_ty
    x = tl.load(update + row * size + index, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, parts):
        x += tl.load(update + (part * num_rows + row) * size + index, mask=inside, other=0.0)
    if has_bias:
        x += tl.load(bias + index, mask=inside, other=0.0).to(tl.float32)
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
