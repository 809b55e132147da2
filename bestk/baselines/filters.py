"""Which next tokens a sampler may draw: nucleus, min-p, typical sets and others, over all tokens.

Pure tensor functions and their settings. A filter only marks tokens; log-probabilities stay the
model's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.errors import OptionError

# Nuclei are small: this many tokens are sorted first, more only where that was not enough.
_COUNTS = (64, 1024, 8192)


@runtime_checkable
class Filter(Protocol):
    """Marks the tokens that may be drawn."""

    @property
    def name(self) -> str:
        """Name the filter and its setting, as in the paper's tables."""
        ...

    def keeps(
        self, log_probs: Float[Tensor, "*nodes vocab"], min_tokens: int = 1
    ) -> Bool[Tensor, "*nodes vocab"]:
        """Mark which tokens of each distribution stay, at least `min_tokens` of them."""
        ...


@dataclass(frozen=True)
class Nucleus:
    """The fewest likeliest tokens whose probabilities add up to p (Holtzman et al., 2020)."""

    p: float

    def __post_init__(self) -> None:
        _check(self.p)

    @property
    def name(self) -> str:
        return f"Ncls{self.p:g}"

    def keeps(
        self, log_probs: Float[Tensor, "*nodes vocab"], min_tokens: int = 1
    ) -> Bool[Tensor, "*nodes vocab"]:
        return _first_mass(-log_probs, log_probs, self.p, min_tokens)


@dataclass(frozen=True)
class MinProb:
    """The tokens of at least this share of the likeliest one's probability (Nguyen et al. 2025)."""

    p: float

    def __post_init__(self) -> None:
        _check(self.p)

    @property
    def name(self) -> str:
        return f"Minp{self.p:g}"

    def keeps(
        self, log_probs: Float[Tensor, "*nodes vocab"], min_tokens: int = 1
    ) -> Bool[Tensor, "*nodes vocab"]:
        least = log_probs.topk(min_tokens, dim=-1).values[..., -1:]
        share = log_probs.amax(dim=-1, keepdim=True) + math.log(self.p)
        return log_probs >= torch.minimum(least, share)


@dataclass(frozen=True)
class Epsilon:
    """The tokens of at least this probability (Hewitt et al., 2022), or the likeliest."""

    p: float

    def __post_init__(self) -> None:
        _check(self.p)

    @property
    def name(self) -> str:
        return f"Eps{self.p:g}"

    def keeps(
        self, log_probs: Float[Tensor, "*nodes vocab"], min_tokens: int = 1
    ) -> Bool[Tensor, "*nodes vocab"]:
        least = log_probs.topk(min_tokens, dim=-1).values[..., -1:]
        return log_probs >= least.clamp(max=math.log(self.p))


@dataclass(frozen=True)
class TopSigma:
    """The tokens within n standard deviations of the best logit (top-nσ, Tang et al., 2025)."""

    n: float

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int | float) or not 0 < self.n < 1e6:
            raise OptionError(f"n is a number of standard deviations above 0, got {self.n!r}")

    @property
    def name(self) -> str:
        return f"Nsig{self.n:g}"

    def keeps(
        self, log_probs: Float[Tensor, "*nodes vocab"], min_tokens: int = 1
    ) -> Bool[Tensor, "*nodes vocab"]:
        is_known = log_probs > -torch.inf
        count = is_known.sum(dim=-1, keepdim=True).clamp(min=1)
        values = log_probs.double().where(is_known, 0.0)
        mean = values.sum(dim=-1, keepdim=True) / count
        spread = (((values - mean).square() * is_known).sum(dim=-1, keepdim=True) / count).sqrt()
        share = values.where(is_known, -torch.inf).amax(dim=-1, keepdim=True) - self.n * spread
        least = log_probs.topk(min_tokens, dim=-1).values[..., -1:].double()
        return (log_probs >= torch.minimum(least, share)) & is_known


@dataclass(frozen=True)
class Typical:
    """The tokens whose surprise is nearest the entropy, up to mass p (Meister et al., 2023)."""

    p: float

    def __post_init__(self) -> None:
        _check(self.p)

    @property
    def name(self) -> str:
        return f"Typ{self.p:g}"

    def keeps(
        self, log_probs: Float[Tensor, "*nodes vocab"], min_tokens: int = 1
    ) -> Bool[Tensor, "*nodes vocab"]:
        entropy = -(log_probs.exp() * log_probs).nansum(dim=-1, keepdim=True)  # 0·log 0 is 0
        return _first_mass((-log_probs - entropy).abs(), log_probs, self.p, min_tokens)


def listed(
    keeps: Bool[Tensor, "*nodes vocab"],
) -> tuple[Int[Tensor, "*nodes kept"], Bool[Tensor, "*nodes kept"]]:
    """List the kept tokens of every node by id, and say which places of the list are filled.

    >>> listed(torch.tensor([[False, True, True], [True, False, False]]))
    (tensor([[1, 2],
            [0, 0]]), tensor([[ True,  True],
            [ True, False]]))
    """
    rows = keeps.reshape(-1, keeps.shape[-1])
    row, token = rows.nonzero(as_tuple=True)
    count = torch.bincount(row, minlength=len(rows))
    place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    is_filled = torch.arange(max(1, int(count.max())), device=row.device) < count[:, None]
    tokens = torch.zeros_like(is_filled, dtype=torch.int64)
    tokens[row, place] = token
    shape = (*keeps.shape[:-1], -1)
    return tokens.view(shape), is_filled.view(shape)


def _first_mass(
    key: Float[Tensor, "*nodes vocab"],
    log_probs: Float[Tensor, "*nodes vocab"],
    p: float,
    min_tokens: int,
) -> Bool[Tensor, "*nodes vocab"]:
    """Keep tokens in the order of `key` until their mass reaches p; equal keys by lower id."""
    vocab = key.shape[-1]
    keys, values = key.reshape(-1, vocab), log_probs.reshape(-1, vocab)
    keeps = torch.zeros_like(keys, dtype=torch.bool)
    left = torch.arange(len(keys), device=keys.device)
    for count in (*(few for few in _COUNTS if min_tokens < few < vocab), vocab):
        order, kept = _kept_of_first(keys, values, p, min_tokens, count)
        # A few are enough if all that is kept comes before the last of them, ties included.
        cut = keys.gather(1, order).masked_fill(~kept, -torch.inf).amax(dim=1)
        is_short = cut >= keys.gather(1, order[:, -1:])[:, 0]
        keeps[left] = torch.zeros_like(keys, dtype=torch.bool).scatter(1, order, kept)
        if count == vocab or not bool(is_short.any()):
            break
        left, keys, values = left[is_short], keys[is_short], values[is_short]
    return keeps.view_as(key) & (log_probs > -torch.inf)


def _kept_of_first(
    key: Float[Tensor, "nodes vocab"],
    log_probs: Float[Tensor, "nodes vocab"],
    p: float,
    min_tokens: int,
    count: int,
) -> tuple[Int[Tensor, "nodes count"], Bool[Tensor, "nodes count"]]:
    """Order the first tokens by `key`, and say which of them are kept."""
    if count < key.shape[-1]:
        first = key.topk(count, dim=-1, largest=False).indices.sort(dim=-1).values
        by_key = key.gather(-1, first).sort(dim=-1, stable=True).indices
        order = first.gather(-1, by_key)
    else:
        order = key.sort(dim=-1, stable=True).indices
    probs = log_probs.gather(-1, order).double().exp()
    kept = probs.cumsum(dim=-1) - probs < p
    kept[..., :min_tokens] = True
    return order, kept


def _check(p: float) -> None:
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p <= 1:
        raise OptionError(f"p is a probability mass above 0 and at most 1, got {p!r}")
