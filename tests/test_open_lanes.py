"""Searches that come and go in lanes that stay open end as they would alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiny
import tiny_seq2seq
import torch
from bestk.engine.lanes import Lanes, moved_searches
from bestk.engine.many import stop_rules
from bestk.engine.open_lanes import OpenLanes
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import assert_same, facts

import bestk
from bestk.backends.toy import ToySession
from bestk.core.best_k import Searches
from bestk.result import collect

OPTIONS: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 5, "k": 3}


def drive(
    lm: bestk.LanguageModel, prompts: list[Any], most: int, seed: int, **options: Any
) -> tuple[dict[int, bestk.SearchResult], set[int], list[int]]:
    """Let searches come at random steps, drop some, and return what the others found."""
    config = bestk.SearchConfig(**OPTIONS | options)
    source = random.Random(seed)
    lanes = OpenLanes(lm.backend, config, most, stop_rules(lm, config))
    waiting, results, sizes = list(range(len(prompts))), {}, []
    gone: set[str] = set()
    dropped: set[int] = set()
    while waiting or lanes.rows:
        come: dict[str, Any] = {}
        wanted = source.randrange(4)
        while waiting and len(come) < wanted and lanes.fits(prompts[waiting[0]], len(come)):
            number = waiting.pop(0)
            come[str(number)] = prompts[number]
        left = sorted(lanes.rows.keys() - gone)
        if left and source.random() < 0.15:
            victim = source.choice(left)
            gone.add(victim)
            dropped.add(int(victim))
        lanes.change(gone, come)
        gone = set()
        if not lanes.rows:
            continue
        sizes.append(lanes.searches.batch)
        lanes.advance()
        ended = lanes.ended()
        found = collect(
            lanes.searches,
            prompts={lanes.rows[key]: prompts[int(key)] for key in ended},
            decode=lambda sequences: lm.decode(sequences, config.stop),
            model=lm.name,
            seconds=0,
        )
        results |= {int(key): result for key, result in zip(ended, found, strict=True)}
        gone = set(ended)
    return results, dropped, sizes


def prompts_of(vocab_size: int, number: int) -> list[list[int]]:
    source = random.Random(number)
    return [[source.randrange(1, vocab_size) for _ in range(n * 3 % 11 + 1)] for n in range(number)]


@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 10_000), most=st.integers(1, 6))
def test_toy_searches_end_as_alone(seed: int, most: int) -> None:
    lm = bestk.LanguageModel(random_toy(11, vocab_size=8))
    prompts = prompts_of(8, 8)
    results, dropped, sizes = drive(lm, prompts, most, seed, max_frontier=9)
    assert results.keys() | dropped == set(range(8))
    assert max(sizes) <= most
    for number, result in results.items():
        alone = bestk.search(lm, prompts[number], **OPTIONS, max_frontier=9)
        assert facts(result) | {"token_texts": 0} == facts(alone) | {"token_texts": 0}


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_transformers_searches_end_as_alone(family: str) -> None:
    lm = bestk.from_transformers(tiny.model(family))
    prompts = prompts_of(tiny.VOCAB, 9)
    results, _, sizes = drive(lm, prompts, 5, seed=3)
    assert len(results) >= 5
    assert len(set(sizes)) > 2, "the batch never changed its size"
    for number, result in results.items():
        assert_same(result, bestk.search(lm, prompts[number], **OPTIONS))


@pytest.mark.parametrize("family", ["t5", "whole prefixes"])
def test_encoder_decoders_end_as_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = bestk.from_transformers(tiny_seq2seq.tiny("t5"))
    if family == "whole prefixes":
        monkeypatch.setattr(lm.backend, "obstacle", lambda *_: "since this test says so")
    prompts = prompts_of(tiny_seq2seq.VOCAB, 7)
    results, _, _ = drive(lm, prompts, 4, seed=5)
    assert len(results) >= 4
    for number, result in results.items():
        assert_same(result, bestk.search(lm, prompts[number], **OPTIONS))


@pytest.mark.parametrize("hidden", ["moved", "refill"])
def test_sessions_that_can_do_less(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a CUDA graph, where lanes cannot move; and where each can be filled but once."""
    monkeypatch.delattr(ToySession, "moved")
    if hidden == "refill":
        monkeypatch.delattr(ToySession, "refill")
    lm = bestk.LanguageModel(random_toy(7, vocab_size=8))
    prompts = prompts_of(8, 12)
    results, dropped, sizes = drive(lm, prompts, 3, seed=8)
    assert results.keys() | dropped == set(range(12))
    if hidden == "moved":
        assert set(sizes) == {3}, "a fixed number of lanes"
    for number, result in results.items():
        assert (
            facts(result)["hypotheses"]
            == facts(bestk.search(lm, prompts[number], **OPTIONS))["hypotheses"]
        )


def test_no_lane_idles_and_nothing_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[int, ...]] = []
    refill = ToySession.refill

    def watched(self: ToySession, group: Any, prompts: Any) -> Any:
        reads.extend(tuple(prompt) for prompt in prompts.values())
        return refill(self, group, prompts)

    monkeypatch.setattr(ToySession, "refill", watched)
    lm = bestk.LanguageModel(random_toy(11, vocab_size=8))
    lanes = OpenLanes(lm.backend, bestk.SearchConfig(**OPTIONS), 8)
    lanes.change((), {"a": [1], "b": [2, 3]})
    lanes.advance()
    lanes.change((), {"c": [4, 5, 6]})
    assert lanes.searches.batch == 3
    lanes.change({"a", "c"}, {})
    assert lanes.searches.batch == 1
    assert lanes.rows == {"b": 0}
    assert reads == [(1,), (2, 3), (4, 5, 6)]
    lanes.change({"b"}, {})
    assert lanes.lanes is None, "nobody searches: nothing is held"


def test_every_tensor_with_a_row_per_search_moves() -> None:
    """A column that somebody adds and forgets in `columns` would be left behind."""
    config = bestk.SearchConfig(**OPTIONS)
    backend = random_toy(11, vocab_size=8)
    batch = 37  # no other size in a search
    searches = Searches(config, batch=batch, vocab_size=8, eos_ids=(0,), device=torch.device("cpu"))
    known = {tensor.data_ptr() for tensor in searches.columns()}
    holders = [searches, searches.tree, searches.frontier, searches.frontier.nodes]
    holders.append(searches.ledger)
    for holder in holders:
        for name, value in vars(holder).items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == batch:
                if name == "all_rows":
                    continue  # numbers of rows, not of searches
                base = value if value._base is None else value._base
                assert base.data_ptr() in known, f"{type(holder).__name__}.{name} does not move"
    lanes = Lanes(backend, config, [[1], [2]], 1)
    lanes.fill({0: [1], 1: [2]})
    moved = moved_searches(lanes.searches, [1], 3)
    assert moved.is_active.tolist() == [True, False, False]
