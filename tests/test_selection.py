"""Choosing texts from a pool: the two ends, the knob, and what comes out of `search`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st

import bestk
from bestk.errors import OptionError
from bestk.ngrams import distinctness, words
from bestk.selection import narrow, select


def pool(*texts: str) -> list[bestk.Hypothesis]:
    """Make hypotheses whose scores fall in even steps."""
    return [
        bestk.Hypothesis(
            text=text, score=-float(i), log_prob=-float(i), token_ids=(i,), log_probs=(0.0,), step=0
        )
        for i, text in enumerate(texts)
    ]


TEXTS = ("a dog runs home", "a dog runs away", "the cat sleeps", "a dog runs home now")


def chosen(num_texts: int, how: str = "diverse", **options: Any) -> list[str]:
    return [h.text for h in select(pool(*TEXTS), num_texts, how, **options)]


def test_best_is_the_head_of_the_pool() -> None:
    assert chosen(2, "best") == list(TEXTS[:2])
    assert chosen(9, "best") == list(TEXTS)


def test_the_knob_goes_from_quality_to_novelty() -> None:
    assert chosen(3, diversity=0) == list(TEXTS[:3])
    assert chosen(2, diversity=1) == [TEXTS[0], TEXTS[2]]


def test_gain_by_hand() -> None:
    """After text 0 the second has quality 2/3; 1 of 4 words, 1 of 3 bigrams, 1 of 2 trigrams new.

    Its gain at diversity d is (1 − d)·2/3 + d·(1/4 + 1/3 + 1/2)/3; the third's (1 − d)/3 + d. They
    are equal at d = 12/35.
    """
    even = (1 / 3) / (1 / 3 + 1 - (1 / 4 + 1 / 3 + 1 / 2) / 3)
    assert chosen(2, diversity=even - 0.01)[1] == TEXTS[1]
    assert chosen(2, diversity=even + 0.01)[1] == TEXTS[2]


def test_reranked_scores_are_the_quality() -> None:
    reranked = [dataclasses.replace(h, rerank_score=float(i)) for i, h in enumerate(pool(*TEXTS))][
        ::-1
    ]
    assert select(reranked, 1, diversity=0.1)[0].text == TEXTS[-1]


def test_embeddings_replace_ngrams() -> None:
    directions = {TEXTS[0]: (1, 0), TEXTS[1]: (0, 2), TEXTS[2]: (3, 0), TEXTS[3]: (1, 1)}
    found = chosen(3, diversity=1, embed=lambda texts: [directions[text] for text in texts])
    assert found == [TEXTS[0], TEXTS[1], TEXTS[3]], "the third text points where the first does"


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(st.text("ab c", min_size=1), min_size=1, max_size=12, unique=True),
    count=st.integers(1, 12),
    diversity=st.floats(0, 1),
)
def test_a_choice_is_of_the_pool_without_repeats(
    texts: list[str], count: int, diversity: float
) -> None:
    found = select(pool(*texts), count, diversity=diversity)
    assert len(found) == min(count, len(texts))
    assert len({h.text for h in found} & set(texts)) == len(found)
    assert found == select(pool(*texts), count, diversity=diversity)


def test_search_chooses() -> None:
    lm = bestk.LanguageModel(random_toy(3, 8))
    whole = bestk.search(lm, [1], max_new_tokens=6)
    assert len(whole.texts) > 6
    best = bestk.search(lm, [1], max_new_tokens=6, num_texts=5)
    assert best.texts == whole.texts[:5]
    diverse = bestk.search(
        lm, [[1]], max_new_tokens=6, num_texts=5, select="diverse", diversity=0.8
    )
    expected = narrow(whole, 5, "diverse", diversity=0.8)
    assert diverse[0].hypotheses == expected.hypotheses
    assert diverse[0].signature.endswith("|select:diverse,0.8,5")
    assert sum(distinctness(diverse[0].texts)) >= sum(distinctness(best.texts))


def test_words_and_distinctness() -> None:
    assert words("Don't stop: x-ray!") == ["don't", "stop", "x-ray"]
    assert distinctness([]) == [0.0, 0.0, 0.0]
    assert distinctness(["a b", "a b"]) == [0.5, 0.25, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_texts": 0}, "num_texts must be at least 1, got 0"),
        ({"num_texts": 2.5}, "whole number, got 2.5"),
        ({"num_texts": 2, "select": "divers"}, "did you mean 'diverse'"),
        ({"num_texts": 2, "select": "diverse", "diversity": 2}, "got 2"),
        ({"select": "diverse"}, "needs num_texts"),
    ],
)
def test_errors_name_the_way_out(options: dict[str, Any], message: str) -> None:
    lm = bestk.LanguageModel(random_toy(3, 8))
    with pytest.raises(OptionError) as error:
        bestk.search(lm, [1], max_new_tokens=4, **options)
    assert message in str(error.value)
