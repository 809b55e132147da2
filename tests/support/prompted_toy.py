"""Toy models behind an engine that is asked with whole prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bestk.backends.prefix import EngineInfo, PrefixBackend, TopLogprobs
from bestk.backends.toy import ToyBackend


class PromptedToy(PrefixBackend):
    """Lists a toy's likeliest tokens in the order of their ids, and says what it was asked."""

    def __init__(self, toy: ToyBackend, max_listed: int | None = None, way_out: str = "") -> None:
        super().__init__(
            EngineInfo(
                name="prompted toy",
                vocab_size=toy.vocab_size,
                eos_ids=toy.eos_ids,
                max_listed=max_listed,
                way_out=way_out,
            )
        )
        self.toy = toy
        self.asked: list[list[list[int]]] = []

    def ask(self, prefixes: list[list[int]], num_tokens: int) -> Sequence[TopLogprobs]:
        self.asked.append(prefixes)
        return [self._likeliest(prefix, num_tokens) for prefix in prefixes]

    def _likeliest(self, prefix: list[int], number: int) -> TopLogprobs:
        log_probs = self.toy.log_probs(tuple(prefix))
        best = sorted(range(len(log_probs)), key=lambda token: (-log_probs[token], token))[:number]
        listed = sorted(token for token in best if log_probs[token] != -math.inf)
        return TopLogprobs(listed, [log_probs[token] for token in listed])
