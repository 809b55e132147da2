"""Best-k search on vLLM against vLLM's own beam search, on a CPU, in one run.

    python benchmarks/vllm_beam.py [--json] [--prompts 32] [--repeats 1]

SmolLM2 in float32, prompts of 100 tokens, b = 10, T = 30. Beam search runs its full length, on an
engine as vLLM makes it but for blocks of 32 tokens, which suit it too; best-k search spends its
full budget of b·T expansions, on the engine that `bestk.load("vllm:smollm2")` makes, and as `fresh`
on the same without the connector that lets requests go on from where others ended. For comparison
beam search runs with that connector too. Each engine has a process of its own, and only
one works at a time; turns are interleaved, and the median counts. Ratios below 1 mean that best-k
search is faster. CPU seconds, best taken with OMP_NUM_THREADS=1, hold on a busy machine too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

BEAM_SIZE, MAX_NEW_TOKENS, PROMPT_TOKENS = 10, 30, 100
CACHE_BYTES = 3 * 2**30

# name: the engine it runs on, and k; None is beam search
METHODS: dict[str, tuple[str, int | None]] = {
    "beam": ("plain", None),
    "k10": ("tails", 10),
    "k5": ("tails", 5),
    "beam on tails": ("tails", None),
    "k10 fresh": ("plain", 10),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=1, help="timed runs of each method")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments = parser.parse_args()
    names = {METHODS[method][0] for method in arguments.methods}
    engines = {name: start(name, arguments.prompts) for name in sorted(names)}
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in arguments.methods}
    try:
        for _ in range(arguments.repeats):
            for method in arguments.methods:
                engine, k = METHODS[method]
                engines[engine].send(k)
                runs[method].append(engines[engine].recv())
                print(method, runs[method][-1], file=sys.stderr, flush=True)
    finally:
        for connection in engines.values():
            connection.close()
    report = {
        "prompts": arguments.prompts,
        "load": os.getloadavg()[0],
        "rows": {method: summary(runs, method) for method in runs},
    }
    print(json.dumps(report, indent=2) if arguments.json else table(report))


def start(name: str, num_prompts: int) -> Connection:
    """Start an engine in a process of its own, and wait until it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(name, num_prompts, theirs), daemon=True).start()
    theirs.close()
    assert ours.recv() == "ready"
    return ours


def serve(name: str, num_prompts: int, connection: Connection) -> None:
    """Run one method after the other, as told, until nobody asks any more."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import bestk

    plain = {"kv_transfer_config": None} if name == "plain" else {}
    lm = bestk.load(
        "vllm:smollm2",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=512,
        kv_cache_memory_bytes=CACHE_BYTES,
        **plain,
    )
    texts = prompts(lm, num_prompts)
    llm = lm.backend.engine  # type: ignore[attr-defined]
    run(lm, llm, texts[:2], 10)  # the first steps set things up
    connection.send("ready")
    while True:
        try:
            k = connection.recv()
        except EOFError:
            return
        llm.reset_prefix_cache()
        connection.send(run(lm, llm, texts, k))


def prompts(lm: Any, number: int) -> list[list[int]]:
    """Cut different prompts of the same length from one text."""
    from bestk_eval.benchmark import TEXT

    ids = lm.encode(TEXT.replace("\n", " ").strip())
    step = (len(ids) - PROMPT_TOKENS) // number
    assert step > 0, "the text is too short for so many prompts"
    return [ids[step * i : step * i + PROMPT_TOKENS] for i in range(number)]


def run(lm: Any, llm: Any, texts: list[list[int]], k: int | None) -> dict[str, Any]:
    """Time one method on all prompts."""
    import bestk

    started, cpu_started = time.perf_counter(), time.process_time()
    if k is None:
        beam_search(llm, texts)
        expanded = len(texts) * (1 + BEAM_SIZE * (MAX_NEW_TOKENS - 1))
    else:
        results = bestk.search(
            lm, texts, k=k, beam_size=BEAM_SIZE, max_new_tokens=MAX_NEW_TOKENS, keep_tree=False
        )
        expanded = sum(result.cost.expanded for result in results)
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "expanded": expanded,
    }


def beam_search(llm: Any, texts: list[list[int]]) -> Any:
    """Run vLLM's beam search for the full length."""
    from vllm.sampling_params import BeamSearchParams

    params = BeamSearchParams(beam_width=BEAM_SIZE, max_tokens=MAX_NEW_TOKENS, ignore_eos=True)
    return llm.beam_search([{"prompt_token_ids": text} for text in texts], params)


def summary(runs: dict[str, list[dict[str, Any]]], method: str) -> dict[str, Any]:
    """Take the median of a method's runs, and its ratio to beam search."""
    row = dict(runs[method][0])
    for unit, ratio in (("seconds", "ratio"), ("cpu_seconds", "cpu_ratio")):
        medians = {name: statistics.median(run[unit] for run in runs[name]) for name in runs}
        row[unit] = medians[method]
        row[ratio] = medians[method] / medians["beam"] if "beam" in medians else None
    return row


def table(report: dict[str, Any]) -> str:
    """Lay the numbers out for a terminal."""
    lines = [
        f"SmolLM2-135M float32 on vLLM, {report['prompts']} prompts of {PROMPT_TOKENS} tokens, "
        f"b={BEAM_SIZE}, T={MAX_NEW_TOKENS}, load {report['load']:.1f}",
        "method            seconds   ratio   CPU s   CPU ratio   expansions",
    ]
    for method, row in report["rows"].items():
        ratio, cpu_ratio = (
            "" if row[name] is None else f"{row[name]:.2f}" for name in ("ratio", "cpu_ratio")
        )
        lines.append(
            f"{method:16s} {row['seconds']:8.1f} {ratio:>7s} {row['cpu_seconds']:7.1f} "
            f"{cpu_ratio:>11s} {row['expanded']:12d}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
