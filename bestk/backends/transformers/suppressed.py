"""Tokens that a generation config rules out everywhere; knows single tokens, no phrases."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from bestk.backends.transformers.decoder_prompt import setting
from bestk.backends.transformers.sources import EncoderDecoderInfo


class SuppressedTokens:
    """Tokens that the generation config rules out everywhere: Marian's padding, Whisper's signs.

    Only single tokens: phrases and all other rules are for the processors.
    """

    def __init__(self, model: EncoderDecoderInfo) -> None:
        words = _listed(model, "bad_words_ids")
        always = {word[0] for word in words if len(word) == 1}
        always |= set(_listed(model, "suppress_tokens"))
        first = always | set(_listed(model, "begin_suppress_tokens"))
        self._later = _is_listed(always, model)
        self._at_start = _is_listed(first, model)

    def at_start(self, logits: Tensor) -> Tensor:
        """Rule tokens out of the first place of a text."""
        return logits if self._at_start is None else logits.masked_fill(self._at_start, -torch.inf)

    def later(self, logits: Tensor) -> Tensor:
        """Rule tokens out of any other place."""
        return logits if self._later is None else logits.masked_fill(self._later, -torch.inf)


def _listed(model: EncoderDecoderInfo, name: str) -> list[Any]:
    return (setting(model.module, name) or []) if model.has_rules else []


def _is_listed(tokens: set[int], model: EncoderDecoderInfo) -> Bool[Tensor, " vocab"] | None:
    size = model.vocab_size
    listed = [token for token in tokens if 0 <= token < size]
    if not listed:
        return None
    mask = torch.zeros(size, dtype=torch.bool, device=model.device)
    mask[listed] = True
    return mask
