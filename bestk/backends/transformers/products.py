"""Chooses, for every shape of product that a step takes, the fastest way on the card at hand.

The ways are torch's own product and a few plans of the kernels in `product_kernels`. They are timed
once for each shape, on weights of several layers in turn so that none is still in the card's cache,
and only those are timed whose numbers agree. Float32 always takes torch's own. So does whoever sets
BESTK_PRODUCTS=torch; BESTK_PRODUCTS=kernels takes the kernels wherever they agree.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

logger = logging.getLogger("bestk")

Way = Callable[[Tensor, Tensor, Tensor | None], Tensor]

# Weights that are timed in turn: more bytes than a card's cache holds, and enough launches.
_TIMED_BYTES = 256 * 2**20
_LEAST_LAUNCHES, _MOST_LAUNCHES = 8, 32
# A kernel must be this much faster: times vary by a little less.
_CLEAR_WIN = 0.97
_TOLERANCE = 2e-2
# Width, depth, stages, warps, programs of a plan; the thorough ones are for whoever has a minute.
_PLANS = [(64, 128, 4, 4, 264), (64, 128, 4, 4, 528), (128, 64, 5, 4, 264), (32, 64, 6, 4, 264)]
_THOROUGH = [
    (width, depth, stages, warps, programs)
    for width, depth, stages, warps in (
        (16, 256, 4, 2), (32, 128, 5, 4), (32, 256, 4, 4), (64, 64, 6, 4), (64, 128, 3, 4),
        (64, 256, 3, 4), (128, 64, 4, 8), (128, 128, 3, 4), (128, 128, 3, 8),
    )
    for programs in (132, 264, 528)
]  # fmt: skip
_GATED_PLANS = [(32, 128, 4, 4, 0), (64, 128, 3, 4, 0), (32, 64, 6, 4, 0)]
_THOROUGH_GATED = [
    (16, 256, 4, 2, 0), (32, 256, 3, 4, 0), (64, 128, 2, 4, 0),
    (64, 64, 4, 4, 0), (64, 64, 6, 4, 0), (128, 64, 3, 8, 0), (128, 64, 4, 8, 0),
]  # fmt: skip


class Products:
    """The ways chosen so far, and the weights to time others with."""

    def __init__(self, *, thorough: bool = False) -> None:
        self.thorough = thorough
        self._weights: dict[tuple[Any, ...], list[Tensor]] = {}
        self._chosen: dict[tuple[Any, ...], Way] = {}

    def know(self, weights: Iterable[Tensor]) -> None:
        """Remember weights that will be multiplied with: those of one shape are timed in turn."""
        self._weights.clear()
        self._chosen.clear()
        for weight in weights:
            self._weights.setdefault((weight.shape, weight.dtype), []).append(weight)

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply the rows of a step with weights: [parts, rows, columns], see `kernels`."""
        rows = rows.flatten(0, -2)
        return self._way("linear", rows, weight, bias)(rows, weight, bias)

    def whole(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Do what `functional.linear` does."""
        flat = rows.flatten(0, -2)
        product = self._way("whole", flat, weight, bias)(flat, weight, bias)
        return product.view(*rows.shape[:-1], len(weight))

    def gated(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return silu(gate) · up of the product with both weights: [rows, columns]."""
        rows = rows.flatten(0, -2)
        return self._way("gated", rows, weight, bias)(rows, weight, bias)

    def chosen(self) -> list[str]:
        """Say what was chosen for which shape, for whoever measures."""
        return [
            f"{kind} {rows} x {tuple(shape)}: {_name(way)}"
            for (kind, rows, shape, *_), way in self._chosen.items()
        ]

    def _way(self, kind: str, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Way:
        from bestk.backends.transformers import product_kernels

        setting = os.environ.get("BESTK_PRODUCTS", "timed")
        usual = _USUAL[kind]
        is_small = 0 < len(rows) <= product_kernels.MOST_ROWS and rows.dtype != torch.float32
        if setting == "torch" or not is_small or not weight.is_contiguous():
            return usual
        key = (kind, len(rows), weight.shape, weight.dtype, setting)
        if key not in self._chosen:
            if setting == "timed" and (
                not rows.is_cuda or torch.cuda.is_current_stream_capturing()
            ):
                return usual  # nothing can be timed there, or now
            self._chosen[key] = self._fastest(kind, rows, weight, bias, setting == "timed")
        return self._chosen[key]

    def _fastest(
        self, kind: str, rows: Tensor, weight: Tensor, bias: Tensor | None, timed: bool
    ) -> Way:
        """Try all ways on real rows; return the fastest, or the first kernel that agrees."""
        usual = _USUAL[kind]
        expected = _added(usual(rows, weight, bias))
        weights = self._timed_weights(weight)
        best, least = usual, _seconds(usual, rows, weights, bias) * _CLEAR_WIN if timed else 0.0
        for way in _kernel_ways(kind, weight, thorough=self.thorough):
            try:
                if not _agree(expected, _added(way(rows, weight, bias))):
                    continue
                if not timed:
                    return way
                seconds = _seconds(way, rows, weights, bias)
            except Exception as error:  # a plan that does not fit this card
                logger.debug("%s failed: %s", _name(way), error)
                continue
            logger.debug("%s %s %s: %.6f s", kind, tuple(weight.shape), _name(way), seconds)
            if seconds < least:
                best, least = way, seconds
        return best

    def _timed_weights(self, weight: Tensor) -> list[Tensor]:
        known = self._weights.get((weight.shape, weight.dtype)) or [weight]
        count = min(max(1, -(-_TIMED_BYTES // weight.nbytes)), len(known), _MOST_LAUNCHES)
        return known[:count] * -(-_LEAST_LAUNCHES // count)


def torch_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by torch's own product, all in one part."""
    return functional.linear(rows, weight, bias)[None]


def torch_gated(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by torch's own product, then gate."""
    from bestk.backends.transformers import kernels

    return kernels.gated(torch_linear(rows, weight, bias), rows.dtype)


_USUAL: dict[str, Way] = {
    "linear": torch_linear,
    "whole": functional.linear,
    "gated": torch_gated,
}


def _kernel_ways(kind: str, weight: Tensor, *, thorough: bool) -> list[Way]:
    from bestk.backends.transformers import product_kernels

    if kind == "gated":
        plans = _GATED_PLANS + (_THOROUGH_GATED if thorough else [])
        return [
            functools.partial(_by_gated_plan, plan=product_kernels.Plan(*plan)) for plan in plans
        ]
    ways: dict[Any, Way] = {}
    usual = _PLANS[:3] if kind == "whole" else _PLANS  # for many columns a few plans will do
    for numbers in usual + (_THOROUGH if thorough else []):
        plan = product_kernels.Plan(*numbers)
        parts = 1 if kind == "whole" else plan.parts(*weight.shape)
        # Plans that differ in the number of programs alone may come to the same.
        ways.setdefault((*numbers[:4], parts), functools.partial(_by_plan, plan=plan, parts=parts))
    return list(ways.values())


def _by_plan(rows: Tensor, weight: Tensor, bias: Tensor | None, *, plan: Any, parts: int) -> Tensor:
    from bestk.backends.transformers import product_kernels

    return product_kernels.product(rows, weight, bias, plan, parts)


def _by_gated_plan(rows: Tensor, weight: Tensor, bias: Tensor | None, *, plan: Any) -> Tensor:
    from bestk.backends.transformers import product_kernels

    return product_kernels.gated_product(rows, weight, bias, plan)


def _name(way: Any) -> str:
    """Say what a way is: torch's own, or a plan."""
    return str(getattr(way, "keywords", "torch"))


def _added(product: Tensor) -> Tensor:
    """Add the parts of a product, if it has any."""
    return product.float().sum(0) if product.dim() == 3 else product.float()


def _agree(expected: Tensor, found: Tensor) -> bool:
    """Compare by the size of the whole: single numbers near zero are rounded differently."""
    scale = expected.abs().mean() + 1e-6
    difference = (expected - found.view_as(expected)).abs().mean() / scale
    return bool(difference.isfinite()) and bool(difference <= _TOLERANCE)


def _seconds(way: Way, rows: Tensor, weights: Sequence[Tensor], bias: Tensor | None) -> float:
    """Time one product on the device, host aside: many of them as a replayed CUDA graph."""
    cuda: Any = torch.cuda
    stream, graph = cuda.Stream(rows.device), cuda.CUDAGraph()
    stream.wait_stream(cuda.current_stream(rows.device))
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    times: list[float] = []
    with cuda.stream(stream):
        way(rows, weights[0], bias)  # warms libraries up on this stream
        cuda.synchronize(rows.device)
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for weight in weights:
                way(rows, weight, bias)
        finally:
            graph.capture_end()
        graph.replay()
        for _ in range(3):
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3 / len(weights))
    cuda.current_stream(rows.device).wait_stream(stream)
    return min(times)
