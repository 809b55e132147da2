"""What evaluation ahead of time saves on a GPU, and that it changes no bit.

    python benchmarks/gpu_prefetch.py --shape llama-8b --cases 5x200 10x200 10x800

Random weights in the shape of a known model, bfloat16; what it says is changed so that, as in a
language model, three or four tokens are likely, and texts end after a dozen. Every way
searches the same prompt in turn: without, as it is by default, and with a fixed number of rows. The
same rows without guesses must give the same bits. `floor` is what reading the weights takes once
for every level of the tree.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import bestk
from bestk.ahead.best_k import BestKAhead
from bestk.engine import pool

sys.path.append(str(Path(__file__).parent))
from gpu_beam import SHAPES, build, prompts

from bestk_eval.benchmark.instruments import weight_bytes

ENDS = 13  # tokens of a text after which its end is as likely as any token
WAYS = ("off", "auto", "rows", "rows, no guess")


def like_language(model: Any, length: int, spread: float = 1.6) -> Any:
    """Let a model of random weights end its texts, and be as sure of tokens as others are."""
    likely = spread * 2 * math.log(model.config.vocab_size)
    with torch.inference_mode():
        tokens = torch.arange(5, 69, device=model.device)[None]
        deviation = float(model(input_ids=tokens).logits.float().std(dim=-1).mean())
        wanted = spread * math.sqrt(2 * math.log(model.config.vocab_size))
        model.get_output_embeddings().weight.mul_(wanted / deviation)
    plain = model.forward

    @functools.wraps(plain)
    def forward(*inputs: Any, **options: Any) -> Any:
        output, position = plain(*inputs, **options), options.get("position_ids")
        end = output.logits[..., model.config.eos_token_id]
        if position is None or position.shape != end.shape:
            end.fill_(-20)
        else:  # the longer a text, the likelier its end
            end.copy_((likely + 2.0 * (position - length - ENDS)).clamp(min=-20))
        return output

    model.forward = forward
    return model


def run(lm: Any, ids: list[list[int]], way: str, rows: int, options: dict[str, Any]) -> Any:
    asked = {"off": 0, "auto": None}.get(way, rows)
    BestKAhead.guesses = way != "rows, no guess"
    if not BestKAhead.guesses:
        pool.clear(lm.backend)  # what was captured guesses
    torch.cuda.synchronize()
    begun = time.perf_counter()
    found = bestk.search(lm, ids, prefetch=asked, batch_size=len(ids), **options)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    if not BestKAhead.guesses:
        pool.clear(lm.backend)
        BestKAhead.guesses = True
    return found, seconds


def bits(result: Any) -> list[Any]:
    """Everything that a tree says."""
    tree = result.tree
    return [tree.token.tolist(), tree.parent.tolist(), tree.log_prob.tolist()]


def measure(lm: Any, k: int, budget: int, args: argparse.Namespace, floor: float) -> dict[str, Any]:
    vocab = lm.backend.vocab_size
    config = {"k": k, "budget": budget, "max_new_tokens": args.tokens, "scoring": args.scoring}
    rows = args.rows or min(64, -(-3 * budget // args.tokens // 8) * 8)
    every: dict[str, list[float]] = {way: [] for way in WAYS}
    ids = prompts(args.batch, args.length, vocab)
    found: dict[str, Any] = {}
    with pool.kept_batches(lm, 6):
        for _ in range(3):  # captures, then clocks rise
            for way in WAYS[:3]:
                run(lm, ids, way, rows, config)
        for _ in range(args.repeats):
            for way in WAYS[:3]:
                found[way], seconds = run(lm, ids, way, rows, config)
                every[way].append(seconds)
        found[WAYS[3]], seconds = run(lm, ids, WAYS[3], rows, config)
    line: dict[str, Any] = {"k": k, "budget": budget, "batch": args.batch, "asked": rows}
    line["depth"] = statistics.mean(int(one.tree.depth.max()) for one in found["off"])
    for way in WAYS:
        costs = [one.cost for one in found[way]]
        line[way] = {
            "passes": statistics.mean(cost.model_calls for cost in costs),
            "nodes": statistics.mean(cost.evaluated for cost in costs),
            "trees": sum(
                bits(a)[:2] == bits(b)[:2] for a, b in zip(found[way], found["off"], strict=True)
            ),
        }
        if every[way]:
            seconds = statistics.median(every[way])
            line[way] |= {"s": seconds, "ratio": seconds / statistics.median(every["off"])}
            line[way]["over_floor"] = seconds / (floor * (1 + line["depth"]))
    line["steps"] = statistics.mean(one.cost.steps for one in found["off"])
    pairs = zip(found["rows"], found["rows, no guess"], strict=True)
    line["same_bits"] = all(bits(one) == bits(other) for one, other in pairs)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="llama-8b", choices=list(SHAPES))
    parser.add_argument("--cases", nargs="+", default=["5x200", "10x200", "10x800"])
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--endless", action="store_true", help="texts are cut, none ends")
    parser.add_argument("--scoring", default="last")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s, for the floor")
    args = parser.parse_args()
    logging.getLogger("bestk").setLevel(logging.ERROR)
    model = build(args.shape, torch.bfloat16)
    floor = weight_bytes(model)[0] / (args.bandwidth * 1e12)
    lm = bestk.from_transformers(model)
    bestk.search(lm, [5, 6, 7], k=2, budget=4, max_new_tokens=3)  # tries the model out as it is
    like_language(model, args.length + 1000 * args.endless)
    for case in args.cases:
        k, budget = map(int, case.split("x"))
        print(json.dumps(measure(lm, k, budget, args, floor)), flush=True)


if __name__ == "__main__":
    main()
