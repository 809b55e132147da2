"""A backend of your own: an engine that is asked with whole prefixes, here a table of bigrams.

An engine that lists its likeliest next tokens needs `ask` alone. One that keeps what it computed is
a `Backend` with a `Session` of its own (`bestk/backends/base.py`). What it can do it declares in
its `Capabilities`, and the contract suite (`tests/backends/test_contract.py`) checks every claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import bestk
from bestk.backends.prefix import EngineInfo, PrefixBackend, TopLogprobs
from bestk.lm.registry import OPENERS

WORDS = ("<end>", "the", "cat", "dog", "sees", "sleeps")
NEXT = {  # the likely followers of each word
    "the": ("cat", "dog"),
    "cat": ("sees", "sleeps", "<end>"),
    "dog": ("sees", "sleeps", "<end>"),
    "sees": ("the",),
    "sleeps": ("<end>",),
}


class BigramBackend(PrefixBackend):
    """Words that follow one another."""

    def __init__(self) -> None:
        super().__init__(EngineInfo(name="bigrams", vocab_size=len(WORDS), eos_ids=(0,)))

    def ask(self, prefixes: list[list[int]], num_tokens: int) -> Sequence[TopLogprobs]:
        """Return the likeliest next words of every prefix."""
        return [self._after(prefix[-1], num_tokens) for prefix in prefixes]

    def _after(self, last: int, num_tokens: int) -> TopLogprobs:
        likely = [WORDS.index(word) for word in NEXT.get(WORDS[last], ("<end>",))]
        share = 0.97 / len(likely)
        probs = [share if i in likely else 0.03 / (len(WORDS) - len(likely)) for i in range(6)]
        best = sorted(range(6), key=lambda i: -probs[i])[:num_tokens]
        return TopLogprobs(best, [math.log(probs[i]) for i in best])


def open_bigrams(name: str) -> bestk.LanguageModel:
    """Open what `bestk.load("bigrams:")` names; prompts and texts are token ids."""
    return bestk.LanguageModel(BigramBackend())


OPENERS["bigrams"] = f"{__name__}:open_bigrams"  # the line that registers it

if __name__ == "__main__":
    for hypothesis in bestk.search(bestk.load("bigrams:"), [1], max_new_tokens=6).hypotheses[:5]:
        print(f"{hypothesis.log_prob:.2f}", *(WORDS[token] for token in hypothesis.token_ids))
