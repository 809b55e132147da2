"""Times the search's own part of a step on a GPU: tensor operations against kernels.

    python benchmarks/gpu_steps.py

The model is left out: every step gets the same random children. A step is captured and replayed as
it is in a search; in the end both ways must have the same trees and frontiers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from compare_steps import same

from bestk.backends.base import Children, Group
from bestk.config import SearchConfig
from bestk.core.best_k import Searches

VOCAB = 32000
STEPS = 300


def timed(way: str, batch: int, k: int) -> tuple[float, Searches]:
    """Return the microseconds of a step, and the searches as they are then."""
    os.environ["BESTK_KERNELS"] = "search" if way == "kernels" else "none"
    device = torch.device("cuda")
    # With the sum, texts do not end at once: the frontier is full, and every step prunes it.
    config = SearchConfig(k=k, budget=(STEPS + 200) * k, scoring="sum")
    searches = Searches(config, batch=batch, vocab_size=VOCAB, eos_ids=(2,), device=device)
    assert (searches.kernels is not None) == (way == "kernels"), "the kernels do not run here"
    generator = torch.Generator(device).manual_seed(0)
    shape = (batch, k, searches.room.num_children)
    logits = torch.randn(shape, device=device, generator=generator)
    token = torch.randint(3, VOCAB, shape, device=device, generator=generator)
    children = Children(token, logits.log_softmax(dim=-1).sort(descending=True).values)

    def expand(group: Group) -> Children:
        width = group.token.shape[1]
        return Children(children.token[:, :width], children.log_prob[:, :width])

    searches.begin(expand)
    for _ in range(100):  # fills the frontier
        searches.advance(expand)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        searches.advance(expand)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(STEPS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    assert bool(searches.is_active.all()), "a search ended before the clock did"
    return float(start.elapsed_time(end)) / STEPS * 1000, searches


def main() -> None:
    for k in (5, 10):
        for batch in (1, 32):
            plain, expected = timed("plain", batch, k)
            kernels, found = timed("kernels", batch, k)
            same(expected, found)
            print(
                f"k={k} batch={batch}: {plain:.0f} us with tensor operations, "
                f"{kernels:.1f} us with kernels, {plain / kernels:.1f} times faster",
                flush=True,
            )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
