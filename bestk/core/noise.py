"""Random numbers by their address: a prompt's key, a place in its search, a token.

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


def of_beams(
    key: Int[Tensor, " batch"], step: int, beams: Int[Tensor, " beams"]
) -> Int[Tensor, "batch beams"]:
    """Return the addresses of beams at a step."""
    return _mix(_mix(key[:, None] + step) + beams)


def of_prefixes(
    key: Int[Tensor, " batch"], prefix: Int[Tensor, "batch nodes depth"]
) -> Int[Tensor, "batch nodes"]:
    """Return the addresses of nodes, by their tokens alone; −1 fills a prefix up.

    >>> prefix = torch.tensor([[[5, 9, -1], [5, -1, -1]]])
    >>> both = of_prefixes(torch.tensor([7]), prefix)
    >>> bool(both[0, 0] == of_prefixes(torch.tensor([7]), prefix[:, :1, :2])[0, 0])
    True
    """
    places = torch.arange(prefix.shape[2], device=prefix.device)
    odd = _mix(places) | 1  # a hash that is linear in the tokens: one sum of products
    return _mix(_mix(((prefix + 1) * odd).sum(dim=2)) + key[:, None])


def uniform(
    address: Int[Tensor, "*nodes"], token: Int[Tensor, "*nodes kept"]
) -> Float[Tensor, "*nodes kept"]:
    """Return a number for each token at an address: 52 bits, never 0 and never 1.

    >>> token = torch.tensor([[[5, 9]]])
    >>> both = uniform(torch.tensor([[7]]), token)
    >>> bool(both[0, 0, 1] == uniform(torch.tensor([[7]]), token[..., 1:])[0, 0, 0])
    True
    """
    return (_shifted(_mix(address[..., None] + token), 12).double() + 0.5) * 2.0**-52


def gumbel(
    address: Int[Tensor, "*nodes"], token: Int[Tensor, "*nodes kept"]
) -> Float[Tensor, "*nodes kept"]:
    """Return standard Gumbel noise for each token at an address."""
    return -(-uniform(address, token).log()).log()


def invert(
    weights: Float[Tensor, "*nodes tokens"], uniforms: Float[Tensor, "*nodes draws"]
) -> Int[Tensor, "*nodes draws"]:
    """Return the first index at which the cumulative weight passes its share of the total.

    An index of weight 0 passes nothing, so it is never returned.

    >>> invert(torch.tensor([0.0, 0.5, 0.25]), torch.tensor([0.5, 0.9])).tolist()
    [1, 2]
    """
    sums = weights.cumsum(dim=-1)
    # A uniform number next to 1 may round to the whole sum, which no index passes.
    share = uniforms.clamp(max=1 - 2**-40) * sums[..., -1:]
    return torch.searchsorted(sums, share, right=True).clamp(max=weights.shape[-1] - 1)


def _mix(number: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    number = number + _STRIDE
    number = (number ^ _shifted(number, 30)) * _FIRST
    number = (number ^ _shifted(number, 27)) * _SECOND
    return number ^ _shifted(number, 31)


def _shifted(number: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Shift to the right with zeros from the left: torch shifts the sign in."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)
