"""Products of a few rows with large weights, taken the other way round on an AMD CPU, for one call.

A step multiplies the k rows of a group with every weight of the model. In float32 the usual order,
rows times transposed weights, leaves most of an AMD CPU idle when the rows are few; weights times
transposed rows is the same sum and up to three times faster where a layer widens its input. On an
Intel CPU, for which torch's library has kernels of few rows, it takes up to twice as long. The
maker decides, not a clock: a model must give the same numbers every time. The model is as it was
when the call ends.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bestk.backends.transformers.replaced import replaced

_CPU_INFO = Path("/proc/cpuinfo")

# With more rows, for each thread and in all, the usual order is the faster one.
_ROWS_OF_A_THREAD, MOST_ROWS = 8, 16
# Weights fit the fast caches as they go by: two passes with few rows beat one with many.
_PIECE = 8


class SmallProducts:
    """The linear layers of one model that gain from it."""

    def __init__(self, model: nn.Module) -> None:
        modules = model.modules() if is_by_amd() else ()
        self.layers: list[Any] = [module for module in modules if _gains(module)]

    @contextlib.contextmanager
    def applied(self, rows: int) -> Iterator[None]:
        """Take products of this many rows the other way round until the block ends."""
        most = min(_ROWS_OF_A_THREAD * torch.get_num_threads(), MOST_ROWS)
        layers = self.layers if rows <= most else []
        with replaced((layer, "forward", functools.partial(_swapped, layer)) for layer in layers):
            yield


def is_by_amd() -> bool:
    """Return whether AMD made this machine's CPU, where the system tells."""
    return "AuthenticAMD" in _told()


def multiplies_bfloat16() -> bool:
    """Return whether this machine's CPU has the instructions, where the system tells."""
    return "avx512_bf16" in _told()


@functools.cache
def _told() -> frozenset[str]:
    try:
        return frozenset(_CPU_INFO.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return frozenset()


def _gains(module: nn.Module) -> bool:
    return (
        type(module) is nn.Linear
        and "forward" not in module.__dict__
        and type(module.weight) is nn.Parameter  # quantised ones may be tensors of another kind
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.float32
        and module.out_features >= module.in_features
    )


def _swapped(layer: nn.Linear, hidden: Tensor) -> Tensor:
    rows = hidden.flatten(0, -2)
    pieces = -(-len(rows) // _PIECE)
    parts = [torch.mm(layer.weight, part.t()).t() for part in rows.tensor_split(pieces)]
    product = torch.cat(parts) if pieces > 1 else parts[0].contiguous()
    if layer.bias is not None:
        product += layer.bias
    return product.view(*hidden.shape[:-1], layer.out_features)
