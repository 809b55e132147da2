"""Runs the layers of an encoder-decoder's decoder as a few kernels each, for one step.

The model's own forward still embeds tokens and positions and gives the logits; only its layers are
replaced, and put back when the step ends. A layer is then: queries, keys and values of the nodes;
attention along their paths; the residual stream and its norm; the same for the source; the dense
part. No masks are made, since each kernel follows paths and lengths.

Layers are recognised by their parts: BART's kin and T5's. Knows attributes of modules, no families
by name; whether the order of the parts is right the probe finds out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from jaxtyping import Float, Int
from torch import Tensor, nn

from bestk.backends.transformers.fused import parts
from bestk.backends.transformers.kernels import path_attention as kernels
from bestk.backends.transformers.kernels.elementwise import Norm, add_norm
from bestk.backends.transformers.kv_cache import CacheLayout
from bestk.backends.transformers.replaced import Replacement, is_untouched, replaced
from bestk.nodes import NodeBatch

_LINE = 8  # values of half precision that fast products write at once
_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.relu,
    functional.gelu,
    functools.partial(functional.gelu, approximate="tanh"),
    functional.silu,
)


def fused_decoder(model: Any) -> FusedDecoder | None:
    """Return a model's decoder as kernels, None where its layers are not known or were changed."""
    try:
        return FusedDecoder(model)
    except (AttributeError, ValueError, parts.UnknownError):
        return None


class FusedDecoder:
    """The decoder of one model, as kernels."""

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        is_t5 = isinstance(getattr(decoder, "block", None), nn.ModuleList)
        modules, names = (decoder.block, _t5_names) if is_t5 else (decoder.layers, _bart_names)
        self.layers = [Layer(n, module, *names(module)) for n, module in enumerate(modules)]
        self.head = _uneven_head(model)
        # BART, Marian: each part is normed after it is added. T5, mBART, Pegasus, Whisper: before.
        self.final = decoder.final_layer_norm if is_t5 else getattr(decoder, "layer_norm", None)
        if self.final is not None:
            firsts = [layer.norms[0] for layer in self.layers[1:]]
            for layer, after in zip(self.layers, [*firsts, parts.norm(self.final)], strict=True):
                layer.first, layer.norms = layer.norms[0], [*layer.norms[1:], after]
        kinds = {weight.dtype for weight in modules.parameters()}
        # T5 keeps half precision from overflowing between its parts.
        known = {torch.float32, torch.bfloat16} | (set() if is_t5 else {torch.float16})
        own = [*modules.modules(), *([] if self.final is None else [self.final])]
        parts.require(len(kinds) == 1, kinds <= known, all(map(is_untouched, own)))

    @contextmanager
    def applied(
        self,
        layout: CacheLayout,
        nodes: NodeBatch,
        source_length: Int[Tensor, " batch"],
        biases: Mapping[Any, Float[Tensor, "heads distance"]],
    ) -> Iterator[None]:
        """Let the model's layers be these kernels until the block ends.

        `biases` are those by distance, of the attentions that have their own; the others take the
        one before them.
        """
        step, bias = _Step(layout, nodes, source_length, parts.Residual()), None
        replacements: list[Replacement] = []
        for layer in self.layers:
            bias = biases.get(layer.own.module, bias)
            run = functools.partial(layer.forward, step, bias)
            replacements.append((layer.module, "forward", run))
        for module, function in ((self.final, step.residual.end), (self.head, aligned_product)):
            if module is not None:
                replacements.append((module, "forward", functools.partial(function, module)))
        with replaced(replacements):
            yield


@dataclass(frozen=True)
class _Step:
    """What the layers of one call must know of its nodes."""

    layout: CacheLayout
    nodes: NodeBatch
    source_length: Int[Tensor, " batch"]
    residual: parts.Residual


class Layer:
    """One layer of a decoder: two attentions and a dense part, each added to a residual."""

    def __init__(self, number: int, module: Any, attentions: Any, norms: Any, dense: Any) -> None:
        self.module, self.number = module, number
        self.own, self.source = (Attention(number, *named) for named in attentions)
        self.first: Norm | None = None  # before all, where layers norm what they read
        self.norms = [parts.norm(norm) for norm in norms]  # after each of the three parts
        widen, gate, narrow, activation = dense
        self.widen, self.narrow = parts.linear(widen), parts.linear(narrow)
        self.gate = None if gate is None else parts.linear(gate)
        self.activation = _known_activation(activation)
        # T5's layers hand their position biases on.
        self.gives_biases = "position_bias" in inspect.signature(module.forward).parameters

    def forward(
        self,
        step: _Step,
        bias: Tensor | None,
        hidden_states: Tensor,
        *_: Any,
        past_key_values: Any,
        **__: Any,
    ) -> Any:
        """Be the layer's forward."""
        if hidden_states.shape[:2] != step.nodes.token.shape:
            raise ValueError("a layer is called in another way than the kernels know")
        own = past_key_values.self_attention_cache.layers[self.number]
        source = past_key_values.cross_attention_cache.layers[self.number]
        normed = step.residual.take(hidden_states)
        if normed is None:
            normed = hidden_states
            if self.first is not None:
                normed = add_norm(hidden_states, None, self.first)[1]
        rows, normed = hidden_states.flatten(0, 1), normed.flatten(0, 1)
        after_own, after_source, after_dense = self.norms

        mixed = self.own.along_paths(normed, own, step, bias)
        rows, normed = self._add(parts.multiply(self.own.output, mixed), rows, after_own)
        mixed = self.source.over_sources(normed, source, step)
        rows, normed = self._add(parts.multiply(self.source.output, mixed), rows, after_source)
        wide = self.activation(parts.multiply(self.widen, normed))
        if self.gate is not None:
            wide = wide * parts.multiply(self.gate, normed)
        rows, normed = self._add(parts.multiply(self.narrow, wide), rows, after_dense)
        hidden = step.residual.put(rows.view_as(hidden_states), normed.view_as(hidden_states))
        return (hidden, None, None) if self.gives_biases else hidden

    def _add(self, product: Tensor, rows: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """Add to the residual stream and norm it: the stream, and what reads it."""
        total, normed = add_norm(product, rows, norm)
        # Where layers norm what they give, the stream is the normed sum itself.
        return (normed if self.first is None else total), normed


class Attention:
    """One attention: its products, and how its heads are cut."""

    def __init__(self, number: int, module: Any, names: str) -> None:
        linears = [parts.linear(getattr(module, name)) for name in names.split()]
        self.query, self.keys, self.values, self.output = linears
        self.module, self.scaling = module, float(module.scaling)
        shapes = {linear.weight.shape for linear in linears[:3]}
        parts.require(module.layer_idx == number, len(shapes) == 1)

    def along_paths(self, normed: Tensor, cache: Any, step: _Step, bias: Tensor | None) -> Tensor:
        """Keep the nodes' keys and values, and attend from each to its prompt and ancestors."""
        self._check(cache, step)
        layout, nodes = step.layout, step.nodes
        assert layout.write is not None
        return kernels.path_attention(
            parts.multiply(self.query, normed), parts.multiply(self.keys, normed),
            parts.multiply(self.values, normed), cache.keys, cache.values, nodes.path, nodes.depth,
            layout.write, layout.prompt_length, layout.prompt_size, self.scaling, bias,
        )  # fmt: skip

    def over_sources(self, normed: Tensor, cache: Any, step: _Step) -> Tensor:
        """Attend from each node to its search's source."""
        self._check(cache, step)
        query = parts.multiply(self.query, normed)
        return kernels.source_attention(
            query, cache.keys, cache.values, step.source_length, self.scaling
        )

    def _check(self, cache: Any, step: _Step) -> None:
        """Refuse a cache of another shape: a kernel would read past its end."""
        batch, heads, _, head = cache.keys.shape
        known = cache.values.shape, len(step.nodes.path), self.query.out_features
        if known != (cache.keys.shape, batch, heads * head):
            raise ValueError(f"keys of shape {tuple(cache.keys.shape)} are not those of the layer")


def _bart_names(layer: Any) -> tuple[Any, Any, Any]:
    """Name a layer's attentions, its norms, and the products and activation of its dense part."""
    names = "q_proj k_proj v_proj out_proj"
    return (
        ((layer.self_attn, names), (layer.encoder_attn, names)),
        (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm),
        (layer.fc1, None, layer.fc2, layer.activation_fn),
    )


def _t5_names(layer: Any) -> tuple[Any, Any, Any]:
    own, source, dense = layer.layer
    inner = dense.DenseReluDense
    is_gated = hasattr(inner, "wi_0")
    wide = (inner.wi_0, inner.wi_1) if is_gated else (inner.wi, None)
    return (
        ((own.SelfAttention, "q k v o"), (source.EncDecAttention, "q k v o")),
        (own.layer_norm, source.layer_norm, dense.layer_norm),
        (*wide, inner.wo, inner.act),
    )


def _known_activation(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Find an activation by what it does to a sample."""
    sample = torch.linspace(-6, 6, 97)
    for known in _ACTIVATIONS:
        if torch.allclose(function(sample), known(sample), rtol=1e-5, atol=1e-6):
            return known
    raise parts.UnknownError


def _uneven_head(model: Any) -> Any:
    """Return the output layer where its logits do not fill whole lines of memory."""
    head: Any = model.get_output_embeddings()
    if type(head) is not nn.Linear or not is_untouched(head) or head.weight.dtype == torch.float32:
        return None
    return head if getattr(head, "bias", None) is None and head.out_features % _LINE else None


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
