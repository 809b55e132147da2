"""What docs/sizing.md derives, against what a search really does: cache bytes, calls, tokens.

Runs searches of the embedded model that spend their whole budget, and looks at the cache that was
allocated, the forward passes, and the tokens in them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch

import bestk
from bestk.backends.transformers.decoder_only import TreeSession
from bestk.backends.transformers.kv_cache import TreeLayer
from bestk.sizing import size_of

CASES = [
    {"prompt_tokens": 100, "beam_size": 10, "max_new_tokens": 30, "k": 5},
    {"prompt_tokens": 100, "beam_size": 10, "max_new_tokens": 30, "k": 10},
    {"prompt_tokens": 500, "beam_size": 10, "max_new_tokens": 30, "k": 10},
    {"prompt_tokens": 300, "beam_size": 5, "max_new_tokens": 20, "k": 10},
]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    lm = bestk.load("smollm2", dtype="float32")
    print("| P | b | T | k | cache MB | | model calls | | tokens read | | requests | |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        options = dict(case)
        length = options.pop("prompt_tokens")
        derived = size_of(lm, prompt_tokens=length, **options)
        seen = measure(lm, length, options)
        columns: list[Any] = [length, options["beam_size"], options["max_new_tokens"], options["k"]]
        columns += [f"{derived.cache_bytes / 1e6:.2f}", f"{seen['bytes'] / 1e6:.2f}"]
        columns += [derived.model_calls, seen["calls"], derived.tokens, seen["tokens"]]
        columns += [derived.requests, seen["expanded"]]
        print("| " + " | ".join(map(str, columns)) + " |", flush=True)


def measure(lm: bestk.LanguageModel, length: int, options: dict[str, int]) -> Counter[str]:
    """Search once, with every child opened so that nodes never run out, and count."""
    seen: Counter[str] = Counter()
    prompt = [(7 * place) % 1000 + 100 for place in range(length)]
    bestk.search(lm, prompt, beam_size=1, max_new_tokens=2, k=1)  # tries the model out first
    allocate = TreeLayer.lazy_initialization

    def counted(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
        allocate(layer, keys, values)
        for kept in (layer.keys, layer.values):
            seen["bytes"] += kept.numel() * kept.element_size()

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen["calls"] += 1
        if seen["calls"] == 1:
            seen["tokens"] += kwargs["input_ids"].numel()  # the prompt

    def expand(session: TreeSession, group: Any) -> torch.Tensor:
        seen["tokens"] += int(group.is_valid.sum())  # places that hold no node are no tokens
        return logits(session, group)

    logits = TreeSession.logits
    model = lm.backend.network
    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    TreeLayer.lazy_initialization = counted  # type: ignore[method-assign]
    TreeSession.logits = expand  # type: ignore[method-assign,assignment]
    try:
        result = bestk.search(lm, prompt, min_prob=0.0, max_children=20, stop_ids=(), **options)
    finally:
        TreeLayer.lazy_initialization = allocate  # type: ignore[method-assign]
        TreeSession.logits = logits  # type: ignore[method-assign]
        hook.remove()
    seen["expanded"] = result.cost.expanded
    return seen


if __name__ == "__main__":
    main()
