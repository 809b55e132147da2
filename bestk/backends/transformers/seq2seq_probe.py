"""Tries an encoder-decoder out before its first search, against plain uncached forward passes.

What may go wrong: an encoder that padding disturbs, a decoder that takes no positions or masks, or
one that padding disturbs. All have a slower way out, which is tried too: where even that differs
from the plain answer the model is refused, since no answer is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bestk.backends.base import Group, Room
from bestk.backends.transformers.probe import distance, probe_group, tolerance
from bestk.backends.transformers.sources import Encoded, Seq2SeqCheckpoint, Source
from bestk.errors import ModelError

# Slots 1 and 2 are siblings, 3 a child of 1, 4 of 3, 5 of 2, 6 of 5. The last call is of one node:
# some decoders drop the mask when there is a single query.
_CALLS = ([[1], [2]], [[1, 3], [1, 3, 4]], [[2, 5]], [[2, 5, 6]])
_NUM_SLOTS = 7

MakeSession = Callable[..., Any]


@torch.inference_mode()
def find_obstacle(
    checkpoint: Seq2SeqCheckpoint, source: Source, tree: MakeSession, prefix: MakeSession
) -> str | None:
    """Say why the model cannot share its decoder's cache by slots, None if it can.

    Sets what may be padded. Raises if recomputed prefixes are wrong too.
    """
    probe = _Probe(checkpoint, _sources(checkpoint, source))
    if checkpoint.reads_text and checkpoint.can_pad:
        checkpoint.can_pad = probe.pads_rightly()
    for checkpoint.can_mask_one in (True, False):
        worst, failure = probe.error_of(tree)
        if failure is None and worst <= probe.tolerance:
            return None
    for checkpoint.can_pad_prefixes in (True, False):
        error, broken = probe.error_of(prefix)
        if broken is None and error <= probe.tolerance:
            change = f"a tree of masks changes its log-probabilities (by {worst:.2g})"
            return f"since {failure or change}"
    reason = broken or f"its log-probabilities depend on the batch (by {error:.2g})"
    raise ModelError(f"{checkpoint.name} cannot be searched: {reason}")


class _Probe:
    """Two sources, a small tree over each, and the plain answers for all its nodes."""

    def __init__(self, checkpoint: Seq2SeqCheckpoint, sources: list[Any]) -> None:
        self.checkpoint = checkpoint
        self.sources = sources
        # Half precision rounds logits to about 2^-8 of their size; a wrong position is off by more.
        self.tolerance = tolerance(checkpoint)
        self.tokens = [0, *_some(_NUM_SLOTS - 1, 5, checkpoint.vocab_size)]
        self.alone = [checkpoint.encode([source]) for source in sources]

    def pads_rightly(self) -> bool:
        """Compare the encoder's outputs for a padded batch with those for each source alone."""
        together = self.checkpoint.encode(self.sources)
        for row, encoded in enumerate(self.alone):
            ours = together.hidden[row, : encoded.hidden.shape[1]].float()
            scale = encoded.hidden.float().abs().mean().clamp(min=1e-6)
            difference = (ours - encoded.hidden[0].float()).abs().mean() / scale
            if not float(difference) <= max(self.tolerance / 10, 1e-4):
                return False
        return True

    def error_of(self, make: MakeSession) -> tuple[float, str | None]:
        """Return the largest mean difference of log-probabilities, or what failed."""
        room = Room(width=2, capacity=_NUM_SLOTS, depth=4, num_children=1)
        worst = 0.0
        try:
            session = make(self.checkpoint, self.sources, room)
            session.root(self._group([[]]))
            for call in _CALLS:
                logits = session.logits(self._group(call))
                for row in range(len(self.sources)):
                    for place, path in enumerate(call):
                        plain = self._plain(row, path)
                        worst = max(worst, distance(logits[row, place], plain))
            session.close()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a family does with masks it was not written for
            first = str(error).strip().splitlines()
            return float("inf"), first[0] if first else type(error).__name__
        return worst, None

    def _plain(self, row: int, path: list[int]) -> Tensor:
        """Run the whole model over one source, encoder and all."""
        checkpoint, source = self.checkpoint, self.sources[row]
        sequence = [*self.alone[row].prompts[0], *(self.tokens[slot] for slot in path)]
        if isinstance(source, Encoded):
            options = source.options()
        elif isinstance(source, Tensor):
            features = source[None].to(checkpoint.device, checkpoint.dtype)
            options = {checkpoint.source_input: features}
        else:
            tokens = torch.tensor([source], device=checkpoint.device)
            options = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        return checkpoint.logits_after([sequence], **options, use_cache=False)[0]

    def _group(self, paths: list[list[int]]) -> Group:
        device = self.checkpoint.device
        return probe_group(paths, self.tokens, len(self.sources), device)


def _sources(checkpoint: Seq2SeqCheckpoint, source: Source) -> list[Any]:
    """Make two short texts of unequal lengths; of features, the given ones and some changed."""
    if isinstance(source, Tensor):
        return [source, source.flip(-1)]
    if isinstance(source, Encoded) and not checkpoint.reads_text:
        return [source, replace(source, hidden=source.hidden.flip(-1))]
    vocab = checkpoint.vocab_size
    return [_some(6, 11, vocab), _some(3, 23, vocab)]


def _some(count: int, seed: int, vocab: int) -> list[int]:
    return [(seed + 7 * i * i + 3 * i) % vocab for i in range(count)]
