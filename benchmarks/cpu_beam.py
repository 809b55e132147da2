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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import bestk

BEAM_SIZE, MAX_NEW_TOKENS = 10, 30
TEXT = """
The harbour wakes before the town does. Long before the first bus climbs the hill, men in yellow
coats walk along the quay and read the water as other people read a newspaper. They know from the
colour of the swell whether the boats will go out, and from the cry of the gulls whether it was
worth going. A woman unlocks the ice house and lets the cold roll over the stones. Somebody lights
a stove, somebody else swears at an engine, and the smell of coffee and diesel settles over the
nets. By six the boats have gone, and for an hour the harbour belongs to children who should be
asleep. They run from post to post and count the crabs that the fishermen left in a bucket. The
eldest of them, a girl with a torn sleeve, can name every boat by the sound that it makes, and she
has been wrong only once, when the Marigold came home with a borrowed motor. At seven the bell of
the school ends all that. The quay is empty again but for the cats, which have waited politely for
their turn. In the afternoon the market opens under the old iron roof. Prices are shouted, doubted
and shouted again. The cook of the small hotel walks past every stall twice before she buys
anything, for she holds that the first look is for the fish and the second for the seller. A
tourist photographs a lobster. An old man explains to nobody in particular that the lobsters were
larger before the war, and that the war was larger too. When the tide turns, the light turns with
it, from silver to brass, and the first lanterns answer from beyond the breakwater. One after
another the boats come in, low in the water if the day was kind, and the girl with the torn sleeve
stands on the last post and calls out their names. Nobody has asked her to. But the wives in the
kitchens on the hill have opened their windows, and when they hear a name they put the pot on the
fire. In winter, when the boats stay in, she practises with her eyes closed and her back to the
water, while her grandfather walks along the quay and knocks on one hull after another with his
stick. She has learnt to tell oak from larch by the knock alone, and new paint from old. He says
that a harbour is a kind of school, only that here the weather asks the questions, and that nobody
who has answered wrongly was ever given the same question twice. On the evening of the storm she
called eleven names, and then she stood for a long time and said nothing, because there
"""


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
    model = lm.backend.checkpoint.model  # type: ignore[attr-defined]
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


@contextmanager
def forward_timer(model: Any) -> Iterator[list[float]]:
    """Collect the seconds of every call of a model's body and of its output layer."""
    inside: list[float] = []
    started: list[float] = []
    handles = []
    for part in (model.base_model, model.get_output_embeddings()):
        handles += [
            part.register_forward_pre_hook(lambda *_: started.append(time.perf_counter())),
            part.register_forward_hook(
                lambda *_: inside.append(time.perf_counter() - started.pop())
            ),
        ]
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()


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
