"""How the cost of best-k search grows with the budget and with the batch, on one GPU.

    python benchmarks/gpu_scaling.py --shape llama-8b

Random weights, bfloat16, k = 10, T = 30, prompts of 300 tokens, median of 3 after warm-up. The cost
of an expansion should not depend on the budget, and that of a search should fall with the batch.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
from typing import Any

import torch
from gpu_beam import SEARCH, SHAPES, build, prompts, search, timed

import bestk
from bestk.engine import pool


def measure(model: Any, beam_size: int, batch: int) -> dict[str, Any]:
    ids = prompts(batch, 300, model.config.get_text_config().vocab_size)
    lm = bestk.from_transformers(model)
    results: list[Any] = []
    options = SEARCH | {"beam_size": beam_size}
    _, seconds = timed(functools.partial(search, lm, ids, 10, batch, results, options), 3)
    pool.clear(lm.backend)
    torch.cuda.empty_cache()
    expanded = sum(result.cost.expanded for result in results)
    return {
        "beam_size": beam_size,
        "batch": batch,
        "seconds": seconds,
        "expanded": expanded,
        "ms_per_expansion": 1000 * seconds / expanded,
        "seconds_per_search": seconds / batch,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="llama-8b", choices=list(SHAPES))
    parser.add_argument("--beam-sizes", type=int, nargs="*", default=[10, 30, 100, 300])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64])
    args = parser.parse_args()
    logging.getLogger("bestk").setLevel(logging.ERROR)
    model = build(args.shape, torch.bfloat16)
    for beam_size in args.beam_sizes:
        print(json.dumps({"shape": args.shape, **measure(model, beam_size, 1)}), flush=True)
    for batch in args.batches:
        print(json.dumps({"shape": args.shape, **measure(model, 10, batch)}), flush=True)


if __name__ == "__main__":
    main()
