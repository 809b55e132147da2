"""Recomputes every node's prefix: slow, and right for any model that can read a sequence.

The fallback for models whose cache cannot be shared by slots: recurrent and hybrid ones, sliding
windows shorter than the path, positions that a caller cannot set.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from bestk.backends.base import Children, Group, Shaper, moved_prompts, shaped_children
from bestk.backends.transformers.model import Checkpoint, pad_right


class PrefixSession:
    """A batch of searches without a cache."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        prompts: Sequence[Sequence[int]],
        num_children: int,
        shaper: Shaper | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.prompts: list[list[int]] = [list(prompt) for prompt in prompts]
        self.num_children = num_children
        self.shaper = shaper

    @torch.inference_mode()
    def root(self, group: Group) -> Children:
        """Read the prompts."""
        logits = self.read(self.prompts, torch.arange(len(self.prompts), device=group.slot.device))
        return shaped_children(group, logits[:, None], self.num_children, self.shaper)

    def refill(self, group: Group, prompts: Mapping[int, Sequence[int]]) -> Children:
        """Read new prompts for some of the searches; the other rows of the result mean nothing."""
        for row, prompt in prompts.items():
            self.prompts[row] = list(prompt)
        return self.root(group)

    def moved(self, rows: Sequence[int], batch: int, prompt_size: int) -> PrefixSession:
        """Return a session of another size that goes on with these searches."""
        other = copy.copy(self)
        other.prompts = moved_prompts(self.prompts, rows, batch)
        return other

    @torch.inference_mode()
    def expand(self, group: Group) -> Children:
        """Read the prefixes of all nodes in one padded batch; empty places cost nothing."""
        return shaped_children(group, self.logits(group), self.num_children, self.shaper)

    def logits(self, group: Group) -> Tensor:
        """Return the logits after every node of the group, zeros where there is none."""
        rows, places = group.is_valid.nonzero(as_tuple=True)
        batch, width = group.token.shape
        logits = torch.zeros(batch, width, self.checkpoint.vocab_size, device=group.token.device)
        if len(rows):
            prefixes = group.prefix[rows, places].tolist()
            depths = group.depth[rows, places].tolist()
            sequences = [
                self.prompts[row] + prefix[:depth]
                for row, prefix, depth in zip(rows.tolist(), prefixes, depths, strict=True)
            ]
            logits[rows, places] = self.read(sequences, rows).float()
        return logits

    def read(self, sequences: Sequence[Sequence[int]], rows: Int[Tensor, " nodes"]) -> Tensor:
        """Return the logits after each sequence; `rows` says which search it belongs to."""
        return self.checkpoint.last_logits(
            *pad_right(sequences, self.checkpoint.device), use_cache=False
        )

    def close(self) -> None:
        """Forget the prompts."""
        self.prompts = []
