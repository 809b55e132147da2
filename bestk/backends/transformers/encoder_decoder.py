"""Encoder-decoder models with tree attention: the encoder runs once, one forward expands k nodes.

Each search has one row in both caches: the decoder's own, with a slot for every expanded node, and
the cross-attention's, computed once per source. The k nodes of a group are k queries of their row,
so nothing is copied. Where a model's positions cannot be set, or it fails the probe, the decoder's
prefixes are recomputed instead.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache

from bestk.backends.base import Backend, Capabilities, Context, Memory, Session
from bestk.backends.transformers import limits
from bestk.backends.transformers.kv_cache import CacheLayout, resized, tree_cache
from bestk.backends.transformers.positions import Positions, RelativeBias, positions_for
from bestk.backends.transformers.recompute_decoder import RecomputeDecoderSession
from bestk.backends.transformers.seq2seq_probe import Probe, agrees, find_obstacle, reads_tensors
from bestk.backends.transformers.source_cache import SourcePlaces, source_cache
from bestk.backends.transformers.sources import Encoded, EncoderDecoderInfo, Source
from bestk.backends.transformers.suppressed import SuppressedTokens
from bestk.kernels import may_run
from bestk.nodes import BatchSpec, NodeBatch

if TYPE_CHECKING:  # it needs Triton
    from bestk.backends.transformers.fused.encoder_decoder import FusedDecoder

logger = logging.getLogger("bestk")


class EncoderDecoderBackend(Backend):
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
        self.model = EncoderDecoderInfo(model, name, decoder_prompt, has_rules=has_rules)
        self.network = model
        self.name = self.model.name
        self.vocab_size = self.model.vocab_size
        self.eos_ids = self.model.eos_ids
        self.capabilities = Capabilities(
            resize=True,
            max_length=self.model.max_length,
            max_source_length=self.model.max_source_length,
        )
        self._obstacle: str | None = None
        self._is_tried = False
        self._with_kernel: bool | None = None  # not known before the model was tried out
        self._noticed: set[str] = set()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def decoder_prompt(self) -> tuple[int | None, ...]:
        """What texts start with; None stands for a language that each source decides."""
        return tuple(self.model.prompt)

    def start(self, prompts: Sequence[Any], spec: BatchSpec, prompt_size: int = 0) -> Session:
        """Open a session over sources: token ids, tensors of features, or `Encoded` of one row."""
        self.model.evaluate()
        begin = self.model.prompt_size(prompts[0])
        obstacle = self.obstacle(prompts[0], begin, max(begin + spec.depth, spec.width))
        if obstacle is None:
            fused = self._fused if self._with_kernel else None
            return EncoderDecoderSession(self.model, prompts, spec, prompt_size, fused=fused)
        if obstacle not in self._noticed:
            self._noticed.add(obstacle)
            logger.warning("%s: recomputing prefixes, %s", self.name, obstacle)
        return RecomputeDecoderSession(self.model, prompts)

    @torch.inference_mode()
    def contexts(self, prompts: Sequence[Any]) -> list[Context]:
        """Return the decoder's prompts and the sources, encoded if that takes their languages."""
        return self.model.contexts(prompts)

    def memory(self, spec: BatchSpec, prompt_size: int) -> Memory | None:
        """Return the bytes that are free, and those of one search with its activations."""
        return self.model.memory(spec, prompt_size)

    def facts(self) -> dict[str, Any]:
        """Return what the numbers depend on besides the weights."""
        facts = {**super().facts(), "dtype": self.model.number_format}
        return {**facts, "decoder_prompt": list(self.decoder_prompt)}

    def obstacle(self, source: Source, begin: int, end: int) -> str | None:
        """Name why texts of `begin` to `end` tokens cannot share a cache, None if they can.

        The first call tries the model out; `source` gives the shape of its features.
        """
        if not self._is_tried:
            with self.model.trial():
                self._try_out(Probe(self.model, source))
            self._is_tried = True
        width = limits.window(self.model.config)
        if self._obstacle is None and width is not None and end > width:
            return f"since its attention window of {width} is shorter than {end} tokens"
        return self._obstacle or limits.obstacle(self.model.config, begin, end)

    @functools.cached_property
    def _fused(self) -> FusedDecoder | None:
        if not has_one_gpu(self.model) or not may_run("layers", self.device):
            return None
        from bestk.backends.transformers.fused.encoder_decoder import fused_decoder

        return fused_decoder(self.model.module)

    def _try_out(self, probe: Probe) -> None:
        """Find out what the model can share, and which of our ways give its own numbers."""
        self._obstacle = find_obstacle(probe, EncoderDecoderSession, _recompute)
        if self._obstacle is not None or not has_one_gpu(self.model):
            return
        if may_run("sources", self.device):
            self.model.can_read_tensors = reads_tensors(probe, EncoderDecoderSession)
        if self._with_kernel is None and self._fused is not None:
            fused = functools.partial(EncoderDecoderSession, fused=self._fused)
            self._with_kernel = agrees(probe, EncoderDecoderSession, fused)


def _recompute(model: EncoderDecoderInfo, sources: Sequence[Source], *_: Any) -> Session:
    return RecomputeDecoderSession(model, sources)


def has_one_gpu(model: EncoderDecoderInfo) -> bool:
    """Return whether kernels and graphs can run: all of the model is on one GPU."""
    return may_run("attention", model.device) and len(model.devices) == 1


class EncoderDecoderSession(Session):
    """A batch of search trees, each over one row of both caches."""

    def __init__(
        self,
        model: EncoderDecoderInfo,
        sources: Sequence[Source],
        spec: BatchSpec,
        prompt_size: int = 0,
        *,
        fused: FusedDecoder | None = None,
    ) -> None:
        self.model, self.spec, self.fused = model, spec, fused
        self.suppressed = SuppressedTokens(model)
        batch, size, device = len(sources), model.prompt_size(sources[0]), model.device
        self.tokens = torch.zeros(batch, size, dtype=torch.int64, device=device)
        known = [0 if token is None else token for token in model.prompt]
        self.prompt = torch.tensor([known], dtype=torch.int64, device=device)
        with_kernel = fused is not None or has_one_gpu(model)
        # Attention with a mask copies it in every layer unless its rows are whole lines of memory.
        spare = -(size + spec.slots) % 8 if with_kernel else 0
        self.layout = CacheLayout(
            prompt_length=torch.full((batch,), size, device=device),
            prompt_size=size,
            capacity=spec.slots + spare,
            with_kernel=with_kernel,
            used=size,
        )
        longest = max([*map(len, sources), prompt_size])
        self.places = SourcePlaces(longest + (-longest % 8 if with_kernel else 0))
        self.source_length = torch.ones(batch, dtype=torch.int64, device=device)
        self.source: dict[str, Any] = {}
        # Four axes, so that nobody makes a mask: the kernels look at none.
        self.no_mask = torch.zeros(batch, 1, 1, 1, dtype=model.dtype, device=device)
        self.cache: Any = EncoderDecoderCache(
            tree_cache(self.layout), source_cache(self.layout, self.places)
        )
        self.positions = self._positions()

        # Texts with one prompt for the decoder are read from tensors.
        is_text = not any(isinstance(source, Tensor | Encoded) for source in sources)
        is_fixed = size == self.prompt.shape[1]
        self.capabilities = Capabilities(
            resize=not with_kernel,
            static=with_kernel and model.is_static,
            static_prefill=with_kernel
            and model.is_static
            and model.can_read_tensors
            and is_text
            and is_fixed,
        )

    @torch.inference_mode()
    def prefill(self, nodes: NodeBatch, prompts: Mapping[int, Source], *, whole: bool) -> Tensor:
        """Encode sources and read the decoder's prompts; the last token gives the root's logits."""
        encoded = self.model.encode(list(prompts.values()))
        layout, device = self.layout, self.model.device
        rows = torch.tensor(list(prompts), device=device)
        self.tokens.index_copy_(0, rows, torch.tensor(encoded.prompts, device=device))
        places = encoded.hidden.shape[1]
        full = torch.full((len(rows),), places, device=device)
        lengths = full if encoded.mask is None else encoded.mask.sum(dim=1)
        self._place(encoded.kind(last_hidden_state=encoded.hidden), lengths, rows)
        layout.write, layout.rows = None, rows
        self.cache.is_updated.clear()
        last = self.model.logits_after(
            encoded.prompts, **encoded.options(), past_key_values=self.cache, use_cache=True
        )
        return self._roots(last, rows)

    @torch.inference_mode()
    def prefill_tensors(
        self, nodes: NodeBatch, tokens: Tensor, lengths: Tensor, rows: Tensor
    ) -> Tensor:
        """Do what `prefill` does with texts, from tensors: the part that a CUDA graph can hold."""
        layout, device = self.layout, self.model.device
        encoded, mask = self.model.encode_tensors(tokens, lengths)
        prompts = self.prompt.expand(len(rows), -1)
        self.tokens.index_copy_(0, rows, prompts)
        self._place(encoded, lengths, rows)
        layout.write, layout.rows = None, rows
        self.cache.is_updated.clear()
        size = prompts.shape[1]
        is_past = torch.ones(size, size, dtype=torch.bool, device=device).tril()
        last = self.model.last_logits(
            prompts,
            torch.full((len(rows),), size, device=device),
            encoder_outputs=encoded,
            attention_mask=mask.expand(-1, -1, size, -1),
            decoder_attention_mask=self._mask(is_past.expand(len(rows), 1, -1, -1)),
            past_key_values=self.cache,
            use_cache=True,
        )
        return self._roots(last, rows)

    @torch.inference_mode()
    def evaluate(self, nodes: NodeBatch, *, whole: bool = True) -> Tensor:
        """Run tokens through the decoder, each seeing its source and its ancestors."""
        return self.suppressed.later(self.logits(nodes))

    @torch.inference_mode()
    def resize(self, rows: Sequence[int], batch: int, prompt_size: int) -> EncoderDecoderSession:
        """Return a session of another size that goes on with these searches, nothing reread."""
        other = copy.copy(self)
        index = torch.tensor([*rows, *[0] * (batch - len(rows))], device=self.tokens.device)
        other.tokens = self.tokens[index]
        other.source_length = self.source_length[index]
        other.no_mask = self.no_mask[index]
        other.layout = self.layout.resized(rows, batch, self.layout.prompt_size)
        other.places = SourcePlaces(max(self.places.size, prompt_size))
        own, source = self.cache.self_attention_cache, self.cache.cross_attention_cache
        other.cache = EncoderDecoderCache(
            resized(own, rows, tree_cache(other.layout)),
            resized(source, rows, source_cache(other.layout, other.places)),
        )
        other.positions = other._positions()
        if self.source:
            other._make_room(self.source["encoder_outputs"])
            every = torch.arange(batch, device=self.tokens.device)
            other._see(other.source_length, every)
        return other

    def logits(self, nodes: NodeBatch) -> Float[Tensor, "batch nodes vocab"]:
        """Return the logits after every node of the nodes, and keep its keys and values."""
        layout, width = self.layout, nodes.token.shape[1]
        layout.advance(nodes)
        if self.fused is not None:
            return self._fused_logits(self.fused, nodes)
        if width == 1 and not self.model.can_mask_one:
            nodes = _doubled(nodes, scratch=layout.capacity)
            layout.write = layout.place(nodes.slot)
        hidden = self.model.padding if self.model.hides_padding else None
        options = dict(self.source)
        if "attention_mask" in options:
            seen = options["attention_mask"]
            wide = seen.expand(-1, -1, nodes.token.shape[1], -1)
            options["attention_mask"] = wide.contiguous() if layout.with_kernel else wide
        fused = self.model.fusion.applied() if layout.with_kernel else contextlib.nullcontext()
        products = self.model.small_products.applied(nodes.token.numel())
        with self.model.untouched(), products, fused, self.positions.given(layout, nodes) as given:
            output = self.model.module(
                decoder_input_ids=nodes.token.clamp(min=0),
                decoder_attention_mask=self._mask(layout.mask(nodes, hidden)),
                **options,
                **given,
                past_key_values=self.cache,
                use_cache=True,
            )
        logits: Tensor = output.logits.to(self.model.device)
        return logits[:, :width]

    def _fused_logits(
        self, fused: FusedDecoder, nodes: NodeBatch
    ) -> Float[Tensor, "batch nodes vocab"]:
        layout, positions = self.layout, self.positions
        biases = positions.by_attention if isinstance(positions, RelativeBias) else {}
        layers = fused.applied(layout, nodes, self.source_length, biases)
        # The kernels know distances; other positions belong to the embedding.
        told: Any = contextlib.nullcontext({}) if biases else positions.given(layout, nodes)
        with self.model.untouched(), layers, told as given:
            output = self.model.module(
                decoder_input_ids=nodes.token.clamp(min=0),
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

    def _positions(self) -> Positions:
        size = self.tokens.shape[1] + self.spec.depth
        positions = positions_for(self.model.module, self.model.accepts, self.tokens, size)
        if positions is None:
            raise ValueError("its decoder takes no positions")
        return positions

    def _place(
        self, encoded: Any, lengths: Int[Tensor, " read"], rows: Int[Tensor, " read"]
    ) -> None:
        """Note which places these sources fill; the first ones tell how many there are."""
        if not self.source:
            places, is_text = encoded.last_hidden_state.shape[1], self.model.reads_text
            self.places.size = max(self.places.size, places) if is_text else places
            self._make_room(encoded)
        self.source_length.index_copy_(0, rows, lengths)
        self._see(lengths, rows)

    def _make_room(self, encoded: Any) -> None:
        """Stand in for the encoder's output: keys and values are cached, only shapes are seen."""
        batch, size, hidden = len(self.tokens), self.places.size, encoded.last_hidden_state
        shape = hidden.new_zeros(1, 1, 1).expand(batch, size, hidden.shape[2])
        self.source = {"encoder_outputs": type(encoded)(last_hidden_state=shape)}
        if self.model.reads_text:
            visible = torch.zeros(batch, 1, 1, size, dtype=torch.bool, device=self.tokens.device)
            # Four axes, so that no forward call has to build, or look into, a mask of its own.
            self.source["attention_mask"] = self._mask(visible)

    def _see(self, lengths: Int[Tensor, " read"], rows: Int[Tensor, " read"]) -> None:
        """Let nodes see the places that their sources fill."""
        if self.model.reads_text:
            visible = torch.arange(self.places.size, device=rows.device) < lengths[:, None]
            mask = self._mask(visible[:, None, None])
            self.source["attention_mask"].index_copy_(0, rows, mask)

    def _roots(self, last: Tensor, rows: Int[Tensor, " read"]) -> Tensor:
        logits = last.new_zeros(len(self.tokens), 1, last.shape[-1])
        return logits.index_copy_(0, rows, self.suppressed.at_start(last[:, None]))

    def _mask(self, visible: Bool[Tensor, "batch 1 queries places"]) -> Tensor:
        # On a GPU every layer would turn a mask of yes and no into numbers again.
        return self.model.attention_mask(visible, as_numbers=self.layout.with_kernel)


def _doubled(nodes: NodeBatch, scratch: int) -> NodeBatch:
    """Put a second copy of the only node beside it; what that one stores goes to scratch."""
    columns = {name: torch.cat([column] * 2, dim=1) for name, column in vars(nodes).items()}
    columns["slot"] = torch.cat([nodes.slot, torch.full_like(nodes.slot, scratch)], dim=1)
    return NodeBatch(**columns)
