"""Recomputes every node's prefix: slow, and right for any model that can read a sequence.

The fallback for models whose cache cannot be shared by slots: recurrent and hybrid ones, positions
that a caller cannot set or that depend on how long a text gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from bestk.backends.base import PromptSession
from bestk.backends.transformers.images import ImagePrompt
from bestk.backends.transformers.model import ModelInfo, pad_right
from bestk.nodes import NodeBatch


class RecomputeSession(PromptSession):
    """A batch of searches without a cache."""

    def __init__(self, model: ModelInfo, prompts: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.prompts = [list(prompt) for prompt in prompts]

    @torch.inference_mode()
    def prefill(self, nodes: NodeBatch, prompts: Mapping[int, Any], *, whole: bool) -> Tensor:
        """Read the prompts."""
        for row, prompt in prompts.items():
            is_image = isinstance(prompt, ImagePrompt)
            self.prompts[row] = self.model.encoded(prompt) if is_image else list(prompt)
        rows = torch.tensor(list(prompts), device=nodes.slot.device)
        last = self.read([self.prompts[row] for row in prompts], rows)
        logits = last.new_zeros(len(self.prompts), 1, last.shape[-1])
        return logits.index_copy_(0, rows, last[:, None])

    @torch.inference_mode()
    def evaluate(self, nodes: NodeBatch, *, whole: bool = True) -> Tensor:
        """Read the prefixes of all nodes in one padded batch; empty places cost nothing."""
        rows, places = nodes.is_valid.nonzero(as_tuple=True)
        batch, width = nodes.token.shape
        logits = torch.zeros(batch, width, self.model.vocab_size, device=nodes.token.device)
        if len(rows):
            prefixes = nodes.prefix[rows, places].tolist()
            depths = nodes.depth[rows, places].tolist()
            sequences = [
                self.prompts[row] + prefix[:depth]
                for row, prefix, depth in zip(rows.tolist(), prefixes, depths, strict=True)
            ]
            logits[rows, places] = self.read(sequences, rows)
        return logits

    def read(self, sequences: Sequence[Sequence[int]], rows: Int[Tensor, " nodes"]) -> Tensor:
        """Return the logits after each sequence; `rows` says which search it belongs to."""
        model = self.model
        logits = torch.zeros(len(sequences), model.vocab_size, device=model.device)
        for some in model.groups(sequences):
            logits[some] = self.read_padded([sequences[i] for i in some], rows[some]).float()
        return logits

    def read_padded(
        self, sequences: Sequence[Sequence[int]], rows: Int[Tensor, " nodes"]
    ) -> Tensor:
        """Return the logits after sequences that may be read together."""
        if isinstance(sequences[0], ImagePrompt):
            return self.model.read(sequences[0], use_cache=False)[0]
        return self.model.last_logits(*pad_right(sequences, self.model.device), use_cache=False)
