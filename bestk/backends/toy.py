"""Language models small enough to check by hand: a table of prefixes, an n-gram table, a function.

Probabilities are exact and tokens few, for tests and docs. Knows no text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bestk.backends.base import Backend, Capabilities, PromptSession
from bestk.errors import ModelError
from bestk.nodes import BatchSpec, NodeBatch

Distribution = Sequence[float]
Prefix = tuple[int, ...]


class ToyBackend(Backend):
    """A function from the whole prefix, prompt included, to next-token probabilities.

    >>> model = ToyBackend(lambda prefix: (0.5, 0.5), vocab_size=2, eos_ids=(0,))
    >>> model.log_probs((1, 1))
    [-0.6931471805599453, -0.6931471805599453]
    """

    name = "toy"
    device = torch.device("cpu")
    capabilities = Capabilities(resize=True, normalised=True)

    def __init__(
        self,
        distribution: Callable[[Prefix], Distribution],
        *,
        vocab_size: int,
        eos_ids: tuple[int, ...] = (0,),
    ) -> None:
        self.distribution = distribution
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids

    @classmethod
    def table(
        cls,
        rows: Mapping[Prefix, Distribution],
        default: Distribution,
        *,
        eos_ids: tuple[int, ...] = (0,),
    ) -> ToyBackend:
        """Look the whole prefix up in a table."""
        return cls(
            lambda prefix: rows.get(prefix, default), vocab_size=len(default), eos_ids=eos_ids
        )

    @classmethod
    def ngram(
        cls,
        rows: Mapping[Prefix, Distribution],
        default: Distribution,
        *,
        eos_ids: tuple[int, ...] = (0,),
    ) -> ToyBackend:
        """Look the longest known suffix of the prefix up in a table."""
        longest = max((len(suffix) for suffix in rows), default=0)

        def distribution(prefix: Prefix) -> Distribution:
            for length in range(min(longest, len(prefix)), -1, -1):
                suffix = prefix[len(prefix) - length :]
                if suffix in rows:
                    return rows[suffix]
            return default

        return cls(distribution, vocab_size=len(default), eos_ids=eos_ids)

    def log_probs(self, prefix: Prefix) -> list[float]:
        """Return the log-probability of every token after a prefix."""
        row = self.distribution(prefix)
        if len(row) != self.vocab_size:
            raise ModelError(
                f"a toy distribution must have vocab_size={self.vocab_size} entries, "
                f"got {len(row)} after {prefix}"
            )
        return [math.log(p) if p > 0 else -math.inf if p == 0 else math.nan for p in row]

    def start(
        self, prompts: Sequence[Sequence[int]], spec: BatchSpec, prompt_size: int = 0
    ) -> ToySession:
        """Open a session; nothing is cached."""
        return ToySession(self, [tuple(prompt) for prompt in prompts])


class ToySession(PromptSession):
    """Looks every node's prefix up anew."""

    capabilities = ToyBackend.capabilities

    def __init__(self, backend: ToyBackend, prompts: list[Prefix]) -> None:
        self.backend = backend
        self.prompts = prompts

    def prefill(self, nodes: NodeBatch, prompts: Mapping[int, Any], *, whole: bool) -> Tensor:
        for row, prompt in prompts.items():
            self.prompts[row] = tuple(prompt)
        return self._log_probs([[prompt] for prompt in self.prompts])

    def evaluate(self, nodes: NodeBatch, *, whole: bool) -> Tensor:
        prefixes = [
            [prompt + tuple(tokens[:depth]) for tokens, depth in zip(row, depths, strict=True)]
            for prompt, row, depths in zip(
                self.prompts, nodes.prefix.tolist(), nodes.depth.tolist(), strict=True
            )
        ]
        return self._log_probs(prefixes)

    def _log_probs(self, prefixes: list[list[Prefix]]) -> Tensor:
        rows = [[self.backend.log_probs(prefix) for prefix in row] for row in prefixes]
        return torch.tensor(rows, dtype=torch.float64)  # [batch, nodes, vocab]
