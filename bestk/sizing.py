"""How much memory, how many tokens and how many requests a search takes, before it is run.

    >>> size_of("smollm2", prompt_tokens=300).slots                           # doctest: +SKIP
    600

Arithmetic on the settings and the shape of a model; of a model that is named its config alone is
read, not its weights. docs/sizing.md derives the numbers and checks them against measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bestk.backends.base import Memory
from bestk.backends.transformers.decoder_only import DecoderOnlyBackend
from bestk.backends.transformers.encoder_decoder import EncoderDecoderBackend
from bestk.config import FLOATS, SearchConfig
from bestk.core.methods import may_look_ahead
from bestk.core.policy import spec_of
from bestk.engine.memory import rows_in
from bestk.engine.prefetch import usual_rows, with_room
from bestk.errors import ModelError, OptionError
from bestk.lm.language_model import LanguageModel
from bestk.lm.loading import from_transformers, shape_of
from bestk.nodes import BatchSpec

# Tokens per block of vLLM's prefix cache: what is shared are whole blocks.
BLOCK = 16


@dataclass(frozen=True, kw_only=True)
class Size:
    """What one search takes at most; a search that runs out of nodes takes less.

    P prompt tokens, b beam size, T longest text, k nodes in a model call, and a budget of C = b·T
    expansions unless it is given.
    """

    model: str
    parameters: int
    weight_bytes: int
    token_bytes: int  # keys and values of one token, all layers
    slots: int  # P + C: the prompt once, and one for every expanded node
    cache_bytes: int
    search_bytes: int  # with logits, tree, reading, and nodes evaluated ahead: what a lane takes
    beam_cache_bytes: int  # b · (P + T): what beam search would keep
    model_calls: int  # 1 + (C − 1) / k
    tokens: int  # read by the model: P + C − 1
    flops: int  # 2 for each parameter and token; attention comes on top
    requests: int  # to a server: the prompt, and every expanded node
    sent_tokens: int  # in those requests, at most
    computed_tokens: int  # of them not in the server's prefix cache, on average

    def rows_in_memory(self, memory_bytes: int) -> int:
        """Count the searches that `batch_size="auto"` runs side by side; 0: not even one fits."""
        free = memory_bytes - self.weight_bytes
        memory = Memory(free=free, per_search=self.search_bytes)
        return rows_in(memory) if free >= self.search_bytes else 0

    def times(self, prompts: int) -> dict[str, int]:
        """Add up what a job of so many prompts takes; calls serve all searches of a batch."""
        names = ("tokens", "flops", "requests", "sent_tokens", "computed_tokens")
        return {name: getattr(self, name) * prompts for name in names}


def size_of(
    model: LanguageModel | str,
    config: SearchConfig | None = None,
    *,
    prompt_tokens: int,
    dtype: str = "bfloat16",
    **options: Any,
) -> Size:
    """Size up a search; `options` are the fields of `SearchConfig`, `dtype` is for a name."""
    if prompt_tokens < 1:
        raise OptionError(f"prompt_tokens must be at least 1, got {prompt_tokens}")
    settings = SearchConfig.of(options, config)
    lm = from_transformers(shape_of(model, dtype), name=model) if isinstance(model, str) else model
    backend = lm.backend
    if not isinstance(backend, DecoderOnlyBackend | EncoderDecoderBackend):
        raise ModelError(f"model {lm.name} has no weights here to size up: name the one it serves")
    weights = list(backend.model.module.parameters())
    parameters = sum(weight.numel() for weight in weights)
    budget, longest = settings.total_budget, settings.max_new_tokens
    slots = prompt_tokens + budget
    token_bytes = backend.model.token_bytes
    tokens = prompt_tokens + budget - 1
    return Size(
        model=lm.name,
        parameters=parameters,
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
        token_bytes=token_bytes,
        slots=slots,
        cache_bytes=slots * token_bytes,
        search_bytes=backend.model.bytes_of(
            _with_ahead(lm, settings, weights[0].device.type), prompt_tokens
        ),
        beam_cache_bytes=settings.beam_size * (prompt_tokens + longest) * token_bytes,
        model_calls=1 + -(-(budget - 1) // min(settings.k, settings.max_frontier)),
        tokens=tokens,
        flops=2 * parameters * tokens,
        requests=budget,
        sent_tokens=budget * (prompt_tokens + longest - 1),
        # A request finds the whole blocks of its prefix, and computes what is left: 1 to BLOCK.
        computed_tokens=prompt_tokens + (budget - 1) * (BLOCK + 1) // 2,
    )


def _with_ahead(lm: LanguageModel, config: SearchConfig, device: str) -> BatchSpec:
    """Return what a search takes, with the nodes that are evaluated ahead of time."""
    backend, spec = lm.backend, spec_of(config, lm.backend.vocab_size)
    rows = lm.prefetch
    if rows is None:
        # Shapes without weights are for a card.
        rows = usual_rows(spec, backend.capabilities, 1, is_captured=device != "cpu")
    return with_room(spec, rows if may_look_ahead(config) else 0)


def check_dtype(dtype: str) -> None:
    """Refuse what is no number format."""
    if dtype not in FLOATS:
        raise OptionError(f"dtype must be one of {', '.join(FLOATS)}, got {dtype!r}")


def describe(size: Size, prompts: int, memory_bytes: int | None = None) -> Mapping[str, str]:
    """Return it for people: a line for each number."""
    lines = {
        "weights": f"{_bytes(size.weight_bytes)}, {size.parameters:,} parameters",
        "cache per token": _bytes(size.token_bytes),
        "cache per search": f"{_bytes(size.cache_bytes)} in {size.slots:,} slots "
        f"(beam search: {_bytes(size.beam_cache_bytes)})",
        "memory per search": f"{_bytes(size.search_bytes)} with logits, tree, activations "
        "and nodes evaluated ahead of time",
    }
    if memory_bytes is not None:
        rows = size.rows_in_memory(memory_bytes)
        lines["side by side"] = f"{rows} searches in {_bytes(memory_bytes)}"
    total = size.times(prompts)
    lines |= {
        "model calls": f"{size.model_calls:,} per search",
        "tokens": f"{size.tokens:,} read per search, {size.flops / 1e12:.3g} TFLOP",
        "requests": f"{size.requests:,} per search to a server; it computes "
        f"{size.computed_tokens:,} of {size.sent_tokens:,} tokens",
    }
    if prompts > 1:
        lines[f"{prompts:,} prompts"] = (
            f"{total['tokens']:.3g} tokens, {total['flops']:.3g} FLOP; "
            f"{total['requests']:.3g} requests to servers"
        )
    return lines


def _bytes(count: float) -> str:
    """Write a number of bytes.

    >>> _bytes(46_080), _bytes(1_234_567_890)
    ('46.1 kB', '1.23 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
