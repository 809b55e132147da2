"""The blocks that GGUF files keep weights in, as tensors.

Most kinds are number · scale + minimum, with one scale and minimum for 32 numbers; what is neither
that nor plain numbers is read by the package gguf. Knows bytes; nothing of files or models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

GROUP = 32
# The kinds of plain numbers, by their names in the format.
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Numbers(NamedTuple):
    """Weights as small whole numbers, with what makes weights of them."""

    number: Integer[Tensor, "blocks 32"]
    scale: Float[Tensor, " blocks"]
    minimum: Float[Tensor, " blocks"] | None

    def dense(self) -> Float[Tensor, "blocks 32"]:
        """Return the weights in float32, bit for bit those of other readers."""
        weights = self.number * self.scale[:, None]
        return weights if self.minimum is None else weights + self.minimum[:, None]


def numbers_of(raw: UInt8[Tensor, "rows bytes"], kind: str) -> Numbers:
    """Take blocks of a kind apart."""
    size, read = _READERS[kind]
    return read(raw.reshape(-1, size))


def dense(raw: UInt8[Tensor, "rows bytes"], kind: str) -> Float[Tensor, "rows inputs"]:
    """Return the weights of rows: plain ones in their own format, others in float32."""
    if kind in PLAIN:
        return raw.view(PLAIN[kind])
    if kind in _READERS:
        return numbers_of(raw, kind).dense().view(len(raw), -1)
    import gguf

    weights = gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(np.ascontiguousarray(weights))


def _half(blocks: Tensor, start: int) -> Tensor:
    return blocks[:, start : start + 2].contiguous().view(torch.float16)[:, 0].float()


def _nibbles(packed: UInt8[Tensor, "*blocks 16"]) -> UInt8[Tensor, "*blocks 32"]:
    """Return the low halves of bytes, then the high ones."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _q4_0(blocks: Tensor) -> Numbers:
    scale = _half(blocks, 0)
    return Numbers(_nibbles(blocks[:, 2:]), scale, -8 * scale)


def _q4_1(blocks: Tensor) -> Numbers:
    return Numbers(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> Numbers:
    return Numbers(blocks[:, 2:].view(torch.int8), _half(blocks, 0), None)


def _q4_k(blocks: Tensor) -> Numbers:
    """Eight groups a block, whose scales and minima are numbers of six bits themselves."""
    low, middle, high = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scale = torch.cat([low & 63, high & 15 | (low >> 6) << 4], dim=1)
    minimum = torch.cat([middle & 63, high >> 4 | (middle >> 6) << 4], dim=1)
    # Two groups share 32 bytes, one in the low halves.
    packed = blocks[:, 16:].view(-1, 4, 32)
    number = torch.stack([packed & 15, packed >> 4], dim=2)
    return Numbers(
        number.view(-1, GROUP),
        (_half(blocks, 0)[:, None] * scale).flatten(),
        -(_half(blocks, 2)[:, None] * minimum).flatten(),
    )


# Bytes of a block, and who reads it.
_READERS: dict[str, tuple[int, Callable[[Tensor], Numbers]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
}
# Those of four bits, which there is a kernel for.
FOUR_BITS = frozenset({"Q4_0", "Q4_1", "Q4_K"})
