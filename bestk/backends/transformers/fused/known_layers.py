"""Recognises the layers of encoder-decoders' decoders by their parts: BART's kin and T5's.

A recognised layer is a list of tensors and the order that they come in. Knows attributes of
modules, no families by name; whether an order is right the probe finds out. Nothing here holds a
copy of a weight.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from bestk.backends.transformers.kernels.elementwise import Norm

_BART_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
_T5_ATTENTION = ("q", "k", "v", "o")

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


@dataclass(frozen=True)
class Attention:
    """One attention: its products, and how its heads are cut."""

    module: Any
    query: nn.Linear
    keys: nn.Linear
    values: nn.Linear
    output: nn.Linear
    scaling: float


@dataclass(frozen=True)
class Layer:
    """One layer of a decoder. A norm is None where nothing is normed."""

    module: Any
    own: Attention
    source: Attention
    widen: nn.Linear
    gate: nn.Linear | None  # the second product of a gated layer
    narrow: nn.Linear
    activation: str
    first: Norm | None  # before the first attention, where layers norm what they read
    norms: tuple[Norm | None, Norm | None, Norm | None]  # after each of the three parts
    returns: Callable[[Tensor], Any]  # what the layer's forward gives back


def known_layers(model: Any) -> tuple[list[Layer], Any] | None:
    """Return a decoder's layers, and the norm module after the last one if it belongs to them.

    None where a layer has parts that are not known here, or that somebody has changed.
    """
    decoder = model.get_decoder()
    for name, recognise in (("layers", _bart_layers), ("block", _t5_layers)):
        modules = getattr(decoder, name, None)
        if isinstance(modules, nn.ModuleList) and len(modules) > 0:
            try:
                layers, final = recognise(decoder, list(modules))
            except (AttributeError, IndexError, _UnknownError):
                return None
            parts = [*modules] if final is None else [*modules, final]
            return (layers, final) if _is_untouched(parts) else None
    return None


class _UnknownError(Exception):
    """A part is of another kind."""


def _bart_layers(decoder: Any, modules: list[Any]) -> tuple[list[Layer], Any]:
    """BART, Marian: each part is normed after it is added. mBART, Pegasus, Whisper: before."""
    final = getattr(decoder, "layer_norm", None)
    layers = []
    for number, module in enumerate(modules):
        own = _norm(module.self_attn_layer_norm)
        source = _norm(module.encoder_attn_layer_norm)
        last = _norm(module.final_layer_norm)
        first: Norm | None = None
        norms: tuple[Norm | None, Norm | None, Norm | None] = (own, source, last)
        if final is not None:
            is_end = number + 1 == len(modules)
            after = final if is_end else modules[number + 1].self_attn_layer_norm
            first, norms = own, (source, last, _norm(after))
        layers.append(
            Layer(
                module=module,
                own=_attention(module.self_attn, _BART_ATTENTION, number),
                source=_attention(module.encoder_attn, _BART_ATTENTION, number),
                widen=_linear(module.fc1),
                gate=None,
                narrow=_linear(module.fc2),
                activation=_activation(module.activation_fn),
                first=first,
                norms=norms,
                returns=_alone,
            )
        )
    return layers, final


def _t5_layers(decoder: Any, modules: list[Any]) -> tuple[list[Layer], Any]:
    final = decoder.final_layer_norm
    layers = []
    for number, module in enumerate(modules):
        own, source, dense = module.layer
        inner = dense.DenseReluDense
        is_end = number + 1 == len(modules)
        after = final if is_end else modules[number + 1].layer[0].layer_norm
        is_gated = hasattr(inner, "wi_0")
        has_biases = "position_bias" in inspect.signature(module.forward).parameters
        layers.append(
            Layer(
                module=module,
                own=_attention(own.SelfAttention, _T5_ATTENTION, number),
                source=_attention(source.EncDecAttention, _T5_ATTENTION, number),
                widen=_linear(inner.wi_0 if is_gated else inner.wi),
                gate=_linear(inner.wi_1) if is_gated else None,
                narrow=_linear(inner.wo),
                activation=_activation(inner.act),
                first=_norm(own.layer_norm),
                norms=(_norm(source.layer_norm), _norm(dense.layer_norm), _norm(after)),
                returns=_with_biases if has_biases else _alone,
            )
        )
    if layers[0].widen.weight.dtype == torch.float16:
        raise _UnknownError  # T5 keeps half precision from overflowing between its parts
    if any(layer.gate is not None and layer.gate.bias is not None for layer in layers):
        raise _UnknownError
    return layers, final


def _alone(hidden: Tensor) -> Tensor:
    return hidden


def _with_biases(hidden: Tensor) -> tuple[Tensor, None, None]:
    return hidden, None, None  # T5's layers hand their position biases on


def _is_untouched(modules: Iterable[nn.Module]) -> bool:
    """Say whether nobody listens to these modules or has replaced what they do."""
    parts = [part for module in modules for part in module.modules()]
    return not any(
        "forward" in vars(part) or part._forward_hooks or part._forward_pre_hooks for part in parts
    )


def _attention(module: Any, names: tuple[str, ...], number: int) -> Attention:
    query, keys, values, output = (_linear(getattr(module, name)) for name in names)
    shapes = {linear.weight.shape for linear in (query, keys, values)}
    if module.layer_idx != number or len(shapes) > 1:
        raise _UnknownError
    return Attention(module, query, keys, values, output, float(module.scaling))


def _linear(module: Any) -> nn.Linear:
    if type(module) is not nn.Linear or not module.weight.is_contiguous():
        raise _UnknownError
    return module


def _norm(module: Any) -> Norm:
    if type(module) is nn.LayerNorm and module.weight is not None:
        return Norm(module.weight, module.bias, float(module.eps), is_rms=False)
    if not hasattr(module, "variance_epsilon") or module.weight.dim() != 1:
        raise _UnknownError
    return Norm(module.weight, None, float(module.variance_epsilon), is_rms=True)


def _activation(function: Callable[[Tensor], Tensor]) -> str:
    """Name an activation by what it does to a sample."""
    sample = torch.linspace(-6, 6, 97)
    for name, known in _ACTIVATIONS.items():
        if torch.allclose(function(sample), known(sample), rtol=1e-5, atol=1e-6):
            return name
    raise _UnknownError


def activate(name: str, hidden: Tensor) -> Tensor:
    """Apply an activation by its name."""
    return _ACTIVATIONS[name](hidden)
