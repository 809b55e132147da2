"""Best-k search over drawn tokens, and the settings that the paper names and does not use."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import steps
from test_oracle import PROMPTS, _ledger, _popped
from toys import every_text

import bestk
from bestk.backends.toy import ToyBackend
from bestk.config import SearchConfig


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    min_prob=st.sampled_from([0.05, 0.2, 0.5]),
    least=st.integers(0, 2),
    vocab=st.integers(2, 6),
    seed=st.integers(0, 10**6),
)
def test_books_of_drawn_searches(min_prob: float, least: int, vocab: int, seed: int) -> None:
    model, prompts = random_toy(seed, vocab), [(1,), (1, 1), (0, 1)]
    config = SearchConfig(
        sample="tokens", min_prob=min_prob, max_new_tokens=4, min_new_tokens=least, seed=seed
    )
    together = bestk.search(bestk.LanguageModel(model), prompts, config)
    for prompt, result in zip(prompts, together, strict=True):
        alone = bestk.search(bestk.LanguageModel(model), prompt, config)
        assert alone.hypotheses == result.hypotheses
        assert abs(result.mass.total - 1) < 1e-6
        texts = every_text(model, prompt, 4, least)
        found = {one.token_ids: one for one in result.raw}
        assert len(found) == len(result.raw), "a text was completed twice"
        for text, one in found.items():
            assert one.log_prob == pytest.approx(texts[text], abs=1e-9)
        assert result.bound is not None
        unfound = max((p for text, p in texts.items() if text not in found), default=-math.inf)
        assert unfound <= result.bound + 1e-9, "the bound is too low"


def test_children_are_draws() -> None:
    """With γ = 0.5 there are two draws: a token of probability p is a child with 1 − (1 − p)²."""
    law = (0.5, 0.3, 0.2)
    lm = bestk.LanguageModel(ToyBackend.table({}, law))
    prompts = list(itertools.product((0, 1), repeat=8))
    found = bestk.search(
        lm, prompts, batch_size=64, sample="tokens", min_prob=0.5, max_new_tokens=1, k=1
    )
    for token, p in enumerate(law):
        share = 1 - (1 - p) ** 2
        drawn = sum(token in result.tree.child_token.tolist() for result in found)
        error = math.sqrt(share * (1 - share) / len(found))
        assert abs(drawn / len(found) - share) < 4 * error, token
    others = bestk.search(
        lm, prompts, batch_size=64, sample="tokens", min_prob=0.5, max_new_tokens=1, k=1, seed=1
    )
    assert [r.texts for r in others] != [r.texts for r in found], "the seed changes nothing"


def test_truncation_comes_before_the_draws() -> None:
    rows = {(): (0.0, 0.45, 0.55), (1,): (0.6, 0.3, 0.1), (2,): (0.6, 0.3, 0.1)}
    lm = bestk.LanguageModel(ToyBackend.ngram(rows, rows[()]))
    for seed in range(20):
        options: dict[str, Any] = {"sample": "tokens", "min_prob": 0.01, "seed": seed}
        result = bestk.search(lm, [1], max_new_tokens=5, top_p=0.5, **options)
        assert result.texts == ["0"], "top-p leaves one token"


def test_depth_bonus_makes_the_search_depth_first() -> None:
    """As the paper's appendix says: once a sequence is long, all of the search is on it."""
    lm = bestk.LanguageModel(random_toy(5, 8))

    def is_deepest(bonus: float) -> list[bool]:
        """Return of every step whether it expanded the deepest node that was open."""
        config = SearchConfig(k=1, budget=30, max_new_tokens=12, depth_bonus=bonus)
        found, deepest = [], 0
        for _, plan, searches in steps(lm, PROMPTS[:1], config):
            if plan is not None and (popped := _popped(plan, 0)):
                found.append(len(popped[0]) == deepest)
            nodes = searches.frontier.nodes
            deepest = int(nodes.depth[nodes.is_open].max()) if nodes.is_open.any() else 0
        return found

    assert all(is_deepest(100.0))
    assert not all(is_deepest(0.0))


def test_a_margin_prunes_more_than_the_heap() -> None:
    lm = bestk.LanguageModel(random_toy(11, 10))
    options: dict[str, Any] = {"max_new_tokens": 6, "beam_size": 5, "min_prob": 0.0}
    wide = bestk.search(lm, [1], **options)
    tight = bestk.search(lm, [1], prune_margin=0.0, **options)
    assert tight.mass.pruned_frontier > wide.mass.pruned_frontier
    assert abs(tight.mass.total - 1) < 1e-6
    for _, _, searches in steps(lm, [(1,)], SearchConfig(prune_margin=0.0, **options)):
        nodes = searches.frontier.nodes
        scores = nodes.score[nodes.is_open].sort(descending=True).values
        assert len(scores) < 5 or scores[-1] >= scores[4], "worse than the k-th, and kept"
        assert abs(sum(_ledger(searches, 0).values()) - 1) < 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"prune_margin": 0.5},
        {"depth_bonus": 0.5},
        {"sample": "tokens"},
        {"sample": "texts", "num_texts": 4},
    ],
)
def test_pictures_of_such_searches(options: dict[str, Any]) -> None:
    lm = bestk.LanguageModel(random_toy(3, 6))
    result = bestk.search(lm, [1], max_new_tokens=5, **options)
    page = bestk.SearchResult.from_json(result.to_json(tree=True)).to_html()
    assert "<html" in page
