"""Encoder-decoder models with tree attention: the encoder runs once, one forward expands k nodes.

Each search has one row in both caches: the decoder's own, with a slot for every expanded node, and
the cross-attention's, computed once per source. The k nodes of a group are k queries of their row,
so nothing is copied. Where a model's positions cannot be set, or it fails the probe, the decoder's
prefixes are recomputed instead.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache

from bestk.backends.base import Children, Group, Room, Session, Shaper, shaped_children
from bestk.backends.transformers.adapters import Positions, positions_for
from bestk.backends.transformers.attention import has_kernels
from bestk.backends.transformers.cache import Layout, tree_cache
from bestk.backends.transformers.decoder_prompt import setting
from bestk.backends.transformers.prefix import PrefixSession
from bestk.backends.transformers.probe import window
from bestk.backends.transformers.seq2seq_probe import find_obstacle
from bestk.backends.transformers.source_cache import SourcePlaces, source_cache
from bestk.backends.transformers.sources import Encoded, Seq2SeqCheckpoint, Source

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
        self._is_probed = False
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
            return Seq2SeqTreeSession(self.checkpoint, prompts, room, shaper)
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
        if not self._is_probed:
            self._obstacle = find_obstacle(
                self.checkpoint, source, Seq2SeqTreeSession, Seq2SeqPrefixSession
            )
            self._is_probed = True
        reach = window(self.checkpoint)
        if self._obstacle is None and reach is not None and length > reach:
            return f"since its attention window of {reach} is shorter than {length} tokens"
        return self._obstacle


class Seq2SeqTreeSession:
    """A batch of search trees, each over one row of both caches."""

    def __init__(
        self,
        checkpoint: Seq2SeqCheckpoint,
        sources: Sequence[Source],
        room: Room,
        shaper: Shaper | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.sources: dict[int, Source] = dict(enumerate(sources))
        self.shaper = shaper
        self.num_children = room.num_children
        self.forbidden = Forbidden(checkpoint)
        batch, size, device = len(sources), checkpoint.prompt_size(sources[0]), checkpoint.device
        self.tokens = torch.zeros(batch, size, dtype=torch.int64, device=device)
        with_kernel = has_kernels(device) and len(checkpoint.devices) == 1
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
        self.places = SourcePlaces(max([*map(len, sources), room.prompt_size]))
        self.source: dict[str, Any] = {}
        self.cache: Any = EncoderDecoderCache(
            tree_cache(self.layout), source_cache(self.layout, self.places)
        )
        self.positions = self._positions(size + room.depth)

    @property
    def is_static(self) -> bool:
        """Say whether `expand` runs the same kernels at every step, as a CUDA graph needs."""
        return self.layout.with_kernel and self.shaper is None

    @torch.inference_mode()
    def decoder_prompts(self) -> list[list[int]]:
        """Return what the texts of each search follow on; `root` need not encode twice for it."""
        sources, prompts = self.checkpoint.told(list(self.sources.values()))
        self.sources = dict(zip(self.sources, sources, strict=True))
        return prompts

    def root(self, group: Group) -> Children:
        """Encode the sources and read the decoder's prompts; the last token gives the children."""
        return self.refill(group, self.sources)

    @torch.inference_mode()
    def refill(self, group: Group, sources: Mapping[int, Source]) -> Children:
        """Read new sources for some of the searches; the other rows of the result mean nothing."""
        encoded = self.checkpoint.encode(list(sources.values()))
        layout, device = self.layout, self.checkpoint.device
        rows = torch.tensor(list(sources), device=device)
        self.tokens.index_copy_(0, rows, torch.tensor(encoded.prompts, device=device))
        self._place(encoded, rows)
        layout.write, layout.rows = None, rows
        self.cache.is_updated.clear()
        last = self.checkpoint.logits_after(
            encoded.prompts, **encoded.options(), past_key_values=self.cache, use_cache=True
        )
        logits = last.new_zeros(len(self.tokens), 1, last.shape[-1])
        logits.index_copy_(0, rows, self.forbidden.at_start(last[:, None]))
        return shaped_children(group, logits, self.num_children, self.shaper)

    @torch.inference_mode()
    def expand(self, group: Group) -> Children:
        """Run the group's tokens through the decoder, each seeing its source and its ancestors."""
        logits = self.forbidden.later(self.logits(group))
        return shaped_children(group, logits, self.num_children, self.shaper)

    def logits(self, group: Group) -> Float[Tensor, "batch group vocab"]:
        """Return the logits after every node of the group, and keep its keys and values."""
        layout, width = self.layout, group.token.shape[1]
        layout.advance(group)
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

    def _place(self, encoded: Encoded, rows: Int[Tensor, " read"]) -> None:
        """Make room for the longest source to come, and say which places these sources fill."""
        batch, is_text = len(self.tokens), self.checkpoint.reads_text
        _, places, width = encoded.hidden.shape
        if not self.source:
            self.places.size = max(self.places.size, places) if is_text else places
            size = self.places.size
            # The keys and values are cached: of the encoder's output only the shape is looked at.
            shape = encoded.hidden.new_zeros(1, 1, 1).expand(batch, size, width)
            self.source = {"encoder_outputs": encoded.kind(last_hidden_state=shape)}
            if is_text:
                visible = torch.zeros(batch, 1, 1, size, dtype=torch.bool, device=rows.device)
                # Four axes, so that no forward call has to build, or look into, a mask of its own.
                self.source["attention_mask"] = self._mask(visible)
        if is_text:
            visible = torch.zeros(len(rows), 1, 1, self.places.size, device=rows.device)
            visible[..., :places] = 1 if encoded.mask is None else encoded.mask[:, None, None]
            mask = self._mask(visible.bool())
            self.source["attention_mask"].index_copy_(0, rows, mask)

    def _mask(self, visible: Bool[Tensor, "batch 1 queries places"]) -> Tensor:
        # On a GPU every layer would turn a mask of yes and no into numbers again.
        return self.checkpoint.attention_mask(visible, as_numbers=self.layout.with_kernel)


class Seq2SeqPrefixSession(PrefixSession):
    """A batch of searches without a decoder cache; the sources are still encoded only once."""

    def __init__(
        self,
        checkpoint: Seq2SeqCheckpoint,
        sources: Sequence[Source],
        room: Room,
        shaper: Shaper | None = None,
    ) -> None:
        super().__init__(checkpoint, [[] for _ in sources], room.num_children, shaper)
        self.checkpoint: Seq2SeqCheckpoint = checkpoint
        self.sources: dict[int, Source] = dict(enumerate(sources))
        self.parts: dict[int, Encoded] = {}
        self.forbidden = Forbidden(checkpoint)

    @torch.inference_mode()
    def decoder_prompts(self) -> list[list[int]]:
        """Return what the texts of each search follow on; `root` need not encode twice for it."""
        sources, prompts = self.checkpoint.told(list(self.sources.values()))
        self.sources = dict(zip(self.sources, sources, strict=True))
        return prompts

    def root(self, group: Group) -> Children:
        """Encode the sources and read the decoder's prompts."""
        return self.refill(group, self.sources)

    @torch.inference_mode()
    def refill(self, group: Group, sources: Mapping[int, Source]) -> Children:
        """Read new sources for some of the searches; the other rows of the result mean nothing."""
        encoded = self.checkpoint.encode(list(sources.values()))
        for row, part in zip(sources, encoded.parts(), strict=True):
            self.parts[row] = part
            self.prompts[row] = part.prompts[0]
        self.encoded = Encoded.joined([self.parts[row] for row in sorted(self.parts)])
        rows = torch.arange(len(self.prompts), device=group.slot.device)
        logits = self.forbidden.at_start(self.read(self.prompts, rows)[:, None])
        return shaped_children(group, logits, self.num_children, self.shaper)

    def moved(self, rows: Sequence[int], batch: int, prompt_size: int) -> Seq2SeqPrefixSession:
        """Return a session of another size that goes on with these searches."""
        other = super().moved(rows, batch, prompt_size)
        assert isinstance(other, Seq2SeqPrefixSession)
        old = [*rows, *[min(self.parts)] * (batch - len(rows))]
        other.parts = {new: self.parts[row] for new, row in enumerate(old)}
        other.encoded = Encoded.joined(list(other.parts.values()))
        return other

    @torch.inference_mode()
    def expand(self, group: Group) -> Children:
        """Read the prefixes of all nodes, each over its own source."""
        logits = self.forbidden.later(self.logits(group))
        return shaped_children(group, logits, self.num_children, self.shaper)

    def read(self, sequences: Sequence[Sequence[int]], rows: Int[Tensor, " nodes"]) -> Tensor:
        """Return the logits after each decoder sequence, given the source of its row."""
        return self.checkpoint.read(self.encoded, sequences, rows)


class Forbidden:
    """Tokens that the generation config rules out everywhere: Marian's padding, Whisper's signs.

    Only single tokens: phrases and all other rules are for the processors.
    """

    def __init__(self, checkpoint: Seq2SeqCheckpoint) -> None:
        words = _listed(checkpoint, "bad_words_ids")
        always = {word[0] for word in words if len(word) == 1}
        always |= set(_listed(checkpoint, "suppress_tokens"))
        first = always | set(_listed(checkpoint, "begin_suppress_tokens"))
        self._later = _is_listed(always, checkpoint)
        self._at_start = _is_listed(first, checkpoint)

    def at_start(self, logits: Tensor) -> Tensor:
        """Rule tokens out of the first place of a text."""
        return logits if self._at_start is None else logits.masked_fill(self._at_start, -torch.inf)

    def later(self, logits: Tensor) -> Tensor:
        """Rule tokens out of any other place."""
        return logits if self._later is None else logits.masked_fill(self._later, -torch.inf)


def _doubled(group: Group, scratch: int) -> Group:
    """Put a second copy of the only node beside it; what that one stores goes to scratch."""

    def twice(column: Tensor) -> Tensor:
        return torch.cat([column, column], dim=1)

    columns = {field.name: twice(getattr(group, field.name)) for field in fields(group)}
    columns["slot"] = torch.cat([group.slot, torch.full_like(group.slot, scratch)], dim=1)
    return Group(**columns)


def _listed(checkpoint: Seq2SeqCheckpoint, name: str) -> list[Any]:
    return (setting(checkpoint.model, name) or []) if checkpoint.has_rules else []


def _is_listed(tokens: set[int], checkpoint: Seq2SeqCheckpoint) -> Bool[Tensor, " vocab"] | None:
    size = checkpoint.vocab_size
    listed = [token for token in tokens if 0 <= token < size]
    if not listed:
        return None
    mask = torch.zeros(size, dtype=torch.bool, device=checkpoint.device)
    mask[listed] = True
    return mask
