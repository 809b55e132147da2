"""Weights of several linear layers side by side, so that one product serves all of them.

The layers' own parameters become windows of the packed memory, so nothing is held twice, and what
is trained or loaded into the one is there in the other. Each window has a storage of its own, as
far as torch knows: `state_dict`, `save_pretrained` and safetensors, which refuses tensors that
share a storage, see what they saw before.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from bestk.backends.transformers.replaced import is_untouched

# What was packed stays packed: a model that is wrapped again finds it here.
_PACKED: weakref.WeakKeyDictionary[nn.Module, PackedLinear] = weakref.WeakKeyDictionary()


class PackedLinear:
    """The weights, and biases if there are any, of some linear layers with one input."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.weight = _pack([layer.weight for layer in layers])
        self.bias = None if layers[0].bias is None else _pack([layer.bias for layer in layers])

    def is_current(self, layers: Sequence[nn.Linear]) -> bool:
        """Return whether the layers' parameters still are windows of this memory."""
        at = self.weight.data_ptr()
        for layer in layers:
            if layer.weight.data_ptr() != at or layer.weight.dtype != self.weight.dtype:
                return False
            at += layer.weight.nbytes
        return self.bias is None or layers[0].bias.data_ptr() == self.bias.data_ptr()


def packed(layers: Sequence[nn.Linear]) -> PackedLinear:
    """Pack the weights of these layers, or find them packed already."""
    found = _PACKED.get(layers[0])
    if found is None or not found.is_current(layers):
        found = _PACKED[layers[0]] = PackedLinear(layers)
        torch.cuda.empty_cache()  # where the weights lay before
    return found


def can_pack(layers: Sequence[Any]) -> bool:
    """Return whether these are linear layers and no more, whose weights nobody else holds."""
    return all(
        type(layer) is nn.Linear
        and is_untouched(layer)
        and type(layer.weight) is nn.Parameter
        and layer.weight.is_contiguous()
        and layer.weight.untyped_storage().nbytes() == layer.weight.nbytes
        for layer in layers
    ) and all(
        (layer.weight.dtype, layer.weight.device, layer.in_features, layer.bias is None)
        == (first.weight.dtype, first.weight.device, first.in_features, first.bias is None)
        for first, layer in itertools.pairwise(layers)
    )


@torch.inference_mode(mode=False)
@torch.no_grad()
def _pack(parts: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([part.detach() for part in parts])
    start = 0
    for part in parts:
        # By way of DLPack, a window is a tensor with its own storage over the same memory.
        part.data = from_dlpack(whole[start : start + len(part)])
        start += len(part)
    return whole
