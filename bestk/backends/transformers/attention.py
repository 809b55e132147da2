"""Puts attention that follows a tree under a user's model, for the length of one call.

On a GPU it is a kernel. On a CPU, where a tree is large, every node looks at the prompt and at its
own ancestors, which are few, instead of at all places through a mask.

The attention function is registered with transformers under its own name; while a call runs, the
model's config names it. When the call ends the model is as it was.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional
from jaxtyping import Float, Int
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
    if query.device.type == "cpu":
        return along_paths(query, key, value, path, layout, scaling), None
    from bestk.backends.transformers.kernels import tree_attention as tree_kernels

    return (
        tree_kernels.tree_attention(
            query, key, value, path, layout.prompt_length, layout.prompt_size, scaling
        ),
        None,
    )


def along_paths(
    query: Float[Tensor, "batch heads nodes size"],
    key: Float[Tensor, "batch kv_heads places size"],
    value: Float[Tensor, "batch kv_heads places value_size"],
    path: Int[Tensor, "batch nodes depth"],
    layout: CacheLayout,
    scaling: float,
) -> Float[Tensor, "batch nodes heads value_size"]:
    """Attend from every node to the prompt, one product for all, and to its own ancestors."""
    batch, kv_heads = key.shape[:2]
    nodes, depth = path.shape[1:]
    query = (query * scaling).unflatten(1, (kv_heads, -1))  # [batch, kv_heads, groups, nodes, size]
    is_node = (path >= 0) & (path < layout.capacity)
    place = layout.place(path).where(is_node, 0).flatten(1)[:, None, :, None]

    def own(held: Tensor) -> Tensor:
        found = held.gather(2, place.expand(batch, kv_heads, -1, held.shape[-1]))
        return found.view(batch, kv_heads, 1, nodes, depth, -1)

    prompt = slice(layout.prompt_size)
    shared = query @ key[:, :, None, prompt].transpose(-1, -2)
    is_padding = torch.arange(layout.prompt_size) >= layout.prompt_length[:, None]
    shared = shared.masked_fill(is_padding[:, None, None, None], -torch.inf)
    mine = (query[..., None, :] * own(key)).sum(-1)
    mine = mine.masked_fill(~is_node[:, None, None], -torch.inf)
    weight = torch.cat([shared, mine], dim=-1).softmax(-1)
    mixed = weight[..., prompt] @ value[:, :, None, prompt]
    mixed = mixed + (weight[..., layout.prompt_size :, None] * own(value)).sum(-2)
    return mixed.flatten(1, 2).transpose(1, 2).contiguous()


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
