"""Runs whole decoder layers of a model as a short series of fused kernels, for one call.

Knows one kind of layer, that of Llama and its many relatives: norm, attention with rotary
positions, norm, gated block, each with a residual. What looks like one is tried on a sample, as the
model runs it and fused, and is replaced only if the numbers agree. Queries, keys and values come
from one product, the gated block's two inputs from another; each sum of a residual is normed for
whoever reads it next while it is still at hand.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bestk.backends.transformers import attention
from bestk.backends.transformers.fused import parts
from bestk.backends.transformers.fused.packed import can_pack, packed
from bestk.backends.transformers.kernels import elementwise as kernels
from bestk.backends.transformers.kernels.elementwise import Norm
from bestk.backends.transformers.replaced import Replacement, has_hooks, is_untouched

logger = logging.getLogger("bestk")

Angles: TypeAlias = tuple[Tensor, Tensor]  # cosines and sines [batch or 1, length, head]


class FusedLayer:
    """One decoder layer that runs fused while the tree is searched, and as it is otherwise."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.residual = parts.Residual()
        block, gate = layer.self_attn, layer.mlp
        self.inputs = [block.q_proj, block.k_proj, block.v_proj]
        self.gates = [gate.gate_proj, gate.up_proj]
        self.output, self.down = parts.linear(block.o_proj), parts.linear(gate.down_proj)
        norms = [layer.input_layernorm, layer.post_attention_layernorm]
        if getattr(block, "q_norm", None) is not None:  # norms of each head
            norms += [block.q_norm, block.k_norm]
        self.norm, self.second_norm, *self.head_norms = map(parts.norm, norms)
        self.next_norm: Norm | None = None  # until it is known what reads the layer's output
        self.head, self.index = int(block.head_dim), int(block.layer_idx)
        self.heads = [part.out_features // self.head for part in self.inputs]
        self.scaling = float(block.scaling)

        known = [*self.inputs, *self.gates, self.output, self.down, *norms]
        _, *self.inner = layer.modules()
        self.held = [
            (held, name, held[name])
            for module in (layer, *self.inner)
            for held in (vars(module)["_modules"], vars(module)["_parameters"])
            for name in held
        ]
        sizes = [block.q_proj.in_features] * 2 + [self.head] * len(self.head_norms)
        parts.require(
            can_pack(self.inputs),
            can_pack(self.gates),
            all(map(is_untouched, (layer, *self.inner))),
            # No parameters of its own, such as sinks.
            {weight for part in known for weight in part.parameters()} == {*layer.parameters()},
            len({weight.dtype for weight in layer.parameters()}) == 1,
            all(parts.norm(norm).is_rms for norm in norms),
            [len(norm.weight) for norm in norms] == sizes,
            self.heads[1] == self.heads[2],
        )
        self.qkv, self.gate_up = packed(self.inputs), packed(self.gates)

    def is_current(self) -> bool:
        """Return whether the model still is what was fused."""
        return (
            self.qkv.is_current(self.inputs)
            and self.gate_up.is_current(self.gates)
            and all(held.get(name) is what for held, name, what in self.held)
            and not any(map(has_hooks, self.inner))
        )

    def forward(
        self, hidden_states: Tensor, *, position_embeddings: Angles, past_key_values: Any, **_: Any
    ) -> Tensor:
        """Be the layer's forward, for the tokens of prompts or the nodes of a tree."""
        if position_embeddings[0].shape[-1] != self.head:
            raise ValueError("positions turn only a part of each head")
        normed = self.residual.take(hidden_states)
        if normed is None:
            normed = kernels.rms_norm(hidden_states, self.norm)
        product = parts.multiply(self.qkv, normed)
        inputs = self._attention_inputs(product, position_embeddings, past_key_values)
        mixed = attention.attend(self.layer.self_attn, *inputs, None, scaling=self.scaling)[0]
        mixed = parts.multiply(self.output, mixed.flatten(2))
        hidden, normed = kernels.add_norm(mixed, hidden_states, self.second_norm)
        inner = kernels.gated(parts.multiply(self.gate_up, normed))
        hidden, normed = kernels.add_norm(parts.multiply(self.down, inner), hidden, self.next_norm)
        return hidden if self.next_norm is None else self.residual.put(hidden, normed)

    def _attention_inputs(
        self, product: Tensor, angles: Angles, past: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what attention is given: queries, and the keys and values that they may see."""
        layout, path = attention.current()
        if path is not None:  # nodes, whose places the layout knows
            assert layout is not None
            assert layout.write is not None
            cache = past.layers[self.index]
            query = kernels.place(
                product, *angles, cache.keys, cache.values, layout.write, self.head_norms
            )
            return query, cache.keys, cache.values
        whole = product.view(*product.shape[:-1], -1, self.head)  # [batch, length, heads, head]
        query, keys, values = torch.split(whole, self.heads, dim=2)
        if self.head_norms:
            query, keys = map(kernels.rms_norm, (query, keys), self.head_norms)
        values = values.transpose(1, 2)
        query, keys = kernels.rotate(query.transpose(1, 2), keys.transpose(1, 2), *angles)
        if past is not None:
            keys, values = past.update(keys, values, self.index)
        return query, keys, values


def fused_layers(model: nn.Module, config: Any) -> list[FusedLayer]:
    """Find the layers of a model that may run fused, each tried on a sample."""
    found: list[FusedLayer] = []
    for module in model.modules():
        try:
            layer = FusedLayer(module)
        except (AttributeError, TypeError, parts.UnknownError):
            continue
        except torch.OutOfMemoryError:
            logger.debug("no memory to pack the weights of layer %d", len(found))
            break
        if _agrees(layer, config):
            found.append(layer)
    return found


def stacked(layers: Sequence[FusedLayer], model: nn.Module) -> Iterator[Replacement]:
    """Name what runs in the place of layers, and of the norm after the last if that is known."""
    fused = {layer.layer: layer for layer in layers}
    for owner in model.modules():
        modules: Any = getattr(owner, "layers", None)
        if not isinstance(modules, nn.ModuleList) or not modules or not {*modules} <= {*fused}:
            continue
        stack, residual = [fused[module] for module in modules], parts.Residual()
        for layer in stack:
            layer.residual = residual
        for layer, after in itertools.pairwise(stack):
            layer.next_norm = after.norm
        last: Any = getattr(owner, "norm", None)
        was_tried = type(last) is type(modules[-1].input_layernorm)  # with the layers
        if was_tried and is_untouched(last):
            stack[-1].next_norm = parts.norm(last)
            yield last, "forward", functools.partial(residual.end, last)
    for layer in layers:
        yield layer.layer, "forward", layer.forward


def _agrees(layer: FusedLayer, config: Any) -> bool:
    """Try a layer plain and fused on a sample, as a prompt."""
    weight = layer.qkv.weight
    shapes = (2, 3, weight.shape[1]), (1, 3, layer.head // 2)
    hidden, angle = parts.sample(weight.device, *shapes)
    hidden, angle = hidden.to(weight.dtype), angle.repeat(1, 1, 2)
    angles = angle.cos().to(weight.dtype), angle.sin().to(weight.dtype)
    with attention.tree_attention(config, None, None):
        return parts.agrees(
            functools.partial(layer.layer, position_embeddings=angles, attention_mask=None),
            functools.partial(layer.forward, position_embeddings=angles, past_key_values=None),
            hidden,
            residual=hidden,
        )
