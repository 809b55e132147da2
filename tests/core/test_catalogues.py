"""Exact search of a catalogue, against brute force over all of its items."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import pytest
import tiny
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Words
from tries import Ids, item_scores, random_rows

import bestk
from bestk.backends.toy import ToyBackend
from bestk.constraints.allowed import Allowed
from bestk.engine.request import requests_of
from bestk.engine.scheduler import Scheduler
from bestk.processors.pipeline import Hooks

VOCAB = 7
SEEDS = st.integers(0, 10**6)


def case_of(seed: int) -> dict[str, Any]:
    """Make a model and a catalogue, half of them with a bias, with exclusions, with nested ones."""
    rng = random.Random(seed)
    rows = random_rows(seed, VOCAB, most=25, is_fixed=rng.random() < 0.5)
    bias = [rng.choice([0.0, single(rng.uniform(-4, 4)), -math.inf]) for _ in rows]
    bias[0] = 0.0
    return {
        "model": random_toy(seed, VOCAB, rng.choice([(0,), (1, 3)])),
        "rows": rows,
        "bias": bias if rng.random() < 0.5 else None,
        "without": rng.sample(range(len(rows)), rng.randint(0, len(rows)) * rng.randint(0, 1)),
        "renormalize": rng.random() < 0.5,
    }


def single(x: float) -> float:
    return torch.tensor(x, dtype=torch.float32).item()


def searched(case: dict[str, Any], prompt: Ids = (1,), **options: Any) -> bestk.SearchResult:
    result = bestk.search(
        bestk.LanguageModel(case["model"]),
        [*prompt],
        allowed=bestk.Trie.from_sequences(case["rows"]),
        exclude=case["without"] or None,
        item_bias=case["bias"],
        renormalize=case["renormalize"],
        **options,
    )
    for hypothesis in result.hypotheses:
        assert case["rows"][hypothesis.item] == hypothesis.token_ids
    assert abs(result.mass.total - 1) < 1e-9
    assert min(result.mass.brief().values()) > -1e-9
    return result


def scores_of(case: dict[str, Any], prompt: Ids = (1,)) -> dict[int, float]:
    keys = ("without", "bias", "renormalize")
    return item_scores(case["model"], prompt, case["rows"], **{key: case[key] for key in keys})


@pytest.mark.parametrize("k", [2, 8, 128])
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(seed=SEEDS, wanted=st.integers(1, 12))
def test_the_n_best_items_equal_brute_force(seed: int, wanted: int, k: int) -> None:
    case = case_of(seed)
    scores = scores_of(case)
    result = searched(case, certify=wanted, k=k, budget=200)
    best = sorted(scores.values(), reverse=True)
    assert result.certified >= min(wanted, len(scores)), "the search ended without its proof"
    proven = {h.item: h.score for h in result.hypotheses[: result.certified]}
    assert [*proven.values()] == pytest.approx(best[: result.certified], abs=1e-5)
    assert proven == pytest.approx({item: scores[item] for item in proven}, abs=1e-5)
    assert result.notice is None or not scores


@pytest.mark.parametrize("wanted", [None, 1, 10])
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    seed=SEEDS,
    k=st.sampled_from([1, 3, 128]),
    budget=st.integers(1, 12),
    heap=st.sampled_from([1, 2, 5, 500]),
    most=st.sampled_from([None, 1, 2, 3]),
)
def test_what_is_proven_is_right_however_little_is_searched(
    seed: int, wanted: int | None, k: int, budget: int, heap: int, most: int | None
) -> None:
    case = case_of(seed)
    scores = scores_of(case)
    result = searched(
        case,
        certify=wanted,
        k=min(k, budget),
        budget=budget,
        max_frontier=heap,
        max_children=most,
    )
    found = {h.item: h.score for h in result.hypotheses}
    assert found == pytest.approx({item: scores[item] for item in found}, abs=1e-5)
    assert result.bound is not None
    proven = [h.score for h in result.hypotheses if h.is_certified]
    for item, score in scores.items():
        if item not in found:
            assert score <= result.bound + 1e-5
            assert score <= min(proven, default=math.inf) + 1e-5


class TestWhatBeamsMiss:
    def test_an_item_whose_prefix_ranks_sixtieth_is_found_first(self) -> None:
        # 59 first tokens are likelier than 60, and all that follows them is flat.
        first = [0.0, *[1.0 + i / 100 for i in range(60, 1, -1)], 1.0]
        flat = [1 / 61] * 61
        rows = {(1,): [p / sum(first) for p in first], (1, 60): [0.0, 1.0] + [0.0] * 59}
        lm = bestk.LanguageModel(ToyBackend.table(rows, flat))
        ids = [(i, j) for i in range(1, 60) for j in range(1, 61)] + [(60, 1), (60, 2)]
        trie = bestk.Trie.from_sequences(ids)
        result = bestk.search(lm, [1], allowed=trie, certify=1)
        assert result.hypotheses[0].token_ids == (60, 1)
        assert (result.certified > 0, result.stop_reason) == (True, "certified")

    def test_crossed_prefixes_never_come(self) -> None:
        lm = bestk.LanguageModel(random_toy(3, VOCAB))
        rows = [(1, 2, 3), (2, 1, 4)]
        result = bestk.search(lm, [1], allowed=bestk.Trie.from_sequences(rows))
        assert {h.token_ids for h in result.hypotheses} <= {*rows}

    def test_an_item_that_begins_another_is_complete_and_open(self) -> None:
        lm = bestk.LanguageModel(ToyBackend.table({}, [0.2, 0.5, 0.3]))
        trie = bestk.Trie.from_sequences([(1,), (1, 1), (1, 1, 2)], items=["a", "ab", "abc"])
        result = bestk.search(lm, [1], allowed=trie, certify=3)
        assert [h.item for h in result.hypotheses] == ["a", "ab", "abc"]
        logs = [math.log(p) for p in (0.5, 0.25, 0.075)]
        assert [h.log_prob for h in result.hypotheses] == pytest.approx(logs)
        assert (result.certified, result.bound) == (3, -math.inf)
        again = bestk.SearchResult.from_json(result.dumps())
        assert [h.item for h in again.hypotheses] == ["a", "ab", "abc"]
        assert again.bound == -math.inf


class TestWhatIsLeftOut:
    @pytest.mark.parametrize("seed", range(60))
    @pytest.mark.parametrize("renormalize", [False, True])
    def test_it_is_as_if_the_trie_were_another(self, seed: int, renormalize: bool) -> None:
        rows = random_rows(seed, VOCAB)
        without = random.Random(seed).sample(range(len(rows)), len(rows) // 2)
        lm, trie = bestk.LanguageModel(random_toy(seed, VOCAB)), bestk.Trie.from_sequences(rows)
        options: dict[str, Any] = {"certify": 50, "renormalize": renormalize}
        one = bestk.search(lm, [1], allowed=trie, exclude=without, **options)
        other = bestk.search(lm, [1], allowed=trie.with_items(remove=without), **options)
        assert {h.item: h.score for h in one.hypotheses} == pytest.approx(
            {h.item: h.score for h in other.hypotheses}, abs=1e-12
        )

    @pytest.mark.parametrize("is_toy", [True, False])
    def test_prompts_with_exclusions_of_their_own_equal_one_by_one(self, is_toy: bool) -> None:
        toy = random_toy(5, tiny.VOCAB, (2,))
        lm = bestk.LanguageModel(toy) if is_toy else bestk.from_transformers(tiny.model("llama"))
        rows = random_rows(5, tiny.VOCAB, most=2000, depth=3)
        trie, rng = bestk.Trie.from_sequences(rows), random.Random(0)
        prompts = [[rng.randrange(3, tiny.VOCAB) for _ in range(5)] for _ in range(32)]
        without = [rng.sample(range(len(rows)), rng.randint(0, 400)) for _ in prompts]
        options: dict[str, Any] = {"allowed": trie, "certify": 5, "budget": 200}
        together = bestk.search(lm, prompts, exclude=without, batch_size=32, **options)
        for number in range(0, 32, 1 if is_toy else 8):
            result = together[number]
            alone = bestk.search(lm, prompts[number], exclude=without[number], **options)
            # How a CPU rounds a product of matrices depends on how many rows they have.
            loose = pytest.approx([h.score for h in result.hypotheses], abs=0 if is_toy else 1e-5)
            assert [h.score for h in alone.hypotheses] == loose
            assert [h.item for h in alone.hypotheses] == [h.item for h in result.hypotheses]
            assert alone.certified == result.certified
            assert alone.cost.expanded == result.cost.expanded
            assert not {h.item for h in result.hypotheses} & {*without[number]}

    def test_everything(self) -> None:
        lm = bestk.LanguageModel(random_toy(5, VOCAB))
        result = bestk.search(
            lm, [1], allowed=bestk.Trie.from_sequences([[1], [1, 2]]), exclude=[0, 1], certify=1
        )
        assert (result.hypotheses, result.stop_reason) == ((), "exhausted")
        assert "dead end" in str(result.notice)


@pytest.mark.parametrize("seed", range(8))
def test_searches_of_several_tries_equal_one_by_one(seed: int) -> None:
    lm = bestk.LanguageModel(random_toy(5, VOCAB))
    # In the last an item begins another, in the one before it none does.
    rows = [random_rows(seed, VOCAB), [(1, 2), (3, 4)], [(1,), (1, 2), (3, 4)]]
    tries = [bestk.Trie.from_sequences(one) for one in rows]
    for allowed, result in together(lm, tries):
        alone = bestk.search(lm, [1], allowed=allowed, certify=4)
        assert [h.token_ids for h in result.hypotheses] == [h.token_ids for h in alone.hypotheses]
        assert result.certified == alone.certified


def together(lm: Any, tries: list[bestk.Trie]) -> list[tuple[bestk.Trie, Any]]:
    """Search tries side by side."""
    scheduler, found = Scheduler(3), []
    for trie in tries:
        hooks = Hooks(allowed=Allowed(trie))
        scheduler.add(requests_of(lm, [[1]], bestk.SearchConfig(certify=4), hooks)[0])
    while scheduler.has_work:
        found += [(u.request.hooks.allowed.trie, u.result) for u in scheduler.step() if u.result]
    return found


def test_searches_of_two_tries_share_their_passes() -> None:
    lm = bestk.LanguageModel(random_toy(5, VOCAB))
    tries = [bestk.Trie.from_sequences(random_rows(seed, VOCAB, is_fixed=True)) for seed in (1, 2)]
    hooks = [Hooks(allowed=Allowed(trie)) for trie in tries]
    prompts = [[1], [2], [3], [4]]
    requests = [
        request
        for one in hooks
        for request in requests_of(lm, prompts, bestk.SearchConfig(certify=4), one)
    ]
    scheduler = Scheduler(3)
    for request in requests:
        scheduler.add(request)
    found, most = {}, 0
    while scheduler.has_work:
        for update in scheduler.step():
            found[update.request] = update.result
        most = max(most, len(scheduler.batches))
    assert most == 1, "two tries, two batches"
    for request, result in found.items():
        trie = request.hooks.allowed.trie
        alone = bestk.search(lm, request.prompt, allowed=trie, certify=4)
        assert [h.token_ids for h in result.hypotheses] == [h.token_ids for h in alone.hypotheses]


@pytest.mark.parametrize("renormalize", [False, True])
def test_log_probs_are_those_of_transformers(renormalize: bool) -> None:
    model, prompt = tiny.model("llama"), [5, 6, 7]
    every = random_rows(1, tiny.VOCAB, most=300, is_fixed=True)
    rows = [ids for ids in every if min(ids) > 2]  # generate would end at its end token
    trie = bestk.Trie.from_sequences(rows)
    result = bestk.search(
        bestk.from_transformers(model), prompt, allowed=trie, certify=10, renormalize=renormalize
    )
    assert result.certified >= 10

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        node = trie.find(ids[len(prompt) :].tolist())
        return trie.token[trie.first[node] : trie.first[node + 1]].tolist()

    output = model.generate(
        torch.tensor([prompt]),
        prefix_allowed_tokens_fn=allowed,
        renormalize_logits=renormalize,
        max_new_tokens=4,
        num_beams=len(rows),  # wide enough to miss nothing
        num_return_sequences=10,
        length_penalty=0.0,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    told = model.compute_transition_scores(
        output.sequences, output.scores, output.beam_indices, normalize_logits=False
    )
    assert output.sequences[:, 3:].tolist() == [[*h.token_ids] for h in result.hypotheses[:10]]
    for scores, hypothesis in zip(told.tolist(), result.hypotheses, strict=False):
        assert scores == pytest.approx(hypothesis.log_probs, abs=1e-4)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "a"}, "leave regex out"),
    "must_include": ({"must_include": ["1"]}, "leave must_include out"),
    "stop": ({"stop": ["1"]}, "leave stop out"),
    "scoring": ({"scoring": "last"}, "scoring='sum'"),
    "decay": ({"decay": "log"}, "decay='none'"),
    "too short": ({"max_new_tokens": 2}, "at least 3"),
    "no trie": ({"allowed": [[1, 2]]}, "bestk.Trie, got list"),
    "criteria": ({"stopping_criteria": [lambda ids, scores: False]}, "stopping_criteria out"),
    "short bias": ({"item_bias": [0.0]}, "each of 2 rows"),
    "bias of NaN": ({"item_bias": [0.0, math.nan]}, "got nan in row 1"),
    "bias of +inf": ({"item_bias": [math.inf, 0.0]}, "got inf in row 0"),
    "bias of text": ({"item_bias": ["a", "b"]}, "item_bias must be"),
    "unknown item": ({"exclude": [2]}, "rows from 0 to 1, got 2"),
    "exclude alone": ({"allowed": None, "exclude": [1]}, "give allowed= too"),
    "bias alone": ({"allowed": None, "item_bias": [1]}, "give allowed= too"),
    "past the vocabulary": ({"allowed": [[1, 2], [9]]}, "got 9 in row 1 of the trie"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_searched_is_refused_in_one_line(name: str) -> None:
    options, message = REFUSED[name]
    trie = bestk.Trie.from_sequences([[1, 2, 3], [2]])
    if name == "past the vocabulary":
        trie, options = bestk.Trie.from_sequences(options["allowed"]), {}
    lm = bestk.LanguageModel(random_toy(1, VOCAB))
    with pytest.raises(bestk.BestKError, match=message) as caught:
        bestk.search(lm, [1], **{"allowed": trie, **options})
    assert "\n" not in str(caught.value)


def test_lists_for_prompts_must_be_as_many() -> None:
    trie = bestk.Trie.from_sequences([[1, 2, 3], [2]])
    with pytest.raises(bestk.BestKError, match="each of 2 prompts, got 1"):
        bestk.search(
            bestk.LanguageModel(random_toy(1, VOCAB)), [[1], [2]], allowed=trie, exclude=[[0]]
        )


def test_the_result_says_how_it_was_searched() -> None:
    trie = bestk.Trie.from_sequences([[1, 2, 3], [2]])
    lm = bestk.LanguageModel(random_toy(1, VOCAB))
    told = [
        bestk.search(lm, [1], allowed=trie, certify=2, **options).signature
        for options in ({}, {"renormalize": True}, {"item_bias": [1, 2]}, {"exclude": [1]})
    ]
    assert len(set(told)) == 4
    assert all(f"allowed(2 items,{trie.digest}" in one for one in told)
    assert "score:sum|decay:none|minprob:0" in told[0]
    assert "policy:uniform-cost" in told[0]


def test_a_stream_gives_items_as_they_complete() -> None:
    rows = random_rows(4, VOCAB)
    lm, trie = bestk.LanguageModel(random_toy(4, VOCAB)), bestk.Trie.from_sequences(rows)
    found = list(bestk.stream(lm, [1], allowed=trie, exclude=[0], certify=5))
    result = bestk.search(lm, [1], allowed=trie, exclude=[0], certify=5)
    assert {h.item for h in found} == {h.item for h in result.hypotheses}
    assert all(rows[h.item] == h.token_ids for h in found)


def test_a_trie_of_another_tokenizer_is_refused() -> None:
    class Spelling(Words):
        def __call__(self, text: Any, add_special_tokens: bool = True) -> dict[str, Any]:
            if isinstance(text, list):
                return {"input_ids": [self(one)["input_ids"] for one in text]}
            return super().__call__(text)

    trie = bestk.Trie.from_texts(["a b", "c"], Spelling("a", "b", "c"), items=["AB", "C"])
    backend = random_toy(1, 4)
    same = bestk.LanguageModel(backend, Spelling("a", "b", "c"))
    other = bestk.LanguageModel(backend, Spelling("b", "a", "c"))
    result = bestk.search(same, [1], allowed=trie, certify=2)
    assert {h.item: h.text for h in result.hypotheses} == {"AB": "a b", "C": "c"}
    with pytest.raises(bestk.BestKError, match="another tokenizer"):
        bestk.search(other, [1], allowed=trie)


def test_a_timeout_leaves_what_is_proven() -> None:
    model = random_toy(2, VOCAB)

    def slow(prefix: Ids) -> list[float]:
        time.sleep(0.03)
        return [math.exp(p) for p in model.log_probs(prefix)]

    rows = random_rows(2, VOCAB, most=400)
    case = {"model": model, "rows": rows, "bias": None, "without": [], "renormalize": False}
    lm = bestk.LanguageModel(ToyBackend(slow, vocab_size=VOCAB))
    trie = bestk.Trie.from_sequences(rows)
    result = bestk.search(lm, [1], allowed=trie, certify=100, k=4, timeout=0.2)
    assert result.stop_reason == "timeout"
    found = {h.item for h in result.hypotheses}
    missed = {item: score for item, score in scores_of(case).items() if item not in found}
    assert result.bound >= max(missed.values()) - 1e-9
    assert "100 texts of certify" in str(result.notice)


class TestAllowedTokensFn:
    def test_scores_can_stay_the_models_own(self) -> None:
        lm = bestk.LanguageModel(ToyBackend.table({}, [0.2, 0.5, 0.3]))
        options: dict[str, Any] = {"prefix_allowed_tokens_fn": lambda *_: [0, 2], "min_prob": 0.0}
        usual = bestk.search(lm, [1], max_new_tokens=3, **options)
        raw = bestk.search(lm, [1], max_new_tokens=3, renormalize=False, **options)
        assert max(h.log_prob for h in usual.hypotheses) == pytest.approx(math.log(0.4))
        assert {h.token_ids: h.log_prob for h in raw.hypotheses} == pytest.approx(
            {(0,): math.log(0.2), (2, 0): math.log(0.06), (2, 2, 0): math.log(0.018)}
        )
        assert raw.mass.total == pytest.approx(1)
        assert raw.mass.pruned_prob > 0.5

    @pytest.mark.parametrize("token", [-1, 3])
    def test_ids_out_of_range_are_refused(self, token: int) -> None:
        lm = bestk.LanguageModel(ToyBackend.table({}, [0.2, 0.5, 0.3]))
        with pytest.raises(bestk.BestKError, match=f"ids from 0 to 2, got {token}"):
            bestk.search(lm, [1], prefix_allowed_tokens_fn=lambda *_: [0, token])


def test_why_nothing_is_proven() -> None:
    lm = bestk.LanguageModel(random_toy(3, 30))
    usual = bestk.search(lm, [1], certify=10, budget=30)
    assert usual.certified < 10
    assert "use scoring='sum', decay='none', min_prob=0" in str(usual.notice)
    exact: dict[str, Any] = {"scoring": "sum", "decay": "none", "min_prob": 0.0}
    few = bestk.search(lm, [1], certify=10, budget=5, **exact)
    assert "budget (5)" in str(few.notice)
    assert bestk.search(lm, [1], certify=1, budget=3000, max_frontier=9000, **exact).notice is None
