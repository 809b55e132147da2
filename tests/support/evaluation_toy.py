"""A toy language model with words, and a task for it: what the evaluation tests run on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from bestk.backends.toy import ToyBackend
from bestk.lm.language_model import LanguageModel
from bestk_eval.examples import Example
from bestk_eval.tasks import Task

WORDS = ("<end>", "a", "dog", "runs", "sits", "fast", "here", "the", "cat", "and")


class WordTokenizer:
    """One token a word; words that are not known are `a`."""

    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [max(1, _place(word)) for word in text.split()]}

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = True
    ) -> list[str]:
        return [
            " ".join(WORDS[i] for i in ids if i or not skip_special_tokens) for ids in sequences
        ]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.batch_decode([ids], skip_special_tokens)[0]


def toy_lm() -> LanguageModel:
    def distribution(prefix: tuple[int, ...]) -> list[float]:
        source = random.Random(repr(prefix))
        weights = [source.choice([1, 1, 2, 4, 9]) for _ in WORDS]
        weights[0] = 6 if len(prefix) > 4 else 1
        return [weight / sum(weights) for weight in weights]

    backend = ToyBackend(distribution, vocab_size=len(WORDS), eos_ids=(0,))
    return LanguageModel(backend, WordTokenizer(), "toy")


def toy_task(num_examples: int = 12) -> Task:
    source = random.Random(7)

    def sentence() -> str:
        return " ".join(source.choice(WORDS[1:]) for _ in range(4))

    examples = [
        Example(id=f"e{i}", input=sentence(), references=(sentence(), sentence()))
        for i in range(num_examples)
    ]
    return Task(
        name="toy", plain="{input}", chat="{input}", max_new_tokens=6, examples=lambda: examples
    )


def run_toy(folder: Any, **changes: Any) -> None:
    """Evaluate the toy model into a folder: what the killed processes do."""
    from pathlib import Path

    from bestk_eval.runner import Settings, evaluate

    options: dict[str, Any] = {
        "task": toy_task(),
        "methods": ("BS", "Ncls0.8", "BKS_mean", "BKS_last:k=3"),
        "beam_size": 3,
        "batch_size": 5,
    }
    for _ in evaluate(toy_lm(), Settings(**{**options, **changes}), Path(folder)):
        pass


def _place(word: str) -> int:
    return WORDS.index(word) if word in WORDS else 1
