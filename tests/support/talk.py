"""A toy model that writes short sentences in words and knows chat: for what depends on words."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import bestk
from bestk.backends.toy import ToyBackend

SUBJECTS = ["The", "A", "One"]
KINDS = ["lovely", "little", "brilliant", "curious", "golden"]
NAMES = ["kitten", "sparrow", "dolphin", "hedgehog", "squirrel"]
ACTS = ["sleeps", "wanders", "whistles", "vanishes", "dances"]
PLACES = ["outside", "upstairs", "underwater", "elsewhere", "tomorrow"]
_GROUPS = [SUBJECTS, KINDS, NAMES, ACTS, PLACES]
PIECES = ["<|end|>", "?", *(word for group in _GROUPS for word in group)]


class Talk:
    """A tokenizer of those words; id 0 ends a text, id 1 stands for any other word."""

    chat_template = "role: content"
    unk_token_id = 1

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        words = re.findall(r"\S+", text)
        return {"input_ids": [PIECES.index(w) if w in PIECES else 1 for w in words]}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(f" {PIECES[i]}" for i in ids if i or not skip_special_tokens)

    def batch_decode(
        self, sequences: list[list[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, return_dict: bool
    ) -> dict[str, list[int]]:
        return self(" ".join(message["content"] for message in messages))


def talking_lm(pause: float = 0.0) -> bestk.LanguageModel:
    """Make the model: a sentence has a word of each group, in order. A pause lets one watch."""

    def distribution(prefix: tuple[int, ...]) -> list[float]:
        time.sleep(pause)
        source = random.Random(repr(prefix))
        weights = [0.001] * len(PIECES)
        last = PIECES[prefix[-1]]
        at = next((i + 1 for i, group in enumerate(_GROUPS) if last in group), 0)
        following = _GROUPS[at] if at < len(_GROUPS) else ["<|end|>"]
        for word in following:
            weights[PIECES.index(word)] = source.choice([1, 2, 3, 5])
        return [weight / sum(weights) for weight in weights]

    return bestk.LanguageModel(ToyBackend(distribution, vocab_size=len(PIECES)), Talk(), "talk")
