"""Language models small enough to check by hand: a table of prefixes, an n-gram table, a function.

Probabilities are exact and tokens few, for tests and docs. Knows no text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from bestk.backends.base import (
    Children,
    Group,
    Room,
    Seeker,
    Shaper,
    moved_prompts,
    normalised,
    with_wanted,
)
from bestk.errors import ModelError

Distribution = Sequence[float]
Prefix = tuple[int, ...]


class ToyBackend:
    """A function from the whole prefix, prompt included, to next-token probabilities.

    >>> model = ToyBackend(lambda prefix: (0.5, 0.5), vocab_size=2, eos_ids=(0,))
    >>> model.log_probs((1, 1))
    [-0.6931471805599453, -0.6931471805599453]
    """

    name = "toy"
    max_length: int | None = None
    device = torch.device("cpu")

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
        self, prompts: Sequence[Sequence[int]], room: Room, shaper: Shaper | None = None
    ) -> ToySession:
        """Open a session; nothing is cached."""
        return ToySession(self, [tuple(prompt) for prompt in prompts], room.num_children, shaper)


class ToySession:
    """Looks every node's prefix up anew."""

    def __init__(
        self,
        backend: ToyBackend,
        prompts: list[Prefix],
        num_children: int,
        shaper: Shaper | None = None,
    ) -> None:
        self.backend = backend
        self.prompts = prompts
        self.num_children = num_children
        self.shaper = shaper

    def root(self, group: Group) -> Children:
        return self._children(group, [[prompt] for prompt in self.prompts])

    def refill(self, group: Group, prompts: Mapping[int, Sequence[int]]) -> Children:
        for row, prompt in prompts.items():
            self.prompts[row] = tuple(prompt)
        return self.root(group)

    def moved(self, rows: Sequence[int], batch: int, prompt_size: int) -> ToySession:
        prompts = moved_prompts(self.prompts, rows, batch)
        return ToySession(self.backend, prompts, self.num_children, self.shaper)

    def expand(self, group: Group) -> Children:
        prefixes = group.prefix.tolist()
        depths = group.depth.tolist()
        return self._children(
            group,
            [
                [
                    prompt + tuple(tokens[:depth])
                    for tokens, depth in zip(row, row_depths, strict=True)
                ]
                for prompt, row, row_depths in zip(self.prompts, prefixes, depths, strict=True)
            ],
        )

    def close(self) -> None:
        self.prompts = []

    def _children(self, group: Group, prefixes: list[list[Prefix]]) -> Children:
        rows = [[self.backend.log_probs(prefix) for prefix in row] for row in prefixes]
        log_prob = torch.tensor(rows, dtype=torch.float64)  # [batch, group, vocab]
        if self.shaper is not None:
            log_prob = normalised(self.shaper(group, log_prob))
        # A stable sort of everything: equal probabilities come by lower id.
        value, token = log_prob.sort(dim=-1, descending=True, stable=True)
        children = Children(token[..., : self.num_children], value[..., : self.num_children])
        if isinstance(self.shaper, Seeker) and (wanted := self.shaper.wants(group)) is not None:
            children = with_wanted(children, log_prob, wanted)
        return children
