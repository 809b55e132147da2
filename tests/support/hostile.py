"""A toy model that writes markup, and a prompt that is some: for every page that shows texts."""

from __future__ import annotations

import random
import time

import bestk
from bestk.backends.toy import ToyBackend

WORDS = ["<|end|>", " the", " dog", " cat", " runs", " sleeps", "</script><script>hack()</script>"]
HOSTILE = "<script>hack()</script></script ><!-- <b>bold</b> \u2028 &lt; <img src=x onerror=hack()>"


class Words:
    """A tokenizer of a few words, one of them hostile."""

    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1]}

    def batch_decode(
        self, sequences: list[list[int]], skip_special_tokens: bool = True
    ) -> list[str]:
        first = 1 if skip_special_tokens else 0
        return ["".join(WORDS[i] for i in ids if i >= first) for ids in sequences]


def hostile_lm(pause: float = 0.0) -> bestk.LanguageModel:
    """Make a model with a random distribution per prefix; a pause leaves time to watch it."""

    def distribution(prefix: tuple[int, ...]) -> list[float]:
        time.sleep(pause)
        source = random.Random(repr(prefix))
        weights = [source.choice([1, 1, 2, 4, 9]) for _ in WORDS]
        return [weight / sum(weights) for weight in weights]

    return bestk.LanguageModel(ToyBackend(distribution, vocab_size=len(WORDS)), Words())
