"""Encoder-decoders whose decoders cannot share a cache: every node's prefix is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from bestk.backends.base import Children, Group, Room, Shaper, shaped_children
from bestk.backends.transformers.recompute import PrefixSession
from bestk.backends.transformers.sources import Encoded, OfSources, Seq2SeqCheckpoint, Source
from bestk.backends.transformers.suppressed import Forbidden


class Seq2SeqPrefixSession(OfSources, PrefixSession):
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
