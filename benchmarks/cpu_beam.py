"""Best-k search against transformers' beam search on a CPU, in one process.

    python benchmarks/cpu_beam.py [--json]

SmolLM2 in float32, prompts of about 100 and 500 tokens, b = 10, T = 30. Beam search runs its full
length; best-k search spends its full budget of b·T expansions. Runs are interleaved so that a busy
moment hits every method; the median counts. Ratios below 1 mean best-k search is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import bestk
from bestk_eval.benchmark import TEXT
from bestk_eval.benchmark.instruments import forward_timer

BEAM_SIZE, MAX_NEW_TOKENS = 10, 30


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each method")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[100, 500])
    arguments = parser.parse_args()
    lm = bestk.load("smollm2", dtype="float32", device="cpu")
    rows = [compare(lm, length, arguments.repeats) for length in arguments.prompt_tokens]
    report = {"torch_threads": torch.get_num_threads(), "load": os.getloadavg()[0], "rows": rows}
    print(json.dumps(report, indent=2) if arguments.json else table(report))


def compare(lm: bestk.LanguageModel, num_tokens: int, repeats: int) -> dict[str, Any]:
    """Time beam search and best-k search with k = 10 and 5 on one prompt."""
    prompt = lm.encode(TEXT.replace("\n", " ").strip())[-num_tokens:]
    model = lm.backend.network
    found: dict[str, bestk.SearchResult] = {}

    def best_k(k: int) -> None:
        found[f"k{k}"] = bestk.search(
            lm, prompt, k=k, beam_size=BEAM_SIZE, max_new_tokens=MAX_NEW_TOKENS
        )

    methods: dict[str, Callable[[], None]] = {
        "beam": lambda: beam_search(model, prompt),
        "k10": lambda: best_k(10),
        "k5": lambda: best_k(5),
    }
    for method in methods.values():
        method()
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    outside: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            with forward_timer(model) as inside:
                started = time.perf_counter()
                method()
                spent = time.perf_counter() - started
            seconds[name].append(spent)
            outside[name].append(1 - sum(inside) / spent)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "prompt_tokens": len(prompt),
        "seconds": median,
        "ratio": {name: median[name] / median["beam"] for name in ("k10", "k5")},
        "outside_forward": {name: statistics.median(outside[name]) for name in ("k10", "k5")},
        "expanded": {name: result.cost.expanded for name, result in found.items()},
        "texts": {name: len(result.hypotheses) for name, result in found.items()},
    }


def beam_search(model: Any, prompt: list[int]) -> None:
    """Run transformers' beam search for the full length."""
    ids = torch.tensor([prompt])
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=BEAM_SIZE,
        num_return_sequences=BEAM_SIZE,
        max_new_tokens=MAX_NEW_TOKENS,
        min_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
    )


def table(report: dict[str, Any]) -> str:
    """Lay the numbers out for a terminal."""
    lines = [
        f"SmolLM2-135M float32, b={BEAM_SIZE}, T={MAX_NEW_TOKENS}, "
        f"{report['torch_threads']} threads, load {report['load']:.1f}",
        "prompt   beam s   k=10 s   k=5 s   k=10 ratio   k=5 ratio   outside forward   expanded",
    ]
    for row in report["rows"]:
        seconds, ratio, outside = row["seconds"], row["ratio"], row["outside_forward"]
        lines.append(
            f"{row['prompt_tokens']:6d} {seconds['beam']:8.2f} {seconds['k10']:8.2f} "
            f"{seconds['k5']:7.2f} {ratio['k10']:12.2f} {ratio['k5']:11.2f} "
            f"{outside['k10']:10.1%}, {outside['k5']:.1%} "
            f"{row['expanded']['k10']:7d}, {row['expanded']['k5']}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
