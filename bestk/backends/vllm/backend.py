"""A vLLM engine as a backend: checks that it can serve a search, and asks it by prefixes.

Every node is a request for one token with the likeliest next tokens listed; vLLM's prefix cache
makes it cheap. Knows vLLM's settings; how requests reach the engine is in `drivers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestk.backends.base import Memory
from bestk.backends.prefix import EngineInfo, PrefixBackend, TopLogprobs
from bestk.backends.vllm.client import driver_of
from bestk.errors import BestKError, ModelError, OptionError, first_line
from bestk.nodes import BatchSpec

CONNECTOR = "TailConnector"


class VllmBackend(PrefixBackend):
    """A language model that vLLM runs, with or without an adapter."""

    def __init__(
        self, engine: Any, config: Any, *, name: str | None = None, lora_request: Any = None
    ) -> None:
        _check(config, lora_request)
        super().__init__(_facts(config, name, lora_request))
        self.engine = engine
        self.driver = driver_of(engine)
        self.lora_request = lora_request
        self.block_size: int = config.cache_config.block_size
        self.num_blocks: int = config.cache_config.num_gpu_blocks or 0
        self.keeps_partial_blocks = keeps_partial_blocks(config)

    def ask(self, prefixes: list[list[int]], num_tokens: int) -> Sequence[TopLogprobs]:
        """Ask for all prefixes at once; vLLM forms its own batches of them."""
        try:
            return self.driver.ask(prefixes, num_tokens, self.lora_request)
        except BestKError:
            raise
        except Exception as error:  # vLLM's own kinds, and those of whatever runs below it
            told = f"{type(error).__name__}: {first_line(error, 'no message')}"
            raise ModelError(
                f"{self.name}: vLLM failed ({told}): its log says why; an engine that has died "
                "must be made anew"
            ) from error

    def close(self) -> None:
        """Stop the engine, and free what it holds. May be called twice."""
        offline = getattr(self.engine, "llm_engine", None)
        (self.engine if offline is None else offline.engine_core).shutdown()

    def memory(self, spec: BatchSpec, prompt_size: int) -> Memory | None:
        """Return the cache's room in tokens, and what a search should find there.

        All of it can be had: vLLM evicts what is old. A search needs its prompt, its step and its
        partial blocks, of which old ones are seldom gone on from: room for one in four loses
        nothing, and even one in six costs 3% more tokens (b = 10, T = 30).
        """
        partial = spec.slots // 4 if self.keeps_partial_blocks else 0
        each = prompt_size + spec.width * spec.depth + partial * self.block_size
        free = self.num_blocks * self.block_size
        return Memory(free=free, per_search=each) if free else None


def keeps_partial_blocks(config: Any) -> bool:
    """Return whether requests go on from where others ended, by `partial_blocks.py`."""
    transfer = config.kv_transfer_config
    return transfer is not None and transfer.kv_connector == CONNECTOR


def _check(config: Any, lora_request: Any) -> None:
    """Refuse an engine whose answers would be wrong, or far too slow."""
    model = config.model_config
    if model.runner_type != "generate":
        raise OptionError(
            f"{model.model} runs as a {model.runner_type} model, and a search needs next-token "
            "probabilities: make the engine with runner='generate'"
        )
    if model.logprobs_mode != "raw_logprobs":
        raise OptionError(
            f"the engine lists {model.logprobs_mode}, and a search needs the model's own "
            "log-probabilities: make it with logprobs_mode='raw_logprobs'"
        )
    if not config.cache_config.enable_prefix_caching:
        raise OptionError(
            "the engine's prefix cache is off, so every node would compute its whole prompt again: "
            "make it with enable_prefix_caching=True"
        )
    if lora_request is not None and config.lora_config is None:
        raise OptionError(
            f"the engine takes no adapters, got lora_request={lora_request.name!r}: make it with "
            "enable_lora=True"
        )


def _facts(config: Any, name: str | None, lora_request: Any) -> EngineInfo:
    model = config.model_config
    vocab_size = int(model.get_vocab_size())
    adapter = "" if lora_request is None else f"+{lora_request.name}"
    return EngineInfo(
        name=(name or f"vllm:{model.served_model_name or model.model}") + adapter,
        vocab_size=vocab_size,
        eos_ids=_eos_ids(model, vocab_size),
        max_length=model.max_model_len,
        max_listed=None if model.max_logprobs == -1 else int(model.max_logprobs),
        way_out="make the engine with max_logprobs=-1",
    )


def _eos_ids(model: Any, vocab_size: int) -> tuple[int, ...]:
    """Name the ids that end a text, by the generation config or else the model's own."""
    generation = model.try_get_generation_config()
    for ids in (generation.get("eos_token_id"), getattr(model.hf_config, "eos_token_id", None)):
        if ids is not None:
            listed = ids if isinstance(ids, Sequence) else [ids]
            return tuple(int(token) for token in listed if 0 <= int(token) < vocab_size)
    return ()
