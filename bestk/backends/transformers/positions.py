"""Tells a decoder where in its text each node stands: one adapter per mechanism, not per family.

Decoders of encoder-decoder models take their positions from the length of the cache, which in a
search tree says nothing of a node's depth. An adapter changes that for one forward call; what it
replaced is put back however the call ends. Whether it got a model right the probe finds out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bestk.backends.base import Group
from bestk.backends.transformers.kv_cache import Layout


@runtime_checkable
class Positions(Protocol):
    """The positions of one session's nodes, as a certain kind of decoder wants them."""

    @contextmanager
    def given(self, layout: Layout, group: Group) -> Iterator[dict[str, Any]]:
        """Let the model see the group at its depths; yields arguments for its `forward`."""
        ...


def positions_for(model: Any, accepts: frozenset[str], prompts: Int[Tensor, "batch length"],
                  size: int) -> Positions | None:  # fmt: skip
    """Choose the adapter for a model, None if it has no known mechanism.

    `prompts` are the decoder's, padded on the right; `size` counts the positions that may occur.
    """
    decoder = model.get_decoder()
    biased = [module for module in decoder.modules() if _has_own_bias(module)]
    if biased:
        return RelativeBias(biased, size)
    if "decoder_position_ids" in accepts:
        return AskedPositions()
    embedding = getattr(decoder, "embed_positions", None)
    if isinstance(embedding, nn.Embedding):
        return EmbeddedPositions(embedding)
    if isinstance(getattr(embedding, "weights", None), Tensor):
        return CountedPositions(embedding, prompts)
    return None


class AskedPositions:
    """Decoders that take positions as an argument: Whisper, T5Gemma."""

    @contextmanager
    def given(self, layout: Layout, group: Group) -> Iterator[dict[str, Any]]:
        yield {"decoder_position_ids": layout.positions(group)}


class EmbeddedPositions:
    """A table of positions, learned or of sines: BART, mBART, Marian, Pegasus, Blenderbot, LED."""

    def __init__(self, embedding: nn.Embedding) -> None:
        self.embedding = embedding
        self.offset = int(getattr(embedding, "offset", 0))  # BART's first two rows are unused

    @contextmanager
    def given(self, layout: Layout, group: Group) -> Iterator[dict[str, Any]]:
        weight = self.embedding.weight
        rows = weight[layout.positions(group).to(weight.device) + self.offset]
        with _replaced(self.embedding, "forward", _always(rows)):
            yield {}


class CountedPositions:
    """A table of sines whose index counts the tokens that are not padding: M2M100, NLLB.

    A padding token inside a text has the table's padding row, and those after it count on as if it
    were not there: that is what the model does when it reads the whole text at once.
    """

    def __init__(self, embedding: Any, prompts: Int[Tensor, "batch length"]) -> None:
        self.embedding = embedding
        self.padding = int(embedding.padding_idx)
        self.prompts = prompts

    @contextmanager
    def given(self, layout: Layout, group: Group) -> Iterator[dict[str, Any]]:
        weights = self.embedding.weights
        place = self._place(layout, group).to(weights.device)
        with _replaced(self.embedding, "forward", _always(weights[place])):
            yield {}

    def _place(self, layout: Layout, group: Group) -> Int[Tensor, "batch group"]:
        places = torch.arange(self.prompts.shape[1], device=self.prompts.device)
        in_prompt = places < layout.prompt_length[:, None]
        before = (in_prompt & (self.prompts != self.padding)).sum(dim=1)
        within = ((group.prefix >= 0) & (group.prefix != self.padding)).sum(dim=2)
        count = (before[:, None] + within).masked_fill(group.token == self.padding, 0)
        return self.padding + count


class RelativeBias:
    """A bias by the distance of two tokens: T5, mT5, FLAN-T5 (one layer has it), UMT5 (all do)."""

    def __init__(self, attentions: Sequence[Any], size: int) -> None:
        self.attentions = attentions
        self.tables = [_bias_by_distance(attention, size) for attention in attentions]
        self.size = size

    @property
    def by_attention(self) -> dict[Any, Float[Tensor, "heads size"]]:
        """Return the biases by distance of every attention that has its own."""
        return dict(zip(self.attentions, self.tables, strict=True))

    @contextmanager
    def given(self, layout: Layout, group: Group) -> Iterator[dict[str, Any]]:
        distance = self._distance(layout, group)
        with ExitStack() as stack:
            for attention, table in zip(self.attentions, self.tables, strict=True):
                bias = table[:, distance.to(table.device)].transpose(0, 1)
                stack.enter_context(_replaced(attention, "compute_bias", _always(bias)))
            yield {}

    def _distance(self, layout: Layout, group: Group) -> Int[Tensor, "batch group used"]:
        """Count the tokens from each place back to each node; only ancestors' places matter."""
        batch, width, depth = group.path.shape
        device = group.path.device
        position = torch.arange(layout.used, device=device).repeat(batch, width, 1)
        is_node = (group.path >= 0) & (group.path < layout.capacity)
        level = torch.arange(depth, device=device) + layout.prompt_length[:, None, None]
        # Where there is no ancestor, place 0 is written: it is the prompt's first, position 0.
        place = layout.place(group.path).where(is_node, 0)
        position.scatter_(2, place, level.expand_as(place).where(is_node, 0))
        return (layout.positions(group)[..., None] - position).clamp(0, self.size - 1)


def _bias_by_distance(attention: Any, size: int) -> Float[Tensor, "heads size"]:
    """Ask a T5 attention for the biases of its last token, and list them from near to far."""
    bias: Tensor = attention.compute_bias(1, size, past_seen_tokens=size - 1)
    return bias[0, :, 0].flip(-1).contiguous()


def _has_own_bias(module: Any) -> bool:
    return hasattr(module, "compute_bias") and hasattr(module, "relative_attention_bias")


def _always(value: Tensor) -> Any:
    return lambda *args, **kwargs: value


@contextmanager
def _replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Shadow a method of one module object, and put back what was there."""
    attributes = vars(module)
    before = attributes.get(name)  # set where another library wraps the method, as accelerate does
    attributes[name] = value
    try:
        yield
    finally:
        if before is None:
            del attributes[name]
        else:
            attributes[name] = before
