"""Runs parts of a model as fused kernels, for one call.

Whole decoder layers where they are of the kind that `layers` knows; else norms, rotary positions
and gated activations one by one. What may be fused is found by trying: each candidate runs on a
sample, plain and fused, and only those that agree are replaced. When the call ends the model is as
it was.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bestk.backends.transformers.fused.decoder_only import FusedLayer, chain, fused_layers
from bestk.kernels import may_run

_TOLERANCE = {torch.float32: 1e-5}
_HALF_TOLERANCE = 2e-2


class Fusion:
    """The parts of one model that may run as fused kernels."""

    def __init__(self, model: Any, config: Any) -> None:
        self.model, self.config = model, config
        device = _device(model)
        self.may_fuse_layers = may_run("layers", device)
        self.modules: list[tuple[Any, Callable[..., Tensor]]] = []
        self.rotary: list[Any] = []
        self.layers: list[FusedLayer] = []
        self.last_norm: Any = None
        if not may_run("pieces", device):
            return
        for module in model.modules():
            for fused in (_rms_norm, _gated):
                if _agrees(module, fused):
                    self.modules.append((module, functools.partial(fused, module)))
        homes = {
            type(module).__module__
            for module in model.modules()
            if type(module).__name__.endswith("Attention")
        }
        self.rotary = [sys.modules[name] for name in homes if _has_plain_rotary(name, device)]
        self._find_layers()

    @property
    def has_layers(self) -> bool:
        """Say whether whole layers are fused."""
        return bool(self.layers)

    def leave_layers(self) -> None:
        """Fuse no whole layers any more."""
        self.may_fuse_layers, self.layers, self.last_norm = False, [], None

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Run the fused versions until the block ends."""
        from bestk.backends.transformers.kernels import elementwise as kernels

        if not all(layer.is_current() for layer in self.layers):
            self._find_layers()
        before = [home.apply_rotary_pos_emb for home in self.rotary]
        replaced = [*self.modules, *self._whole()]
        try:
            for module, fused in replaced:
                module.forward = fused
            for home in self.rotary:
                home.apply_rotary_pos_emb = kernels.rotate
            yield
        finally:
            for module, _ in replaced:
                module.__dict__.pop("forward", None)
            for home, original in zip(self.rotary, before, strict=True):
                home.apply_rotary_pos_emb = original
            for layer in self.layers[:1]:
                layer.carried.clear()

    def _find_layers(self) -> None:
        if not self.may_fuse_layers:
            return
        self.layers = fused_layers(self.model, self.config)
        self.last_norm = chain(self.layers, self.model)

    def _whole(self) -> Iterator[tuple[Any, Callable[..., Tensor]]]:
        """Name the layers that are replaced, and what comes after them."""
        if not self.layers:
            return
        for layer in self.layers:
            yield layer.layer, layer.forward
        if self.last_norm is not None:
            yield self.last_norm, functools.partial(_carried_norm, self.layers[0], self.last_norm)


def _device(model: nn.Module) -> torch.device:
    weight = next(model.parameters(), None)
    return torch.device("meta") if weight is None else weight.device


def _carried_norm(layer: FusedLayer, norm: Any, hidden: Tensor) -> Tensor:
    normed = layer.carried.take(hidden)
    return _rms_norm(norm, hidden) if normed is None else normed


def _rms_norm(norm: Any, hidden: Tensor) -> Tensor:
    from bestk.backends.transformers.kernels import elementwise as kernels

    return kernels.rms_norm(hidden, norm.weight, norm.variance_epsilon)


def _gated(block: Any, hidden: Tensor) -> Tensor:
    from bestk.backends.transformers.kernels import elementwise as kernels

    gated = kernels.silu_times(block.gate_proj(hidden), block.up_proj(hidden))
    output: Tensor = block.down_proj(gated)
    return output


def _sample_size(module: Any, fused: Callable[..., Tensor]) -> int | None:
    """Return the width of a module's input if it looks like what `fused` replaces."""
    if "forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks:
        return None
    if fused is _rms_norm:
        weight = getattr(module, "weight", None)
        is_norm = hasattr(module, "variance_epsilon") and isinstance(weight, Tensor)
        return weight.numel() if is_norm and weight is not None and weight.dim() == 1 else None
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    is_gated = all(type(part) is nn.Linear for part in parts) and hasattr(module, "act_fn")
    return int(module.gate_proj.in_features) if is_gated else None


@torch.inference_mode()
def _agrees(module: nn.Module, fused: Callable[..., Tensor]) -> bool:
    """Try a module plain and fused on a sample."""
    size = _sample_size(module, fused)
    weight = next(module.parameters(), None)
    if size is None or weight is None:
        return False
    sample = torch.linspace(-3, 5, size, dtype=weight.dtype, device=weight.device).repeat(2, 1)
    tolerance = _TOLERANCE.get(weight.dtype, _HALF_TOLERANCE)
    try:
        plain = module(sample)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    return bool(torch.allclose(plain, fused(module, sample), rtol=tolerance, atol=tolerance))


@torch.inference_mode()
def _has_plain_rotary(name: str, device: torch.device) -> bool:
    from bestk.backends.transformers.kernels import elementwise as kernels

    function = getattr(sys.modules[name], "apply_rotary_pos_emb", None)
    if function is None:
        return False
    source = torch.Generator(device).manual_seed(0)

    def sample(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, device=device)

    query, keys = sample(2, 4, 3, 32), sample(2, 2, 3, 32)
    angle = sample(2, 3, 32)
    try:
        plain = function(query, keys, angle.cos(), angle.sin())
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    fused = kernels.rotate(query, keys, angle.cos(), angle.sin())
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, fused, strict=True))
