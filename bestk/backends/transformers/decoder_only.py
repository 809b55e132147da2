"""Decoder-only models with tree attention: one cached forward of k queries expands k nodes.

Falls back to recomputing prefixes for a model that cannot share its cache by slots, or a batch that
does not fit its sliding window; what decides is in `probe`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bestk.backends.base import Children, Group, Room, Session, Shaper
from bestk.backends.transformers import attention
from bestk.backends.transformers.children import picked_children
from bestk.backends.transformers.kv_cache import Layout, moved_cache, tree_cache
from bestk.backends.transformers.model import Checkpoint, pad_right
from bestk.backends.transformers.probe import sharing_obstacle, window
from bestk.backends.transformers.recompute import PrefixSession
from bestk.kernels import may_run

logger = logging.getLogger("bestk")


class CausalBackend:
    """Any `AutoModelForCausalLM`, on whatever device and in whatever dtype it was loaded."""

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.checkpoint = Checkpoint(model, name)
        self.name = self.checkpoint.name
        self.vocab_size = self.checkpoint.vocab_size
        self.eos_ids = self.checkpoint.eos_ids
        self.max_length = self.checkpoint.max_length
        self._noticed: set[str] = set()

    @property
    def device(self) -> torch.device:
        return self.checkpoint.device

    def start(
        self, prompts: Sequence[Sequence[int]], room: Room, shaper: Shaper | None = None
    ) -> Session:
        """Open a session with tree attention, or one that recomputes prefixes if it must."""
        self.checkpoint.evaluate()
        obstacle = self.obstacle(max(map(len, prompts)) + room.depth)
        if obstacle is None:
            return TreeSession(
                self.checkpoint, prompts, room, shaper, with_kernel=self._with_kernel
            )
        if obstacle not in self._noticed:
            self._noticed.add(obstacle)
            logger.warning("%s: recomputing prefixes, %s", self.name, obstacle)
        return PrefixSession(self.checkpoint, prompts, room.num_children, shaper)

    def lane_bytes(self, prompt_size: int, room: Room) -> int:
        """Estimate the memory that one search takes, its share of the activations included."""
        return self.checkpoint.search_bytes(prompt_size, room)

    def free_bytes(self) -> int | None:
        """Say how much memory is free on the model's device, None where nobody knows."""
        return self.checkpoint.free_bytes()

    def obstacle(self, length: int) -> str | None:
        """Say why paths of this length cannot share a cache, None if they can."""
        reach = window(self.checkpoint)
        if self._obstacle is None and reach is not None and length > reach:
            return f"since its attention window of {reach} is shorter than {length} tokens"
        return self._obstacle

    @functools.cached_property
    def _with_kernel(self) -> bool:
        """Say whether the GPU's tree kernel gives this model's own numbers."""
        if not may_run("attention", self.device) or len(self.checkpoint.devices) > 1:
            return False
        session = functools.partial(TreeSession, with_kernel=True)
        obstacle = sharing_obstacle(self.checkpoint, session)
        if obstacle is not None and self.checkpoint.fusion.has_layers:
            logger.debug("%s: whole layers are not fused, %s", self.name, obstacle)
            self.checkpoint.fusion.leave_layers()
            obstacle = sharing_obstacle(self.checkpoint, session)
        return obstacle is None

    @functools.cached_property
    def _obstacle(self) -> str | None:
        return None if self._with_kernel else sharing_obstacle(self.checkpoint, TreeSession)


class TreeSession:
    """A batch of search trees over one cache each."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        prompts: Sequence[Sequence[int]],
        room: Room,
        shaper: Shaper | None = None,
        *,
        with_kernel: bool = False,
    ) -> None:
        self.checkpoint = checkpoint
        self.shaper = shaper
        self.with_kernel = with_kernel
        self.num_children = room.num_children
        self.prompts = dict(enumerate(prompts))
        lengths = [len(prompt) for prompt in prompts]
        size = max(*lengths, room.prompt_size)
        self.layout = Layout(
            prompt_length=torch.tensor(lengths, device=checkpoint.device),
            prompt_size=size,
            capacity=room.capacity,
            with_kernel=with_kernel,
            used=size,
        )
        self.cache: Any = tree_cache(self.layout)

    @property
    def is_static(self) -> bool:
        """Say whether `expand` runs the same kernels at every step, as a CUDA graph needs."""
        return self.with_kernel and self.shaper is None

    def root(self, group: Group) -> Children:
        """Read the prompts into the cache; the last token of each gives the root's children."""
        return self.refill(group, self.prompts)

    def refill(self, group: Group, prompts: Mapping[int, Sequence[int]]) -> Children:
        """Read new prompts for some of the searches; the other rows of the result mean nothing."""
        device = self.checkpoint.device
        tokens, lengths = pad_right(list(prompts.values()), device)
        rows = torch.tensor(list(prompts), device=device)
        return self.read(group, tokens, lengths, rows)

    def moved(self, rows: Sequence[int], batch: int, prompt_size: int) -> TreeSession:
        """Return a session of another size that goes on with these searches, nothing reread."""
        other = copy.copy(self)
        other.prompts = {}
        other.layout = self.layout.moved(rows, batch, prompt_size)
        other.cache = moved_cache(self.cache, rows, other.layout)
        return other

    @torch.inference_mode()
    def read(self, group: Group, tokens: Tensor, lengths: Tensor, rows: Tensor) -> Children:
        """Do what `refill` does, from tensors: the part that a CUDA graph can hold."""
        layout = self.layout
        layout.prompt_length.index_copy_(0, rows, lengths)
        layout.write, layout.rows = None, rows
        with self._attention(None):
            last = self.checkpoint.last_logits(
                tokens, lengths, past_key_values=self.cache, use_cache=True
            )
        logits = last.new_zeros(len(layout.prompt_length), 1, last.shape[-1])
        logits.index_copy_(0, rows, last[:, None])
        return self._children(group, logits)

    @torch.inference_mode()
    def expand(self, group: Group) -> Children:
        """Run the group's tokens through the model, each seeing the prompt and its ancestors."""
        return self._children(group, self.logits(group))

    def logits(self, group: Group) -> Float[Tensor, "batch group vocab"]:
        """Return the logits after every node of the group, and keep its keys and values."""
        layout = self.layout
        layout.advance(group)
        mask = self.checkpoint.attention_mask
        products = self.checkpoint.small_products.applied(group.token.numel())
        with products, self._attention(group.path):
            output = self.checkpoint.model(
                input_ids=group.token.clamp(min=0),
                attention_mask=None if self.with_kernel else mask(layout.mask(group)),
                position_ids=layout.positions(group),
                past_key_values=self.cache,
                use_cache=True,
            )
        logits: Tensor = output.logits.to(self.checkpoint.device)
        return logits

    def _children(self, group: Group, logits: Float[Tensor, "batch group vocab"]) -> Children:
        return picked_children(
            group, logits, self.num_children, self.shaper, with_kernel=self.with_kernel
        )

    def close(self) -> None:
        """Let go of the cache."""
        self.cache = None

    @contextlib.contextmanager
    def _attention(self, path: Tensor | None) -> Iterator[None]:
        if not self.with_kernel:
            yield
            return
        fused = self.checkpoint.fusion.applied()
        with attention.tree_attention(self.checkpoint.config, self.layout, path), fused:
            yield
