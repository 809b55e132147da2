"""Engines that are asked with whole prefixes and answer with their likeliest next tokens.

Serving engines and servers work this way; they keep what they computed for a prefix themselves.
Everything but the asking is here: which prefixes nodes stand for, the order of the answers, limits.
An engine is a `PrefixBackend` with its own `ask`. Knows no engine.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestk.backends.base import Backend, Capabilities, PromptSession
from bestk.nodes import BatchSpec, Children, NodeBatch

# Engines batch by themselves, and the more they are given the better they do.
_MOST_ROWS = 32


class TopLogprobs(NamedTuple):
    """The likeliest next tokens of one prefix, in any order, none twice; lists or arrays."""

    tokens: Sequence[int]
    log_probs: Sequence[float]  # the model's own, normalised over the whole vocabulary


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """What a search must know of an engine before it asks."""

    name: str
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    max_length: int | None = None
    max_listed: int | None = None  # tokens that it lists per prefix; None: its whole vocabulary
    way_out: str = ""  # what lets it list more, such as "start the server with --max-logprobs"


class PrefixBackend(Backend):
    """A language model behind an engine: a subclass says how prefixes are asked."""

    device = torch.device("cpu")  # where the search lives, wherever the model does

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.name, self.vocab_size, self.eos_ids = info.name, info.vocab_size, info.eos_ids
        self.capabilities = Capabilities(
            full_logits=info.max_listed is None or info.max_listed >= info.vocab_size,
            max_listed=info.max_listed,
            way_out=info.way_out,
            resize=True,
            max_length=info.max_length,
            max_rows=_MOST_ROWS,
        )

    @abstractmethod
    def ask(self, prefixes: list[list[int]], num_tokens: int) -> Sequence[TopLogprobs]:
        """Return the `num_tokens` likeliest tokens after each prefix, or as many as there are."""

    def start(
        self, prompts: Sequence[Sequence[int]], spec: BatchSpec, prompt_size: int = 0
    ) -> PrefixSession:
        """Open a session."""
        return PrefixSession(self, prompts, spec)


class PrefixSession(PromptSession):
    """A batch of searches that keeps nothing but the prompts."""

    def __init__(
        self, backend: PrefixBackend, prompts: Sequence[Sequence[int]], spec: BatchSpec
    ) -> None:
        self.backend = backend
        self.prompts = [list(prompt) for prompt in prompts]
        self.num_children = spec.num_children

    def prefill(
        self, nodes: NodeBatch, prompts: Mapping[int, Any], *, whole: bool
    ) -> Tensor | Children:
        """Take new prompts, and ask for them: roots have no tokens of their own."""
        for row, prompt in prompts.items():
            self.prompts[row] = list(prompt)
        return self.evaluate(nodes, whole=whole)

    def evaluate(self, nodes: NodeBatch, *, whole: bool) -> Tensor | Children:
        """Ask once for all nodes; empty places cost nothing."""
        places = nodes.is_valid.nonzero().tolist()
        number = self.backend.vocab_size if whole else self.num_children
        answers = self.answer(nodes, places, number) if places else []
        if whole:
            return _spread(nodes, places, answers, self.backend.vocab_size)
        return _listed(nodes, places, answers, self.num_children)

    def answer(
        self, nodes: NodeBatch, places: list[list[int]], num_tokens: int
    ) -> Sequence[TopLogprobs]:
        """Return the engine's answer for every (row, place); a session with a memory overrides."""
        return self.backend.ask(self.prefixes(nodes, places), num_tokens)

    def prefixes(self, nodes: NodeBatch, places: list[list[int]]) -> list[list[int]]:
        """Write out the tokens from the prompt's first to the node, for every (row, place)."""
        tokens, depths = nodes.prefix.tolist(), nodes.depth.tolist()
        return [
            self.prompts[row] + tokens[row][place][: depths[row][place]] for row, place in places
        ]


def _listed(
    nodes: NodeBatch, places: list[list[int]], answers: Sequence[TopLogprobs], num_children: int
) -> Children:
    """Put answers into their places: best first, equal ones by lower id, −inf for none."""
    batch, width = nodes.token.shape
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
    nodes: NodeBatch, places: list[list[int]], answers: Sequence[TopLogprobs], vocab_size: int
) -> Tensor:
    """Lay whole distributions out by token id; what was not listed has no probability."""
    log_probs = torch.zeros(*nodes.token.shape, vocab_size)
    for (row, place), answer in zip(places, answers, strict=True):
        log_probs[row, place] = -math.inf
        values = _tensor(answer.log_probs, torch.float32)
        log_probs[row, place, _tensor(answer.tokens, torch.int64)] = values
    return log_probs


def _tensor(values: Any, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(values, dtype=dtype)
