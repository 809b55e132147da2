"""What a search asks of a language model: prompts in, the likeliest next tokens of any node out.

A backend knows tokens and probabilities. It knows nothing of scores, decay, frontiers or text.
`Backend.start` opens a `Session` for a batch of prompts; the session is told of every expanded node
exactly once, in slot order, and may keep what it computed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_Prompt = TypeVar("_Prompt")


class Children(NamedTuple):
    """The likeliest next tokens of a group of nodes, best first.

    Log-probabilities are the model's own, normalised over the whole vocabulary. An entry of −inf is
    no child; NaN says that the model is broken.
    """

    token: Int[Tensor, "batch group children"]
    log_prob: Float[Tensor, "batch group children"]


@dataclass(frozen=True)
class Group:
    """The nodes that one model call expands, the same number of places for every search.

    `path` holds the slots of a node's ancestors and itself, `prefix` their tokens, both from the
    root's child downwards and filled with −1 after `depth` entries. A place where `is_valid` is
    false repeats no node: its slot is the tree's scratch slot and what comes back is ignored.
    """

    token: Int[Tensor, "batch group"]
    slot: Int[Tensor, "batch group"]
    depth: Int[Tensor, "batch group"]
    log_prob: Float[Tensor, "batch group"]
    path: Int[Tensor, "batch group depth"]
    prefix: Int[Tensor, "batch group depth"]
    is_valid: Bool[Tensor, "batch group"]


@dataclass(frozen=True)
class Room:
    """How much a session must be ready for."""

    width: int  # nodes per call and search
    capacity: int  # nodes per search, the root included
    depth: int  # tokens from the root to the deepest node that is ever expanded
    num_children: int  # likeliest tokens to return per node; 0 where a shaper has seen enough
    prompt_size: int = 0  # tokens of the longest prompt to come, where that is known
    num_wanted: int = 0  # places after them for tokens that a `Seeker` wants listed


@runtime_checkable
class Shaper(Protocol):
    """Changes a model's distributions before the search sees them: processors, grammars."""

    def __call__(
        self, group: Group, log_probs: Float[Tensor, "batch group vocab"]
    ) -> Float[Tensor, "batch group vocab"]:
        """Return new log-probabilities; they need not be normalised, and −inf forbids a token."""
        ...


@runtime_checkable
class Seeker(Shaper, Protocol):
    """A shaper that also wants some tokens listed as children, however unlikely they are."""

    def wants(self, group: Group) -> Int[Tensor, "batch group wanted"] | None:
        """Name `Room.num_wanted` different tokens per node, −1 for none; None for none at all."""
        ...


@runtime_checkable
class Session(Protocol):
    """The searches of one batch, as the model sees them."""

    def root(self, group: Group) -> Children:
        """Return the children of every root; the group holds the roots, at depth 0."""
        ...

    def expand(self, group: Group) -> Children:
        """Return the children of every node in the group."""
        ...

    def close(self) -> None:
        """Free what the session holds. May be called twice."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A language model over token ids."""

    @property
    def name(self) -> str:
        """Say what the model is, for signatures."""
        ...

    @property
    def vocab_size(self) -> int:
        """Count the token ids."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Name the ids that complete a text."""
        ...

    @property
    def max_length(self) -> int | None:
        """Say how many tokens fit, prompt and text together; None where there is no limit."""
        ...

    @property
    def device(self) -> torch.device:
        """Say where the tensors of a search should live."""
        ...

    def start(
        self, prompts: Sequence[Sequence[int]], room: Room, shaper: Shaper | None = None
    ) -> Session:
        """Open a session for a batch of prompts; `shaper` changes every distribution in it."""
        ...


def moved_prompts(prompts: Sequence[_Prompt], rows: Sequence[int], batch: int) -> list[_Prompt]:
    """Return the prompts of some rows, filled up to a batch of another size.

    >>> moved_prompts(["a", "b", "c"], [2], 2)
    ['c', 'a']
    """
    return [*(prompts[row] for row in rows), *[prompts[0]] * (batch - len(rows))]


def shaped_children(
    group: Group,
    logits: Float[Tensor, "batch group vocab"],
    num_children: int,
    shaper: Shaper | None,
) -> Children:
    """Pick the children of a group from its logits, after the shaper if there is one."""
    if shaper is not None:
        logits = shaper(group, logits.float().log_softmax(dim=-1))
    children = top_children(logits, num_children)
    if isinstance(shaper, Seeker) and (wanted := shaper.wants(group)) is not None:
        children = with_wanted(children, normalised(logits), wanted)
    return children


def top_children(logits: Float[Tensor, "batch group vocab"], num_children: int) -> Children:
    """Pick the likeliest tokens, equal ones by lower id, with their true log-probabilities.

    Where every token is forbidden (all logits −inf) there are no children.

    `topk` may take any of several equal logits, and half-precision logits are often equal. All that
    pass γ are taken anyway; only the first place must be settled, so `argmax` (first of equals) has
    the last word on it.
    """
    if num_children == 0:
        nothing = logits.new_zeros(*logits.shape[:-1], 0)
        return Children(nothing.long(), nothing.float())
    logits = logits.float()
    value, token = logits.topk(num_children, dim=-1)
    if num_children > 1:
        token, order = token.sort(dim=-1)
        value, order = value.gather(-1, order).sort(dim=-1, descending=True, stable=True)
        token = token.gather(-1, order)
    first = torch.minimum(token[..., :1], logits.argmax(dim=-1, keepdim=True))
    token = torch.cat([first, token[..., 1:]], dim=-1)
    total = logits.logsumexp(dim=-1, keepdim=True)
    return Children(token, value - total.masked_fill(total == -torch.inf, 0.0))


def normalised(logits: Float[Tensor, "batch group vocab"]) -> Float[Tensor, "batch group vocab"]:
    """Turn logits into log-probabilities; where every token is forbidden they all stay −inf."""
    total = logits.logsumexp(dim=-1, keepdim=True)
    return logits - total.masked_fill(total == -torch.inf, 0.0)


def with_wanted(
    children: Children,
    log_probs: Float[Tensor, "batch group vocab"],
    wanted: Int[Tensor, "batch group wanted"],
) -> Children:
    """List wanted tokens after the likeliest ones, with their true log-probabilities, best first.

    One that is listed already is not repeated: its place stays empty.
    """
    is_listed = (wanted[..., None] == children.token[..., None, :]).any(dim=-1)
    value = log_probs.gather(-1, wanted.clamp(min=0))
    value = value.masked_fill(is_listed | (wanted < 0), -torch.inf)
    value, order = value.sort(dim=-1, descending=True, stable=True)
    return Children(
        torch.cat([children.token, wanted.gather(-1, order)], dim=-1),
        torch.cat([children.log_prob, value], dim=-1),
    )
