"""Random numbers by their address: a prompt's key, a step, a beam, a token.

Nothing is drawn in sequence, so no batch, place or device changes a number, and only the numbers
that are looked at are computed. The mixing is SplitMix64's (Steele et al., 2014).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Odd constants of SplitMix64, as signed 64-bit numbers: products wrap around.
_STRIDE = -0x61C8864680B583EB
_FIRST = -0x40A7B892E31B1A47
_SECOND = -0x6B2FB644ECCEEE15


def exponential(
    key: Int[Tensor, " batch"], step: int, token: Int[Tensor, "batch beams kept"]
) -> Float[Tensor, "batch beams kept"]:
    """Return exponential noise for each token of each beam.

    >>> token = torch.tensor([[[5, 9]]])
    >>> both = exponential(torch.tensor([7]), 1, token)
    >>> bool(both[0, 0, 1] == exponential(torch.tensor([7]), 1, token[..., 1:])[0, 0, 0])
    True
    """
    beam = torch.arange(token.shape[1], device=token.device)[:, None]
    mixed = _mix(_mix(_mix(key[:, None, None] + step) + beam) + token)
    # 52 bits, never 0 and never 1.
    uniform = (_shifted(mixed, 12).double() + 0.5) * 2.0**-52
    return -uniform.log()


def _mix(number: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    number = number + _STRIDE
    number = (number ^ _shifted(number, 30)) * _FIRST
    number = (number ^ _shifted(number, 27)) * _SECOND
    return number ^ _shifted(number, 31)


def _shifted(number: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Shift to the right with zeros from the left: torch shifts the sign in."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)
