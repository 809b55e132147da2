"""Choosing texts from a pool: the two ends, the knob, and what comes out of `search`."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st

import bestk
from bestk.errors import OptionError, SearchInterrupted
from bestk.rerank import ngrams as bestk_ngrams
from bestk.rerank import select as selection
from bestk.rerank.ngrams import agreements, distinctness, ngrams, words
from bestk.rerank.select import diverse, narrow, select


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
    assert chosen(2, diversity=0) == list(TEXTS[:2])
    assert chosen(2, diversity=1) == [TEXTS[0], TEXTS[2]]


def test_values_by_hand() -> None:
    """Three texts of probability 1/2, 1/4, 1/4; the first two share one of two words and no bigram.

    Their agreement is (1/2 + 0)/2 = 1/4, that with the third 0. The pool agrees with them by
    1/2 + 1/16, 1/4 + 1/8 and 1/4, so they are worth 1, 2/5 and 0. With the first chosen the second
    adds (1 - 1/4)/4 = 3/16 and the third 1/4, relative to the best 3/4 and 1. The second's novelty
    is (1/2 + 1)/2, the third's 1. The second is taken while
    (1 - d)(2/5 + 3/4)/2 + d 3/4 > (1 - d)/2 + d, which is d < 3/13.
    """
    texts = ["a dog", "a cat", "two fish"]
    log_probs = [math.log(1 / 2), math.log(1 / 4), math.log(1 / 4)]
    assert diverse(texts, log_probs, 2, 3 / 13 - 0.01) == [0, 1]
    assert diverse(texts, log_probs, 2, 3 / 13 + 0.01) == [0, 2]


def test_texts_count_by_their_probability() -> None:
    """Two near-copies of little probability do not make each other good."""
    texts = ["the cat sleeps", "a dog runs home", "a dog runs away"]
    assert diverse(texts, [0.0, -9.0, -9.0], 1, 0.1) == [0]
    assert diverse(texts, None, 1, 0.1) == [1], "where nothing is known all count the same"


def test_of_very_many_texts_the_best_ranked_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*TEXTS, "nothing of all this"]
    log_probs = [-1.0, -1.1, -1.2, -1.3, -1.4]
    assert diverse(texts, log_probs, 3, 1.0) == [0, 2, 4]
    monkeypatch.setattr(selection, "_MOST", 3)
    assert diverse(texts, log_probs, 3, 1.0) == [0, 2, 1]
    assert diverse(texts, None, 1, 0.0, scores=[1, 2, 3, 9, 9]) == [2], "nor their scores beyond"
    assert diverse(texts, log_probs, 5, 1.0) == [0, 2, 1, 3, 4], "the others by rank"
    monkeypatch.setattr(selection, "_TURNS", 2)
    assert diverse(texts, log_probs, 4, 1.0) == [0, 2, 1, 3]


def test_equal_texts_go_by_rank() -> None:
    """Each shares as much with the others: rounding must not make one of them the best."""
    letters = "abcdefgh" * 2
    texts = [" ".join(letters[start : start + 5]) for start in (0, 5, 7, 2, 1, 6, 4, 3)]
    assert diverse(texts, None, 1) == [0]


def test_texts_far_less_likely_still_gain() -> None:
    """What is left when the likely text is chosen is weighed by its own shares, however small."""
    texts = ["a b", "c d", "c d e", "f g"]
    for gap in (10.0, 40.0, 200.0):
        log_probs = [0.0, -gap, -gap - 0.1, -gap - 0.2]
        assert diverse(texts, log_probs, 2, 0.0) == [0, 1], "two of three are near to it"


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_numbers_must_be_finite(broken: float) -> None:
    with pytest.raises(OptionError, match="log_probs must be finite"):
        diverse(["a", "b"], [0.0, broken], 2)
    with pytest.raises(OptionError, match="scores must be finite"):
        diverse(["a", "b"], [0.0, 0.0], 2, scores=[broken, 1.0])
    with pytest.raises(OptionError, match="embed must return finite numbers"):
        diverse(["a", "b"], [0.0, 0.0], 2, embed=lambda texts: [[broken], [1.0]])


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0]], "one vector per text, got 1 for 2"),
        ([[1.0], [1.0, 2.0]], "vectors of one length"),
        ([1.0, 2.0], "vectors of one length"),
        (None, "one vector per text, got None"),
        (torch.ones(2, 2, 2), "vectors of one length"),
    ],
)
def test_vectors_that_are_none(vectors: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        diverse(["a", "b"], [0.0, 0.0], 2, embed=lambda texts: vectors)


def test_numbers_are_one_per_text() -> None:
    with pytest.raises(OptionError, match="log_probs must be one number per text, got 2 for 3"):
        diverse(["a", "b", "c"], [-1, -2], 2)
    with pytest.raises(OptionError, match="scores must be one number per text, got 1 for 2"):
        diverse(["a", "b"], None, 2, scores=[1.0])


def test_an_embed_that_fails_loses_nothing() -> None:
    lm = bestk.load("toy")
    options: dict[str, Any] = {"max_new_tokens": 5, "num_texts": 3, "select": "diverse"}
    with pytest.raises(OptionError, match="embed must be a function from texts to vectors, got 'x"):
        bestk.search(lm, "the dog", embed="x", **options)
    with pytest.raises(SearchInterrupted, match="one vector per text, got None") as caught:
        bestk.search(lm, ["the dog", "a bird"], embed=lambda texts: None, **options)
    plain = bestk.search(lm, ["the dog", "a bird"], max_new_tokens=5)
    assert [r.hypotheses for r in caught.value.partial] == [r.hypotheses for r in plain]


def test_settings_are_checked_where_all_texts_are_wanted() -> None:
    result = bestk.search(bestk.LanguageModel(random_toy(3, 8)), [1], max_new_tokens=5)
    assert narrow(result, None) is result
    with pytest.raises(OptionError, match="unknown select 'foo'"):
        narrow(result, None, "foo")
    with pytest.raises(OptionError, match=r"diversity goes from 0 \(quality alone\) to 1, got 7"):
        narrow(result, None, diversity=7)


def test_what_the_docs_say_proves_the_likeliest_texts() -> None:
    page = Path(bestk.__file__).parent.parent / "docs" / "choosing.md"
    if not page.is_file():
        pytest.skip("the docs lie beside the package in a checkout alone")
    (written,) = re.findall(r"likeliest texts, with proof \| `(.*?), certify=n`", page.read_text())
    options = dict(re.findall(r'(\w+)="?(\w+)"?', written))
    given = {name: int(value) if value.isdigit() else value for name, value in options.items()}
    lm = bestk.load("toy")
    whole: dict[str, Any] = {"scoring": "sum", "decay": "none", "min_prob": 0, "rank_by": "sum"}
    for prompt in ("the dog", "a bird", "every old tree"):
        result = bestk.search(lm, prompt, certify=5, max_new_tokens=9, **given)
        assert result.stop_reason == "certified"
        assert result.certified >= 5
        wanted = bestk.search(lm, prompt, **whole, max_new_tokens=9, budget=9000, max_frontier=9000)
        assert result.texts[: result.certified] == wanted.texts[: result.certified]


def test_vectors_say_which_texts_agree() -> None:
    """The second and third point the same way; a vector of zeros agrees with itself alone."""
    vectors = [[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 0.0]]
    log_probs = [-1.2, -1.3, -1.4, -1.5]
    texts = ["a", "b", "c", "d"]
    assert diverse(texts, log_probs, 3, 0.1, embed=lambda texts: vectors) == [1, 0, 3]


def naive(texts: list[str], log_probs: list[float], num_texts: int, diversity: float) -> list[int]:
    """Choose as the module's head says, with sets and loops alone."""

    def f1(one: str, other: str, n: int) -> float:
        left, right = (set(ngrams(words(text), n)) for text in (one, other))
        return 2 * len(left & right) / max(len(left) + len(right), 1)

    def agreement(i: int, j: int) -> float:
        orders = [n for n in (1, 2) if max(len(words(texts[i])), len(words(texts[j]))) >= n]
        shared = [f1(texts[i], texts[j], n) for n in orders]
        return 1.0 if i == j else sum(shared) / len(shared)

    def covered(places: list[int]) -> float:
        return sum(
            weights[j] * max((agreement(i, j) for i in places), default=0) for j in everything
        )

    def novelty(i: int) -> float:
        shares = []
        for n in (1, 2, 3):
            seen = {gram for place in found for gram in ngrams(words(texts[place]), n)}
            if own := set(ngrams(words(texts[i]), n)):
                shares.append(len(own - seen) / len(own))
        return sum(shares) / len(shares) if shares else 0.0

    everything = range(len(texts))
    total = sum(map(math.exp, log_probs))
    weights = [math.exp(log_prob) / total for log_prob in log_probs]
    agreed = [sum(weights[j] * agreement(i, j) for j in everything) for i in everything]
    low, high = min(agreed), max(agreed)
    worth = [1.0 if high == low else (value - low) / (high - low) for value in agreed]
    found: list[int] = []
    while len(found) < min(num_texts, len(texts)):
        gains = [covered([*found, i]) - covered(found) for i in everything]
        values = [
            (1 - diversity) * (worth[i] + gains[i] / max(*gains, 1e-12)) / 2
            + diversity * novelty(i)
            for i in everything
        ]
        found.append(max((i for i in everything if i not in found), key=lambda i: (values[i], -i)))
    return found


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=6).map(tuple),
        min_size=2,
        max_size=9,
        unique=True,
    ),
    seed=st.integers(0, 1000),
    diversity=st.sampled_from([0.0, 0.137, 0.5, 0.871]),
)
def test_the_choice_is_the_one_of_its_definition(
    rows: list[tuple[str, ...]], seed: int, diversity: float
) -> None:
    chance = random.Random(seed)  # no two texts equally likely: no ties but those of novelty alone
    log_probs = sorted((-3 * chance.random() for _ in rows), reverse=True)
    texts = [" ".join(row) for row in rows]
    assert diverse(texts, log_probs, 4, diversity) == naive(texts, log_probs, 4, diversity)


def test_reranked_scores_are_the_quality() -> None:
    reranked = [dataclasses.replace(h, rerank_score=float(i)) for i, h in enumerate(pool(*TEXTS))][
        ::-1
    ]
    assert select(reranked, 1, diversity=0.1)[0].text == TEXTS[-1]
    assert select(reranked, 4, diversity=0) == reranked, "quality alone is the reranker's order"


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
    different = bestk.search(
        lm, [[1]], max_new_tokens=6, num_texts=5, select="diverse", diversity=0.8
    )
    expected = narrow(whole, 5, "diverse", diversity=0.8)
    assert different[0].hypotheses == expected.hypotheses
    assert different[0].signature.endswith("|select:diverse,0.8,5")
    assert sum(distinctness(different[0].texts)) >= sum(distinctness(best.texts))


def test_words_and_distinctness() -> None:
    assert words("Don't stop: x-ray!") == ["don't", "stop", "x-ray"]
    assert distinctness([]) == [0.0, 0.0, 0.0]
    assert distinctness(["a b", "a b"]) == [0.5, 0.25, 0.0]


def test_agreements_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    texts = [" ".join(chance.choice("abcdefghij") for _ in range(8)) for _ in range(12)]
    whole = agreements(texts)
    assert ((whole > 0) & (whole < 1)).sum() > 100
    assert torch.equal(whole, whole.T)
    monkeypatch.setattr(bestk_ngrams, "_AT_ONCE", 3)
    assert torch.equal(agreements(texts), whole)


def test_one_word_goes_by_itself() -> None:
    assert agreements(["yes", "Yes!", "no"]).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert agreements(["", "!"]).tolist() == [[1, 0], [0, 1]]


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
