"""What fused layers of every kind are made of: known parts of a model, and the residual stream.

A layer is recognised by its parts: whoever builds a fused one asks for them here, and an error says
that one is of another kind. A part is then known by its tensors; nothing here holds a copy of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from bestk.backends.transformers.fused.packed import PackedLinear
from bestk.backends.transformers.kernels.elementwise import Norm

_TOLERANCE = {torch.float32: 1e-4}
_HALF_TOLERANCE = 5e-2


class UnknownError(Exception):
    """A part is of another kind than the kernels know, or somebody has changed it."""


def require(*facts: bool) -> None:
    """Refuse a part of which something does not hold."""
    if not all(facts):
        raise UnknownError


def linear(module: Any) -> nn.Linear:
    """Return a linear layer that is no more than that."""
    require(type(module) is nn.Linear, module.weight.is_contiguous())
    known: nn.Linear = module
    return known


def norm(module: Any) -> Norm:
    """Return the tensors of a layer norm, or of one by the root mean square."""
    if type(module) is nn.LayerNorm:
        require(module.weight is not None)
        return Norm(module.weight, module.bias, float(module.eps), is_rms=False)
    require(set(module._parameters) == {"weight"}, not module._modules, module.weight.dim() == 1)
    return Norm(module.weight, None, float(module.variance_epsilon), is_rms=True)


def multiply(layer: nn.Linear | PackedLinear, rows: Tensor) -> Tensor:
    """Multiply rows with a layer's weights."""
    return functional.linear(rows, layer.weight, layer.bias)


class Residual:
    """The sum of residuals, and the same normed for its reader, on the way from layer to layer."""

    def __init__(self) -> None:
        self.hidden: Tensor | None = None
        self.normed: Tensor | None = None

    def put(self, hidden: Tensor, normed: Tensor) -> Tensor:
        """Leave a sum for the next layer, and return it."""
        self.hidden, self.normed = hidden, normed
        return hidden

    def take(self, hidden: Tensor) -> Tensor | None:
        """Return what was left with this very sum, None if the reader got something else."""
        normed = self.normed if hidden is self.hidden else None
        self.hidden = self.normed = None
        return normed

    def end(self, norm: Any, hidden: Tensor) -> Tensor:
        """Be the norm after the last layer, which has normed its sum already."""
        normed = self.take(hidden)
        if normed is None:
            normed = type(norm).forward(norm, hidden)
        return normed


def sample(device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Draw the same numbers every time."""
    source = torch.Generator(device).manual_seed(0)
    return [torch.randn(*shape, generator=source, device=device) for shape in shapes]


@torch.inference_mode()
def agrees(
    plain: Callable[..., Any],
    fused: Callable[..., Tensor],
    *given: Tensor,
    residual: Tensor | float = 0.0,
) -> bool:
    """Return whether something gives on a sample, fused, what it gives plain.

    Measured by the size of what it adds to a residual, which may be small against that.
    """
    try:
        expected = plain(*given)
    except Exception:  # whatever a family does with what it was not written for
        return False
    found = fused(*given)
    if not isinstance(expected, Tensor) or expected.shape != found.shape:
        return False
    added, difference = (expected - residual).float(), (expected - found).float()
    tolerance = _TOLERANCE.get(expected.dtype, _HALF_TOLERANCE)
    return bool(difference.abs().mean() <= tolerance * added.abs().mean())
