"""A constraint of your own: texts without a letter, as in a lipogram.

A constraint speaks of a node and its children alone. Override what it needs: `restrict` forbids
tokens before the likeliest are picked, `forced` has tokens listed however unlikely, `completes`
ends texts, `bonus` adds to scores, `is_met_by` has the last word on a text that is about to end.
"""

from __future__ import annotations

import torch
from torch import Tensor

import bestk
from bestk.processors.base import NodeContext


class Without(bestk.Constraint):
    """No token may hold the letter."""

    restricts = True

    def __init__(self, lm: bestk.LanguageModel, letter: str) -> None:
        size = lm.backend.vocab_size
        texts = lm.token_texts(range(size))
        marks = [letter in texts[token].lower() for token in range(size)]
        self.is_barred = torch.tensor(marks, device=lm.backend.device)
        self.is_barred[list(lm.backend.eos_ids)] = False  # the end shows as a name, and is no text

    def restrict(self, context: NodeContext, log_probs: Tensor) -> Tensor:
        """Forbid the tokens with the letter, at every node."""
        return log_probs.masked_fill(self.is_barred, -torch.inf)


def search(lm: bestk.LanguageModel, prompt: str, letter: str, **options: object) -> list[str]:
    """Return texts without a letter; `constraints=` is the line that registers it."""
    result: bestk.SearchResult = bestk.search(
        lm, prompt, constraints=[Without(lm, letter)], **options
    )
    return result.texts


if __name__ == "__main__":
    print(*search(bestk.load("smollm2"), "My cat is", "e", stop=["."]), sep="\n")
