"""Compares one kernel of encoder-decoders with plain tensor operations; fails where they differ."""

from __future__ import annotations

import functools
from typing import Any

import interpreted
import torch
import torch.nn.functional as functional
from tiny_seq2seq import SOURCES, sources_for, tiny
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5LayerNorm

import bestk
from bestk.backends.transformers.encoder_decoder import EncoderDecoderBackend, EncoderDecoderSession
from bestk.backends.transformers.fused.encoder_decoder import aligned_product, fused_decoder
from bestk.backends.transformers.kernels import elementwise as kernels
from bestk.backends.transformers.kernels import path_attention as seq2seq_kernels
from bestk.backends.transformers.kernels.elementwise import Norm
from bestk.backends.transformers.kv_cache import CacheLayout
from bestk.backends.transformers.seq2seq_probe import Probe, agrees
from bestk.backends.transformers.sources import EncoderDecoderInfo
from bestk.nodes import NodeBatch


def _tree(size: int) -> tuple[CacheLayout, NodeBatch]:
    layout = CacheLayout(prompt_length=torch.tensor([size, 2]), prompt_size=size, capacity=40)
    layout.used = layout.size
    path = torch.full((2, 3, 30), -1)
    for place, length in enumerate((1, 4, 22)):
        path[:, place, :length] = torch.randperm(30)[:length].sort().values + 1
        path[:, place, length - 1] = 31 + place
    depth = (path >= 0).sum(-1)
    slot = path.gather(2, depth[..., None] - 1)[..., 0]
    return layout, NodeBatch(
        token=slot,
        slot=slot,
        depth=depth,
        path=path,
        prefix=path,
        is_valid=torch.ones_like(slot, dtype=torch.bool),
    )


def _path(size: int, *, with_bias: bool) -> None:
    heads, head = 3, 24
    layout, group = _tree(size)
    keys, values = torch.randn(2, 2, heads, layout.size, head).unbind()
    both = torch.randn(6, 3 * heads * head)
    query, new_keys, new_values = both.split(heads * head, dim=1)
    table = torch.randn(heads, 64) if with_bias else None

    def apart(rows: Tensor) -> Tensor:
        return rows.reshape(2, 3, heads, head).transpose(1, 2)

    all_keys, all_values = keys.clone(), values.clone()
    at = layout.place(group.slot)
    for cache, new in ((all_keys, new_keys), (all_values, new_values)):
        cache.scatter_(2, at[:, None, :, None].expand(-1, heads, -1, head), apart(new))
    mask: Tensor = torch.zeros(2, 1, 3, layout.size).masked_fill(~layout.mask(group), -torch.inf)
    if table is not None:
        position = torch.arange(layout.size).repeat(2, 3, 1)
        level = torch.arange(30) + layout.prompt_length[:, None, None]
        is_node = group.path >= 0
        position.scatter_(
            2, layout.place(group.path).where(is_node, 0), level.expand(2, 3, 30).where(is_node, 0)
        )
        distance = (layout.positions(group)[..., None] - position).clamp(0, 63)
        mask = mask + table[:, distance].transpose(0, 1)
    plain = functional.scaled_dot_product_attention(
        apart(query), all_keys, all_values, attn_mask=mask, scale=0.3
    )
    fused = seq2seq_kernels.path_attention(
        query, new_keys, new_values, keys, values, group.path, group.depth, at,
        layout.prompt_length, size, 0.3, table,
    )  # fmt: skip
    torch.testing.assert_close(fused, plain.transpose(1, 2).reshape(6, -1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([keys, values], [all_keys, all_values])


def path_attention() -> None:
    _path(2, with_bias=False)
    _path(2, with_bias=True)
    _path(50, with_bias=True)  # more than one block of prompt and path


def _source(width: int, places: int, dtype: torch.dtype) -> None:
    batch, heads, head = 2, 3, 24
    keys, values = torch.randn(2, batch, heads, places, head).to(dtype).unbind()
    query = torch.randn(batch * width, heads * head).to(dtype)
    length = torch.tensor([places, places // 3 + 1])
    seen = torch.arange(places) < length[:, None]
    plain = functional.scaled_dot_product_attention(
        query.view(batch, width, heads, head).transpose(1, 2).float(),
        keys.float(),
        values.float(),
        attn_mask=seen[:, None, None],
        scale=0.3,
    )
    fused = seq2seq_kernels.source_attention(query, keys, values, length, 0.3).float()
    close = 1e-5 if dtype == torch.float32 else 2e-2
    expected = plain.transpose(1, 2).reshape(batch * width, -1)
    torch.testing.assert_close(fused, expected, rtol=close, atol=close)


def source_attention() -> None:
    for dtype in (torch.float32, torch.float16):  # the interpreter cannot multiply bfloat16
        _source(3, 70, dtype)
        _source(17, 130, dtype)
        _source(2, 700, dtype)
        few, seq2seq_kernels._FEW_PROGRAMS = seq2seq_kernels._FEW_PROGRAMS, 0
        _source(2, 700, dtype)  # a long source that is not shared out
        seq2seq_kernels._FEW_PROGRAMS = few
    _source(70, 40, torch.float32)


def add_norm() -> None:
    size = 40
    for kind, close in ((torch.float32, 1e-5), (torch.float16, 1e-2)):
        update, residual = torch.randn(2, 6, size).to(kind).unbind()
        layer = torch.nn.LayerNorm(size).to(kind)
        layer.weight.data.normal_()
        layer.bias.data.normal_()
        root = T5LayerNorm(size).to(kind)
        root.weight.data.normal_()
        ours = {
            layer: Norm(layer.weight, layer.bias, layer.eps, is_rms=False),
            root: Norm(root.weight, None, root.variance_epsilon, is_rms=True),
        }
        for plain, norm in ours.items():
            total, normed = kernels.add_norm(update, residual, norm)
            torch.testing.assert_close(total, update + residual)
            torch.testing.assert_close(normed, plain(update + residual), rtol=close, atol=close)
            total, normed = kernels.add_norm(update, None, norm)
            torch.testing.assert_close(normed, plain(update), rtol=close, atol=close)
        torch.testing.assert_close(kernels.add_norm(update, residual, None)[0], update + residual)


def decoders() -> None:
    """Whole models: the probe must say yes."""
    for family in ("t5", "flan-t5", "umt5", "bart", "mbart", "marian", "pegasus", "whisper"):
        checkpoint, fused = _fused(family)
        make = functools.partial(EncoderDecoderSession, fused=fused)
        source = sources_for(family)[0]
        assert agrees(Probe(checkpoint, source), EncoderDecoderSession, make), family
        parts = checkpoint.module.named_modules()
        changed = [name for name, part in parts if "forward" in vars(part)]
        assert not changed, "a model must be left as it was"


def unknown() -> None:
    """Decoders that only look like these, or that somebody has changed, are left alone."""
    for family in ("led", "longt5", "bigbird"):
        checkpoint, fused = _fused(family)
        make = functools.partial(EncoderDecoderSession, fused=fused)
        probe = Probe(checkpoint, sources_for(family)[0])
        assert not agrees(probe, EncoderDecoderSession, make), family
    assert fused_decoder(tiny("t5gemma")) is None
    assert fused_decoder(tiny("nllb-moe")) is None
    assert fused_decoder(tiny("t5").half()) is None
    watched = tiny("bart")
    watched.get_decoder().layers[1].fc1.register_forward_hook(lambda *_: None)
    assert fused_decoder(watched) is None


def halves() -> None:
    """In half precision logits are written in whole lines."""
    linear = torch.nn.Linear(24, 51, bias=False)
    hidden = torch.randn(2, 3, 24)
    torch.testing.assert_close(aligned_product(linear, hidden), linear(hidden))
    model = tiny("bart").half()
    model.resize_token_embeddings(51)
    uneven = fused_decoder(model)
    assert uneven is not None
    assert uneven.head is model.lm_head
    checkpoint = EncoderDecoderInfo(model)
    make = functools.partial(EncoderDecoderSession, fused=uneven)
    assert agrees(Probe(checkpoint, SOURCES[0]), EncoderDecoderSession, make)
    checkpoint, fused = _fused("whisper", torch.float16)
    make = functools.partial(EncoderDecoderSession, fused=fused)
    probe = Probe(checkpoint, sources_for("whisper")[0])
    assert agrees(probe, EncoderDecoderSession, make)


def searches() -> None:
    """Whole searches find the same trees, sources of unequal lengths side by side."""
    for family in ("t5", "bart"):
        model = tiny(family)
        options: dict[str, Any] = {"k": 3, "budget": 9, "max_new_tokens": 6, "min_prob": 0.02}
        plain = bestk.search(bestk.from_transformers(model), SOURCES, **options)
        lm = bestk.from_transformers(model)
        vars(lm.backend)["_fused"] = fused_decoder(model)
        fused = bestk.search(lm, SOURCES, batch_size=2, **options)
        assert lm.backend._with_kernel, "the model must have been searched with the kernels"
        for one, other in zip(plain, fused, strict=True):
            assert one.tree.token.tolist() == other.tree.token.tolist(), family
            torch.testing.assert_close(one.tree.log_prob, other.tree.log_prob, rtol=0, atol=1e-4)


def _fused(family: str, dtype: torch.dtype = torch.float32) -> tuple[EncoderDecoderInfo, Any]:
    backend = EncoderDecoderBackend(tiny(family).to(dtype))
    assert backend.obstacle(sources_for(family)[0], 1, 8) is None
    fused = fused_decoder(backend.model.module)
    assert fused is not None
    return backend.model, fused


if __name__ == "__main__":
    with torch.inference_mode():
        interpreted.main(globals())
