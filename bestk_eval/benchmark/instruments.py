"""Instruments that a benchmark measures a model with: time, memory, bytes, bandwidth.

Memory is what can be measured honestly. On a GPU it is the peak of what the allocator handed out
beyond the weights. On a CPU nobody keeps such a count, so it is the bytes of the key/value cache:
all slots that a tree's cache holds, against beam search's cache at its longest.
"""

from __future__ import annotations

import gc
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


def stopwatch(work: Callable[[], Any], device: Any) -> tuple[float, Any]:
    """Return the seconds that some work took, on the device too, and what it returned."""
    _synchronise(device)
    started = time.perf_counter()
    result = work()
    _synchronise(device)
    return time.perf_counter() - started, result


@contextmanager
def forward_timer(model: Any) -> Iterator[list[float]]:
    """Collect the seconds of every call of a model's body, its encoder and its output layer.

    A part that is called inside another counts once. Of no use on a GPU, where a call returns
    before its work is done; without a model nothing is collected.
    """
    inside: list[float] = []
    started: list[float] = []
    if model is None:
        yield inside
        return

    def leave(*_: Any) -> None:
        began = started.pop()
        if not started:
            inside.append(time.perf_counter() - began)

    parts = [model.base_model, model.get_output_embeddings()]
    if model.config.is_encoder_decoder:
        parts.append(model.get_encoder())
    handles: list[Any] = []
    for part in parts:
        if part is not None:
            handles += [
                part.register_forward_pre_hook(lambda *_: started.append(time.perf_counter())),
                part.register_forward_hook(leave),
            ]
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Seen:
    """What a watched model was asked to do."""

    calls: int = 0
    cache_bytes: int = 0


@contextmanager
def watched(model: Any) -> Iterator[Seen]:
    """Count a model's calls and the bytes of the largest cache that it was given; None: nothing."""
    seen = Seen()

    def look(_: Any, __: Any, options: dict[str, Any], ___: Any) -> None:
        seen.calls += 1
        held = cache_bytes(options.get("past_key_values"))
        seen.cache_bytes = max(seen.cache_bytes, held)

    handle = model.register_forward_hook(look, with_kwargs=True) if model is not None else None
    try:
        yield seen
    finally:
        if handle is not None:
            handle.remove()


def cache_bytes(cache: Any) -> int:
    """Add up the keys and values that a cache of transformers or of ours holds."""
    parts = [getattr(cache, f"{name}_attention_cache", None) for name in ("self", "cross")]
    if parts != [None, None]:
        return sum(map(cache_bytes, parts))
    tensors = [t for layer in getattr(cache, "layers", ()) for t in (layer.keys, layer.values)]
    return sum(_bytes(tensor) for tensor in tensors if tensor is not None)


def peak(work: Callable[[], Any], device: Any = None) -> int:
    """Return the most bytes that some work on a GPU held beyond what was held before it."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return int(torch.cuda.max_memory_allocated(device) - before)


def weight_bytes(model: Any) -> tuple[int, int]:
    """Count the bytes of weights that every step reads, and those that an encoder reads once.

    A step reads the decoder and the output layer. It looks up a few rows of the input embedding,
    which counts only where it is the output layer too.
    """
    is_pair = bool(model.config.is_encoder_decoder)
    head = model.get_output_embeddings()
    read = {
        id(p): p
        for part in (model.get_decoder() if is_pair else model, head)
        if part is not None
        for p in part.parameters()
    }
    looked_up = {id(p) for p in model.get_input_embeddings().parameters()}
    shared = {id(p) for p in head.parameters()} if head is not None else set()
    step = sum(_bytes(p) for key, p in read.items() if key not in looked_up - shared)
    if not is_pair:
        return step, 0
    encoder = {id(p): p for p in model.get_encoder().parameters()}
    return step, sum(_bytes(p) for key, p in encoder.items() if key not in looked_up)


def copy_bandwidth(device: Any, repeats: int = 5) -> float:
    """Measure how many bytes a second a large copy reads and writes on a device."""
    import torch

    size = 1 << 28
    if device.type == "cuda":
        size = min(1 << 30, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times = [stopwatch(lambda: target.copy_(source), device)[0] for _ in range(repeats)]
    return 2 * size / statistics.median(times)


@contextmanager
def quiet() -> Iterator[None]:
    """Let the first run alone say what there is to say, such as that no text was complete."""
    logger = logging.getLogger("bestk")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _synchronise(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
