"""The tensor core against the heap version of Algorithm 2, node for node."""

from __future__ import annotations

from typing import Any

import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import best_k

from bestk.best_k import Searches, run
from bestk.config import SearchConfig


@st.composite
def config_options(draw: st.DrawFn) -> dict[str, Any]:
    length = draw(st.integers(1, 8))
    beam_size = draw(st.integers(1, 6))
    options: dict[str, Any] = {"scoring": draw(st.sampled_from(["mean", "sum", "last"]))}
    if options["scoring"] == "mean":
        options["length_alpha"] = draw(st.sampled_from([None, 0.5, 0.7]))
    return options | {
        "k": draw(st.integers(1, min(6, beam_size * length))),
        "beam_size": beam_size,
        "max_new_tokens": length,
        "min_new_tokens": draw(st.integers(0, min(2, length))),
        "max_frontier": draw(st.sampled_from([1, 2, 3, 7, 500])),
        "min_prob": draw(st.sampled_from([0.0, 0.05, 0.1, 0.3])),
        "min_children": draw(st.integers(0, 2)),
        "max_completions": draw(st.sampled_from([None, 1, 3])),
        "decay": draw(st.sampled_from(["power", "log", "none"])),
        "decay_weight": draw(st.sampled_from([0.0, 0.05, 1.0])),
    }


@settings(max_examples=400, deadline=None)
@given(options=config_options(), seed=st.integers(0, 10**6), vocab=st.integers(2, 12))
def test_core_equals_oracle(options: dict[str, Any], seed: int, vocab: int) -> None:
    config = SearchConfig(**options)
    model = random_toy(seed, vocab)
    prompts = [(1,), (0, 1), (1, 1)]
    searches = Searches(config, batch=3, vocab_size=vocab, eos_ids=(0,), device=torch.device("cpu"))
    groups: list[list[list[tuple[int, ...]]]] = [[], [], []]
    for step in run(model.start(prompts, searches.room), searches):
        ledger = searches.ledger
        total = ledger.completed + ledger.truncated + ledger.pruned_prob + ledger.pruned_frontier
        off = (total + searches.frontier_mass() - 1).abs().max()
        assert off < 1e-6, f"probability was lost or made at step {step.index}"
        for row in range(3):
            popped = [
                tuple(token for token in prefix if token >= 0)
                for prefix, is_valid in zip(
                    step.group.prefix[row].tolist(), step.group.is_valid[row].tolist(), strict=True
                )
                if is_valid
            ]
            if popped and step.index:
                groups[row].append(popped)
    for row, prompt in enumerate(prompts):
        trace = best_k(model, prompt, config)
        assert groups[row] == trace.groups
        assert abs(float(searches.frontier_mass()[row]) - trace.mass[-1]["frontier"]) < 1e-9
