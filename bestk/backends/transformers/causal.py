"""Decoder-only models with tree attention: one cached forward of k queries expands k nodes.

Falls back to recomputing prefixes for a model that cannot share its cache by slots, or a batch that
does not fit its sliding window; what decides is in `probe`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from bestk.backends.base import Children, Group, Room, Session, Shaper, shaped_children
from bestk.backends.transformers.cache import Layout, tree_cache
from bestk.backends.transformers.model import Checkpoint
from bestk.backends.transformers.prefix import PrefixSession
from bestk.backends.transformers.probe import sharing_obstacle, window

logger = logging.getLogger("bestk")


class CausalBackend:
    """Any `AutoModelForCausalLM`, on whatever device and in whatever dtype it was loaded."""

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.checkpoint = Checkpoint(model, name)
        self.name = self.checkpoint.name
        self.vocab_size = self.checkpoint.vocab_size
        self.eos_ids = self.checkpoint.eos_ids
        self.max_length = self.checkpoint.max_length
        self._obstacle: str | None = None
        self._is_probed = False
        self._noticed: set[str] = set()

    @property
    def device(self) -> torch.device:
        return self.checkpoint.device

    def start(
        self, prompts: Sequence[Sequence[int]], room: Room, shaper: Shaper | None = None
    ) -> Session:
        """Open a session with tree attention, or one that recomputes prefixes if it must."""
        obstacle = self.obstacle(max(map(len, prompts)) + room.depth)
        if obstacle is None:
            return TreeSession(self.checkpoint, prompts, room, shaper)
        if obstacle not in self._noticed:
            self._noticed.add(obstacle)
            logger.warning("%s: recomputing prefixes, %s", self.name, obstacle)
        return PrefixSession(self.checkpoint, prompts, room.num_children, shaper)

    def obstacle(self, length: int) -> str | None:
        """Say why paths of this length cannot share a cache, None if they can."""
        if not self._is_probed:
            self._obstacle = sharing_obstacle(self.checkpoint, TreeSession)
            self._is_probed = True
        reach = window(self.checkpoint)
        if self._obstacle is None and reach is not None and length > reach:
            return f"since its attention window of {reach} is shorter than {length} tokens"
        return self._obstacle


class TreeSession:
    """A batch of search trees over one cache each."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        prompts: Sequence[Sequence[int]],
        room: Room,
        shaper: Shaper | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.shaper = shaper
        self.num_children = room.num_children
        self.width = room.width
        self.prompts: list[Sequence[int]] = list(prompts)
        lengths = [len(prompt) for prompt in prompts]
        self.layout = Layout(
            prompt_length=torch.tensor(lengths, device=checkpoint.device),
            prompt_size=max(lengths),
            capacity=room.capacity,
            used=max(lengths),
        )
        self.cache: Any = tree_cache(self.layout)

    @torch.inference_mode()
    def root(self, group: Group) -> Children:
        """Read the prompts into the cache; the last token of each gives the root's children."""
        logits = self.checkpoint.last_logits(
            self.prompts, past_key_values=self.cache, use_cache=True
        )
        return shaped_children(group, logits[:, None], self.num_children, self.shaper)

    @torch.inference_mode()
    def expand(self, group: Group) -> Children:
        """Run the group's tokens through the model, each seeing the prompt and its ancestors."""
        return shaped_children(group, self.logits(group), self.num_children, self.shaper)

    def logits(self, group: Group) -> Tensor:
        """Return the logits after every node of the group, and keep its keys and values."""
        layout = self.layout
        layout.used = min(layout.used + group.token.shape[1], layout.size - 1)
        layout.write = layout.place(group.slot)
        output = self.checkpoint.model(
            input_ids=group.token.clamp(min=0),
            attention_mask=self._mask(layout.mask(group)),
            position_ids=layout.positions(group),
            past_key_values=self.cache,
            use_cache=True,
        )
        logits: Tensor = output.logits.to(self.checkpoint.device)
        return logits

    def close(self) -> None:
        self.cache = None

    def _mask(self, visible: Bool[Tensor, "batch 1 group used"]) -> Tensor:
        if self.checkpoint.config._attn_implementation == "sdpa":
            return visible
        dtype = self.checkpoint.dtype
        closed = torch.finfo(dtype).min
        return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, closed)
