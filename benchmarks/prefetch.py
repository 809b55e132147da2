"""What evaluation ahead of time saves: passes, and seconds of the processor, on any model.

    python benchmarks/prefetch.py --k 1 5 10 --prefetch 0 16 auto
    python benchmarks/prefetch.py --model smollm2 --chat --scoring mean --budget 300 --tokens 30
    python benchmarks/prefetch.py --model owner/model --device cuda --prefetch 0 32

Words of a small concept set are the prompts (with --chat: a wish for a sentence with them). Runs of
one prompt are interleaved, so that a busy moment hits all; seconds are the process's own on a CPU,
of the clock elsewhere. `differ` counts searches whose tree or texts are not those of the first.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import bestk

WORDS = ("dog ball park", "boat lake fish", "child kite wind", "chef cut onion", "man guitar stage")
WORDS += (
    "horse jump fence",
    "girl read book tree",
    "bus stop rain",
    "cat sleep sofa",
    "team win cup",
)


def main() -> None:
    """Measure and print, a line for every k and number of rows."""
    arguments = parse()
    lm = bestk.load(arguments.model, device=arguments.device, dtype=arguments.dtype)
    wish = "Write a sentence with these words: "
    prompts = [wish + words if arguments.chat else words for words in WORDS]
    prompts = prompts[: arguments.prompts]
    bestk.search(lm, prompts[0], k=5, budget=20, max_new_tokens=5)  # warm-up
    print(f"{'k':>3} {'prefetch':>8} {'steps':>7} {'passes':>7} {'rows':>7} {'s':>7} ratio differ")
    for k in arguments.k:
        for line in compare(lm, prompts, arguments, k):
            print(line, flush=True)


def compare(
    lm: bestk.LanguageModel, prompts: Sequence[Any], arguments: argparse.Namespace, k: int
) -> list[str]:
    """Search every prompt in every way; return a line for each way, means of all prompts."""
    config = bestk.SearchConfig(
        k=k, budget=arguments.budget, max_new_tokens=arguments.tokens, scoring=arguments.scoring
    )
    clock = time.process_time if lm.backend.device.type == "cpu" else time.perf_counter
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 5)
    for start in range(0, len(prompts), arguments.batch):
        some, first = prompts[start : start + arguments.batch], None
        for name in arguments.prefetch:
            begun = clock()
            rows = None if name == "auto" else int(name)
            found = bestk.search(
                lm,
                some,
                config,
                raw=not arguments.chat,
                batch_size=arguments.batch,
                prefetch=rows,
            )
            seconds = clock() - begun
            trees = [facts(result) for result in found]
            first = first or trees
            costs = [(r.cost.steps - 1, r.cost.model_calls - 1, r.cost.evaluated) for r in found]
            differ = sum(one != other for one, other in zip(trees, first, strict=True))
            new = [*map(sum, zip(*costs, strict=True)), seconds, differ]
            sums[name] = [old + one for old, one in zip(sums[name], new, strict=True)]
    base, count = sums[arguments.prefetch[0]][3], len(prompts)
    return [
        f"{k:>3} {name:>8} {steps / count:>7.1f} {passes / count:>7.1f} {rows / count:>7.0f} "
        f"{seconds / count:>7.2f} {seconds / base:>5.2f} {differ:>6.0f}"
        for name, (steps, passes, rows, seconds, differ) in sums.items()
    ]


def facts(result: bestk.SearchResult) -> list[Any]:
    """Return the tree and the texts of a search."""
    tree = result.tree
    assert tree is not None
    columns = [tree.token.tolist(), tree.parent.tolist(), tree.expanded_at.tolist()]
    return [*columns, sorted(result.texts)]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-commongen")
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 5, 10])
    parser.add_argument("--prefetch", nargs="+", default=["0", "16", "auto"])
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--scoring", default="last")
    parser.add_argument("--prompts", type=int, default=len(WORDS))
    parser.add_argument("--batch", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
