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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as functional
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bestk.errors import ModelError

if TYPE_CHECKING:
    from bestk.backends.transformers.kv_cache import CacheLayout

NAME = "bestk_tree"


class View(NamedTuple):
    """What nodes look at: `prompt` places, less the padding, and their ancestors' places."""

    prompt: int
    place: Int[Tensor, "batch nodes depth"]
    hidden: Bool[Tensor, "batch 1 1 nodes prompt+depth"]

    @classmethod
    def of(cls, layout: CacheLayout, path: Int[Tensor, "batch nodes depth"]) -> View:
        """Find what the nodes at the end of these paths look at."""
        is_node = (path >= 0) & (path < layout.capacity)
        is_padding = torch.arange(layout.prompt_size) >= layout.prompt_length[:, None]
        is_padding = is_padding[:, None].expand(-1, path.shape[1], -1)
        hidden = torch.cat([is_padding, ~is_node], dim=2)[:, None, None]
        return cls(layout.prompt_size, layout.place(path).where(is_node, 0), hidden)


class _Current:
    """What the attention function must know and no argument carries."""

    layout: CacheLayout | None = None
    path: Tensor | None = None
    view: View | None = None  # of nodes on a CPU


@contextlib.contextmanager
def tree_attention(config: Any, layout: CacheLayout | None, path: Tensor | None) -> Iterator[None]:
    """Let the model's attention follow the tree: `path` of each query, None for a prompt."""
    _register()
    before = config._attn_implementation
    config._attn_implementation = NAME
    _Current.layout, _Current.path = layout, path
    if layout is not None and path is not None and path.device.type == "cpu":
        _Current.view = View.of(layout, path)
    try:
        yield
    finally:
        config._attn_implementation = before
        _Current.layout = _Current.path = _Current.view = None


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
    if _Current.view is not None:
        return along_paths(query, key, value, _Current.view, scaling), None
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
    view: View,
    scaling: float,
) -> Float[Tensor, "batch nodes heads value_size"]:
    """Attend from every node to the prompt, one product for all, and to its own ancestors."""
    batch, kv_heads = key.shape[:2]
    rows, places = torch.arange(batch)[:, None, None], view.place
    nodes, size = query.shape[2:]
    query = (query * scaling).view(batch, kv_heads, -1, nodes, size)  # third: heads of a group

    def own(held: Tensor) -> Tensor:  # [batch, kv_heads, 1, nodes, depth, size]
        return held.transpose(1, 2)[rows, places].permute(0, 3, 1, 2, 4)[:, :, None]

    shared = query @ key[:, :, None, : view.prompt].transpose(-1, -2)
    mine = (query[..., None, :] * own(key)).sum(-1)
    weight = torch.cat([shared, mine], dim=-1).masked_fill_(view.hidden, -torch.inf).softmax(-1)
    mixed = weight[..., : view.prompt] @ value[:, :, None, : view.prompt]
    mixed += (weight[..., view.prompt :, None] * own(value)).sum(-2)
    return mixed.flatten(1, 2).transpose(1, 2).contiguous()


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
