"""Puts the tree kernel and fused operations under a user's model, for the length of one call.

The attention function is registered with transformers under its own name; while a call runs, the
model's config names it, and norms and rotary positions run as single kernels where that was seen to
give the same numbers. When the call ends the model is as it was.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

if TYPE_CHECKING:
    from bestk.backends.transformers.cache import Layout
    from bestk.backends.transformers.model import Checkpoint

NAME = "bestk_tree"


class _Current:
    """What the attention function must know and no argument carries."""

    layout: Layout | None = None
    path: Tensor | None = None


def has_kernels(device: torch.device) -> bool:
    """Say whether the Triton kernels can run there."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


@contextlib.contextmanager
def tree_attention(checkpoint: Checkpoint, layout: Layout, path: Tensor | None) -> Iterator[None]:
    """Let the model's attention follow the tree: `path` of each query, None for a prompt."""
    _register()
    config = checkpoint.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    _Current.layout, _Current.path = layout, path
    try:
        yield
    finally:
        config._attn_implementation = before
        _Current.layout = _Current.path = None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Be the attention function that transformers calls."""
    from bestk.backends.transformers import kernels

    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"the tree kernel does not know {name}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    layout, path = _Current.layout, _Current.path
    if path is None or layout is None:
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return mixed.transpose(1, 2).contiguous(), None
    return (
        kernels.tree_attention(
            query, key, value, path, layout.prompt_length, layout.prompt_size, scaling
        ),
        None,
    )


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


class Fusion:
    """Norms and rotary positions of one model that may run as single kernels."""

    def __init__(self, model: nn.Module) -> None:
        self.norms = [module for module in model.modules() if _is_plain_rms_norm(module)]
        attentions = {
            type(module).__module__
            for module in model.modules()
            if type(module).__name__.endswith("Attention")
        }
        self.rotary: list[Any] = [
            sys.modules[name] for name in attentions if _has_plain_rotary(name)
        ]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Run the fused versions until the block ends."""
        from bestk.backends.transformers import kernels

        before = [module.apply_rotary_pos_emb for module in self.rotary]
        try:
            for norm in self.norms:
                norm.forward = functools.partial(_rms_norm, norm)
            for module in self.rotary:
                module.apply_rotary_pos_emb = kernels.rotate
            yield
        finally:
            for norm in self.norms:
                norm.__dict__.pop("forward", None)
            for module, original in zip(self.rotary, before, strict=True):
                module.apply_rotary_pos_emb = original


def _rms_norm(norm: Any, hidden: Tensor) -> Tensor:
    return functional.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


@torch.inference_mode()
def _is_plain_rms_norm(module: nn.Module) -> bool:
    """Try the fused norm on a sample, and keep it only where the result is the same."""
    weight = getattr(module, "weight", None)
    if not hasattr(module, "variance_epsilon") or not isinstance(weight, Tensor):
        return False
    if weight.device.type != "cuda" or "forward" in module.__dict__ or weight.dim() != 1:
        return False
    sample = torch.linspace(-3, 5, weight.numel(), dtype=weight.dtype, device=weight.device)
    sample = sample.repeat(2, 1)
    plain, fused = module(sample), _rms_norm(module, sample)
    tolerance = 1e-5 if weight.dtype == torch.float32 else 2e-2
    return bool(torch.allclose(plain, fused, rtol=tolerance, atol=tolerance))


@torch.inference_mode()
def _has_plain_rotary(name: str) -> bool:
    from bestk.backends.transformers import kernels

    function = getattr(sys.modules[name], "apply_rotary_pos_emb", None)
    if function is None:
        return False
    source = torch.Generator("cuda").manual_seed(0)

    def sample(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, device="cuda")

    query, keys = sample(2, 4, 3, 32), sample(2, 2, 3, 32)
    angle = sample(2, 3, 32)
    try:
        plain = function(query, keys, angle.cos(), angle.sin())
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    fused = kernels.rotate(query, keys, angle.cos(), angle.sin())
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, fused, strict=True))
