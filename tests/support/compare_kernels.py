"""Compares one kernel with plain tensor operations; fails where they differ."""

from __future__ import annotations

from typing import Any

import interpreted
import torch
import torch.nn.functional as functional
from transformers.models.llama import modeling_llama as llama

from bestk.backends.children import top_children
from bestk.backends.transformers.kernels import elementwise as kernels
from bestk.backends.transformers.kernels import topk
from bestk.backends.transformers.kernels import tree_attention as tree_kernels
from bestk.backends.transformers.kernels.elementwise import Norm
from bestk.backends.transformers.kv_cache import CacheLayout
from bestk.nodes import NodeBatch


def attention() -> None:
    compare_attention(tree_kernels.whole_attention, width=3, lengths=[130, 70])


def split_attention() -> None:
    compare_attention(tree_kernels.split_attention, width=3, lengths=[130, 70])
    # Parts after a prompt's end, more rows than one program takes, and one part for everything.
    compare_attention(tree_kernels.split_attention, width=3, lengths=[520, 1])
    compare_attention(tree_kernels.split_attention, width=25, lengths=[150, 149])
    compare_attention(tree_kernels.split_attention, width=2, lengths=[1100, 700])
    busy, tree_kernels._BUSY = tree_kernels._BUSY, 1
    try:
        compare_attention(tree_kernels.split_attention, width=3, lengths=[200, 64])
    finally:
        tree_kernels._BUSY = busy


def compare_attention(attend: Any, width: int, lengths: list[int]) -> None:
    batch, heads, kv_heads, head, size = len(lengths), 6, 2, 24, max(lengths)
    capacity = 2 * width + 3
    layout = CacheLayout(
        prompt_length=torch.tensor(lengths), prompt_size=size, capacity=capacity, used=0
    )
    layout.used = layout.size
    path = torch.full((batch, width, 5), -1)
    for place in range(width):
        path[:, place, 0] = 1 + place // 2
        if place % 2:
            path[:, place, 1] = width + 1 + place
    path[1, 0, :3] = torch.tensor([2, 1, 4])
    keys, values = torch.randn(2, batch, kv_heads, layout.size, head).unbind()
    query = torch.randn(batch, width, heads, head).transpose(1, 2)
    group = NodeBatch(
        token=path[..., 0],
        slot=path.amax(-1),
        depth=(path >= 0).sum(-1),
        path=path,
        prefix=path,
        is_valid=torch.ones(path.shape[:2], dtype=torch.bool),
    )
    plain = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=layout.mask(group), scale=0.3, enable_gqa=True
    )
    fused = attend(query, keys, values, path, layout.prompt_length, size, 0.3)
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
    found = kernels.rms_norm(hidden, Norm(norm.weight, None, 1e-5, is_rms=True))
    torch.testing.assert_close(found, norm(hidden))


def silu_times() -> None:
    gate, up = torch.randn(2, 3, 700), torch.randn(2, 3, 700)
    torch.testing.assert_close(kernels.silu_times(gate, up), functional.silu(gate) * up)


def add_norm() -> None:
    norm = llama.LlamaRMSNorm(40, eps=1e-5)
    norm.weight.data.normal_()
    hidden, product = torch.randn(2, 2, 3, 40)
    rms = Norm(norm.weight, None, 1e-5, is_rms=True)
    total, normed = kernels.add_norm(product, hidden, rms)
    expected = hidden + product
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(normed, norm(expected))


def gated() -> None:
    product = torch.randn(3, 2, 1400)
    gate, up = product.chunk(2, dim=-1)
    fused = kernels.gated(product)
    torch.testing.assert_close(fused, functional.silu(gate) * up)


def place() -> None:
    batch, width, heads, kv_heads, head, places = 2, 3, 6, 2, 24, 12
    angle = torch.randn(1, width, head)
    at = torch.tensor([[5, 6, 7], [9, 3, 11]])
    both = [Norm(torch.randn(head), None, 1e-5, is_rms=True) for _ in range(2)]
    for norms in ([], both):
        keys, values = torch.zeros(2, batch, kv_heads, places, head).unbind()
        product = torch.randn(batch, width, (heads + 2 * kv_heads) * head)
        whole = product.view(batch, width, -1, head)
        query, new_keys, new_values = whole.split([heads, kv_heads, kv_heads], dim=2)
        if norms:
            query = functional.rms_norm(query, (head,), norms[0].weight, 1e-5)
            new_keys = functional.rms_norm(new_keys, (head,), norms[1].weight, 1e-5)
        query, new_keys = llama.apply_rotary_pos_emb(
            query.transpose(1, 2), new_keys.transpose(1, 2), angle.cos(), angle.sin()
        )
        expected = [keys.clone(), values.clone()]
        for table, new in zip(expected, (new_keys, new_values.transpose(1, 2)), strict=True):
            table.scatter_(2, at[:, None, :, None].expand_as(new), new)
        fused = kernels.place(product, angle.cos(), angle.sin(), keys, values, at, norms)
        torch.testing.assert_close(fused, query)
        torch.testing.assert_close([keys, values], expected)


def children() -> None:
    for vocab, number in ((9000, 7), (50, 32), (4096, 1), (700, 20)):
        # Rows that lie apart, as those of a vocabulary that fills no whole lines of memory.
        logits = (torch.randn(2, 3, vocab + 3) * 4)[..., :vocab]
        logits[0, 0, 3:40] = -torch.inf
        logits[0, 1, 5:9] = 30.0  # equal ones: the lowest ids first
        logits[1, 0] = -torch.inf  # no children
        logits[1, 1, :30] = 0.0
        logits[1, 1, 10:20] = -0.0
        plain = top_children(logits, number)
        found = topk.top_children(logits, number)
        torch.testing.assert_close(found.log_prob, plain.log_prob)
        # `topk` may take any of equal logits for the last place; the kernels take the lowest id.
        order = logits.sort(dim=-1, descending=True, stable=True).indices[..., :number]
        assert torch.equal(found.token, order)
    assert found.token.dtype == torch.int64
    for broken in (torch.nan, torch.inf):
        logits[1, 2, 17] = broken
        assert topk.top_children(logits, 3).log_prob[1, 2].isnan().any()
    half = torch.randn(1, 4, 5000).half()  # many equal ones
    found = topk.top_children(half, 5)
    order = half.float().sort(dim=-1, descending=True, stable=True).indices[..., :5]
    assert torch.equal(found.token, order)


if __name__ == "__main__":
    with torch.inference_mode():
        interpreted.main(globals())
