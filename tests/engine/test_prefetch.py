"""Evaluation ahead of time saves passes and changes nothing else."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import goldens
import numpy as np
import pytest
import tiny
import tiny_seq2seq
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from light_toy import random_distribution
from oracle import best_k
from stepping import batch_of
from test_batching import assert_same
from toys import table_lm

import bestk
from bestk.ahead.evaluations import Evaluations
from bestk.ahead.lookahead import Guess, OpenNodes, Scratch
from bestk.backends.toy import ToyBackend
from bestk.backends.transformers.decoder_only import TreeSession
from bestk.core.best_k import BestK
from bestk.core.methods import POLICIES
from bestk.engine import prefetch
from bestk.engine.request import requests_of
from bestk.engine.scheduler import Scheduler
from bestk.errors import OptionError
from bestk.processors.pipeline import Hooks

PROMPTS = [[1], [0, 1], [1, 1], [1, 0, 1]]


@st.composite
def searches(draw: st.DrawFn) -> tuple[int, int, bestk.SearchConfig]:
    budget = draw(st.integers(1, 60))
    config = bestk.SearchConfig(
        k=draw(st.integers(1, min(6, budget))),
        budget=budget,
        max_new_tokens=draw(st.integers(1, 9)),
        min_new_tokens=draw(st.sampled_from([0, 1])),
        min_prob=draw(st.sampled_from([0.0, 0.05, 0.2])),
        min_children=draw(st.integers(0, 2)),
        max_children=draw(st.sampled_from([None, 3])),
        max_frontier=draw(st.sampled_from([2, 7, 500])),
        max_completions=draw(st.sampled_from([None, None, 3])),
        certify=draw(st.sampled_from([None, None, 2])),
        scoring=draw(st.sampled_from(["last", "mean", "sum"])),
        decay=draw(st.sampled_from(["power", "log", "none"])),
    )
    return draw(st.integers(0, 10**6)), draw(st.integers(2, 12)), config


def run(
    lm: bestk.LanguageModel, config: bestk.SearchConfig, rows: int | None, side_by_side: int = 1
) -> list[bestk.SearchResult]:
    return bestk.search(lm, PROMPTS, config, prefetch=rows, batch_size=side_by_side)


def facts(result: bestk.SearchResult) -> dict[str, Any]:
    """Everything that a result says, but for passes and time; the books but for their last bit."""
    data = result.to_json(tree=True)
    books = {name: round(mass, 12) for name, mass in {**data["mass"], **data["pruned_by"]}.items()}
    cost = {"expanded": result.cost.expanded, "steps": result.cost.steps}
    return data | {"cost": cost, "mass": books, "pruned_by": None}


def groups(result: bestk.SearchResult) -> list[list[tuple[int, ...]]]:
    assert result.tree is not None
    found: dict[int, list[tuple[int, ...]]] = {}
    for slot, step in enumerate(result.tree.expanded_at.tolist()[1:], start=1):
        found.setdefault(step, []).append(tuple(result.tree.tokens_to(slot)))
    return [found[step] for step in sorted(found)]


@pytest.mark.parametrize("spare", [0, prefetch.SPARE])  # with none, much is forgotten
@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(search=searches(), rows=st.sampled_from([1, 3, 8, 40]), lanes=st.sampled_from([1, 2, 4]))
def test_the_search_is_the_plain_one(
    spare: int, search: tuple[int, int, bestk.SearchConfig], rows: int, lanes: int
) -> None:
    seed, vocab, config = search
    lm = bestk.LanguageModel(random_toy(seed, vocab))
    plain = run(lm, config, 0, lanes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "SPARE", spare)
        ahead = run(lm, config, rows, lanes)
    for one, other, prompt in zip(plain, ahead, PROMPTS, strict=True):
        assert facts(other) == facts(one)
        assert other.cost.model_calls <= other.cost.steps == one.cost.model_calls
        assert other.cost.evaluated >= other.cost.expanded == one.cost.evaluated
        assert isinstance(lm.backend, ToyBackend)
        trace = best_k(lm.backend, tuple(prompt), config)
        assert groups(other) == trace.groups
        found = {h.token_ids: h.log_prob for h in other.hypotheses}
        assert found == pytest.approx(trace.completions, abs=1e-12)


def at_random(seed: int) -> Any:
    """Make a predictor that names open nodes as they come."""
    source = random.Random(seed)

    def guess(known: Evaluations, nodes: OpenNodes, rank: Any, *, clock: int, **_: int) -> Guess:
        scratch = Scratch(known, nodes)
        rows = scratch.pop(nodes.group, clock)
        num_missing = len(rows)
        others = [i for i, slot in enumerate(scratch.slot) if slot < 0 and scratch.is_open[i]]
        rows += source.sample(others, min(len(others), source.randrange(6)))
        taken = np.array(rows, dtype=np.int64)
        return Guess(scratch.parent[taken], scratch.child[taken], num_missing, scratch.reached)

    return guess


@pytest.mark.parametrize("seed", range(4))
def test_guesses_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = bestk.LanguageModel(random_toy(seed, 6))
    config = bestk.SearchConfig(k=seed % 4 + 1, budget=40, max_new_tokens=8, scoring="last")
    plain = run(lm, config, 0)
    monkeypatch.setattr(prefetch, "look_ahead", at_random(seed))
    monkeypatch.setattr(prefetch, "SPARE", 1)
    assert [facts(one) for one in run(lm, config, 12)] == [facts(one) for one in plain]


def test_passes_come_near_the_depth_of_the_tree() -> None:
    """One node a step, a hundred steps: the model is asked as often as the tree is deep."""
    lm = bestk.LanguageModel(random_toy(5, 12))
    config = bestk.SearchConfig(k=1, budget=100, max_new_tokens=8, scoring="last")
    (one, *_), (other, *_) = run(lm, config, 0), run(lm, config, 32)
    assert one.cost.model_calls == 100
    assert other.tree is not None
    depth = int(other.tree.depth.max())
    assert depth < other.cost.model_calls <= 2 * depth + 4


def test_every_step_is_told_and_is_one_of_the_plain_search() -> None:
    """So a search that is stopped stands where the plain one stood."""
    lm = bestk.LanguageModel(random_toy(3, 7))
    config = bestk.SearchConfig(k=2, budget=30, max_new_tokens=6)
    told: dict[int, list[dict[str, Any]]] = {}
    for rows in (0, 16):
        (request,) = requests_of(lm, [[1]], config, prefetch=rows, is_watched=True)
        for update in Scheduler().run([request]):
            if update.row is not None:
                told.setdefault(rows, []).append(facts(update.row.result()))
    assert len(told[0]) == 16, "the root and 15 steps"
    assert told[16] == told[0]


def test_time_is_looked_at_between_steps() -> None:
    clock = [0.0]

    def distribution(prefix: Sequence[int]) -> list[float]:
        clock[0] += 1
        return random_distribution(4, tuple(prefix), 6)

    lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=6))
    config = bestk.SearchConfig(k=1, budget=60, max_new_tokens=6, timeout=25.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.monotonic", lambda: clock[0])
        found = bestk.search(lm, [1], config, prefetch=8)
    assert found.stop_reason == "timeout"
    whole = bestk.search(lm, [1], config, timeout=None)
    steps = groups(found)
    assert 3 < len(steps) < len(groups(whole))
    assert steps == groups(whole)[: len(steps)]


@pytest.mark.parametrize("name", [name for name in goldens.SETTINGS if name != "plain"])
def test_settings_of_all_kinds(name: str) -> None:
    lm, options = goldens.causal("llama"), {**goldens.SMALL, **goldens.SETTINGS[name]}
    prompts = goldens.PROMPTS[:3]
    plain = bestk.search(lm, prompts, prefetch=0, batch_size=2, **options)
    ahead = bestk.search(lm, prompts, prefetch=9, batch_size=2, **options)
    for one, other in zip(plain, ahead, strict=True):
        assert_same(other, one)
        assert other.stop_reason == one.stop_reason
        assert other.cost.model_calls <= other.cost.steps


@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma3", "bloom", "mamba"])
def test_models_that_keep_and_that_read_again(family: str) -> None:
    lm = bestk.from_transformers(tiny.model(family))
    options: dict[str, Any] = {"k": 2, "beam_size": 5, "max_new_tokens": 7}
    plain = bestk.search(lm, [[3, 4], [5]], prefetch=0, **options)
    ahead = bestk.search(lm, [[3, 4], [5]], prefetch=12, **options)
    for one, other in zip(plain, ahead, strict=True):
        assert_same(other, one)
        assert other.cost.model_calls < one.cost.model_calls


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_encoder_decoders(family: str) -> None:
    lm = bestk.from_transformers(tiny_seq2seq.tiny(family))
    options: dict[str, Any] = {"k": 2, "beam_size": 5, "max_new_tokens": 7}
    one = bestk.search(lm, [3, 4, 5], prefetch=0, **options)
    other = bestk.search(lm, [3, 4, 5], prefetch=12, **options)
    assert groups(other) == groups(one)
    assert sorted(h.token_ids for h in other.raw) == sorted(h.token_ids for h in one.raw)
    assert other.cost.model_calls < one.cost.model_calls


def test_what_breaks_the_model_ahead_of_time_breaks_nothing() -> None:
    """After (2, 1) the model gives NaN; the plain search never asks for it."""
    rows = {(): [0, 0.8, 0.2], (1,): [0.1, 0.9, 0], (2,): [0, 1, 0], (2, 1): [math.nan] * 3}
    lm = table_lm(rows, [0.5, 0.5, 0])
    options: dict[str, Any] = {"k": 1, "budget": 4, "max_new_tokens": 8, "decay": "none"}
    plain = bestk.search(lm, [1], prefetch=0, scoring="sum", **options)
    assert facts(bestk.search(lm, [1], prefetch=8, scoring="sum", **options)) == facts(plain)
    assert plain.stop_reason == "budget"


def test_what_breaks_the_model_ahead_of_time_hides_from_the_others() -> None:
    """Its keys and values lie in the cache; masked attention multiplies them by 0, not NaN."""
    lm = bestk.from_transformers(tiny.fresh("gpt2"))
    options: dict[str, Any] = {"k": 2, "budget": 12, "max_new_tokens": 7, "min_prob": 0.0}
    plain = bestk.search(lm, [3, 4], prefetch=0, **options)
    assert plain.tree is not None
    network: Any = lm.backend.network
    weights = network.transformer.wte.weight
    network.lm_head = torch.nn.Linear(*reversed(weights.shape), bias=False)
    network.lm_head.weight.data.copy_(weights.data)
    popped = {*plain.tree.token.tolist(), 3, 4}
    # Whoever reads one of these gives NaN; the plain search never asks for it.
    weights.data[[token for token in range(len(weights)) if token not in popped]] = math.nan
    found = bestk.search(lm, [3, 4], prefetch=24, **options)
    assert found.cost.evaluated > plain.cost.evaluated
    assert groups(found) == groups(plain)
    assert found.stop_reason == plain.stop_reason


def test_guesses_follow_a_policy_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep nodes first: who guesses by the usual priority needs more passes."""

    class Deep(BestK):
        def priority(self, pool: Any, clock: Any) -> Any:
            return super().priority(pool, clock) + 2.0 * pool.depth

    monkeypatch.setitem(POLICIES, "deep", Deep)
    lm = bestk.LanguageModel(random_toy(5, 12))
    options: dict[str, Any] = {"k": 1, "budget": 60, "max_new_tokens": 8, "policy": "deep"}
    plain = bestk.search(lm, [1], prefetch=0, **options)
    ahead = bestk.search(lm, [1], prefetch=8, **options)
    assert facts(ahead) == facts(plain)
    usual = prefetch.look_ahead

    def as_usual(known: Any, nodes: Any, rank: Any, **more: Any) -> Guess:
        return usual(known, nodes, lambda *given: BestK.priority(rank.__self__, *given), **more)

    monkeypatch.setattr(prefetch, "look_ahead", as_usual)
    other = bestk.search(lm, [1], prefetch=8, **options)
    assert facts(other) == facts(plain)
    assert ahead.cost.model_calls < other.cost.model_calls


def test_a_model_brings_its_number_along(cli: Any) -> None:
    lm = bestk.load("toy", prefetch=4)
    options: dict[str, Any] = {"k": 1, "budget": 40, "max_new_tokens": 8}
    assert bestk.search(lm, "the", **options).cost.model_calls < 40
    assert bestk.search(lm, "the", prefetch=0, **options).cost.model_calls == 40
    assert "prefetch" not in bestk.search(lm, "the", **options).signature
    with pytest.raises(OptionError, match="prefetch must be a number of nodes"):
        bestk.load("toy", prefetch=-1)
    shell = ("-m", "toy", "-k", "1", "--budget", "40", "--max-new-tokens", "8", "--json", "the")
    shell += ("--policy", "best-k")
    code, out, _ = cli("generate", "--engine-option", "prefetch=4", *shell)
    assert code == 0
    assert json.loads(out)["cost"]["model_calls"] < 40


def test_who_is_served_by_default() -> None:
    """Models on a CPU; but nobody else's code, no engine, no policy that goes another way."""
    options: dict[str, Any] = {"k": 2, "budget": 20, "max_new_tokens": 6}
    tiny_lm, toy = goldens.causal("llama"), bestk.LanguageModel(random_toy(1, 6))
    assert _has_prefetch(tiny_lm, "ONE", options)
    assert not _has_prefetch(toy, [1], options)
    assert not _has_prefetch(tiny_lm, "ONE", {**options, "k": 11}), "16 are too few to gain"
    assert not _has_prefetch(tiny_lm, "ONE", {**options, "policy": "diverse", "num_texts": 2})
    assert not _has_prefetch(
        tiny_lm, "ONE", {**options, "policy": "uniform-cost", "scoring": "sum"}
    )
    assert not _has_prefetch(goldens.causal("mamba"), "ONE", options), "each row is read again"
    hooks = Hooks(logits_processor=[lambda ids, scores: scores])
    assert not _has_prefetch(tiny_lm, "ONE", options, hooks=hooks)
    assert _has_prefetch(tiny_lm, "ONE", options, hooks=hooks, prefetch=16)


def test_room_that_nobody_needs_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places without a node are written behind the last slot, which both sides must agree on."""
    monkeypatch.setattr("bestk.engine.batch.prefetch_of", lambda *_: None)
    config = bestk.SearchConfig(k=2, budget=20, max_new_tokens=6)
    batch = batch_of(goldens.causal("llama"), ["ONE"], config)
    assert isinstance(batch.session, TreeSession)
    assert batch.session.layout.capacity == batch.policy.spec.slots == 20
    batch.close()


def _has_prefetch(
    lm: bestk.LanguageModel, prompt: Any, options: dict[str, Any], **more: Any
) -> bool:
    batch = batch_of(lm, [prompt], bestk.SearchConfig(**options), **more)
    batch.close()
    return batch.prefetch is not None


@pytest.mark.parametrize("rows", [-1, 1.5, True, "many"])
def test_bad_numbers(rows: Any) -> None:
    with pytest.raises(OptionError, match="prefetch must be a number of nodes"):
        bestk.search(bestk.LanguageModel(random_toy(1, 6)), [1], prefetch=rows)


def test_results_from_before_load() -> None:
    result = bestk.search(bestk.LanguageModel(random_toy(1, 6)), [1], k=2, budget=9)
    data = result.to_json()
    data["cost"] = {"expanded": 9, "model_calls": 5, "seconds": 0.5}
    cost = bestk.SearchResult.from_json(data).cost
    assert (cost.steps, cost.model_calls, cost.evaluated) == (5, 5, 9)
