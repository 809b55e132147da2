"""GPU kernels in Triton for products of a few rows with large weights, in half precision.

With the rows of one group, a product takes as long as reading its weights. Each program streams
some columns' weights, or a part of their depth, so that every processor of the card has something
to read; the parts' sums are left to whoever reads the product, see `kernels`. Nothing is added in
an order that could change from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bestk.backends.transformers.handover import fetch_first, handover, take_over

MOST_ROWS = 64
_MOST_PARTS = 16
_FETCHED = tl.constexpr(4)  # lines of every column that are fetched early: these did best


@dataclass(frozen=True)
class Plan:
    """How a kernel divides its work."""

    width: int  # columns of one program
    depth: int  # depth of one step
    stages: int = 4  # steps whose weights are on their way at once
    warps: int = 4
    programs: int = 264  # about as many as there should be, by parts of the depth

    def parts(self, columns: int, depth: int) -> int:
        """Say into how many parts the depth is divided, all of the same number of steps."""
        steps = triton.cdiv(depth, self.depth)
        wanted = max(1.0, self.programs / triton.cdiv(columns, self.width))
        fitting = [n for n in range(1, min(_MOST_PARTS, steps) + 1) if steps % n == 0]
        return min(fitting, key=lambda n: max(n / wanted, wanted / n))


def product(rows: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, parts: int) -> Tensor:
    """Multiply rows [rows, depth] with weights [columns, depth]: [parts, rows, columns]."""
    (count, depth), columns = rows.shape, weight.shape[0]
    kind = rows.dtype if parts == 1 else torch.float32
    output = rows.new_empty(parts, count, columns, dtype=kind)
    _product[(triton.cdiv(columns, plan.width), parts)](
        rows, weight, weight if bias is None else bias, output,
        count, columns, depth, rows.stride(0), weight.stride(0), output.stride(0), output.stride(1),
        triton.cdiv(depth, plan.depth * parts),
        with_bias=bias is not None,
        **_built_for(plan, count, columns, depth), **handover(rows),
    )  # fmt: skip
    return output


def gated_product(rows: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> Tensor:
    """Return silu(gate) · up, where `weight` holds the gate's columns and then the other ones."""
    (count, depth), columns = rows.shape, weight.shape[0] // 2
    output = rows.new_empty(count, columns)
    _gated_product[(triton.cdiv(columns, plan.width),)](
        rows, weight, weight if bias is None else bias, output,
        count, columns, depth, rows.stride(0), weight.stride(0), output.stride(0),
        triton.cdiv(depth, plan.depth),
        with_bias=bias is not None,
        **_built_for(plan, count, columns, depth), **handover(rows),
    )  # fmt: skip
    return output


def _built_for(plan: Plan, count: int, columns: int, depth: int) -> dict[str, Any]:
    """Return what both kernels are compiled for."""
    return {
        "is_even": columns % plan.width == 0 and depth % plan.depth == 0,
        "block_rows": block_rows(count),
        "block_width": plan.width,
        "block_depth": plan.depth,
        "num_warps": plan.warps,
        "num_stages": plan.stages,
    }


def block_rows(count: int) -> int:
    """Return the number of rows, with padding, that a kernel is built for."""
    return max(16, int(triton.next_power_of_2(count)))


@triton.jit
def _product(
    rows, weight, bias, output,
    num_rows, num_columns, depth, rows_row, weight_row, output_part, output_row, steps,
    is_early: tl.constexpr, with_bias: tl.constexpr, is_even: tl.constexpr,
    block_rows: tl.constexpr, block_width: tl.constexpr, block_depth: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    column = tl.program_id(0) * block_width + tl.arange(0, block_width)
    row = tl.arange(0, block_rows)
    inner = part * steps * block_depth + tl.arange(0, block_depth)
    is_column, is_row = column < num_columns, row < num_rows
    weight_at = weight + column.to(tl.int64)[:, None] * weight_row + inner[None, :]
    rows_at = rows + row[None, :] * rows_row + inner[:, None]
    if is_early:
        first = part * steps * block_depth
        fetch_first(weight, column, num_columns, first, depth, weight_row, _FETCHED)
    take_over(is_early)
    total = tl.zeros([block_width, block_rows], tl.float32)
    for _ in range(steps):
        # The weights come first: with few rows they fill the tensor cores, not the rows.
        if is_even:
            w = tl.load(weight_at, eviction_policy="evict_first")
            x = tl.load(rows_at, mask=is_row[None, :], other=0.0)
        else:
            w = tl.load(weight_at, mask=is_column[:, None] & (inner < depth)[None, :], other=0.0)
            x = tl.load(rows_at, mask=is_row[None, :] & (inner < depth)[:, None], other=0.0)
        total = tl.dot(w, x, total)
        weight_at += block_depth
        rows_at += block_depth
        inner += block_depth
    if with_bias:  # noqa: SIM102 (known when the kernel is built, unlike the other)
        if part == 0:
            total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    tl.store(
        output + part.to(tl.int64) * output_part + row[None, :] * output_row + column[:, None],
        total.to(output.dtype.element_ty),
        mask=is_column[:, None] & is_row[None, :],
    )


@triton.jit
def _gated_product(
    rows, weight, bias, output,
    num_rows, num_columns, depth, rows_row, weight_row, output_row, steps,
    is_early: tl.constexpr, with_bias: tl.constexpr, is_even: tl.constexpr,
    block_rows: tl.constexpr, block_width: tl.constexpr, block_depth: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * block_width + tl.arange(0, block_width)
    row = tl.arange(0, block_rows)
    inner = tl.arange(0, block_depth)
    is_column, is_row = column < num_columns, row < num_rows
    gate_at = weight + column.to(tl.int64)[:, None] * weight_row + inner[None, :]
    up_at = gate_at + num_columns.to(tl.int64) * weight_row
    rows_at = rows + row[None, :] * rows_row + inner[:, None]
    if is_early:
        up = weight + num_columns.to(tl.int64) * weight_row
        fetch_first(weight, column, num_columns, 0, depth, weight_row, _FETCHED)
        fetch_first(up, column, num_columns, 0, depth, weight_row, _FETCHED)
    take_over(is_early)
    gate = tl.zeros([block_width, block_rows], tl.float32)
    up = tl.zeros([block_width, block_rows], tl.float32)
    for _ in range(steps):
        if is_even:
            g = tl.load(gate_at, eviction_policy="evict_first")
            u = tl.load(up_at, eviction_policy="evict_first")
            x = tl.load(rows_at, mask=is_row[None, :], other=0.0)
        else:
            seen = is_column[:, None] & (inner < depth)[None, :]
            g = tl.load(gate_at, mask=seen, other=0.0)
            u = tl.load(up_at, mask=seen, other=0.0)
            x = tl.load(rows_at, mask=is_row[None, :] & (inner < depth)[:, None], other=0.0)
        gate = tl.dot(g, x, gate)
        up = tl.dot(u, x, up)
        gate_at += block_depth
        up_at += block_depth
        rows_at += block_depth
        inner += block_depth
    if with_bias:
        gate += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias + num_columns + column, mask=is_column, other=0.0).to(tl.float32)[
            :, None
        ]
    # Rounded where the single operations round.
    kind = output.dtype.element_ty
    gate = gate.to(kind).to(tl.float32)
    silu = (gate / (1 + tl.exp(-gate))).to(kind)
    tl.store(
        output + row[None, :] * output_row + column[:, None],
        silu * up.to(kind),
        mask=is_column[:, None] & is_row[None, :],
    )
