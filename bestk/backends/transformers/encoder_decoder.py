"""Encoder-decoder models with tree attention: the encoder runs once, one forward expands k nodes.

Each search has one row in both caches: the decoder's own, with a slot for every expanded node, and
the cross-attention's, computed once per source. The k nodes of a group are k queries of their row,
so nothing is copied. Where a model's positions cannot be set, or it fails the probe, the decoder's
prefixes are recomputed instead.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache

from bestk.backends.base import Children, Group, Room, Session, Shaper
from bestk.backends.transformers.children import picked_children
from bestk.backends.transformers.kv_cache import Layout, tree_cache
from bestk.backends.transformers.positions import Positions, RelativeBias, positions_for
from bestk.backends.transformers.probe import window
from bestk.backends.transformers.recompute_decoder import Seq2SeqPrefixSession
from bestk.backends.transformers.seq2seq_probe import Probe, agrees, find_obstacle, reads_tensors
from bestk.backends.transformers.source_cache import SourcePlaces, source_cache
from bestk.backends.transformers.sources import Encoded, OfSources, Seq2SeqCheckpoint, Source
from bestk.backends.transformers.suppressed import Forbidden
from bestk.kernels import may_run

if TYPE_CHECKING:  # it needs Triton
    from bestk.backends.transformers.fused.encoder_decoder import FusedDecoder

logger = logging.getLogger("bestk")


class Seq2SeqBackend:
    """Any encoder-decoder with a language head: T5, BART, Marian, NLLB, Whisper and their kin.

    `decoder_prompt` are the tokens that every text starts with, by default those that the model's
    generation config asks for. They are not part of the hypotheses. Without `has_rules` no token is
    ruled out: that is then left to processors.
    """

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        decoder_prompt: Sequence[int | None] | None = None,
        *,
        has_rules: bool = True,
    ) -> None:
        self.checkpoint = Seq2SeqCheckpoint(model, name, decoder_prompt, has_rules=has_rules)
        self.name = self.checkpoint.name
        self.vocab_size = self.checkpoint.vocab_size
        self.eos_ids = self.checkpoint.eos_ids
        self.max_length = self.checkpoint.max_length
        self.max_source_length = self.checkpoint.max_source_length
        self.reads_text = self.checkpoint.reads_text
        self._obstacle: str | None = None
        self._is_tried = False
        self._with_kernel: bool | None = None  # not known before the model was tried out
        self._noticed: set[str] = set()

    @property
    def device(self) -> torch.device:
        return self.checkpoint.device

    @property
    def decoder_prompt(self) -> tuple[int | None, ...]:
        """Return what texts start with; None stands for a language that each source decides."""
        return tuple(self.checkpoint.prompt)

    def start(self, prompts: Sequence[Any], room: Room, shaper: Shaper | None = None) -> Session:
        """Open a session over sources: token ids, tensors of features, or `Encoded` of one row."""
        self.checkpoint.evaluate()
        obstacle = self.obstacle(prompts[0], self.checkpoint.prompt_size(prompts[0]) + room.depth)
        if obstacle is None:
            fused = self._fused if self._with_kernel else None
            return Seq2SeqTreeSession(self.checkpoint, prompts, room, shaper, fused=fused)
        if obstacle not in self._noticed:
            self._noticed.add(obstacle)
            logger.warning("%s: recomputing prefixes, %s", self.name, obstacle)
        return Seq2SeqPrefixSession(self.checkpoint, prompts, room, shaper)

    def lane_bytes(self, prompt_size: int, room: Room) -> int:
        """Estimate the memory that one search takes, its share of the activations included."""
        return self.checkpoint.search_bytes(prompt_size, room)

    def free_bytes(self) -> int | None:
        """Say how much memory is free on the model's device, None where nobody knows."""
        return self.checkpoint.free_bytes()

    def obstacle(self, source: Source, length: int) -> str | None:
        """Say why texts of this length cannot share a cache, None if they can.

        The first call tries the model out; `source` gives the shape of its features.
        """
        if not self._is_tried:
            self._try_out(Probe(self.checkpoint, source))
            self._is_tried = True
        reach = window(self.checkpoint)
        if self._obstacle is None and reach is not None and length > reach:
            return f"since its attention window of {reach} is shorter than {length} tokens"
        return self._obstacle

    @functools.cached_property
    def _fused(self) -> FusedDecoder | None:
        if not has_one_gpu(self.checkpoint) or not may_run("layers", self.device):
            return None
        from bestk.backends.transformers.fused.encoder_decoder import fused_decoder

        return fused_decoder(self.checkpoint.model)

    def _try_out(self, probe: Probe) -> None:
        """Find out what the model can share, and which of our ways give its own numbers."""
        self._obstacle = find_obstacle(probe, Seq2SeqTreeSession, Seq2SeqPrefixSession)
        if self._obstacle is not None or not has_one_gpu(self.checkpoint):
            return
        if may_run("sources", self.device):
            self.checkpoint.can_read_tensors = reads_tensors(probe, Seq2SeqTreeSession)
        if self._with_kernel is None and self._fused is not None:
            fused = functools.partial(Seq2SeqTreeSession, fused=self._fused)
            self._with_kernel = agrees(probe, Seq2SeqTreeSession, fused)


def has_one_gpu(checkpoint: Seq2SeqCheckpoint) -> bool:
    """Say whether kernels and graphs can run: all of the model is on one GPU."""
    return may_run("attention", checkpoint.device) and len(checkpoint.devices) == 1


class Seq2SeqTreeSession(OfSources):
    """A batch of search trees, each over one row of both caches."""

    def __init__(
        self,
        checkpoint: Seq2SeqCheckpoint,
        sources: Sequence[Source],
        room: Room,
        shaper: Shaper | None = None,
        *,
        fused: FusedDecoder | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.sources: dict[int, Source] = dict(enumerate(sources))
        self.shaper = shaper
        self.fused = fused
        self.num_children = room.num_children
        self.forbidden = Forbidden(checkpoint)
        batch, size, device = len(sources), checkpoint.prompt_size(sources[0]), checkpoint.device
        self.tokens = torch.zeros(batch, size, dtype=torch.int64, device=device)
        known = [0 if token is None else token for token in checkpoint.prompt]
        self.prompt = torch.tensor([known], dtype=torch.int64, device=device)
        with_kernel = fused is not None or has_one_gpu(checkpoint)
        # Attention with a mask copies it in every layer unless its rows are whole lines of memory.
        spare = -(size + room.capacity) % 8 if with_kernel else 0
        self.layout = Layout(
            prompt_length=torch.full((batch,), size, device=device),
            prompt_size=size,
            capacity=room.capacity + spare,
            with_kernel=with_kernel,
            used=size,
        )
        # The room may know of longer sources to come.
        longest = max([*map(len, sources), room.prompt_size])
        self.places = SourcePlaces(longest + (-longest % 8 if with_kernel else 0))
        self.source_length = torch.ones(batch, dtype=torch.int64, device=device)
        self.source: dict[str, Any] = {}
        # Four axes, so that nobody makes a mask: the kernels look at none.
        self.no_mask = torch.zeros(batch, 1, 1, 1, dtype=checkpoint.dtype, device=device)
        self.cache: Any = EncoderDecoderCache(
            tree_cache(self.layout), source_cache(self.layout, self.places)
        )
        self.positions = self._positions(size + room.depth)

    @property
    def is_static(self) -> bool:
        """Say whether `expand` runs the same kernels at every step, as a CUDA graph needs."""
        return self.layout.with_kernel and self.shaper is None

    @torch.inference_mode()
    def refill(self, group: Group, sources: Mapping[int, Source]) -> Children:
        """Read new sources for some of the searches; the other rows of the result mean nothing."""
        encoded = self.checkpoint.encode(list(sources.values()))
        layout, device = self.layout, self.checkpoint.device
        rows = torch.tensor(list(sources), device=device)
        self.tokens.index_copy_(0, rows, torch.tensor(encoded.prompts, device=device))
        places = encoded.hidden.shape[1]
        full = torch.full((len(rows),), places, device=device)
        lengths = full if encoded.mask is None else encoded.mask.sum(dim=1)
        self._place(encoded.kind(last_hidden_state=encoded.hidden), lengths, rows)
        layout.write, layout.rows = None, rows
        self.cache.is_updated.clear()
        last = self.checkpoint.logits_after(
            encoded.prompts, **encoded.options(), past_key_values=self.cache, use_cache=True
        )
        return self._first_children(group, last, rows)

    def can_read(self, sources: Iterable[Source]) -> bool:
        """Say whether `read` takes such sources: texts, all with the one prompt of the decoder."""
        if not self.checkpoint.can_read_tensors or self.tokens.shape[1] != self.prompt.shape[1]:
            return False
        return not any(isinstance(source, Tensor | Encoded) for source in sources)

    @torch.inference_mode()
    def read(self, group: Group, tokens: Tensor, lengths: Tensor, rows: Tensor) -> Children:
        """Do what `refill` does with texts, from tensors: the part that a CUDA graph can hold."""
        layout, device = self.layout, self.checkpoint.device
        encoded, mask = self.checkpoint.encode_tensors(tokens, lengths)
        prompts = self.prompt.expand(len(rows), -1)
        self.tokens.index_copy_(0, rows, prompts)
        self._place(encoded, lengths, rows)
        layout.write, layout.rows = None, rows
        self.cache.is_updated.clear()
        size = prompts.shape[1]
        is_past = torch.ones(size, size, dtype=torch.bool, device=device).tril()
        last = self.checkpoint.last_logits(
            prompts,
            torch.full((len(rows),), size, device=device),
            encoder_outputs=encoded,
            attention_mask=mask.expand(-1, -1, size, -1),
            decoder_attention_mask=self._mask(is_past.expand(len(rows), 1, -1, -1)),
            past_key_values=self.cache,
            use_cache=True,
        )
        return self._first_children(group, last, rows)

    def _first_children(self, group: Group, last: Tensor, rows: Tensor) -> Children:
        logits = last.new_zeros(len(self.tokens), 1, last.shape[-1])
        logits.index_copy_(0, rows, self.forbidden.at_start(last[:, None]))
        return self._children(group, logits)

    @torch.inference_mode()
    def expand(self, group: Group) -> Children:
        """Run the group's tokens through the decoder, each seeing its source and its ancestors."""
        return self._children(group, self.forbidden.later(self.logits(group)))

    def _children(self, group: Group, logits: Float[Tensor, "batch group vocab"]) -> Children:
        return picked_children(
            group, logits, self.num_children, self.shaper, with_kernel=self.layout.with_kernel
        )

    def logits(self, group: Group) -> Float[Tensor, "batch group vocab"]:
        """Return the logits after every node of the group, and keep its keys and values."""
        layout, width = self.layout, group.token.shape[1]
        layout.advance(group)
        if self.fused is not None:
            return self._fused_logits(self.fused, group)
        if width == 1 and not self.checkpoint.can_mask_one:
            group = _doubled(group, scratch=layout.capacity)
            layout.write = layout.place(group.slot)
        options = dict(self.source)
        if "attention_mask" in options:
            seen = options["attention_mask"]
            wide = seen.expand(-1, -1, group.token.shape[1], -1)
            options["attention_mask"] = wide.contiguous() if layout.with_kernel else wide
        fused = self.checkpoint.fusion.applied() if layout.with_kernel else contextlib.nullcontext()
        products = self.checkpoint.small_products.applied(group.token.numel())
        with products, fused, self.positions.given(layout, group) as given:
            output = self.checkpoint.model(
                decoder_input_ids=group.token.clamp(min=0),
                decoder_attention_mask=self._mask(layout.mask(group)),
                **options,
                **given,
                past_key_values=self.cache,
                use_cache=True,
            )
        logits: Tensor = output.logits.to(self.checkpoint.device)
        return logits[:, :width]

    def _fused_logits(
        self, fused: FusedDecoder, group: Group
    ) -> Float[Tensor, "batch group vocab"]:
        layout, positions = self.layout, self.positions
        biases = positions.by_attention if isinstance(positions, RelativeBias) else {}
        layers = fused.applied(layout, group, self.source_length, biases)
        # The kernels know distances; other positions belong to the embedding.
        told: Any = contextlib.nullcontext({}) if biases else positions.given(layout, group)
        with layers, told as given:
            output = self.checkpoint.model(
                decoder_input_ids=group.token.clamp(min=0),
                decoder_attention_mask=self.no_mask,
                **self.source,
                **given,
                past_key_values=self.cache,
                use_cache=True,
            )
        logits: Tensor = output.logits
        return logits

    def close(self) -> None:
        """Let go of the caches."""
        self.cache = None
        self.source = {}

    def _positions(self, size: int) -> Positions:
        model, accepts = self.checkpoint.model, self.checkpoint.accepts
        positions = positions_for(model, accepts, self.tokens, size)
        if positions is None:
            raise ValueError("its decoder takes no positions")
        return positions

    def _place(
        self, encoded: Any, lengths: Int[Tensor, " read"], rows: Int[Tensor, " read"]
    ) -> None:
        """Make room for the longest source to come, and say which places these sources fill."""
        batch, is_text = len(self.tokens), self.checkpoint.reads_text
        _, places, width = encoded.last_hidden_state.shape
        if not self.source:
            self.places.size = max(self.places.size, places) if is_text else places
            size = self.places.size
            # The keys and values are cached: of the encoder's output only the shape is looked at.
            shape = encoded.last_hidden_state.new_zeros(1, 1, 1).expand(batch, size, width)
            self.source = {"encoder_outputs": type(encoded)(last_hidden_state=shape)}
            if is_text:
                visible = torch.zeros(batch, 1, 1, size, dtype=torch.bool, device=rows.device)
                # Four axes, so that no forward call has to build, or look into, a mask of its own.
                self.source["attention_mask"] = self._mask(visible)
        self.source_length.index_copy_(0, rows, lengths)
        if is_text:
            visible = torch.arange(self.places.size, device=rows.device) < lengths[:, None]
            mask = self._mask(visible[:, None, None])
            self.source["attention_mask"].index_copy_(0, rows, mask)

    def _mask(self, visible: Bool[Tensor, "batch 1 queries places"]) -> Tensor:
        # On a GPU every layer would turn a mask of yes and no into numbers again.
        return self.checkpoint.attention_mask(visible, as_numbers=self.layout.with_kernel)


def _doubled(group: Group, scratch: int) -> Group:
    """Put a second copy of the only node beside it; what that one stores goes to scratch."""

    def twice(column: Tensor) -> Tensor:
        return torch.cat([column, column], dim=1)

    columns = {field.name: twice(getattr(group, field.name)) for field in fields(group)}
    columns["slot"] = torch.cat([group.slot, torch.full_like(group.slot, scratch)], dim=1)
    return Group(**columns)
