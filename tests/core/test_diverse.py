"""Best-k search with diverse completion: the policy against its oracle, and what it promises."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conftest import random_toy
from diverse_oracle import diverse
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import steps
from test_oracle import PROMPTS, _completions, _ledger, _popped

import bestk
from bestk.config import SearchConfig
from bestk.core.record import TreeRecord, texts_of
from bestk.core.tree import State
from bestk.errors import OptionError


@st.composite
def told_n(draw: st.DrawFn) -> dict[str, Any]:
    length, n = draw(st.integers(1, 8)), draw(st.integers(1, 7))
    return {
        "num_texts": n,
        "k": draw(st.sampled_from([None, 1, 2, 5])) if n * length >= 5 else None,
        "budget": draw(st.sampled_from([None, None, n * length + 7, 40])),
        "max_new_tokens": length,
        "min_new_tokens": draw(st.integers(0, min(2, length))),
        "max_frontier": draw(st.sampled_from([7, 20, 500])),
        "min_prob": draw(st.sampled_from([0.0, 0.05, 0.1, 0.3])),
        "novelty": draw(st.sampled_from([0.0, 0.5, 1.0, "very different"])),
        "stop_ids": draw(st.sampled_from([(), (), (1,)])),
    }


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(options=told_n(), seed=st.integers(0, 10**6), vocab=st.integers(2, 12))
def test_policy_equals_oracle(options: dict[str, Any], seed: int, vocab: int) -> None:
    config = SearchConfig(**options)
    model = random_toy(seed, vocab)
    groups: list[list[Any]] = [[], [], []]
    for _, plan, searches in steps(bestk.LanguageModel(model), PROMPTS, config):
        assert int(searches.tree.count.max()) <= config.total_budget, "the budget was exceeded"
        for row in range(3):
            assert abs(sum(_ledger(searches, row).values()) - 1) < 1e-6, "mass was lost or made"
            if plan is not None and (popped := _popped(plan, row)):
                groups[row].append(popped)
    for row, prompt in enumerate(PROMPTS):
        trace = diverse(model, prompt, config)
        assert groups[row] == trace.groups
        assert dict(_completions(searches, row)) == pytest.approx(trace.completions, abs=1e-12)
        (record,) = TreeRecord.of(searches.tree, [row])
        cut = [text.token_ids for text in texts_of(record, 0.0, state=State.TRUNCATED)]
        assert sorted(cut) == sorted(trace.cut)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    n=st.integers(1, 30),
    length=st.integers(1, 7),
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 30),
    min_prob=st.sampled_from([0.0, 0.05, 0.3, 0.9]),
)
def test_n_texts_wherever_the_tree_has_as_many(
    n: int, length: int, seed: int, vocab: int, min_prob: float
) -> None:
    model = random_toy(seed, vocab)
    lm = bestk.LanguageModel(model)
    result = bestk.search(lm, [1], num_texts=n, max_new_tokens=length, min_prob=min_prob)
    leaves = num_leaves(model, (1,), length, n)
    assert len(set(result.texts)) == len(result.texts) <= n
    assert len(result.texts) == min(n, leaves), result.stop_reason
    assert result.cost.expanded <= n * length
    assert (result.notice is not None) == (leaves < n), "fewer than n are explained, n are not"


def num_leaves(model: Any, prompt: tuple[int, ...], length: int, most: int) -> int:
    """Count the texts that a model can write, up to a number; of equal ones one."""
    found, open_prefixes = 0, [()]
    while open_prefixes and found < most:
        prefix = open_prefixes.pop()
        for token, log_prob in enumerate(model.log_probs(prompt + prefix)):
            if log_prob > float("-inf"):
                if token in model.eos_ids or len(prefix) + 1 == length:
                    found += 1
                else:
                    open_prefixes.append((*prefix, token))
    return min(found, most)


def test_a_batch_changes_nothing() -> None:
    lm = bestk.LanguageModel(random_toy(5, 11))
    prompts = [[1 + i % 10, i % 3] for i in range(9)]
    options = {"num_texts": 4, "max_new_tokens": 6}
    alone = [bestk.search(lm, prompt, **options) for prompt in prompts]
    order = list(range(9))
    random.Random(3).shuffle(order)
    for batch_size in (1, 2, 4, 9):  # rows are refilled as searches end
        together = bestk.search(lm, [prompts[i] for i in order], batch_size=batch_size, **options)
        assert [r.hypotheses for r in together] == [alone[i].hypotheses for i in order]
        assert [r.mass for r in together] == [alone[i].mass for i in order]


def test_told_no_n_or_named_it_is_algorithm_2() -> None:
    lm = bestk.LanguageModel(random_toy(5, 11))
    plain = bestk.search(lm, [1], max_new_tokens=6, k=3, beam_size=4)
    named = bestk.search(
        lm, [1], max_new_tokens=6, k=3, beam_size=4, num_texts=4, policy="best-k", select="best"
    )
    assert named.raw == plain.raw
    assert named.hypotheses == plain.hypotheses[:4]
    assert SearchConfig(num_texts=4, scoring="last").policy == "best-k"
    assert SearchConfig(num_texts=4).policy == "diverse"


def test_n_settles_what_was_not_given() -> None:
    told = SearchConfig(num_texts=12, max_new_tokens=20)
    assert (told.k, told.beam_size, told.total_budget) == (12, 12, 240)
    assert SearchConfig(num_texts=100, max_new_tokens=20).k == 32
    assert SearchConfig.of({"num_texts": 3}, SearchConfig(max_new_tokens=9)).total_budget == 27
    kept = SearchConfig.of({"num_texts": 3}, SearchConfig(k=2, beam_size=7))
    assert (kept.k, kept.beam_size) == (2, 7)
    usual = SearchConfig()
    assert (usual.k, usual.beam_size, usual.policy) == (5, 10, "best-k")


def test_ten_texts_take_about_as_many_passes_as_a_text_has_tokens() -> None:
    lm = bestk.LanguageModel(random_toy(8, 40))
    result = bestk.search(lm, [1], num_texts=10, max_new_tokens=20, min_prob=0.0)
    assert result.cost.model_calls <= 1.3 * 20


def test_novelty_in_words_and_nats() -> None:
    assert SearchConfig(num_texts=2, novelty="similar").novelty == 0.5
    assert "|novelty:0.5|" in SearchConfig(num_texts=2, novelty="similar").describe()
    assert "|novelty:1|" in SearchConfig(num_texts=2).describe(), "the default too is told"
    assert "novelty" not in SearchConfig().describe()
    with pytest.raises(OptionError, match=r"novelty 'diferent'.*different"):
        SearchConfig(num_texts=2, novelty="diferent")


def test_fill_leaves_out_what_looks_much_worse() -> None:
    lm = bestk.LanguageModel(random_toy(6, 12))
    options = {"num_texts": 6, "max_new_tokens": 5}
    every = bestk.search(lm, [1], **options)
    few = bestk.search(lm, [1], fill=False, **options)
    assert 0 < len(few) < 6
    assert [text for text in every if text in few.hypotheses] == list(few.hypotheses)
    assert few.notice is None
    assert "fill:False" in few.signature
    with pytest.raises(OptionError, match="fill must be true or false, got 1"):
        SearchConfig(num_texts=2, fill=1)
