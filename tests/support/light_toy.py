"""Random distributions without torch, for servers in processes of their own that start at once."""

from __future__ import annotations

import math
import random


def random_distribution(seed: int, prefix: tuple[int, ...], vocab_size: int) -> list[float]:
    """Draw a distribution that a prefix always has: often tied, sometimes sparse."""
    source = random.Random(repr((seed, prefix)))
    weights = [source.choice([0, 1, 1, 2, 3, 8]) for _ in range(vocab_size)]
    if not sum(weights):
        weights[0] = 1
    return [weight / sum(weights) for weight in weights]


class LightToy:
    """What a server asks of a toy model."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.seed = seed
        self.vocab_size = vocab_size

    def log_probs(self, prefix: tuple[int, ...]) -> list[float]:
        row = random_distribution(self.seed, prefix, self.vocab_size)
        return [math.log(p) if p else -math.inf for p in row]
