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
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from bestk.backends.transformers import attention
from bestk.backends.transformers.fused.packed import Joined, can_join, has_hooks, is_plain, joined

logger = logging.getLogger("bestk")

_TOLERANCE = {torch.float32: 1e-4}
_HALF_TOLERANCE = 5e-2
# Memory that the old places of joined weights may hold before it is given back.
_MOST_FREED = 2**30


class Carried:
    """A sum of residuals and the same normed for its reader, on the way from layer to layer."""

    def __init__(self) -> None:
        self.hidden: Tensor | None = None
        self.normed: Tensor | None = None

    def put(self, hidden: Tensor, normed: Tensor) -> None:
        """Leave a sum for the next layer."""
        self.hidden, self.normed = hidden, normed

    def take(self, hidden: Tensor) -> Tensor | None:
        """Return what was left with this very sum, None if the reader got something else."""
        normed = self.normed if hidden is self.hidden else None
        self.clear()
        return normed

    def clear(self) -> None:
        """Hold nothing."""
        self.hidden = self.normed = None


class FusedLayer:
    """One decoder layer that runs fused while the tree is searched, and as it is otherwise."""

    def __init__(self, layer: Any, carried: Carried) -> None:
        block, gate = layer.self_attn, layer.mlp
        self.layer, self.carried = layer, carried
        self.qkv_layers = [block.q_proj, block.k_proj, block.v_proj]
        self.gate_layers = [gate.gate_proj, gate.up_proj]
        self.output, self.down = block.o_proj, gate.down_proj
        self.norm, self.second_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.next_norm = self.second_norm  # until it is known what reads the layer's output
        self.qkv: Joined = joined(self.qkv_layers)
        self.gate_up: Joined = joined(self.gate_layers)
        self.head = int(block.head_dim)
        self.heads, self.kv_heads = (
            part.out_features // self.head for part in (block.q_proj, block.k_proj)
        )
        self.index, self.scaling = int(block.layer_idx), float(block.scaling)

    def is_current(self) -> bool:
        """Say whether the model still is what was fused."""
        parts = [self.layer.self_attn, self.layer.mlp, self.norm, self.second_norm]
        parts += [*self.qkv_layers, *self.gate_layers, self.output, self.down]
        return (
            self.qkv.is_current(self.qkv_layers)
            and self.gate_up.is_current(self.gate_layers)
            and not any(map(has_hooks, parts))
        )

    def forward(
        self,
        hidden_states: Tensor,
        *args: Any,
        past_key_values: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> Any:
        """Be the layer's forward."""
        layout, path = attention.current()
        is_step = path is not None
        cache = _cache_layer(past_key_values, self.index)
        if (
            args
            or layout is None
            or (is_step and cache is None)
            or position_embeddings is None
            or position_embeddings[0].shape[-1] != self.head
        ):
            return type(self.layer).forward(
                self.layer,
                hidden_states,
                *args,
                past_key_values=past_key_values,
                position_embeddings=position_embeddings,
                **options,
            )
        attend = functools.partial(self._step, layout, path, cache) if is_step else self._read
        return self._run(hidden_states, position_embeddings, attend, past_key_values)

    def _run(self, hidden: Tensor, angles: tuple[Tensor, Tensor], attend: Any, past: Any) -> Tensor:
        from bestk.backends.transformers.kernels import elementwise as kernels

        normed = self.carried.take(hidden)
        if normed is None:
            normed = kernels.rms_norm(hidden, self.norm.weight, self.norm.variance_epsilon)
        mixed = attend(normed, angles, past)
        product = functional.linear(mixed, self.output.weight, self.output.bias)
        hidden, normed = _added(hidden, product, self.second_norm)
        both = functional.linear(normed, self.gate_up.weight, self.gate_up.bias)
        inner = kernels.gated(both)
        product = functional.linear(inner, self.down.weight, self.down.bias)
        hidden, normed = _added(hidden, product, self.next_norm)
        if self.next_norm is not self.second_norm:
            self.carried.put(hidden, normed)
        return hidden

    def _step(
        self, layout: Any, path: Any, cache: Any, normed: Tensor, angles: Any, _: Any
    ) -> Tensor:
        """Attend from nodes of a tree: their keys and values go to the layout's places."""
        from bestk.backends.transformers.kernels import elementwise as kernels
        from bestk.backends.transformers.kernels import tree_attention as tree_kernels

        product = functional.linear(normed, self.qkv.weight, self.qkv.bias)
        cos, sin = angles
        query = kernels.place(
            product, cos, sin, cache.keys, cache.values, layout.write, self._norms()
        )
        mixed = tree_kernels.tree_attention(
            query,
            cache.keys,
            cache.values,
            path,
            layout.prompt_length,
            layout.prompt_size,
            self.scaling,
        )
        return mixed.flatten(2)

    def _read(self, normed: Tensor, angles: Any, past: Any) -> Tensor:
        """Attend from the tokens of prompts, each to those before it."""
        from bestk.backends.transformers.kernels import elementwise as kernels

        product = functional.linear(normed, self.qkv.weight, self.qkv.bias)
        whole = product.view(*product.shape[:-1], -1, self.head)  # [batch, length, heads, head]
        counts = [self.heads, self.kv_heads, self.kv_heads]
        query, keys, values = torch.split(whole, counts, dim=2)
        norms = self._norms()
        if norms is not None:
            query = kernels.rms_norm(query, norms[0], norms[2])
            keys = kernels.rms_norm(keys, norms[1], norms[2])
        values = values.transpose(1, 2)
        query, keys = kernels.rotate(query.transpose(1, 2), keys.transpose(1, 2), *angles)
        if past is not None:
            keys, values = past.update(keys, values, self.index)
        mixed, _ = attention.attend(
            self.layer.self_attn, query, keys, values, None, scaling=self.scaling
        )
        return mixed.flatten(2)

    def _norms(self) -> tuple[Tensor, Tensor, float] | None:
        block = self.layer.self_attn
        if getattr(block, "q_norm", None) is None:
            return None
        return block.q_norm.weight, block.k_norm.weight, block.q_norm.variance_epsilon


def fused_layers(model: nn.Module, config: Any) -> list[FusedLayer]:
    """Find the layers of a model that may run fused, each tried on a sample."""
    carried, freed = Carried(), 0
    found: list[FusedLayer] = []
    for layer in model.modules():
        if not _looks_right(layer):
            continue
        try:
            fused = FusedLayer(layer, carried)
        except torch.OutOfMemoryError:
            logger.debug("no memory to join the weights of layer %d", len(found))
            break
        freed += sum(weight.nbytes for weight in (fused.qkv.weight, fused.gate_up.weight))
        if freed > _MOST_FREED and fused.qkv.weight.is_cuda:
            torch.cuda.empty_cache()
            freed = 0
        if _agrees(fused, config):
            found.append(fused)
    return found


def chain(layers: Sequence[FusedLayer], model: nn.Module) -> Any:
    """Tell each layer who norms its output; return the model's last norm if that is known."""
    fused = {id(layer.layer): layer for layer in layers}
    for owner in model.modules():
        stack: Any = getattr(owner, "layers", None)
        if not isinstance(stack, nn.ModuleList) or not all(id(part) in fused for part in stack):
            continue
        for one, other in itertools.pairwise(stack):
            fused[id(one)].next_norm = fused[id(other)].norm
        last = getattr(owner, "norm", None)
        if len(stack) and type(last) is type(fused[id(stack[-1])].norm) and _is_norm(last):
            fused[id(stack[-1])].next_norm = last
            return last
    return None


def _added(hidden: Tensor, product: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    from bestk.backends.transformers.kernels import elementwise as kernels

    kind = kernels.Norm(norm.weight, None, norm.variance_epsilon, is_rms=True)
    total, normed = kernels.add_norm(product, hidden, kind)
    return total, normed


def _cache_layer(past: Any, index: int) -> Any:
    """Return one layer's keys and values if they lie in a tree's cache already."""
    layers = getattr(past, "layers", [])
    layer = layers[index] if index < len(layers) else None
    return layer if getattr(layer, "is_initialized", False) else None


def _is_norm(norm: Any, size: int | None = None) -> bool:
    weight = getattr(norm, "weight", None)
    return (
        isinstance(weight, Tensor)
        and hasattr(norm, "variance_epsilon")
        and set(norm._parameters) == {"weight"}
        and not norm._modules
        and not has_hooks(norm)
        and (size is None or weight.shape == (size,))
    )


def _looks_right(layer: Any) -> bool:
    """Say whether a module has the parts of such a layer, and no others."""
    parts = dict(layer.named_children())
    if set(parts) != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        return False
    block, gate = parts["self_attn"], parts["mlp"]
    names, gate_names = set(dict(block.named_children())), set(dict(gate.named_children()))
    projections = {"q_proj", "k_proj", "v_proj", "o_proj"}
    if not projections <= names <= projections | {"q_norm", "k_norm"}:
        return False
    if gate_names - {"act_fn"} != {"gate_proj", "up_proj", "down_proj"}:
        return False
    if not all(hasattr(block, name) for name in ("head_dim", "scaling", "layer_idx")):
        return False
    if any(has_hooks(part) or "forward" in part.__dict__ for part in (layer, block, gate)):
        return False
    if any(part._parameters for part in (layer, block, gate)):  # of its own, such as sinks
        return False
    if not all(is_plain(part) for part in (block.q_proj, block.o_proj, gate.down_proj)):
        return False
    head, size = int(block.head_dim), block.q_proj.weight.shape[1]
    inputs = [block.q_proj, block.k_proj, block.v_proj]
    if not can_join(inputs) or not can_join([gate.gate_proj, gate.up_proj]):
        return False
    widths = [part.weight.shape[0] for part in inputs]
    return (
        len({parameter.dtype for parameter in layer.parameters()}) == 1
        and len(names & {"q_norm", "k_norm"}) != 1
        and all(_is_norm(getattr(block, name), head) for name in names - projections)
        and all(_is_norm(parts[name], size) for name in parts if name.endswith("layernorm"))
        and widths[1] == widths[2]
        and head % 2 == 0
        and all(width % head == 0 for width in widths)
        and widths[0] % widths[1] == 0
        and gate.gate_proj.weight.shape == gate.up_proj.weight.shape
    )


@torch.inference_mode()
def _agrees(fused: FusedLayer, config: Any) -> bool:
    """Try a layer plain and fused on a sample, as a prompt."""
    weight = fused.qkv.weight
    source = torch.Generator(weight.device).manual_seed(fused.index)

    def sample(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, device=weight.device)

    hidden = sample(2, 3, weight.shape[1]).to(weight.dtype)
    angle = sample(1, 3, fused.head // 2).repeat(1, 1, 2)
    angles = angle.cos().to(weight.dtype), angle.sin().to(weight.dtype)
    with attention.tree_attention(config, None, None):
        try:
            plain = fused.layer(hidden, position_embeddings=angles, attention_mask=None)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
            return False
        found = fused._run(hidden, angles, fused._read, None)
    fused.carried.clear()
    if not isinstance(plain, Tensor) or plain.shape != found.shape:
        return False
    tolerance = _TOLERANCE.get(weight.dtype, _HALF_TOLERANCE)
    # By the size of what the layer adds, which may be small against what goes through it.
    added, difference = (plain - hidden).float(), (plain - found).float()
    return bool(difference.abs().mean() <= tolerance * added.abs().mean())
