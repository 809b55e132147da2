"""Which next tokens a sampler may draw: nucleus and typical sets over the whole vocabulary.

Pure tensor functions and their settings. A filter only marks tokens; log-probabilities stay the
model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.errors import OptionError

# Nuclei are small: this many tokens are sorted before the whole vocabulary is.
_FEW = 1024


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
        """Say which tokens of each distribution stay, at least `min_tokens` of them."""
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


def _first_mass(
    key: Float[Tensor, "*nodes vocab"],
    log_probs: Float[Tensor, "*nodes vocab"],
    p: float,
    min_tokens: int,
) -> Bool[Tensor, "*nodes vocab"]:
    """Keep tokens in the order of `key` until their mass reaches p; equal keys by lower id."""
    vocab = key.shape[-1]
    few = min(vocab, max(_FEW, min_tokens + 1))
    order, kept = _kept_of_first(key, log_probs, p, min_tokens, few)
    # Sorting a few is enough if all that is kept comes before the last of them, ties included.
    cut = key.gather(-1, order).masked_fill(~kept, -torch.inf).amax(dim=-1)
    if few < vocab and not bool((cut < key.gather(-1, order[..., -1:])[..., 0]).all()):
        order, kept = _kept_of_first(key, log_probs, p, min_tokens, vocab)
    keeps = torch.zeros_like(key, dtype=torch.bool).scatter(-1, order, kept)
    return keeps & (log_probs > -torch.inf)


def _kept_of_first(
    key: Float[Tensor, "*nodes vocab"],
    log_probs: Float[Tensor, "*nodes vocab"],
    p: float,
    min_tokens: int,
    count: int,
) -> tuple[Int[Tensor, "*nodes count"], Bool[Tensor, "*nodes count"]]:
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
