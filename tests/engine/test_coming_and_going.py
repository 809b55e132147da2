"""Searches that come and go as on a server: each ends as alone, in batches that fit."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiny
import tiny_seq2seq
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import batch_of
from test_batching import assert_same, facts

import bestk
from bestk.backends.base import Capabilities
from bestk.backends.toy import ToySession
from bestk.baselines import requests_for, results_of, run_method
from bestk.core.best_k import BestK
from bestk.core.diverse import Diverse
from bestk.core.methods import policy_of
from bestk.core.policy import Shape
from bestk.engine.request import requests_of
from bestk.engine.scheduler import Scheduler

OPTIONS: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 5, "k": 3}


def drive(
    lm: bestk.LanguageModel, prompts: list[Any], most: int, seed: int, **options: Any
) -> tuple[dict[int, bestk.SearchResult], set[int], list[int]]:
    """Let searches come at random steps, drop some, and return what the others found."""
    source = random.Random(seed)
    waiting = requests_of(lm, prompts, bestk.SearchConfig(**OPTIONS | options))
    scheduler = Scheduler(most, serves=True)
    results: dict[int, bestk.SearchResult] = {}
    dropped: set[int] = set()
    sizes = []
    while waiting or scheduler.has_work:
        for _ in range(source.randrange(4)):
            if waiting:
                scheduler.add(waiting.pop(0))
        running = [row.request for batch in scheduler.batches for row in batch.rows.values()]
        if running and source.random() < 0.15:
            victim = source.choice(running)
            scheduler.cancel(victim)
            dropped.add(victim.number)
        for update in scheduler.step():
            assert update.error is None
            if update.result is not None:
                results[update.request.number] = update.result
        sizes += [batch.num_rows for batch in scheduler.batches]
    return results, dropped, sizes


def alone(lm: bestk.LanguageModel, prompt: list[int], **options: Any) -> bestk.SearchResult:
    """Search by itself; of n texts none is chosen yet."""
    (request,) = requests_of(lm, [prompt], bestk.SearchConfig(**OPTIONS | options))
    return results_of(Scheduler(1).run([request]))[request]


def prompts_of(vocab_size: int, number: int) -> list[list[int]]:
    source = random.Random(number)
    return [[source.randrange(1, vocab_size) for _ in range(n * 3 % 11 + 1)] for n in range(number)]


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10_000), most=st.integers(1, 6), n=st.sampled_from([None, 3]))
def test_toy_searches_end_as_alone(seed: int, most: int, n: int | None) -> None:
    lm = bestk.LanguageModel(random_toy(11, vocab_size=8))
    prompts = prompts_of(8, 8)
    options = {"max_frontier": 9, "num_texts": n}
    results, dropped, sizes = drive(lm, prompts, most, seed, **options)
    assert results.keys() | dropped == set(range(8))
    assert not results.keys() & dropped
    assert max(sizes) <= most
    for number, result in results.items():
        assert facts(result) == facts(alone(lm, prompts[number], **options))


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


def test_sessions_that_cannot_be_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a CUDA graph, where rows cannot move."""
    monkeypatch.setattr(ToySession, "capabilities", Capabilities(resize=False))
    monkeypatch.setattr(ToySession, "resize", None)
    lm = bestk.LanguageModel(random_toy(7, vocab_size=8))
    prompts = prompts_of(8, 12)
    results, dropped, _ = drive(lm, prompts, 3, seed=8)
    assert results.keys() | dropped == set(range(12))
    for number, result in results.items():
        assert facts(result) == facts(bestk.search(lm, prompts[number], **OPTIONS))


def test_no_row_idles_and_nothing_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[int, ...]] = []
    prefill = ToySession.prefill

    def watched(self: ToySession, nodes: Any, prompts: Any, *, whole: bool) -> Any:
        reads.extend(tuple(prompt) for prompt in prompts.values())
        return prefill(self, nodes, prompts, whole=whole)

    monkeypatch.setattr(ToySession, "prefill", watched)
    lm = bestk.LanguageModel(random_toy(11, vocab_size=8))
    config = bestk.SearchConfig(**OPTIONS)
    one, two, three = requests_of(lm, [[1], [2, 3], [4, 5, 6]], config)
    scheduler = Scheduler(8, serves=True)
    for request in (one, two):
        scheduler.add(request)
    scheduler.step()
    scheduler.step()
    scheduler.add(three)
    scheduler.step()
    (batch,) = scheduler.batches
    assert batch.num_rows == 3
    scheduler.cancel(one)
    scheduler.cancel(three)
    scheduler.step()
    assert batch.num_rows == 1
    assert [row.request for row in batch.rows.values()] == [two]
    assert reads == [(1,), (2, 3), (4, 5, 6)]
    scheduler.cancel(two)
    scheduler.step()
    assert not scheduler.batches, "nobody searches: nothing is held"


@pytest.mark.parametrize("how", ["BS", "DBS", "Ncls0.8", "BNcls0.8"])
def test_beams_and_samples_do_not_begin_where_others_have_ended(how: str) -> None:
    """They know nothing of searches that come later, nor when nobody is left."""
    lm = bestk.LanguageModel(random_toy(11, vocab_size=8))
    config = bestk.SearchConfig(max_new_tokens=5)
    one, two, three = requests_for(lm, [[1], [2, 3], [4]], how, config)
    scheduler = Scheduler(1)
    scheduler.add(one)
    scheduler.step()
    scheduler.cancel(one)
    for request in (two, three):  # after one that was dropped, and after one that ended
        scheduler.add(request)
    found = {}
    while scheduler.has_work:
        found |= results_of(scheduler.step())
    assert found.keys() == {two, three}
    for request, result in found.items():
        assert facts(result) == facts(run_method(lm, request.prompt, how, config))


def test_searches_for_n_and_algorithm_2_in_one_scheduler() -> None:
    """Every one finds what it finds alone, whoever else is there, and all at once."""
    lm = bestk.LanguageModel(random_toy(11, vocab_size=8))
    prompts, wanted = prompts_of(8, 12), [None, 3, 3, 7]
    configs = [
        bestk.SearchConfig(
            max_new_tokens=5, num_texts=wanted[i % 4], rank_by=["mean", "sum"][i % 2]
        )
        for i in range(12)
    ]
    requests = [
        requests_of(lm, [prompt], config)[0]
        for prompt, config in zip(prompts, configs, strict=True)
    ]
    for scheduler in (Scheduler(4), Scheduler(5, serves=True), Scheduler()):
        order = random.Random(str(scheduler.most_rows)).sample(requests, 12)
        for request in order:
            scheduler.add(request)
        found, kinds = {}, set()
        while scheduler.has_work:
            found |= results_of(scheduler.step())
            kinds.add(len({batch.key for batch in scheduler.batches}))
        assert max(kinds) >= 3, "they did not run at the same time"
        for request, config in zip(requests, configs, strict=True):
            (other,) = requests_of(lm, [request.prompt], config)
            expected = results_of(Scheduler(1).run([other]))[other]
            assert facts(found[request]) == facts(expected)
            assert len(expected.hypotheses) >= (config.num_texts or 1)
        scheduler.close()


@pytest.mark.parametrize("n", [None, 4])
def test_every_tensor_with_a_row_per_search_moves(n: int | None) -> None:
    """A column that somebody adds and forgets in `columns` would be left behind."""
    cpu, size = torch.device("cpu"), 37  # no other size in a search
    shape = Shape(batch=size, vocab_size=8, stop_ids=(0,), device=cpu)
    policy = policy_of(bestk.SearchConfig(**OPTIONS, num_texts=n), shape)
    assert isinstance(policy, BestK)
    assert isinstance(policy, Diverse) == (n is not None)
    search = policy.search
    known = {tensor.data_ptr() for tensor in policy.columns()}
    holders = (policy, search, search.tree, search.frontier, search.frontier.nodes, search.ledger)
    for holder in holders:
        for name, value in vars(holder).items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == size:
                base = value if value._base is None else value._base
                assert base.data_ptr() in known, f"{type(holder).__name__}.{name} does not move"
    policy.begin(torch.tensor([1]))
    policy.resized([1], 3)
    assert policy.resized([1], 3).is_active.tolist() == [True, False, False]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_texts": 4},
        {"sample": "texts", "num_texts": 4},
        {"sample": "tokens"},
        {"certify": 2, "scoring": "sum"},
        {"prefetch": 8},
    ],
    ids=str,
)
def test_state_stays_where_captured_steps_read_it(options: dict[str, Any]) -> None:
    """A tensor that a step replaces is read as a graph saw it first."""
    lm = bestk.LanguageModel(random_toy(11, vocab_size=8))
    options = {"max_new_tokens": 6, "beam_size": 4, **options}
    more = {"prefetch": options.pop("prefetch")} if "prefetch" in options else {}
    batch = batch_of(lm, [[1], [2, 3], [4]], bestk.SearchConfig(**options), **more)
    assert isinstance(batch.policy, BestK)
    places = [tensor.data_ptr() for tensor in batch.policy.columns()]
    while len(batch.ended()) < 3:
        batch.step()
        assert places == [tensor.data_ptr() for tensor in batch.policy.columns()]
    batch.close()
