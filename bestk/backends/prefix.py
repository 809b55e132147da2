"""Engines that are asked with whole prefixes and answer with their likeliest next tokens.

Serving engines and servers work this way; they keep what they computed for a prefix themselves.
Everything but the asking is here: which prefixes a group of nodes stands for, the order of the
answers, shapers, limits. An engine is a `PromptedBackend` with its own `ask`. Knows no engine.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bestk.backends.base import Children, Group, Room, Shaper, moved_prompts, shaped_children
from bestk.errors import OptionError

# Engines batch by themselves, and the more they are given the better they do.
_LANES = 32


class Likeliest(NamedTuple):
    """The likeliest next tokens of one prefix, in any order, none twice; lists or arrays."""

    tokens: Sequence[int]
    log_probs: Sequence[float]  # the model's own, normalised over the whole vocabulary


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What a search must know of an engine before it asks."""

    name: str
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    max_length: int | None = None
    max_listed: int | None = None  # tokens that it lists per prefix; None: its whole vocabulary
    way_out: str = ""  # what lets it list more, such as "start the server with --max-logprobs"


class PromptedBackend(ABC):
    """A language model behind an engine: a subclass says how prefixes are asked."""

    device = torch.device("cpu")  # where the search lives, wherever the model does
    num_lanes = _LANES

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.name = facts.name
        self.vocab_size = facts.vocab_size
        self.eos_ids = facts.eos_ids
        self.max_length = facts.max_length

    @property
    def takes_shaper(self) -> bool:
        """Say whether whole distributions can be had, as shapers need them."""
        return self.facts.max_listed is None or self.facts.max_listed >= self.vocab_size

    @abstractmethod
    def ask(self, prefixes: list[list[int]], num_tokens: int) -> Sequence[Likeliest]:
        """Return the `num_tokens` likeliest tokens after each prefix, or as many as there are."""

    def start(
        self, prompts: Sequence[Sequence[int]], room: Room, shaper: Shaper | None = None
    ) -> PromptedSession:
        """Open a session, unless it would ask for more than the engine lists."""
        self.check(room, shaper)
        return PromptedSession(self, prompts, room, shaper)

    def check(self, room: Room, shaper: Shaper | None) -> None:
        """Refuse what the engine cannot serve."""
        most = self.facts.max_listed
        way_out = f", or {self.facts.way_out}" if self.facts.way_out else ""
        if shaper is not None and not self.takes_shaper:
            raise OptionError(
                f"{self.name} lists at most {most} of its {self.vocab_size} tokens, and what was "
                "asked for (a sampler, or a setting that shapes probabilities or constrains texts) "
                f"needs them all: use a transformers model{way_out}"
            )
        if most is not None and room.num_children > most:
            raise OptionError(
                f"{self.name} lists at most {most} tokens, and this search looks at "
                f"{room.num_children} per node: set max_children={most}{way_out}"
            )


class PromptedSession:
    """A batch of searches that keeps nothing but the prompts."""

    def __init__(
        self,
        backend: PromptedBackend,
        prompts: Sequence[Sequence[int]],
        room: Room,
        shaper: Shaper | None = None,
    ) -> None:
        self.backend = backend
        self.prompts: list[list[int]] = [list(prompt) for prompt in prompts]
        self.num_children = room.num_children
        self.shaper = shaper

    def root(self, group: Group) -> Children:
        """Ask for the prompts themselves: roots have no tokens of their own."""
        return self.expand(group)

    def refill(self, group: Group, prompts: Mapping[int, Sequence[int]]) -> Children:
        """Put new prompts into some of the searches; the other rows of the result mean nothing."""
        for row, prompt in prompts.items():
            self.prompts[row] = list(prompt)
        return self.expand(group)

    def moved(self, rows: Sequence[int], batch: int, prompt_size: int) -> PromptedSession:
        """Return a session of another size that goes on with these searches."""
        other = copy.copy(self)
        other.prompts = moved_prompts(self.prompts, rows, batch)
        return other

    def expand(self, group: Group) -> Children:
        """Ask once for all nodes of the group; empty places cost nothing."""
        places = group.is_valid.nonzero().tolist()
        whole = self.shaper is not None
        number = self.backend.vocab_size if whole else self.num_children
        answers = self.answer(group, places, number) if places else []
        if whole:
            log_probs = _spread(group, places, answers, self.backend.vocab_size)
            return shaped_children(group, log_probs, self.num_children, self.shaper)
        return _listed(group, places, answers, self.num_children)

    def answer(self, group: Group, places: list[list[int]], num_tokens: int) -> Sequence[Likeliest]:
        """Return the engine's answer for every (row, place); a session with a memory overrides."""
        return self.backend.ask(self.prefixes(group, places), num_tokens)

    def prefixes(self, group: Group, places: list[list[int]]) -> list[list[int]]:
        """Write out the tokens from the prompt's first to the node, for every (row, place)."""
        tokens, depths = group.prefix.tolist(), group.depth.tolist()
        return [
            self.prompts[row] + tokens[row][place][: depths[row][place]] for row, place in places
        ]

    def close(self) -> None:
        """Forget the prompts."""
        self.prompts = []


def _listed(
    group: Group, places: list[list[int]], answers: Sequence[Likeliest], num_children: int
) -> Children:
    """Put answers into their places: best first, equal ones by lower id, −inf for none."""
    batch, width = group.token.shape
    most = max((len(answer.tokens) for answer in answers), default=0)
    size = max(most, num_children)
    token = torch.zeros(batch, width, size, dtype=torch.int64)
    log_prob = torch.full((batch, width, size), -math.inf, dtype=torch.float64)
    for (row, place), answer in zip(places, answers, strict=True):
        number = len(answer.tokens)
        token[row, place, :number] = _tensor(answer.tokens, torch.int64)
        log_prob[row, place, :number] = _tensor(answer.log_probs, torch.float64)
    token, order = token.sort(dim=-1)
    log_prob = log_prob.gather(-1, order)
    log_prob, order = log_prob.sort(dim=-1, descending=True, stable=True)
    token = token.gather(-1, order)
    return Children(token[..., :num_children], log_prob[..., :num_children])


def _spread(
    group: Group, places: list[list[int]], answers: Sequence[Likeliest], vocab_size: int
) -> Float[Tensor, "batch group vocab"]:
    """Lay whole distributions out by token id; what was not listed has no probability."""
    log_probs = torch.zeros(*group.token.shape, vocab_size, dtype=torch.float64)
    for (row, place), answer in zip(places, answers, strict=True):
        log_probs[row, place] = -math.inf
        values = _tensor(answer.log_probs, torch.float64)
        log_probs[row, place, _tensor(answer.tokens, torch.int64)] = values
    return log_probs


def _tensor(values: Any, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(values, dtype=dtype)
