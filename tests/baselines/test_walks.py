"""Draws that share prefixes: exact probabilities, nothing paid twice, nothing drawn twice."""

from __future__ import annotations

import collections
import itertools
import math
from typing import Any

import pytest
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bestk
from bestk.backends.toy import ToyBackend
from bestk.baselines import Nucleus, Sampling, run_method
from bestk.baselines.filters import Epsilon, MinProb, TopSigma
from bestk.baselines.walks import WALKS
from bestk.constraints import Constraint
from bestk.engine.batch import Batch
from bestk.errors import OptionError
from bestk.nodes import NodeBatch

FLAT = (0.05, 0.4, 0.3, 0.15, 0.1)


def chi_square(observed: collections.Counter[Any], probs: dict[Any, float], total: int) -> float:
    assert set(observed) <= set(probs), "a text of probability 0 was drawn"
    return sum((observed[x] - p * total) ** 2 / (p * total) for x, p in probs.items())


def drawn(method: Sampling, count: int, **options: Any) -> list[list[tuple[int, ...]]]:
    """Draw for many prompts: each has a source of randomness of its own."""
    lm = bestk.LanguageModel(ToyBackend.table({}, default=FLAT, eos_ids=(0,)))
    prompts = [[1] * (1 + place) for place in range(100)]
    found = []
    for seed in range(10, 10 + count // 100):
        results = run_method(lm, prompts, method, seed=seed, k=1, batch_size=100, **options)
        found += [[h.token_ids for h in result.raw] for result in results]
    return found


@pytest.mark.parametrize("walk", WALKS[:3])
def test_the_first_walk_follows_the_filtered_distribution(walk: str) -> None:
    total = 500
    method = Sampling(filter=Nucleus(0.8), walk=walk)
    texts = drawn(method, total, beam_size=1, max_new_tokens=2)
    mass = FLAT[1] + FLAT[2] + FLAT[3]
    probs = {(a, b): FLAT[a] * FLAT[b] / mass**2 for a, b in itertools.product((1, 2, 3), repeat=2)}
    observed = collections.Counter(found[0] for found in texts)
    freedom = len(probs) - 1
    assert chi_square(observed, probs, total) <= freedom + 5 * math.sqrt(2 * freedom)


def test_distinct_walks_are_draws_without_replacement() -> None:
    total = 500
    texts = drawn(Sampling(walk="distinct"), total, beam_size=1, max_new_tokens=1)
    probs = {
        (a, b): FLAT[a] * FLAT[b] / (1 - FLAT[a]) for a, b in itertools.permutations(range(5), 2)
    }
    observed = collections.Counter((found[0][0], found[1][0]) for found in texts)
    freedom = len(probs) - 1
    assert chi_square(observed, probs, total) <= freedom + 5 * math.sqrt(2 * freedom)
    assert all(sorted(found) == [(0,), (1,), (2,), (3,), (4,)] for found in texts)


def test_a_temperature_sharpens() -> None:
    total = 500
    for walk in (None, "shared"):
        options = {"beam_size": 2, "max_new_tokens": 1}
        texts = drawn(Sampling(temperature=0.5, walk=walk), total, **options)
        weights = [p**2 for p in FLAT]
        probs = {(token,): weight / sum(weights) for token, weight in enumerate(weights)}
        observed = collections.Counter(found[0] for found in texts)
        assert chi_square(observed, probs, total) <= 4 + 5 * math.sqrt(8)


def test_arithmetic_walks_are_spread_evenly() -> None:
    """Of any 8 in a row each eighth of the numbers from 0 to 1 has one, so each text its share."""
    lm = bestk.LanguageModel(ToyBackend.table({}, default=(0.25, 0.5, 0.25), eos_ids=(0,)))
    method = Sampling(walk="arithmetic")
    result = run_method(lm, [1], method, max_new_tokens=1, beam_size=1, k=1)
    first = collections.Counter(h.token_ids[0] for h in result.raw[:8])
    assert first == {0: 2, 1: 4, 2: 2}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    walk=st.sampled_from(WALKS),
    lanes=st.integers(1, 6),
    budget=st.integers(6, 60),
    length=st.integers(1, 6),
)
def test_every_prefix_is_paid_for_once(
    seed: int, walk: str, lanes: int, budget: int, length: int
) -> None:
    lm = bestk.LanguageModel(random_toy(seed, 6))
    options = {"beam_size": lanes, "budget": budget, "max_new_tokens": length, "k": 1}
    result = run_method(lm, [1], Sampling(walk=walk), seed=seed, **options)
    texts = [h.token_ids for h in result.raw]
    prefixes = {text[:size] for text in texts for size in range(len(text))} | {()}
    assert len(prefixes) <= result.cost.expanded <= budget
    if walk == "distinct":
        assert len(set(texts)) == len(texts)
    if result.cost.expanded < budget:  # then all there is was drawn, but what hardly ever is
        assert len(prefixes) == result.cost.expanded
    for hypothesis in result.raw:
        prefix: tuple[int, ...] = (1,)
        for token, log_prob in zip(hypothesis.token_ids, hypothesis.log_probs, strict=True):
            assert log_prob == pytest.approx(lm.backend.log_probs(prefix)[token])  # type: ignore[attr-defined]
            prefix = (*prefix, token)


@pytest.mark.parametrize("walk", WALKS)
def test_walks_are_the_same_in_any_batch(walk: str) -> None:
    lm = bestk.LanguageModel(random_toy(3, 12))
    prompts = [[1], [1, 2], [3], [4, 4, 1], [2]]
    method = Sampling(filter=MinProb(0.05), walk=walk)
    options = {"max_new_tokens": 6, "seed": 4}
    together = run_method(lm, prompts, method, **options)
    for prompt, one in zip(prompts, together, strict=True):
        alone = run_method(lm, prompt, method, **options)
        assert [h.token_ids for h in alone.raw] == [h.token_ids for h in one.raw]
    other = run_method(lm, prompts[0], method, max_new_tokens=6, seed=5)
    is_same = [h.token_ids for h in other.raw] == [h.token_ids for h in together[0].raw]
    assert is_same == (walk == "leaves"), "leaves alone are not drawn"


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), lanes=st.integers(1, 6), length=st.integers(1, 5))
def test_leaves_come_as_one_walk_after_another_finds_them(
    seed: int, lanes: int, length: int
) -> None:
    """Walks side by side branch off where one alone would: at the likeliest branch not taken."""
    lm = bestk.LanguageModel(random_toy(seed, 6))
    options = {"beam_size": lanes, "budget": 10**4, "max_new_tokens": length, "k": 1}
    found = run_method(lm, [1], Sampling(filter=Nucleus(0.9), walk="leaves"), **options)
    alone = {**options, "beam_size": 1}
    one = run_method(lm, [1], Sampling(filter=Nucleus(0.9), walk="leaves"), **alone)
    texts = [h.token_ids for h in found.raw]
    assert len(set(texts)) == len(texts)
    assert set(texts) == {h.token_ids for h in one.raw}
    distinct = run_method(lm, [1], Sampling(filter=Nucleus(0.9), walk="distinct"), **options)
    assert {h.token_ids for h in distinct.raw} <= set(texts), "all leaves are found"


def test_texts_are_not_too_short() -> None:
    lm = bestk.LanguageModel(random_toy(7, 8))
    method = Sampling(walk="distinct")
    result = run_method(lm, [1], method, max_new_tokens=6, min_new_tokens=3)
    assert min(len(h.token_ids) for h in result.raw) == 3


def test_filters_keep_what_they_say() -> None:
    log_probs = torch.tensor(FLAT).log()
    assert Epsilon(0.12).keeps(log_probs).tolist() == [False, True, True, True, False]
    assert Epsilon(0.9).keeps(log_probs).tolist() == [False, True, False, False, False]
    spread = float(log_probs.double().std(correction=0))
    for n in (0.3, 0.5, 1.0, 2.0):
        least = math.log(0.4) - n * spread
        expected = [math.log(p) >= least for p in FLAT]
        assert TopSigma(n).keeps(log_probs).tolist() == expected
        barred = torch.cat([log_probs, torch.full((3,), -math.inf)])
        assert TopSigma(n).keeps(barred).tolist() == [*expected, False, False, False]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sampling(walk="random"), "unknown walk 'random'"),
        (lambda: Sampling(walk="shared", num_draws=3), "no num_draws"),
        (lambda: Sampling(temperature=0.0), "temperature must be above 0"),
        (lambda: TopSigma(0.0), "standard deviations above 0"),
        (
            lambda: run_method(
                bestk.LanguageModel(random_toy(7, 8)), [1], Sampling(walk="shared"), stop=("a",)
            ),
            "knows no stop strings",
        ),
    ],
)
def test_errors_name_the_way_out(call: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call()


@pytest.mark.parametrize("walk", WALKS)
def test_passes_that_nobody_looks_between_change_nothing(
    walk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU several passes are made before anybody sees that all has ended."""
    prompts, options = [[1], [1, 2], [2, 2]], {"beam_size": 3, "max_new_tokens": 4}
    lm = bestk.LanguageModel(random_toy(7, 6))
    plain = run_method(lm, prompts, Sampling(walk=walk), **options)
    monkeypatch.setattr(Batch, "_passes", lambda _: 8)
    again = run_method(lm, prompts, Sampling(walk=walk), **options)
    assert [r.raw for r in again] == [r.raw for r in plain]


class EndsAnywhere(Constraint):
    """Lets any text end, where its end is likely enough."""

    num_forced, least_log_prob = 1, math.log(0.2)

    def forced(self, nodes: NodeBatch) -> Tensor:
        return torch.where(nodes.depth[..., None] > 0, 0, -1)


@pytest.mark.parametrize(
    "method",
    [
        *(Sampling(filter=Nucleus(0.6), walk=walk) for walk in (None, *WALKS)),
        *("BS", "DBS", "BNcls0.5"),
    ],
)
def test_every_method_ends_texts_by_the_same_rule(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bestk.constraints.BUILDERS", [lambda config, lm: EndsAnywhere()])
    lm = bestk.LanguageModel(random_toy(3, 12))
    options = {"max_new_tokens": 5, "beam_size": 5, "seed": 1}
    result = run_method(lm, [1], method, end_prob=0.2, raw=True, **options)
    texts = {h.token_ids for h in result.raw if h.is_complete}
    walked = {h.token_ids[:size] for h in result.raw for size in range(1, len(h.token_ids))}
    likely = {p for p in walked if math.exp(lm.backend.log_probs((1, *p))[0]) >= 0.2}  # type: ignore[attr-defined]
    assert likely, "the toy has texts that may end early"
    assert {(*prefix, 0) for prefix in likely} <= texts
    for hypothesis in result.raw:
        prefixes = ((1, *hypothesis.token_ids[:n]) for n in range(len(hypothesis.token_ids)))
        expected = [
            lm.backend.log_probs(prefix)[token]  # type: ignore[attr-defined]
            for prefix, token in zip(prefixes, hypothesis.token_ids, strict=True)
        ]
        assert hypothesis.log_probs == pytest.approx(expected)
    if isinstance(method, Sampling) and method.walk in ("distinct", "leaves"):
        assert len(result.raw) == len({h.token_ids for h in result.raw})
    assert "endprob:0.2" in result.signature
