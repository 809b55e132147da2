"""Puts the tree kernel under a user's model, for the length of one call.

The attention function is registered with transformers under its own name; while a call runs, the
model's config names it. When the call ends the model is as it was.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.nn.functional as functional
from torch import Tensor, nn

from bestk.errors import ModelError

if TYPE_CHECKING:
    from bestk.backends.transformers.kv_cache import CacheLayout

NAME = "bestk_tree"


class _Current:
    """What the attention function must know and no argument carries."""

    layout: CacheLayout | None = None
    path: Tensor | None = None


@contextlib.contextmanager
def tree_attention(config: Any, layout: CacheLayout | None, path: Tensor | None) -> Iterator[None]:
    """Let the model's attention follow the tree: `path` of each query, None for a prompt."""
    _register()
    before = config._attn_implementation
    config._attn_implementation = NAME
    _Current.layout, _Current.path = layout, path
    try:
        yield
    finally:
        config._attn_implementation = before
        _Current.layout = _Current.path = None


def current() -> tuple[CacheLayout | None, Tensor | None]:
    """Return the layout and the paths of the call that is running, None where there are none."""
    return _Current.layout, _Current.path


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
    from bestk.backends.transformers.kernels import tree_attention as tree_kernels

    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ModelError(f"the tree kernel does not know {name}: masks will do")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    layout, path = _Current.layout, _Current.path
    if path is None or layout is None:
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return mixed.transpose(1, 2).contiguous(), None
    return (
        tree_kernels.tree_attention(
            query, key, value, path, layout.prompt_length, layout.prompt_size, scaling
        ),
        None,
    )


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
