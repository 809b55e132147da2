"""Weights of several linear layers laid side by side, so that one product serves all of them.

The layers' own parameters become windows of the joined memory, so nothing is held twice, and what
is trained or loaded into the one is there in the other. Each window has a storage of its own, as
far as torch knows: `state_dict`, `save_pretrained` and safetensors, which refuses tensors that
share a storage, see what they saw before.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

# What was joined stays joined: a model that is wrapped again finds it here.
_JOINED: weakref.WeakKeyDictionary[nn.Module, Joined] = weakref.WeakKeyDictionary()


class Joined:
    """The weights, and biases if there are any, of some linear layers with one input."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.weight = _join([layer.weight for layer in layers])
        self.bias = None if layers[0].bias is None else _join([layer.bias for layer in layers])

    def is_current(self, layers: Sequence[nn.Linear]) -> bool:
        """Say whether the layers' parameters still are windows of this memory."""
        at = self.weight.data_ptr()
        for layer in layers:
            if layer.weight.data_ptr() != at or layer.weight.dtype != self.weight.dtype:
                return False
            at += layer.weight.nbytes
        return self.bias is None or layers[0].bias.data_ptr() == self.bias.data_ptr()


def joined(layers: Sequence[nn.Linear]) -> Joined:
    """Join the weights of these layers, or find them joined already."""
    found = _JOINED.get(layers[0])
    if found is None or not found.is_current(layers):
        found = _JOINED[layers[0]] = Joined(layers)
    return found


def can_join(layers: Sequence[Any]) -> bool:
    """Say whether these are plain linear layers whose weights nobody else holds."""
    return all(is_plain(layer) for layer in layers) and (
        len({(part.weight.dtype, part.weight.device, part.weight.shape[1]) for part in layers})
        == len({part.bias is None for part in layers})
        == 1
    )


def is_plain(layer: object) -> bool:
    """Say whether this is a linear layer and no more than that: no hooks, no wrapper."""
    return (
        type(layer) is nn.Linear
        and "forward" not in layer.__dict__
        and not has_hooks(layer)
        and type(layer.weight) is nn.Parameter
        and layer.weight.is_contiguous()
        and layer.weight.untyped_storage().nbytes() == layer.weight.nbytes
    )


def has_hooks(module: nn.Module) -> bool:
    """Say whether somebody wants to see or change what goes in or comes out of a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


@torch.inference_mode(mode=False)
@torch.no_grad()
def _join(parts: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([part.detach() for part in parts])
    start = 0
    for part in parts:
        # By way of DLPack, a window is a tensor with its own storage over the same memory.
        part.data = from_dlpack(whole[start : start + len(part)])
        start += len(part)
    return whole
