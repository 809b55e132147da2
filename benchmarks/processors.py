"""How much of a search's time is spent outside the model's forward, with and without processors.

    python benchmarks/processors.py --k 5 --max-new-tokens 30

Prints one row per set of processors: seconds in all, seconds inside the model's forward calls, and
the share that is neither. All rows are measured in one process, in turns, so that they compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

import bestk

PROMPT = (
    "The city council met on Tuesday to discuss the new library. Residents had asked for longer "
    "opening hours, a reading room for children and better access for wheelchairs. The mayor said "
    "that the money was there, but that the building would need a new roof first. "
) * 2

SETS: dict[str, dict[str, Any]] = {
    "none": {},
    "three": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words": ["library"]},
    "three, truncating": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "top_p": 0.9},
    "sampling's": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
}


def measure(lm: bestk.LanguageModel, options: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds of one search, and those of them inside `forward`."""
    model = lm.backend.network
    spent, began = 0.0, 0.0

    def synchronise() -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    def before(*_: Any) -> None:
        nonlocal began
        synchronise()
        began = time.perf_counter()

    def after(*_: Any) -> None:
        nonlocal spent
        synchronise()
        spent += time.perf_counter() - began

    hooks = [model.register_forward_pre_hook(before), model.register_forward_hook(after)]
    try:
        start = time.perf_counter()
        bestk.search(lm, PROMPT, raw=True, keep_tree=False, **options)
        synchronise()
        return time.perf_counter() - start, spent
    finally:
        for hook in hooks:
            hook.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default=None)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--beam-size", type=int, default=10)
    parser.add_argument("--max-new-tokens", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lm = bestk.load(arguments.model, device=arguments.device)
    common = {
        "k": arguments.k,
        "beam_size": arguments.beam_size,
        "max_new_tokens": arguments.max_new_tokens,
    }
    measure(lm, common)  # the first search also tries the model out
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in SETS}
    for _ in range(arguments.rounds):
        for name, options in SETS.items():
            runs[name].append(measure(lm, {**common, **options}))
    rows = []
    for name, pairs in runs.items():
        total = statistics.median(pair[0] for pair in pairs)
        outside = statistics.median(1 - inside / whole for whole, inside in pairs)
        rows.append({"processors": name, "seconds": total, "outside_forward": outside})
    if arguments.json:
        print(json.dumps({"settings": vars(arguments), "rows": rows}, indent=1))
        return
    print(f"{'processors':20} {'seconds':>8} {'outside forward':>16}")
    for row in rows:
        print(f"{row['processors']:20} {row['seconds']:8.2f} {row['outside_forward']:16.1%}")


if __name__ == "__main__":
    main()
