"""Processors written for `generate`, called so that each sees its node's exact ids.

Nodes of equal length share a call, with no padding between. A search jumps between branches, so a
processor that remembers earlier calls cannot work here: known ones are refused by name, and any
other is asked twice about the prompt, where its two answers must agree.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bestk.errors import OptionError
from bestk.processors.base import NodeContext

Scores = Float[Tensor, "batch nodes vocab"]

# transformers' own processors that keep state from call to call, or need the rows of one batch.
STATEFUL = frozenset(
    {
        "AlternatingCodebooksLogitsProcessor",
        "ClassifierFreeGuidanceLogitsProcessor",
        "DiaClassifierFreeGuidanceLogitsProcessor",
        "DiaEOSChannelFilterLogitsProcessor",
        "DiaEOSDelayPatternLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor",
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
        "WhisperNoSpeechDetection",
    }
)


class Foreign:
    """Calls a processor with `(input_ids, scores)`, once for every length in the group."""

    is_static = False

    def __init__(self, processor: Callable[[Tensor, Tensor], Tensor]) -> None:
        check(processor)
        self.processor = processor
        self.name = type(processor).__name__

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        for rows, places, ids in context.by_length(context.nodes.is_valid):
            old = scores[rows, places]
            again = old.clone() if not bool(context.depth.any()) else None
            new = self._ask(ids, old)
            if again is not None and not torch.equal(new, self._ask(ids, again)):
                raise OptionError(
                    f"{self.name} gives two answers for one prefix, so it remembers earlier calls "
                    "or draws at random: a search needs a processor that looks at its ids only"
                )
            scores[rows, places] = new.to(scores.dtype)
        return scores

    def _ask(self, ids: Tensor, scores: Tensor) -> Tensor:
        new = self.processor(ids, scores)
        if not isinstance(new, Tensor) or new.shape != scores.shape:
            got = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise OptionError(
                f"{self.name} must return scores of shape {tuple(scores.shape)}, got {got}"
            )
        return new


class RowWise:
    """Calls a processor that never looks at the ids: all nodes in one call."""

    is_static = False

    def __init__(self, processor: Callable[[Any, Tensor], Tensor]) -> None:
        self.processor = processor

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        flat = scores.flatten(0, 1)
        # A row without any token left breaks entropies; what a place without a node holds is noise.
        usable = context.nodes.is_valid.flatten() & (flat > -math.inf).any(dim=1)
        flat[usable] = self.processor(None, flat[usable])
        return flat.view_as(scores)


class AllowedTokens:
    """Asks `prefix_allowed_tokens_fn(batch_id, ids)` of every node; an empty answer ends it."""

    is_static = False

    def __init__(self, allowed: Callable[[int, Tensor], Iterable[int]]) -> None:
        self.allowed = allowed

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        keep = torch.zeros_like(scores, dtype=torch.bool)
        numbers = context.contexts.number.tolist()
        for rows, places, ids in context.by_length(context.nodes.is_valid):
            nodes = zip(rows.tolist(), places.tolist(), ids, strict=True)
            for row, place, prefix in nodes:
                tokens = torch.as_tensor(list(self.allowed(numbers[row], prefix)))
                bad = (tokens < 0) | (tokens >= scores.shape[-1])
                if bad.any():
                    raise OptionError(
                        f"prefix_allowed_tokens_fn must name ids from 0 to {scores.shape[-1] - 1}, "
                        f"got {tokens[bad][0]} for prompt {numbers[row]} after {len(prefix)} tokens"
                    )
                keep[row, place, tokens.to(keep.device, torch.int64)] = True
        return scores.masked_fill_(~keep, -math.inf)


def check(processor: Any) -> None:
    """Refuse what cannot be called node by node."""
    name = type(processor).__name__
    if not callable(processor):
        raise OptionError(f"a logits processor must be callable, got {name}")
    if name in STATEFUL:
        raise OptionError(
            f"{name} keeps state from call to call, which a search that jumps between branches "
            "cannot give it: leave it out"
        )
    needed = _needed(processor)
    if len(needed) > 2:
        raise OptionError(
            f"{name} asks for {', '.join(needed[2:])} besides input_ids and scores, which a search "
            "does not have: leave it out"
        )


def _needed(processor: Any) -> Sequence[str]:
    call = processor if inspect.isfunction(processor) else processor.__call__
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        parameter.name
        for parameter in inspect.signature(call).parameters.values()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
    ]
