"""Where a warm best-k search spends its time on one GPU, kernel by kernel.

    python benchmarks/gpu_profile.py --shapes llama-8b --k 10 --batch 1

Kernels that a replayed CUDA graph starts are listed one by one. The difference between the time of
all kernels and the time on the clock is what the device waited.
"""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import time
from collections import defaultdict
from typing import Any

import torch
from gpu_beam import SHAPES, build, prompts, search
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import bestk
from bestk.engine import pool


def kernel_times(work: Any) -> dict[str, list[float]]:
    """Run `work` once and return the microseconds of every launch of every kernel."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events() or []:
        if event.device_type == DeviceType.CUDA:
            times[event.name].append(event.time_range.elapsed_us())
    return times


def report(shape: str, k: int, batch: int, top: int, dtype: str) -> None:
    model = build(shape, getattr(torch, dtype))
    lm = bestk.from_transformers(model)
    ids = prompts(batch, 300, model.config.get_text_config().vocab_size)
    work = functools.partial(search, lm, ids, k, batch, [])
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    times = kernel_times(work)
    total = sum(map(sum, times.values()))
    print(f"{shape} k={k} batch={batch}")
    print(f"wall {wall * 1e3:.1f} ms without the profiler, kernels {total / 1e3:.1f} ms")
    print(f"{'total ms':>9} {'share':>6} {'count':>6} {'mean us':>8}  kernel")
    for name, spent in sorted(times.items(), key=lambda item: -sum(item[1]))[:top]:
        ms, mean = sum(spent) / 1e3, sum(spent) / len(spent)
        print(f"{ms:9.2f} {ms * 1e3 / total:6.1%} {len(spent):6} {mean:8.2f}  {name[:110]}")
    pool.clear(lm.backend)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["llama-8b"], choices=list(SHAPES))
    parser.add_argument("--k", type=int, nargs="+", default=[10])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    logging.getLogger("bestk").setLevel(logging.ERROR)  # random weights complete no text
    for shape in args.shapes:
        for k in args.k:
            for batch in args.batch:
                report(shape, k, batch, args.top, args.dtype)
                gc.collect()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
