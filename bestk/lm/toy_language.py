"""A language model of 32 words that needs no weights: `bestk.load("toy")`, to try things out with.

Its sentences are grammatical and mean nothing. They depend on the prompt, so that mixed-up rows
show; every word that it does not know stands for one that it does. Made from the toy backend, it
loads in no time and runs thousands of short searches a minute on any machine.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any

from bestk.backends.toy import Prefix, ToyBackend
from bestk.lm.language_model import LanguageModel

_KINDS: dict[str, tuple[str, ...]] = {
    "end": ("<end>",),
    "article": ("the", "a", "my", "every"),
    "adjective": ("old", "small", "red", "quiet", "clever", "happy"),
    "noun": ("dog", "cat", "bird", "child", "teacher", "robot", "house", "tree"),
    "verb": ("runs", "sleeps", "sings", "waits", "falls", "dreams"),
    "adverb": ("slowly", "again", "outside", "well"),
    "link": ("and", "near", "like"),
}
# What may follow a word of each kind, with its share.
_FOLLOWERS: dict[str, dict[str, float]] = {
    "end": {"article": 1.0},
    "article": {"adjective": 0.4, "noun": 0.6},
    "adjective": {"noun": 1.0},
    "noun": {"verb": 0.7, "link": 0.1, "end": 0.2},
    "verb": {"adverb": 0.4, "link": 0.2, "end": 0.4},
    "adverb": {"link": 0.2, "end": 0.8},
    "link": {"article": 1.0},
}
WORDS = tuple(word for words in _KINDS.values() for word in words)
_KIND_OF = tuple(kind for kind, words in _KINDS.items() for _ in words)
_NUM_TOPICS = 997


def toy_language() -> LanguageModel:
    """Make the model; it is the same every time."""
    backend = ToyBackend(_next_word, vocab_size=len(WORDS), eos_ids=(0,))
    return LanguageModel(backend, Words(), "toy")


class Words:
    """A tokenizer with one token per word; it has no chat template."""

    chat_template = None

    def __call__(
        self, text: str | list[str], add_special_tokens: bool = True
    ) -> dict[str, list[Any]]:
        if not isinstance(text, str):
            return {"input_ids": [self(one)["input_ids"] for one in text]}
        return {"input_ids": [_word_id(word) for word in text.split()]}

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = True
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return " ".join(WORDS[token] for token in ids if token or not skip_special_tokens)


def _word_id(word: str) -> int:
    plain = word.lower().strip(".,;:!?\"'")
    if plain in WORDS[1:]:
        return WORDS.index(plain)
    return 1 + zlib.crc32(word.encode()) % (len(WORDS) - 1)


def _next_word(prefix: Prefix) -> tuple[float, ...]:
    topic = 0
    for token in prefix[:8]:  # of most prompts all
        topic = (topic * 31 + token) % _NUM_TOPICS
    return _row(prefix[-1], topic)


@functools.cache
def _row(last: int, topic: int) -> tuple[float, ...]:
    shares = _FOLLOWERS[_KIND_OF[last]]
    weights = [
        shares.get(kind, 0.0) / len(_KINDS[kind]) * (1 + (token * 7 + topic) % 5)
        for token, kind in enumerate(_KIND_OF)
    ]
    return tuple(weight / sum(weights) for weight in weights)
