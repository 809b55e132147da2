"""What the transformers backends share: facts about a model, and plain forward passes.

Prompts are padded on the right everywhere: with causal models what comes later cannot change what
came before, so neither a mask nor a shifted position is needed, for recurrent models either.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bestk.backends.base import Memory
from bestk.backends.transformers import limits
from bestk.backends.transformers.cpu_linear import SmallProducts
from bestk.backends.transformers.decoder_prompt import setting
from bestk.backends.transformers.four_bit import FourBitLinear
from bestk.backends.transformers.images import ImagePrompt, placeholders
from bestk.backends.transformers.replaced import unchanged
from bestk.errors import ModelError
from bestk.nodes import BatchSpec

if TYPE_CHECKING:  # it needs Triton
    from bestk.backends.transformers.fused.pieces import Fusion

# Rows that a device multiplies with weights in hardly more time than it takes to read them; and the
# bytes of weights below which a pass on a GPU is no reading, but the starting of kernels.
_RIDGE = {"cpu": 16, "cuda": 200, "meta": 200}
_HEAVY = 1 << 30


class ModelInfo:
    """A loaded model and the facts that a search needs from it."""

    token_input = "input_ids"  # the argument of `forward` that takes the tokens to continue

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.module = model
        self.config = model.config.get_text_config(decoder=True)
        self.name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        self.accepts = frozenset(inspect.signature(model.forward).parameters)

    @property
    def device(self) -> torch.device:
        """Return where prompts go in and logits come out."""
        for parameter in self.module.parameters():
            if parameter.device.type != "meta":
                return torch.device(parameter.device)
        raise ModelError(f"model {self.name} has no weights in memory: load it without offloading")

    @functools.cached_property
    def devices(self) -> frozenset[torch.device]:
        """Name all devices that the weights are on."""
        return frozenset(parameter.device for parameter in self.module.parameters())

    @functools.cached_property
    def ridge(self) -> int:
        """Count the rows of a pass that hardly cost more than one row does."""
        rows = min(_RIDGE.get(device.type, 0) for device in self.devices)
        is_light = sum(weight.nbytes for weight in self.module.parameters()) < _HEAVY
        return 0 if is_light and rows == _RIDGE["cuda"] else rows

    @functools.cached_property
    def rescaled(self) -> list[nn.Module]:
        """Find the modules whose positions depend on how long a sequence is."""
        return [module for module in self.module.modules() if limits.is_rescaled(module)]

    @functools.cached_property
    def shifted(self) -> list[Any]:
        """Find the modules that remember how far images moved the positions of text after them."""
        return [module for module in self.module.modules() if "rope_deltas" in vars(module)]

    @functools.cached_property
    def placeholders(self) -> frozenset[int]:
        """Name the tokens that stand for images."""
        return placeholders(self.module.config)

    @property
    def is_static(self) -> bool:
        """Whether no pass asks the device how long a text is, or which experts have work."""
        return not self.rescaled and self.config.model_type != "switch_transformers"

    @functools.cached_property
    def volatile(self) -> list[nn.Module]:
        """The modules that a forward pass changes; a trial adds those that it sees change."""
        return [*self.rescaled, *self.shifted]

    @functools.cached_property
    def small_products(self) -> SmallProducts:
        """Find the layers whose products of few rows are better taken the other way round."""
        return SmallProducts(self.module)

    @functools.cached_property
    def fusion(self) -> Fusion:
        """Find what of the model can run as fused kernels."""
        from bestk.backends.transformers.fused.pieces import Fusion

        return Fusion(self.module, self.config)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that the model computes in."""
        return torch.empty(0, dtype=self.module.dtype).dtype

    @functools.cached_property
    def number_format(self) -> str:
        """Name what the weights are held in, as `bestk.load` takes it."""
        is_packed = any(isinstance(module, FourBitLinear) for module in self.module.modules())
        return "4bit" if is_packed else str(self.dtype).removeprefix("torch.")

    @property
    def vocab_size(self) -> int:
        """Count the entries of a row of logits."""
        head = self.module.get_output_embeddings()
        weight = getattr(head, "weight", None)  # a method of layers that hold int8
        return int(weight.shape[0] if isinstance(weight, Tensor) else self.config.vocab_size)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Name the ids that end a text, by the generation config or else the model's own."""
        for source in (getattr(self.module, "generation_config", None), self.module.config):
            ids = getattr(source, "eos_token_id", None)
            if ids is not None:
                listed = ids if isinstance(ids, Sequence) else [ids]
                return tuple(int(i) for i in listed if 0 <= int(i) < self.vocab_size)
        return ()

    @property
    def padding(self) -> int | None:
        """Name the token that fills up batches, None where there is none."""
        token = setting(self.module, "pad_token_id")
        return int(token) if token is not None and 0 <= token < self.vocab_size else None

    @property
    def max_length(self) -> int | None:
        """Positions that the model has, None where it does not say."""
        return limits.longest(self.config)

    @property
    def token_bytes(self) -> int:
        """Count the bytes of one token's keys and values, all layers together."""
        item = torch.empty(0, dtype=self.dtype).element_size()
        layers, heads = self._size("num_hidden_layers"), self._size("num_attention_heads")
        head = self._size("head_dim", self._size("hidden_size") // heads)
        return layers * 2 * self._size("num_key_value_heads", heads) * head * item

    def memory(self, spec: BatchSpec, prompt_size: int) -> Memory | None:
        """Return the bytes that are free, and those of one search with its activations."""
        free = self.free_bytes()
        return (
            None if free is None else Memory(free=free, per_search=self.bytes_of(spec, prompt_size))
        )

    def bytes_of(self, spec: BatchSpec, prompt_size: int) -> int:
        """Estimate the memory of one search: its cache, its logits, the reading of its prompt."""
        item = torch.empty(0, dtype=self.dtype).element_size()
        hidden = self._size("hidden_size")
        inner = self._size("intermediate_size", 4 * hidden)
        cache = self.token_bytes * (prompt_size + spec.slots)
        # Logits in the model's dtype, in float32, and once more while they are sorted.
        logits = spec.width * self.vocab_size * (item + 8)
        reading = prompt_size * (6 * hidden + 3 * inner) * item
        tree = spec.slots * 8 * (spec.depth + 3 * spec.num_children + 8)
        return cache + logits + reading + tree

    def _size(self, name: str, default: int = 1) -> int:
        """Look a size up in the config, the largest where every layer has its own."""
        size = getattr(self.config, name, None) or default
        return int(max(size) if isinstance(size, Sequence) else size)

    def free_bytes(self) -> int | None:
        """Return how much memory is free on the model's device, None where nobody knows."""
        if self.device.type == "cpu":
            return available_memory()
        if self.device.type != "cuda":
            return None
        return int(torch.cuda.mem_get_info(self.device)[0])

    def evaluate(self) -> None:
        """Turn dropout off, which somebody who trains the model may have turned on again."""
        if self.module.training:
            self.module.eval()

    can_pad_prefixes = True  # else only sequences of one length are read together

    def groups(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Put sequences together that may be read in one batch, by their places in the list."""
        alike: dict[Hashable, list[int]] = {}
        for place, sequence in enumerate(sequences):
            size = len(sequence)
            kind: Hashable = limits.scale(self.config, size) if self.can_pad_prefixes else size
            if isinstance(sequence, ImagePrompt):  # read alone
                kind = "image", place
            alike.setdefault(kind, []).append(place)
        return list(alike.values())

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Let a model be tried out, and leave it as it was."""
        with unchanged(self.module.modules()) as changed:
            yield
        self.volatile.extend(module for module in changed if module not in self.volatile)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Let the model run as if it had read nothing before, and leave it as it was."""
        with unchanged(self.volatile):
            for module in self.rescaled:
                limits.forget(module)
            for module in self.shifted:
                module.rope_deltas = None
            yield

    def attention_mask(
        self, visible: Bool[Tensor, "batch 1 queries places"], *, as_numbers: bool = False
    ) -> Tensor:
        """Say what may be seen in the form that the model's attention takes, numbers if asked."""
        if self.config._attn_implementation == "sdpa" and not as_numbers:
            return visible
        closed = torch.finfo(self.dtype).min
        return torch.zeros_like(visible, dtype=self.dtype).masked_fill(~visible, closed)

    def last_logits(
        self, tokens: Int[Tensor, "batch length"], lengths: Int[Tensor, " batch"], **options: Any
    ) -> Float[Tensor, "batch vocab"]:
        """Read whole sequences, padded on the right, and return the logits after each."""
        with self.untouched():
            return self._read(tokens, lengths, options)

    def read(
        self, prompt: Sequence[int], **options: Any
    ) -> tuple[Float[Tensor, "1 vocab"], Int[Tensor, "1"]]:
        """Read a prompt of any kind; return the logits after it, and how far it moves positions.

        Text after an image may stand nearer to it than its tokens are many (M-RoPE).
        """
        tokens, lengths = pad_right([prompt], self.device)
        if isinstance(prompt, ImagePrompt):
            for token in self.placeholders.intersection(prompt.text):
                raise ModelError(
                    f"{self.name} wrote token {token}, which stands for an image, and recomputes "
                    f"prefixes, where it would need one: set bad_words_ids=[[{token}]]"
                )
            options |= prompt.arguments(self.accepts, self.device, self.dtype)
        with self.untouched():
            logits = self._read(tokens, lengths, options)
            moved = [module.rope_deltas for module in self.shifted]
        shift = next((one for one in moved if one is not None), torch.zeros_like(lengths))
        return logits, shift.reshape(1).to(self.device)

    def encoded(self, prompt: ImagePrompt) -> ImagePrompt:
        """Return a prompt whose images need not be encoded again, where the model can take that."""
        if "mm_encoder_outputs" not in self.accepts:
            return prompt
        network: Any = self.module
        encode = network.base_model.get_image_features
        names = frozenset(inspect.signature(encode).parameters)
        features = encode(**prompt.arguments(names, self.device, self.dtype), return_dict=True)
        kept = {name: value for name, value in prompt.inputs.items() if name != "pixel_values"}
        return ImagePrompt(prompt, {**kept, "mm_encoder_outputs": {"image": features}})

    def _read(
        self, tokens: Int[Tensor, "batch length"], lengths: Int[Tensor, " batch"], options: Any
    ) -> Float[Tensor, "batch vocab"]:
        with self._only_last(lengths - 1):
            logits = self.module(**{self.token_input: tokens}, **options).logits
        rows = torch.arange(len(lengths), device=self.device)
        # Without the hook there is a position for every token.
        place = lengths - 1 if logits.shape[1] > 1 else torch.zeros_like(lengths)
        last: Tensor = logits.to(self.device)[rows, place]
        return last

    @contextmanager
    def _only_last(self, last: Int[Tensor, " batch"]) -> Iterator[None]:
        """Let the output layer see one position per row: the others' logits are never read."""
        head = self.module.get_output_embeddings()
        if head is None:
            yield
            return

        def pick(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden = inputs[0]
            if hidden.ndim != 3:  # several streams at once: pick from the logits instead
                return inputs
            rows = torch.arange(hidden.shape[0], device=hidden.device)
            return (hidden[rows, last.to(hidden.device)][:, None], *inputs[1:])

        hook = head.register_forward_pre_hook(pick)
        try:
            yield
        finally:
            hook.remove()


def available_memory(source: Path = Path("/proc/meminfo")) -> int | None:
    """Return how many bytes a program may still take without others being pushed out, on Linux."""
    try:
        lines = source.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None


def pad_right(
    sequences: Sequence[Sequence[int]], device: torch.device, size: int | None = None
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, " batch"]]:
    """Stack sequences, filled with zeros on the right, and return them with their lengths."""
    lengths = [len(sequence) for sequence in sequences]
    width = max(lengths) if size is None else size
    rows = [[*sequence, *[0] * (width - len(sequence))] for sequence in sequences]
    return (
        torch.tensor(rows, dtype=torch.int64, device=device),
        torch.tensor(lengths, dtype=torch.int64, device=device),
    )
