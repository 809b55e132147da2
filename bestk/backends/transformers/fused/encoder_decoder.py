"""Runs the layers of a decoder as a few kernels each, for the length of one step.

The model's own forward still embeds tokens and positions and gives the logits; only its layers are
replaced, and put back when the step ends. A layer is then: queries, keys and values of the nodes;
attention along their paths; the residual stream and its norm; the same for the source; the dense
part. No masks are made, since each kernel follows paths and lengths.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from jaxtyping import Float, Int
from torch import Tensor, nn

from bestk.backends.base import Group
from bestk.backends.transformers.fused.known_layers import Attention, Layer, activate, known_layers
from bestk.backends.transformers.kernels import path_attention as seq2seq_kernels
from bestk.backends.transformers.kernels.elementwise import Norm, add_norm
from bestk.backends.transformers.kv_cache import Layout

_LINE = 8  # values of half precision that fast products write at once


@dataclass(frozen=True)
class _Step:
    """What the layers of one call must know of its nodes."""

    layout: Layout
    path: Int[Tensor, "batch group depth"]
    depth: Int[Tensor, "batch group"]
    source_length: Int[Tensor, " batch"]


class FusedDecoder:
    """The decoder of one model, as kernels."""

    def __init__(self, layers: list[Layer], final: Any, head: Any) -> None:
        self.layers = layers
        self.final = final
        self.head = head

    @contextlib.contextmanager
    def applied(
        self,
        layout: Layout,
        group: Group,
        source_length: Int[Tensor, " batch"],
        biases: Mapping[Any, Float[Tensor, "heads distance"]],
    ) -> Iterator[None]:
        """Let the model's layers be these kernels until the block ends.

        `biases` are those by distance, of the attentions that have their own; the others take the
        one before them.
        """
        step = _Step(layout, group.path, group.depth, source_length)
        stream = _Stream()
        bias: Tensor | None = None
        try:
            for number, layer in enumerate(self.layers):
                bias = biases.get(layer.own.module, bias)
                run = functools.partial(self._run, layer, number, step, stream, bias)
                layer.module.forward = run
            if self.final is not None:
                self.final.forward = functools.partial(_end, self.final, stream)
            if self.head is not None:
                self.head.forward = functools.partial(aligned_product, self.head)
            yield
        finally:
            for module in (*(layer.module for layer in self.layers), self.final, self.head):
                if module is not None:
                    vars(module).pop("forward", None)

    def _run(
        self,
        layer: Layer,
        number: int,
        step: _Step,
        stream: _Stream,
        bias: Tensor | None,
        hidden: Tensor | None = None,
        *_: Any,
        past_key_values: Any = None,
        hidden_states: Tensor | None = None,
        **__: Any,
    ) -> Any:
        """Be the forward of one layer."""
        given = hidden if hidden is not None else hidden_states
        if given is None or given.shape[:2] != step.path.shape[:2]:
            raise ValueError("a layer is called in another way than the kernels know")
        rows = given.reshape(-1, given.shape[-1])
        normed = stream.normed_of(given)
        if normed is None:
            normed = rows if layer.first is None else add_norm(rows, None, layer.first)[1]
        own = past_key_values.self_attention_cache.layers[number]
        source = past_key_values.cross_attention_cache.layers[number]
        after_own, after_source, after_dense = layer.norms
        _check(layer.own, own, step)
        _check(layer.source, source, step)

        mixed = self._own(layer.own, normed, own, step, bias)
        rows, normed = _add(mixed, layer.own.output, rows, after_own, layer)
        mixed = self._source(layer.source, normed, source, step)
        rows, normed = _add(mixed, layer.source.output, rows, after_source, layer)
        wide = activate(layer.activation, _linear(layer.widen, normed))
        if layer.gate is not None:
            wide = wide * _linear(layer.gate, normed)
        rows, normed = _add(wide, layer.narrow, rows, after_dense, layer)
        return layer.returns(stream.keep(rows.view(given.shape), normed))

    def _own(
        self, attention: Attention, normed: Tensor, cache: Any, step: _Step, bias: Tensor | None
    ) -> Tensor:
        layout = step.layout
        assert layout.write is not None
        return seq2seq_kernels.path_attention(
            _linear(attention.query, normed),
            _linear(attention.keys, normed),
            _linear(attention.values, normed),
            cache.keys,
            cache.values,
            step.path,
            step.depth,
            layout.write,
            layout.prompt_length,
            layout.prompt_size,
            attention.scaling,
            bias,
        )

    def _source(self, attention: Attention, normed: Tensor, cache: Any, step: _Step) -> Tensor:
        return seq2seq_kernels.source_attention(
            _linear(attention.query, normed),
            cache.keys,
            cache.values,
            step.source_length,
            attention.scaling,
        )


def _linear(layer: nn.Linear, rows: Tensor) -> Tensor:
    return functional.linear(rows, layer.weight, layer.bias)


def _add(
    mixed: Tensor, linear: nn.Linear, rows: Tensor, norm: Norm | None, layer: Layer
) -> tuple[Tensor, Tensor]:
    """Multiply out, add to the residual stream and norm it: the stream, and what reads it."""
    total, normed = add_norm(_linear(linear, mixed), rows, norm)
    # Where layers norm what they give, the stream is the normed sum itself.
    return (normed if layer.first is None else total), normed


def _check(attention: Attention, cache: Any, step: _Step) -> None:
    """Refuse a cache of another shape: a kernel would read past its end."""
    batch, heads, _, head = cache.keys.shape
    is_known = cache.keys.shape[:2] == cache.values.shape[:2] and cache.values.shape[3] == head
    if not is_known or heads * head != attention.query.out_features or batch != len(step.path):
        raise ValueError(f"keys of shape {tuple(cache.keys.shape)} are not those of the layer")


class _Stream:
    """Hands the residual stream from layer to layer together with its norm for the next one."""

    def __init__(self) -> None:
        self.hidden: Tensor | None = None
        self.normed: Tensor | None = None

    def keep(self, hidden: Tensor, normed: Tensor) -> Tensor:
        self.hidden, self.normed = hidden, normed
        return hidden

    def normed_of(self, hidden: Tensor) -> Tensor | None:
        return self.normed if hidden is self.hidden else None


def _end(norm: Any, stream: _Stream, hidden: Tensor) -> Tensor:
    """Be the norm after the last layer, which has normed its stream already."""
    normed = stream.normed_of(hidden)
    if normed is None:
        plain: Tensor = type(norm).forward(norm, hidden)
        return plain
    return normed.view(hidden.shape)


def aligned_product(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """Multiply with a weight of an odd number of outputs, by whole lines of memory.

    The fast products write whole lines only: a vocabulary of 50,265 would be left to one that takes
    five times as long. So most outputs are written to longer lines, and the last few by themselves.
    """
    rows, outputs = hidden.reshape(-1, hidden.shape[-1]), linear.out_features
    whole = outputs - outputs % _LINE
    wide = rows.new_empty(len(rows), whole + _LINE)
    torch.mm(rows, linear.weight[:whole].t(), out=wide[:, :whole])
    wide[:, whole:outputs] = functional.linear(rows, linear.weight[whole:])
    return wide[:, :outputs].view(*hidden.shape[:-1], outputs)


def _uneven_head(model: Any) -> Any:
    """Return the output layer where its logits do not fill whole lines of memory."""
    head: Any = model.get_output_embeddings()
    has_bias = getattr(head, "bias", None) is not None
    if type(head) is not nn.Linear or has_bias:
        return None
    is_touched = "forward" in vars(head) or head._forward_hooks or head._forward_pre_hooks
    is_half = head.weight.dtype in (torch.bfloat16, torch.float16)
    is_uneven = is_half and head.out_features % _LINE > 0
    return head if is_uneven and not is_touched else None


def fused_decoder(model: Any) -> FusedDecoder | None:
    """Return a model's decoder as kernels, None where its layers are not known."""
    found = known_layers(model)
    if found is None:
        return None
    layers, final = found
    kinds = {weight.dtype for layer in layers for weight in layer.module.parameters()}
    is_known = len(kinds) == 1 and kinds <= {torch.float32, torch.bfloat16, torch.float16}
    return FusedDecoder(layers, final, _uneven_head(model)) if is_known else None
