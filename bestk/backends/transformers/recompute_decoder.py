"""Encoder-decoders whose decoders cannot share a cache: every node's prefix is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from bestk.backends.transformers.recompute import RecomputeSession
from bestk.backends.transformers.sources import Encoded, EncoderDecoderInfo, Source
from bestk.backends.transformers.suppressed import SuppressedTokens
from bestk.nodes import NodeBatch


class RecomputeDecoderSession(RecomputeSession):
    """A batch of searches without a decoder cache; the sources are still encoded only once."""

    def __init__(self, model: EncoderDecoderInfo, sources: Sequence[Source]) -> None:
        super().__init__(model, [[] for _ in sources])
        self.model: EncoderDecoderInfo = model
        self.parts: dict[int, Encoded] = {}
        self.suppressed = SuppressedTokens(model)

    @torch.inference_mode()
    def prefill(self, nodes: NodeBatch, prompts: Mapping[int, Source], *, whole: bool) -> Tensor:
        """Encode sources; the last token of each decoder prompt gives the root's logits."""
        encoded = self.model.encode(list(prompts.values()))
        for row, part in zip(prompts, encoded.parts(), strict=True):
            self.parts[row] = part
            self.prompts[row] = part.prompts[0]
        self.encoded = Encoded.joined([self.parts[row] for row in sorted(self.parts)])
        own = {row: self.prompts[row] for row in prompts}
        return self.suppressed.at_start(super().prefill(nodes, own, whole=whole))

    @torch.inference_mode()
    def evaluate(self, nodes: NodeBatch, *, whole: bool = True) -> Tensor:
        """Read the prefixes of all nodes, each over its own source."""
        return self.suppressed.later(self.logits(nodes))

    def logits(self, nodes: NodeBatch) -> Tensor:
        """Return the logits after every node, with no token ruled out."""
        return super().evaluate(nodes)

    def resize(self, rows: Sequence[int], batch: int, prompt_size: int) -> RecomputeDecoderSession:
        """Return a session of another size that goes on with these searches."""
        other = super().resize(rows, batch, prompt_size)
        old = [*rows, *[min(self.parts)] * (batch - len(rows))]
        other.parts = {new: self.parts[row] for new, row in enumerate(old)}
        other.encoded = Encoded.joined(list(other.parts.values()))
        return other

    def read_padded(
        self, sequences: Sequence[Sequence[int]], rows: Int[Tensor, " nodes"]
    ) -> Tensor:
        """Return the logits after decoder sequences, given the sources of their rows."""
        return self.model.read_padded(self.encoded, sequences, rows)
