"""Tells a decoder where in its text each node stands: one adapter per mechanism, not per family.

Decoders of encoder-decoder models take their positions from the length of the cache, which in a
search tree says nothing of a node's depth. An adapter changes that for one forward call; what it
replaced is put back however the call ends. Whether it got a model right the probe finds out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bestk.backends.transformers.kv_cache import CacheLayout
from bestk.backends.transformers.replaced import replaced
from bestk.nodes import NodeBatch


@runtime_checkable
class Positions(Protocol):
    """The positions of one session's nodes, as a certain kind of decoder wants them."""

    @contextmanager
    def given(self, layout: CacheLayout, nodes: NodeBatch) -> Iterator[dict[str, Any]]:
        """Let the model see nodes at their depths; yields arguments for its `forward`."""
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
    def given(self, layout: CacheLayout, nodes: NodeBatch) -> Iterator[dict[str, Any]]:
        yield {"decoder_position_ids": layout.positions(nodes)}


class EmbeddedPositions:
    """A table of positions, learned or of sines: BART, mBART, Marian, Pegasus, Blenderbot, LED."""

    def __init__(self, embedding: nn.Embedding) -> None:
        self.embedding = embedding
        self.offset = int(getattr(embedding, "offset", 0))  # BART's first two rows are unused

    @contextmanager
    def given(self, layout: CacheLayout, nodes: NodeBatch) -> Iterator[dict[str, Any]]:
        weight = self.embedding.weight
        rows = weight[layout.positions(nodes).to(weight.device) + self.offset]
        with replaced([(self.embedding, "forward", _always(rows))]):
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
    def given(self, layout: CacheLayout, nodes: NodeBatch) -> Iterator[dict[str, Any]]:
        weights = self.embedding.weights
        place = self._place(layout, nodes).to(weights.device)
        with replaced([(self.embedding, "forward", _always(weights[place]))]):
            yield {}

    def _place(self, layout: CacheLayout, nodes: NodeBatch) -> Int[Tensor, "batch nodes"]:
        places = torch.arange(self.prompts.shape[1], device=self.prompts.device)
        in_prompt = places < layout.prompt_length[:, None]
        before = (in_prompt & (self.prompts != self.padding)).sum(dim=1)
        within = ((nodes.prefix >= 0) & (nodes.prefix != self.padding)).sum(dim=2)
        count = (before[:, None] + within).masked_fill(nodes.token == self.padding, 0)
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
    def given(self, layout: CacheLayout, nodes: NodeBatch) -> Iterator[dict[str, Any]]:
        distance = layout.distance(nodes).clamp(0, self.size - 1)
        biases = (table[:, distance.to(table.device)].transpose(0, 1) for table in self.tables)
        with replaced(
            (attention, "compute_bias", _always(bias))
            for attention, bias in zip(self.attentions, biases, strict=True)
        ):
            yield {}


def _bias_by_distance(attention: Any, size: int) -> Float[Tensor, "heads size"]:
    """Ask a T5 attention for the biases of its last token, and list them from near to far."""
    bias: Tensor = attention.compute_bias(1, size, past_seen_tokens=size - 1)
    return bias[0, :, 0].flip(-1).contiguous()


def _has_own_bias(module: Any) -> bool:
    return hasattr(module, "compute_bias") and hasattr(module, "relative_attention_bias")


def _always(value: Tensor) -> Any:
    return lambda *args, **kwargs: value
