"""Nodes of a search tree, their children, and how much of both: the words that all parts share.

A backend is told of nodes and returns children; the search makes nodes of children. Knows neither
models nor scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class NodeBatch:
    """The nodes of one forward pass, the same number of places for every search.

    `path` holds the slots of a node's ancestors and itself, `prefix` their tokens, both from the
    root's child downwards and filled with −1 after `depth` entries. A place where `is_valid` is
    false holds no node: its slot is the scratch slot and what comes back is ignored.
    """

    token: Int[Tensor, "batch nodes"]
    slot: Int[Tensor, "batch nodes"]
    depth: Int[Tensor, "batch nodes"]
    path: Int[Tensor, "batch nodes depth"]
    prefix: Int[Tensor, "batch nodes depth"]
    is_valid: Bool[Tensor, "batch nodes"]

    def take(self, rows: Tensor) -> NodeBatch:
        """Return the nodes of some searches."""
        return NodeBatch(*(column[rows] for column in vars(self).values()))


class Verdict(NamedTuple):
    """What text says of children: where a processor of tokens cannot look.

    Of the children that `may_open`, those `passes` that are likely enough or forced; `completes`
    says which of them end a text, `bonus` is added to their scores. Those that `repeats` marks are
    listed before too, to go on: their probability is counted there.
    """

    may_open: Bool[Tensor, "batch nodes children"]
    passes: Bool[Tensor, "batch nodes children"]
    completes: Bool[Tensor, "batch nodes children"]
    bonus: Float[Tensor, "batch nodes children"] | None = None
    repeats: Bool[Tensor, "batch nodes children"] | None = None


class Gate(NamedTuple):
    """What a search says of children before text is asked, and how it then decides.

    `passes` takes those that may be opened and those that are forced.
    """

    may_open: Bool[Tensor, "batch nodes children"]
    is_stop: Bool[Tensor, "batch nodes children"]  # their token ends a text
    passes: Callable[[Tensor, Tensor | None], Tensor]


class Children(NamedTuple):
    """The likeliest next tokens of some nodes, best first, after them the forced ones.

    Log-probabilities are the model's own, normalised over the whole vocabulary. An entry of −inf is
    no child; NaN says that the model is broken. Without a verdict, text has nothing to say.
    `whole` are distributions over the vocabulary, for those who asked for no list; `rest` bounds
    what is not listed, log-probability and bonus together, where that is known.
    """

    token: Int[Tensor, "batch nodes children"]
    log_prob: Float[Tensor, "batch nodes children"]
    verdict: Verdict | None = None
    whole: Float[Tensor, "batch nodes vocab"] | None = None
    rest: Float[Tensor, "batch nodes"] | None = None


@dataclass(frozen=True)
class BatchSpec:
    """How much a batch of searches needs, per search."""

    width: int  # nodes per pass
    slots: int  # nodes in all, the root included
    depth: int  # tokens from the root to the deepest node that is ever expanded
    num_children: int  # likeliest tokens to list per node; 0: whole distributions
    num_forced: int = 0  # places after them for tokens that must be listed
