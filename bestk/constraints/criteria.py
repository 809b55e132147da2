"""Stopping criteria written for `generate`: which children complete a text because one says so.

The four that transformers builds itself become settings of the search; any other is asked about the
exact ids of a node and its child, children of equal length together.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from bestk.config import SearchConfig
from bestk.constraints.base import Constraint, Marks
from bestk.errors import OptionError
from bestk.nodes import Children
from bestk.processors.base import NodeContext


class Criteria(Constraint):
    """Completes a child when any of some criteria says stop."""

    def __init__(self, criteria: Sequence[Any], min_new_tokens: int = 0) -> None:
        for criterion in criteria:
            if not callable(criterion):
                raise OptionError(
                    f"a stopping criterion must be callable, got {type(criterion).__name__}"
                )
        self.criteria = tuple(criteria)
        self.min_new_tokens = min_new_tokens

    def completes(self, context: NodeContext, children: Children, asked: Marks) -> Marks:
        """Ask every criterion about each child's ids."""
        complete = torch.zeros_like(asked)
        asked = asked & (context.depth[..., None] + 1 >= self.min_new_tokens)
        for rows, places, ids in context.by_length(asked.any(dim=2)):
            nodes, numbers = asked[rows, places].nonzero(as_tuple=True)
            tokens = children.token[rows[nodes], places[nodes], numbers]
            longer = torch.cat([ids[nodes], tokens[:, None]], dim=1)
            complete[rows[nodes], places[nodes], numbers] = self._says_stop(longer)
        return complete

    def _says_stop(self, ids: Tensor) -> Bool[Tensor, " children"]:
        stop = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for criterion in self.criteria:
            answer = torch.as_tensor(criterion(ids, None), device=ids.device)
            if answer.shape not in (stop.shape, ()):
                raise OptionError(
                    f"{type(criterion).__name__} must answer for each of {len(ids)} rows, "
                    f"got shape {tuple(answer.shape)}"
                )
            stop |= answer.bool()
        return stop


def absorb(
    config: SearchConfig,
    criteria: Sequence[Any],
    lengths: Sequence[int],
    *,
    vocab_size: int,
    has_text: bool,
) -> tuple[SearchConfig, list[Any]]:
    """Turn the criteria that are settings of a search into such, and return the others.

    `lengths` are the prompts' own; `has_text` says that stop strings can be looked for in texts.
    """
    others = []
    for criterion in criteria:
        change = _change(config, criterion, lengths, vocab_size, has_text)
        if change is None:
            others.append(criterion)
        else:
            config = dataclasses.replace(config, **change)
    return config, others


def _change(
    config: SearchConfig,
    criterion: Any,
    lengths: Sequence[int],
    vocab_size: int,
    has_text: bool,
) -> dict[str, Any] | None:
    kind = type(criterion)
    name = kind.__name__ if kind.__module__.startswith("transformers.") else None
    if name == "MaxLengthCriteria":
        return {"max_new_tokens": min(config.max_new_tokens, _room(criterion, lengths))}
    if name == "MaxTimeCriteria":
        left = criterion.initial_timestamp + criterion.max_time - time.time()
        limits = [max(left, 1e-3)] if config.timeout is None else [max(left, 1e-3), config.timeout]
        return {"timeout": min(limits)}
    if name == "EosTokenCriteria":
        listed = criterion.eos_token_id.flatten().tolist()
        ids = [token for token in listed if 0 <= token < vocab_size]
        return {"stop_ids": tuple(dict.fromkeys([*config.stop_ids, *ids]))}
    if name == "StopStringCriteria" and has_text:
        return {"stop": tuple(dict.fromkeys([*config.stop, *criterion.stop_strings]))}
    if name == "ConfidenceCriteria":
        raise OptionError("ConfidenceCriteria is for assistant models: leave it out")
    return None


def _room(criterion: Any, lengths: Sequence[int]) -> int:
    if len(set(lengths)) > 1:
        raise OptionError(
            f"MaxLengthCriteria counts the prompt, and the prompts have from {min(lengths)} to "
            f"{max(lengths)} tokens: use max_new_tokens"
        )
    room = int(criterion.max_length) - lengths[0]
    if room < 1:
        raise OptionError(
            f"max_length={criterion.max_length} leaves no room after a prompt of {lengths[0]} "
            "tokens: raise it, or use max_new_tokens"
        )
    return room
