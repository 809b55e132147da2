"""Models that vLLM runs: the user's own engine, or one made with the options that search needs.

Knows vLLM's options; how an engine is asked is in `backends/vllm/`. Imports vLLM when it is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import os
from collections.abc import Iterator
from typing import Any

from bestk.errors import MissingExtraError, ModelError, OptionError, first_line, unknown
from bestk.lm.language_model import LanguageModel

logger = logging.getLogger("bestk")

_CONNECTOR_MODULE = "bestk.backends.vllm.partial_blocks"


def from_vllm(
    llm: Any,
    *,
    name: str | None = None,
    tokenizer: Any = None,
    lora_request: Any = None,
    chat_template: str | None = None,
) -> LanguageModel:
    """Wrap a `vllm.LLM` or an `AsyncLLM` that already runs; nothing in it is changed.

    Every node of a search is a request to it, and requests of all searches under way share its
    steps. `lora_request` is the adapter of all of them. `chat_template` and `tokenizer` stand in
    for the engine's own. An engine made with `**bestk.vllm_options()` is several times as fast.
    """
    _check_installed()
    from bestk.backends.vllm.backend import VllmBackend

    config = getattr(getattr(llm, "llm_engine", llm), "vllm_config", None)
    if config is None:
        raise ModelError(f"from_vllm takes a vllm.LLM or AsyncLLM, got {type(llm).__name__}")
    backend = VllmBackend(llm, config, name=name, lora_request=lora_request)
    _advise(config, backend.keeps_partial_blocks)
    template = chat_template or getattr(llm, "chat_template", None)
    if tokenizer is None and not config.model_config.skip_tokenizer_init:
        tokenizer = llm.get_tokenizer()
    return LanguageModel(backend, tokenizer, chat_template=template)


def load_vllm(
    name: str,
    *,
    tokenizer: Any = None,
    lora_request: Any = None,
    chat_template: str | None = None,
    **engine_options: Any,
) -> LanguageModel:
    """Start vLLM on a model, named as in `load` after "vllm:", and wrap it.

    `engine_options` are vLLM's own, such as `tensor_parallel_size`; they go before those of
    `vllm_options`. On a CPU the default dtype is float32, as in `load`.
    """
    _check_installed()
    from bestk.lm.loading import source_of

    model = source_of(name.partition(":")[2])
    options = vllm_options(**engine_options)
    _check_options(options)
    if isinstance(tokenizer, str):
        options["tokenizer"], tokenizer = tokenizer, None
    import vllm

    try:
        with _in_this_process():
            llm = vllm.LLM(model, **options)
    except Exception as error:  # of vLLM, of what reads the weights, of the device
        raise ModelError(f"vLLM cannot run {name[5:]}: {first_line(error)}") from error
    return from_vllm(
        llm, name=name, tokenizer=tokenizer, lora_request=lora_request, chat_template=chat_template
    )


def vllm_options(**options: Any) -> dict[str, Any]:
    """Return options for `vllm.LLM` or `AsyncEngineArgs` that suit a search; those given go before.

    Every token's probability can be asked for, the prefix cache is on, and a connector lets
    requests go on from where others ended: a node then costs one token, not the rest of its block.
    """
    _check_installed()
    chosen: dict[str, Any] = {"enable_prefix_caching": True, "max_logprobs": -1}
    if _knows_tails():
        from vllm.config import KVTransferConfig

        from bestk.backends.vllm.backend import CONNECTOR

        chosen["kv_transfer_config"] = KVTransferConfig(
            kv_connector=CONNECTOR, kv_connector_module_path=_CONNECTOR_MODULE, kv_role="kv_both"
        )
    if _on_cpu():
        # A CPU's blocks hold 128 tokens unless told, 32 at least: what is smaller is shared more.
        chosen |= {"block_size": 32, "dtype": "float32"}
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            chosen["kv_cache_memory_bytes"] = 4 * 2**30  # else nearly all of the machine's memory
    return chosen | options


def _advise(config: Any, has_tails: bool) -> None:
    """Say how an engine would be faster."""
    if not has_tails and _knows_tails():
        logger.warning(
            "this engine shares whole blocks of %d tokens only, and computes the rest of every "
            "prefix anew: made with **bestk.vllm_options() it would be several times as fast",
            config.cache_config.block_size,
        )


def _check_options(options: dict[str, Any]) -> None:
    from vllm import LLM, EngineArgs

    known = {*inspect.signature(LLM).parameters, *inspect.signature(EngineArgs).parameters}
    for option in options:
        if option not in known - {"self", "kwargs", "model"}:
            raise OptionError(f"vLLM takes other options: {unknown('option', option, known)}")


@contextlib.contextmanager
def _in_this_process() -> Iterator[None]:
    """Let the engine's core live here, unless the user says otherwise.

    It starts sooner, and a step begins when all of a search's requests are there, not at the first.
    There is room for one connector in a process, so further engines get processes of their own.
    """
    from vllm.distributed.kv_transfer import has_kv_transfer_group

    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if has_kv_transfer_group():
        wanted = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would take our connector along
        }
    ours = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def _check_installed() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError("vLLM is not installed: pip install 'bestk[vllm]'")


def _knows_tails() -> bool:
    """Return whether this is a version that the connector was written for."""
    import vllm

    from bestk.backends.vllm.client import KNOWN_VERSION

    return bool(vllm.__version__.startswith(KNOWN_VERSION))


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
