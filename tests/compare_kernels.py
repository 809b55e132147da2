"""Compares one kernel with plain tensor operations; fails where they differ."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as functional
from transformers.models.llama import modeling_llama as llama

from bestk.backends.base import Group
from bestk.backends.transformers import kernels
from bestk.backends.transformers.cache import Layout


def attention() -> None:
    batch, heads, kv_heads, head, capacity, size = 2, 6, 2, 24, 9, 130
    layout = Layout(prompt_length=torch.tensor([130, 70]), prompt_size=size, capacity=capacity)
    layout.used = layout.size
    path = torch.tensor(
        [[[1, -1, -1], [1, 3, -1], [2, 4, 7]], [[2, 5, -1], [1, -1, -1], [1, 3, 6]]]
    )
    keys, values = torch.randn(2, batch, kv_heads, layout.size, head).unbind()
    query = torch.randn(batch, heads, 3, head)
    group = Group(
        token=path[..., 0],
        slot=path.amax(-1),
        depth=(path >= 0).sum(-1),
        log_prob=torch.zeros(path.shape[:2], dtype=torch.float64),
        path=path,
        prefix=path,
        is_valid=torch.ones(path.shape[:2], dtype=torch.bool),
    )
    plain = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=layout.mask(group), scale=0.3, enable_gqa=True
    )
    fused = kernels.tree_attention(query, keys, values, path, layout.prompt_length, size, 0.3)
    torch.testing.assert_close(fused, plain.transpose(1, 2), rtol=1e-4, atol=1e-5)


def rotate() -> None:
    query, keys, angle = torch.randn(2, 6, 3, 24), torch.randn(2, 2, 3, 24), torch.randn(2, 3, 24)
    plain = llama.apply_rotary_pos_emb(query, keys, angle.cos(), angle.sin())
    fused = kernels.rotate(query, keys, angle.cos(), angle.sin())
    torch.testing.assert_close(fused, plain)


def store() -> None:
    keys, values = torch.zeros(2, 3, 12, 8), torch.zeros(2, 3, 12, 16)
    new_keys, new_values = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 16)
    at = torch.tensor([[5, 6, 7, 8], [9, 3, 4, 11]])
    expected = [keys.clone(), values.clone()]
    for table, new in zip(expected, (new_keys, new_values), strict=True):
        table.scatter_(2, at[:, None, :, None].expand_as(new), new)
    kernels.store(keys, values, new_keys, new_values, at)
    torch.testing.assert_close([keys, values], expected)


def rms_norm() -> None:
    norm = llama.LlamaRMSNorm(40, eps=1e-5)
    norm.weight.data.normal_()
    hidden = torch.randn(2, 3, 40)
    torch.testing.assert_close(kernels.rms_norm(hidden, norm.weight, 1e-5), norm(hidden))


def silu_times() -> None:
    gate, up = torch.randn(2, 3, 700), torch.randn(2, 3, 700)
    torch.testing.assert_close(kernels.silu_times(gate, up), functional.silu(gate) * up)


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.inference_mode():
        globals()[sys.argv[1]]()
