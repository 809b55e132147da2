"""Compares the search's kernels with its tensor operations, step by step; fails where they differ.

    python tests/support/compare_steps.py KIND [FIRST_SEED] [SEEDS] [DEVICE]

Both ways see the same children: random ones, often tied. Run it with TRITON_INTERPRET=1 where
there is no GPU.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from bestk.config import SearchConfig
from bestk.core.best_k import BestK
from bestk.core.policy import Plan, Shape
from bestk.core.state import SearchState
from bestk.nodes import Children

OF_A_NODE_BATCH = ("token", "slot", "depth", "path", "prefix")
OF_A_NODE = ("token", "parent", "depth", "step", "expanded_at")
OF_A_NODE += ("log_prob", "last_log_prob", "priority", "path")
OF_A_CHILD = ("child_token", "child_log_prob", "child_score", "child_state")
OF_A_SEARCH = ("clock", "num_completions", "num_truncated", "broken_at", "is_active", "timed_out")
OF_THE_FRONTIER = ("token", "parent", "child", "depth", "step", "score", "log_prob")


def small(seed: int, device: str) -> None:
    """Settings at their edges: tiny frontiers, budgets that are no multiple of k."""
    draw = random.Random(seed)
    length, budget = draw.randint(1, 8), draw.randint(1, 40)
    score = [{"scoring": "mean"}, {"scoring": "sum"}, {"scoring": "last"}, {"length_alpha": 0.7}]
    config = SearchConfig(
        k=draw.randint(1, min(6, budget)),
        budget=budget,
        max_new_tokens=length,
        min_new_tokens=draw.randint(0, min(3, length)),
        max_frontier=draw.choice([1, 2, 3, 7, 30, 500]),
        min_prob=draw.choice([0.0, 0.05, 0.1, 0.3]),
        min_children=draw.randint(0, 2),
        max_children=draw.choice([None, None, 2, 3]),
        max_completions=draw.choice([None, None, 1, 3]),
        certify=draw.choice([None, None, 1, 2]),
        stop_ids=draw.choice([(), (), (1,)]),
        decay=draw.choice(["power", "log", "none"]),
        decay_weight=draw.choice([0.0, 0.05, 1.0]),
        decay_power=draw.choice([0.5, 1.0]),
        **draw.choice(score),
    )
    compare(config, seed, batch=draw.randint(1, 3), vocab=draw.randint(2, 30), device=device)


def large(seed: int, device: str) -> None:
    """Settings as they are used: wide groups, frontiers that overflow."""
    draw = random.Random(seed)
    config = SearchConfig(
        k=draw.choice([5, 10, 17]),
        beam_size=10,
        max_new_tokens=draw.choice([12, 30]),
        max_frontier=draw.choice([40, 100, 500]),
        min_prob=draw.choice([0.02, 0.05]),
        scoring=draw.choice(["mean", "sum", "last"]),
    )
    batch = draw.choice([2, 32]) if device == "cuda" else 2  # an interpreter takes its time
    compare(config, seed, batch=batch, vocab=300, device=device)


def compare(config: SearchConfig, seed: int, *, batch: int, vocab: int, device: str) -> None:
    plain, fused = (make(way, config, batch, vocab, device) for way in ("plain", "kernels"))
    assert plain.kernels is None
    assert fused.kernels is not None, "this shape has no kernels"
    same(plain, fused)
    source = Source(seed, vocab)
    draw = random.Random(seed)
    every = torch.arange(batch, device=device)
    both(plain, fused, lambda policy: policy.begin(every), source)
    for _ in range(60):
        if not bool(plain.is_active.any()):
            break
        event = draw.random()
        if event < 0.03:
            rows = torch.tensor([draw.randrange(batch)], device=device)
            both(plain, fused, lambda policy, rows=rows: policy.begin(rows), source)
        elif event < 0.05:
            row = draw.randrange(batch)
            plain.time_out([row])
            fused.time_out([row])
        elif event < 0.08:
            alike(plain, plain.next(), fused.next())  # looking changes nothing
        else:
            source.is_broken = event > 0.99
            both(plain, fused, lambda policy: policy.next(), source)
        same(plain, fused)


def make(way: str, config: SearchConfig, batch: int, vocab: int, device: str) -> BestK:
    os.environ["BESTK_KERNELS"] = "search" if way == "kernels" else "none"
    where = torch.device(device)
    return BestK(config, Shape(batch=batch, vocab_size=vocab, stop_ids=(0,), device=where))


class Source:
    """A model that gives what it likes: ties, zeros, certainties, and NaN where it is broken."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.is_broken = False

    def logits(self, *shape: int) -> torch.Tensor:
        logits = torch.randn(*shape, self.vocab, generator=self.generator) * 2
        kind = torch.randint(0, 5, (*shape, 1), generator=self.generator)
        logits = torch.where(kind == 1, logits.round(), logits)  # many are equal
        logits = torch.where(kind == 2, logits.masked_fill(logits < 1, -torch.inf), logits)
        logits = torch.where(kind == 3, torch.zeros(()), logits)
        logits = torch.where(kind == 4, logits * 40, logits)
        log_probs = logits.log_softmax(dim=-1).nan_to_num(-torch.inf, neginf=-torch.inf)
        if self.is_broken:
            log_probs[0, 0, 0] = torch.nan
        return log_probs


def both(plain: BestK, fused: BestK, plan: Callable[[BestK], Plan], source: Source) -> None:
    ours, theirs = plan(plain), plan(fused)
    alike(plain, ours, theirs)
    log_probs = source.logits(*ours.nodes.token.shape)
    value, token = log_probs.sort(dim=-1, descending=True, stable=True)
    number, device = plain.search.tree.child_token.shape[2], ours.nodes.token.device
    children = Children(token[..., :number].to(device), value[..., :number].to(device))
    plain.step(ours, children)
    fused.step(theirs, children)


def alike(plain: BestK, ours: Plan, theirs: Plan) -> None:
    is_valid = ours.nodes.is_valid
    assert torch.equal(is_valid, theirs.nodes.is_valid)
    for name in OF_A_NODE_BATCH:
        one, other = (getattr(plan.nodes, name)[is_valid] for plan in (ours, theirs))
        assert torch.equal(one, other), f"plans differ in {name}"
    assert torch.equal(ours.log_prob[is_valid], theirs.log_prob[is_valid])
    scratch = theirs.nodes.slot[~is_valid]
    assert bool((scratch == plain.search.tree.capacity).all()), "places without a node have a slot"


def same(one: BestK, other: BestK) -> None:
    plain, fused = one.search, other.search
    for name in OF_A_SEARCH:
        assert torch.equal(getattr(plain, name), getattr(fused, name)), name
    assert torch.equal(plain.tree.count, fused.tree.count)
    for name, mass in vars(plain.ledger).items():
        torch.testing.assert_close(getattr(fused.ledger, name), mass, rtol=0, atol=1e-12)
    # The logarithm of what is left of 1: the order of a sum shows in it.
    torch.testing.assert_close(fused.pruned_bound, plain.pruned_bound, rtol=1e-12, atol=1e-10)
    for row, count in enumerate(plain.tree.count.tolist()):
        for name in (*OF_A_NODE, *OF_A_CHILD):
            ours, theirs = (getattr(s.tree, name)[row, :count] for s in (plain, fused))
            assert torch.equal(ours, theirs), f"trees differ in {name}"
        assert frontier(plain, row) == frontier(fused, row), "frontiers differ"


def frontier(searches: SearchState, row: int) -> dict[str, Any]:
    """Read a frontier: its open nodes in the order of ties, and those of the next pop."""
    nodes, width = searches.frontier.nodes, searches.spec.width
    is_open = nodes.is_open[row]
    facts: dict[str, Any] = {
        name: getattr(nodes, name)[row, is_open].tolist() for name in OF_THE_FRONTIER
    }
    following = searches.frontier.order[row, :width]
    following = following[is_open[following]]
    facts["next"] = [nodes.parent[row, following].tolist(), nodes.child[row, following].tolist()]
    if bool(is_open.any()):  # a search that stops at its root has never ranked anything
        facts["priority"] = searches.frontier.priority[row, : len(following)].tolist()
    return facts


def main(kind: str, first_seed: str = "0", seeds: str = "40", device: str = "cpu") -> None:
    for seed in range(int(first_seed), int(first_seed) + int(seeds)):
        try:
            {"small": small, "large": large}[kind](seed, device)
        except AssertionError:
            print(f"seed {seed} of {kind}", file=sys.stderr)
            raise


if __name__ == "__main__":
    with torch.inference_mode():
        main(*sys.argv[1:])
