"""Decoder-only models with tree attention: one cached forward of k queries expands k nodes.

Falls back to recomputing prefixes where a model cannot share its cache by slots. What decides is in
`probe` and, since prompts of another length may be another matter, in `limits`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bestk.backends.base import Backend, Capabilities, Memory, Session
from bestk.backends.transformers import attention, limits
from bestk.backends.transformers.images import ImagePrompt
from bestk.backends.transformers.kv_cache import CacheLayout, resized, tree_cache
from bestk.backends.transformers.model import ModelInfo, pad_right
from bestk.backends.transformers.probe import sharing_obstacle, trial_obstacle
from bestk.backends.transformers.recompute import RecomputeSession
from bestk.errors import ModelError
from bestk.kernels import may_run
from bestk.nodes import BatchSpec, NodeBatch

logger = logging.getLogger("bestk")

# Slots of a tree from which on a CPU looks at a node's ancestors alone, not at masked places.
_LARGE = 1000


class DecoderOnlyBackend(Backend):
    """Any `AutoModelForCausalLM`, on whatever device and in whatever dtype it was loaded.

    `AutoModelForImageTextToText` too: prompts may hold images, and texts follow on them.
    """

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.model = ModelInfo(model, name)
        self.network = model
        self.name = self.model.name
        self.vocab_size = self.model.vocab_size
        self.eos_ids = self.model.eos_ids
        self.capabilities = Capabilities(
            resize=True, max_length=self.model.max_length, ridge=self.model.ridge
        )
        self._noticed: set[str] = set()
        self._tried: dict[Hashable, str | None] = {}

    @property
    def device(self) -> torch.device:
        return self.model.device

    def kind(self, prompt: Sequence[int], spec: BatchSpec) -> Hashable:
        """Name why a search must recompute prefixes, or the limits that its texts are past."""
        begin, end = len(prompt), len(prompt) + spec.depth
        image = prompt if isinstance(prompt, ImagePrompt) else None
        obstacle = self.obstacle(begin, end, image)
        with_masks = image is not None and self._with_kernel
        return obstacle or (with_masks, self._limits_passed(begin, end))

    def start(
        self, prompts: Sequence[Sequence[int]], spec: BatchSpec, prompt_size: int = 0
    ) -> Session:
        """Open a session with tree attention, or one that recomputes prefixes if it must."""
        self.model.evaluate()
        sizes = [len(prompt) for prompt in prompts]
        begin, end = min(sizes), max(sizes) + spec.depth
        image = next((prompt for prompt in prompts if isinstance(prompt, ImagePrompt)), None)
        obstacle = self.obstacle(begin, end, image)
        if obstacle is None:
            is_plain = image is None and not any(self._limits_passed(begin, end))
            is_large = is_plain and spec.slots >= _LARGE and self.device.type == "cpu"
            return TreeSession(
                self.model,
                prompts,
                spec,
                prompt_size,
                with_kernel=is_plain and self._with_kernel,
                along_paths=is_large and self._along_paths,
            )
        if self._misreading is not None:
            raise ModelError(
                f"{self.name} cannot be searched: what comes after a text, or beside it, "
                f"{self._misreading}; take a causal model (of BERT's kin: is_decoder=True) whose "
                "weights are not quantised together with what they read"
            )
        if obstacle not in self._noticed:
            self._noticed.add(obstacle)
            logger.warning("%s: recomputing prefixes, %s", self.name, obstacle)
        return RecomputeSession(self.model, prompts)

    def memory(self, spec: BatchSpec, prompt_size: int) -> Memory | None:
        """Return the bytes that are free, and those of one search with its activations."""
        return self.model.memory(spec, prompt_size)

    def facts(self) -> dict[str, Any]:
        """Return what the numbers depend on besides the weights."""
        return {**super().facts(), "dtype": self.model.number_format}

    def obstacle(self, begin: int, end: int, image: ImagePrompt | None = None) -> str | None:
        """Name why texts of `begin` to `end` tokens cannot share a cache, None if they can.

        Texts that follow images are another matter: they are tried out on the first that come.
        """
        found = limits.obstacle(self.model.config, begin, end)
        passed = self._limits_passed(begin, end)
        asked = image is not None, passed
        if found is None and asked not in self._tried:
            self._tried[asked] = self._try_out(passed, image)
        return found or self._tried[asked]

    def _limits_passed(self, begin: int, end: int) -> tuple[bool, ...]:
        """Return which of its limits the model is past, sooner or later."""
        config, width = self.model.config, limits.window(self.model.config)
        return (width is not None and end > width, *map(bool, limits.scale(config, begin)))

    def _try_out(self, passed: tuple[bool, ...], image: ImagePrompt | None) -> str | None:
        """Try the model out on a small tree that is past these limits."""
        if any(passed):
            with limits.shrunk(self.model.config, passed):
                return sharing_obstacle(self.model, TreeSession, image)
        if image is None and self._with_kernel:
            return None
        return sharing_obstacle(self.model, TreeSession, image)

    @functools.cached_property
    def _misreading(self) -> str | None:
        """How the model's output at a token depends on later tokens, None if it does not."""
        return trial_obstacle(
            self.model, lambda model, prompts, _: RecomputeSession(model, prompts)
        )

    @functools.cached_property
    def _with_kernel(self) -> bool:
        """Whether the GPU's tree kernel gives this model's own numbers."""
        if not may_run("attention", self.device) or len(self.model.devices) > 1:
            return False
        session = functools.partial(TreeSession, with_kernel=True)
        obstacle = sharing_obstacle(self.model, session)
        if obstacle is not None and self.model.fusion.has_layers:
            logger.debug("%s: whole layers are not fused, %s", self.name, obstacle)
            self.model.fusion.leave_layers()
            obstacle = sharing_obstacle(self.model, session)
        return obstacle is None

    @functools.cached_property
    def _along_paths(self) -> bool:
        """Whether attention along paths gives this model's own numbers."""
        session = functools.partial(TreeSession, along_paths=True)
        return sharing_obstacle(self.model, session) is None


class TreeSession(Session):
    """A batch of search trees over one cache each."""

    def __init__(
        self,
        model: ModelInfo,
        prompts: Sequence[Sequence[int]],
        spec: BatchSpec,
        prompt_size: int = 0,
        *,
        with_kernel: bool = False,
        along_paths: bool = False,
    ) -> None:
        self.model = model
        self.with_kernel, self.along_paths = with_kernel, along_paths
        is_static, kind = with_kernel and model.is_static, model.device.type
        self.capabilities = Capabilities(
            resize=not with_kernel,
            static=is_static,
            static_prefill=is_static,
            ridge=model.ridge if kind == "cpu" or is_static else 0,
        )
        lengths = [len(prompt) for prompt in prompts]
        size = max(*lengths, prompt_size)
        self.layout = CacheLayout(
            prompt_length=torch.tensor(lengths, device=model.device),
            prompt_size=size,
            capacity=spec.slots,
            with_kernel=with_kernel,
            used=size,
        )
        self.shift = torch.zeros_like(self.layout.prompt_length)  # of positions, by images
        self.cache: Any = tree_cache(self.layout)
        width = limits.window(model.config)
        self.window = None if width is None or size + spec.depth <= width else width

    @torch.inference_mode()
    def prefill(
        self, nodes: NodeBatch, prompts: Mapping[int, Sequence[int]], *, whole: bool
    ) -> Tensor:
        """Read prompts into the cache; the last token of each gives the root's logits."""
        device = self.model.device
        shape = len(self.shift), 1, self.model.vocab_size
        logits = torch.zeros(shape, dtype=self.model.dtype, device=device)
        texts = {row: one for row, one in prompts.items() if not isinstance(one, ImagePrompt)}
        if texts:
            tokens, lengths = pad_right(list(texts.values()), device)
            rows = torch.tensor(list(texts), device=device)
            logits = self.prefill_tensors(nodes, tokens, lengths, rows)
        for row in prompts.keys() - texts.keys():
            self.layout.prompt_length[row] = len(prompts[row])
            self.layout.write, self.layout.rows = None, torch.tensor([row], device=device)
            options = {"past_key_values": self.cache, "use_cache": True}
            last, shift = self.model.read(prompts[row], **options)
            self.shift[row], logits[row, 0] = shift[0], last[0]
        return logits

    @torch.inference_mode()
    def prefill_tensors(
        self, nodes: NodeBatch, tokens: Tensor, lengths: Tensor, rows: Tensor
    ) -> Tensor:
        """Do what `prefill` does, from tensors: the part that a CUDA graph can hold."""
        layout = self.layout
        layout.prompt_length.index_copy_(0, rows, lengths)
        self.shift.index_fill_(0, rows, 0)
        layout.write, layout.rows = None, rows
        with self._attention(None):
            last = self.model.last_logits(
                tokens, lengths, past_key_values=self.cache, use_cache=True
            )
        logits = last.new_zeros(len(layout.prompt_length), 1, last.shape[-1])
        return logits.index_copy_(0, rows, last[:, None])

    @torch.inference_mode()
    def evaluate(self, nodes: NodeBatch, *, whole: bool = True) -> Tensor:
        """Run tokens through the model, each seeing the prompt and its ancestors."""
        layout = self.layout
        layout.advance(nodes)
        products = self.model.small_products.applied(nodes.token.numel())
        path = nodes.path[..., : int(nodes.depth.max())] if self.along_paths else nodes.path
        with self.model.untouched(), products, self._attention(path):
            output = self.model.module(
                input_ids=nodes.token.clamp(min=0),
                attention_mask=None if self._follows_paths else self._masks(nodes),
                position_ids=layout.positions(nodes) + self.shift[:, None],
                past_key_values=self.cache,
                use_cache=True,
            )
        logits: Tensor = output.logits.to(self.model.device)
        return logits

    def resize(self, rows: Sequence[int], batch: int, prompt_size: int) -> TreeSession:
        """Return a session of another size that goes on with these searches, nothing reread."""
        other = copy.copy(self)
        other.layout = self.layout.resized(rows, batch, prompt_size)
        other.shift = torch.zeros_like(other.layout.prompt_length)
        other.shift[: len(rows)] = self.shift[list(rows)]
        other.cache = resized(self.cache, rows, tree_cache(other.layout))
        return other

    def close(self) -> None:
        """Let go of the cache."""
        self.cache = None

    def _masks(self, nodes: NodeBatch) -> Tensor | dict[str, Tensor]:
        """Mask what nodes may not see; layers of a model that has several kinds get one each."""
        visible = self.layout.mask(nodes)
        every = self.model.attention_mask(visible)
        if self.window is None:
            return every
        near = visible & (self.layout.distance(nodes)[:, None] < self.window)
        recent = self.model.attention_mask(near)
        if getattr(self.model.config, "layer_types", None) is None:
            return recent
        return {"full_attention": every, "sliding_attention": recent}

    @property
    def _follows_paths(self) -> bool:
        return self.with_kernel or self.along_paths

    @contextlib.contextmanager
    def _attention(self, path: Tensor | None) -> Iterator[None]:
        if not self._follows_paths or (self.along_paths and path is None):
            yield
            return
        fused = self.model.fusion.applied() if self.with_kernel else contextlib.nullcontext()
        with attention.tree_attention(self.model.config, self.layout, path), fused:
            yield
