"""Runs parts of a model as fused kernels, for one call.

Whole decoder layers where they are of the kind that `decoder_only` knows; else norms, rotary
positions and gated activations one by one. What may be fused is found by trying: each candidate
runs on a sample, plain and fused, and only those that agree are replaced. When the call ends the
model is as it was.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from bestk.backends.transformers.fused import parts
from bestk.backends.transformers.fused.decoder_only import FusedLayer, fused_layers, stacked
from bestk.backends.transformers.kernels import elementwise as kernels
from bestk.backends.transformers.replaced import Replacement, is_untouched, replaced
from bestk.kernels import may_run


class Fusion:
    """The parts of one model that may run as fused kernels."""

    def __init__(self, model: Any, config: Any) -> None:
        self.model, self.config = model, config
        weight = next(model.parameters(), None)
        device = torch.device("meta") if weight is None else weight.device
        self.pieces = list(_pieces(model, device)) if may_run("pieces", device) else []
        self.layers: list[FusedLayer] = []
        self.stack: list[Replacement] = []  # the layers, and the norm that comes after them
        self.may_fuse_layers = may_run("layers", device)
        self._find_layers()

    @property
    def has_layers(self) -> bool:
        """Return whether whole layers are fused."""
        return bool(self.layers)

    def leave_layers(self) -> None:
        """Fuse no whole layers any more."""
        self.may_fuse_layers, self.layers, self.stack = False, [], []

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Run the fused versions until the block ends."""
        if not all(layer.is_current() for layer in self.layers):
            self._find_layers()
        with replaced([*self.pieces, *self.stack]):
            yield

    def _find_layers(self) -> None:
        if self.may_fuse_layers:
            self.layers = fused_layers(self.model, self.config)
            self.stack = list(stacked(self.layers, self.model))


def _pieces(model: Any, device: torch.device) -> Iterator[Replacement]:
    """Name the functions of a model that a kernel can stand for, and the kernel."""
    homes = set()
    for module in model.modules():
        if type(module).__name__.endswith("Attention"):
            homes.add(sys.modules[type(module).__module__])
        for width, fused in ((_norm_width, _rms_norm), (_gated_width, _gated)):
            forward = functools.partial(fused, module)
            with suppress(AttributeError, parts.UnknownError):
                hidden = parts.sample(device, (2, width(module)))[0]
                hidden = hidden.to(next(module.parameters()).dtype)
                if parts.agrees(module, forward, hidden):
                    yield module, "forward", forward
    for home in homes:
        if _has_plain_rotary(home, device):
            yield home, "apply_rotary_pos_emb", kernels.rotate


def _norm_width(module: Any) -> int:
    norm = parts.norm(module)
    parts.require(norm.is_rms, is_untouched(module))
    return norm.weight.numel()


def _rms_norm(module: Any, hidden: Tensor) -> Tensor:
    norm = kernels.Norm(module.weight, None, module.variance_epsilon, is_rms=True)
    return kernels.rms_norm(hidden, norm)


def _gated_width(module: Any) -> int:
    gate, *_ = map(parts.linear, (module.gate_proj, module.up_proj, module.down_proj))
    parts.require(is_untouched(module), callable(module.act_fn))
    return gate.in_features


def _gated(module: Any, hidden: Tensor) -> Tensor:
    gated = kernels.silu_times(module.gate_proj(hidden), module.up_proj(hidden))
    output: Tensor = module.down_proj(gated)
    return output


def _has_plain_rotary(home: Any, device: torch.device) -> bool:
    query, keys, angle = parts.sample(device, (2, 4, 3, 32), (2, 2, 3, 32), (2, 3, 32))
    return parts.agrees(
        lambda *given: torch.cat(home.apply_rotary_pos_emb(*given), dim=1),
        lambda *given: torch.cat(kernels.rotate(*given), dim=1),
        *(query, keys, angle.cos(), angle.sin()),
    )
