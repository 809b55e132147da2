"""Certificates: texts proven to be the model's likeliest, against enumeration of all texts."""

from __future__ import annotations

import math
from typing import Any

import pytest
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import every_text, search_ids, table_lm

import bestk

LENGTH = 4
SCORES: list[dict[str, Any]] = [
    {"scoring": "sum"},
    {"scoring": "mean"},
    {"scoring": "last"},
    {"length_alpha": 0.6},
]


def certified(result: bestk.SearchResult) -> dict[tuple[int, ...], float]:
    proven = {h.token_ids: h.log_prob for h in result.hypotheses if h.is_certified}
    assert len(proven) == result.certified
    return proven


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 10**6), vocab=st.integers(2, 5), wanted=st.integers(1, 12))
def test_the_n_best_equal_brute_force(seed: int, vocab: int, wanted: int) -> None:
    model = random_toy(seed, vocab)
    texts = every_text(model, (1,), LENGTH)
    result = bestk.search(
        bestk.LanguageModel(model),
        [1],
        scoring="sum",
        decay="none",
        min_prob=0.0,
        certify=wanted,
        budget=2000,
        max_new_tokens=LENGTH,
        rank_by="sum",
    )
    best = sorted(texts.values(), reverse=True)
    assert result.certified >= min(wanted, len(texts)), "the search ended without its proof"
    ranked = [h.log_prob for h in result.hypotheses[: result.certified]]
    assert ranked == pytest.approx(best[: result.certified])
    assert all(h.is_certified for h in result.hypotheses[: result.certified])


@pytest.mark.parametrize("score", SCORES)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 5),
    budget=st.integers(1, 30),
    heap=st.sampled_from([1, 2, 5, 500]),
    min_prob=st.sampled_from([0.0, 0.1, 0.3]),
    max_children=st.sampled_from([None, 1, 2]),
    least=st.integers(0, 2),
)
def test_no_text_refutes_a_certificate(
    score: dict[str, Any],
    seed: int,
    vocab: int,
    budget: int,
    heap: int,
    min_prob: float,
    max_children: int | None,
    least: int,
) -> None:
    model = random_toy(seed, vocab)
    result = bestk.search(
        bestk.LanguageModel(model),
        [1],
        k=1,
        budget=budget,
        max_frontier=heap,
        min_prob=min_prob,
        max_children=max_children,
        min_new_tokens=least,
        max_new_tokens=LENGTH,
        **score,
    )
    proven = certified(result)
    for ids, log_prob in every_text(model, (1,), LENGTH, least).items():
        was_found = any(h.token_ids == ids for h in result.hypotheses)
        assert was_found or log_prob <= min(proven.values(), default=0.0) + 1e-12, (
            f"{ids} is likelier than a text said to be among the best"
        )


def test_certify_stops_as_soon_as_it_is_proven() -> None:
    # 0.6 at once; whatever follows the other token is less likely.
    lm = table_lm({}, [0.6, 0.4])
    result = search_ids(lm, k=1, certify=1, max_new_tokens=20)
    assert (result.stop_reason, result.cost.expanded) == ("certified", 1)
    assert certified(result) == {(0,): pytest.approx(-0.5108, abs=1e-4)}
    two = search_ids(lm, k=1, certify=2, max_new_tokens=20)
    assert (two.cost.expanded, two.certified) == (2, 2)


def test_an_open_node_that_could_be_likelier_forbids_a_certificate() -> None:
    lm = table_lm({(): [0.4, 0.6]}, [0.1, 0.9])
    assert search_ids(lm, k=1, budget=1).certified == 0


def test_a_pruned_node_that_could_be_likelier_forbids_a_certificate() -> None:
    lm = table_lm({(): [0.3, 0.36, 0.34], (1,): [0.5, 0.5, 0.0]}, [0.99, 0.0, 0.01])
    assert search_ids(lm, k=1, max_frontier=1, decay="none").certified == 0
    assert search_ids(lm, k=1, max_frontier=9, decay="none").certified > 0


def test_a_child_below_min_prob_that_could_be_likelier_forbids_a_certificate() -> None:
    lm = table_lm({(): [0.36, 0.34, 0.3]}, [0.5, 0.5, 0.0])
    best = search_ids(lm, min_prob=0.35)
    assert [h.is_certified for h in best.hypotheses] == [True]
    lower = search_ids(lm, min_prob=0.35, min_new_tokens=2, min_children=1)
    assert lower.certified == 0


def test_what_rounding_hides_forbids_a_certificate() -> None:
    # The four tokens that are listed seem to hold all of the probability; the end is not listed.
    hidden = 2e-7
    rows = {(): [hidden, 0.25, 0.25, 0.25, 0.25]}
    rows |= {(1,) * n: [0.25, 0.75, 0.0, 0.0, 0.0] for n in range(1, 60)}
    options = {"min_prob": 0.25, "max_new_tokens": 60, "scoring": "sum", "decay": "none"}
    result = search_ids(table_lm(rows, [1.0, 0.0, 0.0, 0.0, 0.0]), **options)
    log_probs = [h.log_prob for h in result.hypotheses]
    assert min(log_probs) < math.log(hidden), "no text that the hidden one would beat"
    assert result.certified > 3
    assert min(certified(result).values()) >= math.log(hidden)
