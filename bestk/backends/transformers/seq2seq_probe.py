"""Tries an encoder-decoder out before its first search, against plain uncached forward passes.

What may go wrong: an encoder that padding disturbs, a decoder that takes no positions or masks, or
one that padding disturbs. All have a slower way out, which is tried too: where even that differs
from the plain answer the model is refused, since no answer is better than a wrong one.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bestk.backends.transformers.model import pad_right
from bestk.backends.transformers.probe import distance, probe_nodes, tolerance
from bestk.backends.transformers.sources import Encoded, EncoderDecoderInfo, Source
from bestk.errors import ModelError, first_line
from bestk.nodes import BatchSpec, NodeBatch

logger = logging.getLogger("bestk")

# Slots 1 and 2 are siblings, 3 is a child of 1 and 4 of 3, 5 and 6 of 2, 7 of 4. As in a search, no
# call holds a node and its ancestor. One has nodes of unequal depths, and the last one is of one
# node: some decoders drop the mask when there is a single query.
_CALLS = ([[1], [2]], [[1, 3], [2, 5]], [[1, 3, 4], [2, 6]], [[1, 3, 4, 7]])
_NUM_SLOTS = 8

MakeSession = Callable[..., Any]


@torch.inference_mode()
def find_obstacle(probe: Probe, tree: MakeSession, prefix: MakeSession) -> str | None:
    """Return why the model cannot share its decoder's cache by slots, None if it can.

    Sets what may be padded. Raises if recomputed prefixes are wrong too.
    """
    model = probe.model
    if model.reads_text and model.can_pad:
        model.can_pad = probe.pads_rightly()
    for model.can_mask_one, model.hides_padding in ((True, False), (False, False), (True, True)):
        worst, failure = probe.error_of(tree)
        if failure is None and worst <= probe.tolerance:
            return None
    for model.can_pad_prefixes in (True, False):
        error, broken = probe.error_of(prefix)
        if broken is None and error <= probe.tolerance:
            change = f"a tree of masks changes its log-probabilities (by {worst:.2g})"
            return f"since {failure or change}"
    reason = broken or f"its log-probabilities depend on the batch (by {error:.2g})"
    raise ModelError(f"{model.name} cannot be searched: {reason}")


@torch.inference_mode()
def reads_tensors(probe: Probe, tree: MakeSession) -> bool:
    """Return whether texts can be read from padded tensors, without a question to the device."""
    model = probe.model
    is_plain = model.reads_text and model.can_pad and None not in model.prompt
    encoder = model.module.get_encoder()
    is_whole = not getattr(encoder.config, "sliding_window", None)
    if not is_plain or not is_whole or probe.is_encoded:
        return False
    error, failure = probe.error_of(tree, _read)
    logger.debug("%s: read from tensors: %s", model.name, failure or f"off by {error:.2g}")
    return failure is None and error <= probe.tolerance


@torch.inference_mode()
def agrees(probe: Probe, plain: MakeSession, fused: MakeSession) -> bool:
    """Return whether a decoder of fused kernels gives the model's own numbers.

    Compared with the model's own layers over the same cache, since half precision needs a measure
    that is stricter than what plain forward passes allow: the spread of the logits themselves.
    """
    worst, found, failure = probe.answers(fused)
    _, usual, _ = probe.answers(plain)
    error = probe.error(found) if failure is None else worst
    apart = max((_apart(*pair) for pair in zip(usual, found, strict=False)), default=worst)
    logger.debug(
        "%s: fused layers: %s", probe.model.name, failure or f"off by {error:.2g}, {apart:.2g}"
    )
    is_close = apart <= (1e-3 if probe.tolerance < 0.1 else 0.1)
    return failure is None and error <= probe.tolerance and is_close


def _apart(one: Tensor, other: Tensor) -> float:
    """Return how far two sets of logits are apart, as a share of their spread."""
    one, other = one.float(), other.float()
    spread = one.std(dim=-1, keepdim=True).clamp(min=1e-6)
    difference = (one - one.mean(-1, keepdim=True)) - (other - other.mean(-1, keepdim=True))
    return float((difference.abs() / spread).mean().nan_to_num(nan=torch.inf))


def _prefill(session: Any, roots: NodeBatch, sources: list[Any]) -> float:
    session.prefill(roots, dict(enumerate(sources)), whole=True)
    return 0.0


def _read(session: Any, roots: NodeBatch, sources: list[Any]) -> float:
    """Read the sources from tensors, and return how far the first logits are from the usual."""
    usual = session.prefill(roots, dict(enumerate(sources)), whole=True)
    device = session.model.device
    tokens, lengths = pad_right(sources, device, size=max(map(len, sources)) + 3)
    rows = torch.arange(len(sources), device=device)
    with _unasked(device):
        first = session.prefill_tensors(roots, tokens, lengths, rows)
    return distance(first, usual)


@contextlib.contextmanager
def _unasked(device: torch.device) -> Iterator[None]:
    """Let whatever waits for the device fail, as it would while a graph is captured."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is said to be a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Probe:
    """Two sources, a small tree over each, and the plain answers for all its nodes.

    `example` gives the shape of a model's features.
    """

    @torch.inference_mode()
    def __init__(self, model: EncoderDecoderInfo, example: Source) -> None:
        self.model = model
        self.is_encoded = isinstance(example, Encoded)
        self.sources = _sources(model, example)
        # Half precision rounds logits to about 2^-8 of their size; a wrong position is off by more.
        self.tolerance = tolerance(model)
        self.tokens = [0, *_some(_NUM_SLOTS - 1, 5, model.vocab_size)]
        if model.padding is not None:  # some decoders do not look at it, wherever it is
            self.tokens[2] = model.padding
        self.alone = [model.encode([source]) for source in self.sources]
        self._known: dict[tuple[int, ...], Tensor] = {}

    def pads_rightly(self) -> bool:
        """Compare the encoder's outputs for a padded batch with those for each source alone."""
        together = self.model.encode(self.sources)
        for row, encoded in enumerate(self.alone):
            ours = together.hidden[row, : encoded.hidden.shape[1]].float()
            scale = encoded.hidden.float().abs().mean().clamp(min=1e-6)
            difference = (ours - encoded.hidden[0].float()).abs().mean() / scale
            if not float(difference) <= max(self.tolerance / 10, 1e-4):
                return False
        return True

    def error_of(
        self, make: MakeSession, begin: Callable[..., float] = _prefill
    ) -> tuple[float, str | None]:
        """Return the largest mean difference of log-probabilities, or what failed."""
        worst, found, failure = self.answers(make, begin)
        return max(worst, self.error(found)), failure

    def answers(
        self, make: MakeSession, begin: Callable[..., float] = _prefill
    ) -> tuple[float, list[Tensor], str | None]:
        """Search the small trees: how far the beginning was off, all logits, or what failed."""
        spec = BatchSpec(width=2, slots=_NUM_SLOTS, depth=4, num_children=1)
        try:
            session = make(self.model, self.sources, spec, 16)
            worst = begin(session, self._nodes([[]]), self.sources)
            found = [session.logits(self._nodes(call)) for call in _CALLS]
            session.close()
        except (torch.OutOfMemoryError, NameError):  # neither says anything about the model
            raise
        except Exception as error:  # whatever a family does with masks it was not written for
            return float("inf"), [], first_line(error)
        return worst, found, None

    def error(self, found: list[Tensor]) -> float:
        """Return the largest mean difference of log-probabilities from plain forward passes."""
        worst = 0.0
        for call, logits in zip(_CALLS, found, strict=False):
            for row in range(len(self.sources)):
                for place, path in enumerate(call):
                    worst = max(worst, distance(logits[row, place], self._plain(row, path)))
        return worst

    def _plain(self, row: int, path: list[int]) -> Tensor:
        """Return the plain answer for a node; most of a large model's trying out is these."""
        if (row, *path) not in self._known:
            self._known[row, *path] = self._run_whole(row, path)
        return self._known[row, *path]

    def _run_whole(self, row: int, path: list[int]) -> Tensor:
        """Run the whole model over one source, encoder and all."""
        model, source = self.model, self.sources[row]
        sequence = [*self.alone[row].prompts[0], *(self.tokens[slot] for slot in path)]
        if isinstance(source, Encoded):
            options = source.options()
        elif isinstance(source, Tensor):
            features = source[None].to(model.device, model.dtype)
            options = {model.source_input: features}
        else:
            tokens = torch.tensor([source], device=model.device)
            options = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        return model.logits_after([sequence], **options, use_cache=False)[0]

    def _nodes(self, paths: list[list[int]]) -> NodeBatch:
        device = self.model.device
        return probe_nodes(paths, self.tokens, len(self.sources), device)


def _sources(model: EncoderDecoderInfo, source: Source) -> list[Any]:
    """Make two short texts of unequal lengths; of features, the given ones and some changed."""
    if isinstance(source, Tensor):
        return [source, source.flip(-1)]
    if isinstance(source, Encoded) and not model.reads_text:
        return [source, replace(source, hidden=source.hidden.flip(-1))]
    vocab = model.vocab_size
    return [_some(6, 11, vocab), _some(3, 23, vocab)]


def _some(count: int, seed: int, vocab: int) -> list[int]:
    return [(seed + 7 * i * i + 3 * i) % vocab for i in range(count)]
