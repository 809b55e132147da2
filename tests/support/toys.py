"""Toy language models with words, and the answers that a pencil would give for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import bestk
from bestk.backends.toy import ToyBackend


class Words:
    """A tokenizer of whole words; id 0 is special and shows as nothing."""

    def __init__(self, *words: str, chat_template: str | None = None) -> None:
        self.words = ("<end>", *words)
        self.chat_template = chat_template

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [self.words.index(word) for word in text.split()]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return " ".join(self.words[i] for i in ids if i or not skip_special_tokens)

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, return_dict: bool
    ) -> dict[str, list[int]]:
        assert add_generation_prompt
        assert return_dict
        return self(" ".join(f"{message['role']} {message['content']}" for message in messages))


def table_lm(
    rows: dict[tuple[int, ...], Sequence[float]], default: Sequence[float], *words: str
) -> bestk.LanguageModel:
    """A table after the prompt (1,), with a tokenizer of `words` where any are given."""
    whole = {(1, *prefix): [float(p) for p in row] for prefix, row in rows.items()}
    backend = ToyBackend.table(whole, [float(p) for p in default])
    return bestk.LanguageModel(backend, Words(*words) if words else None)


def search_ids(lm: bestk.LanguageModel, **options: Any) -> bestk.SearchResult:
    """Search after the prompt (1,)."""
    return bestk.search(lm, [1], **options)


def every_text(
    model: ToyBackend, prompt: tuple[int, ...], max_new_tokens: int, min_new_tokens: int = 0
) -> dict[tuple[int, ...], float]:
    """Enumerate all complete texts and their log-probabilities."""
    texts: dict[tuple[int, ...], float] = {}
    open_prefixes: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    while open_prefixes:
        prefix, total = open_prefixes.pop()
        for token, log_prob in enumerate(model.log_probs(prompt + prefix)):
            child = (*prefix, token)
            if log_prob == -math.inf:
                continue
            if token in model.eos_ids:
                if len(child) >= min_new_tokens:
                    texts[child] = total + log_prob
            elif len(child) < max_new_tokens:
                open_prefixes.append((child, total + log_prob))
    return texts


def best_first(
    model: ToyBackend, prompt: tuple[int, ...], budget: int, max_new_tokens: int, alpha: float
) -> dict[tuple[int, ...], float]:
    """Algorithm 1 of the paper: always expand the one best open node."""
    completions: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(budget):
        if not frontier:
            break
        # The first of equals is the oldest, then the likeliest token, then the lowest id.
        best = max(frontier, key=lambda node: node[1] / max(len(node[0]), 1) ** alpha)
        frontier.remove(best)
        children = sorted(enumerate(model.log_probs(prompt + best[0])), key=lambda c: -c[1])
        for token, log_prob in children:
            child, total = (*best[0], token), best[1] + log_prob
            if log_prob > -math.inf and token in model.eos_ids:
                completions[child] = total
            elif log_prob > -math.inf and len(child) < max_new_tokens:
                frontier.append((child, total))
    return completions
