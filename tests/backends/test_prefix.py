"""The base of all engines that are asked with whole prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import random_toy
from prompted_toy import PromptedToy

import bestk
from bestk.backends.prefix import TopLogprobs
from bestk.backends.toy import ToyBackend
from bestk.backends.vllm.client import StepDriver
from bestk.errors import ModelError, OptionError

PROMPTS = [[1], [2, 3], [1, 1, 1], [4]]


def found(result: bestk.SearchResult) -> list[tuple[tuple[int, ...], float]]:
    return [(h.token_ids, h.log_prob) for h in result.hypotheses]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch_size", [1, 3, "auto"])
def test_finds_what_the_model_itself_would(seed: int, batch_size: int | str) -> None:
    toy = random_toy(seed, vocab_size=7)
    settings = {"max_new_tokens": 6, "beam_size": 4, "k": 3, "min_prob": 0.1}
    plain = bestk.search(bestk.LanguageModel(toy), PROMPTS, **settings)
    asked = bestk.search(
        bestk.LanguageModel(PromptedToy(toy)), PROMPTS, batch_size=batch_size, **settings
    )
    for one, other in zip(plain, asked, strict=True):
        assert found(one) == found(other)
        assert one.mass == other.mass


def test_asks_once_a_step_and_for_no_empty_place() -> None:
    # One child each: the frontier never holds more than one node, so four places stay empty.
    toy = ToyBackend.table({}, [0.0, 1.0])
    engine = PromptedToy(toy)
    bestk.search(bestk.LanguageModel(engine), [[1], [1, 1]], max_new_tokens=3, k=5, beam_size=5)
    assert engine.asked == [
        [[1], [1, 1]],
        [[1, 1], [1, 1, 1]],
        [[1, 1, 1], [1, 1, 1, 1]],
    ] or engine.asked == [
        [[1, 1], [1]],
        [[1, 1, 1], [1, 1]],
        [[1, 1, 1, 1], [1, 1, 1]],
    ]


def test_a_search_that_looks_at_more_tokens_than_are_listed_is_refused() -> None:
    engine = PromptedToy(random_toy(0, vocab_size=9), max_listed=4, way_out="raise its limit")
    lm = bestk.LanguageModel(engine)
    with pytest.raises(
        OptionError,
        match=r"lists at most 4 tokens.*at 9 per node: set max_children=4, or raise",
    ):
        bestk.search(lm, [1], max_new_tokens=4)
    assert not engine.asked, "it was refused before anything was asked"
    assert bestk.search(lm, [1], max_new_tokens=4, max_children=4).hypotheses


def test_shaping_needs_the_whole_vocabulary() -> None:
    toy = random_toy(3, vocab_size=9)
    engine = PromptedToy(toy, max_listed=4)
    lm = bestk.LanguageModel(engine)
    for setting in ({"temperature": 0.5}, {"repetition_penalty": 1.5}, {"suppress_tokens": (1,)}):
        with pytest.raises(OptionError, match=r"lists at most 4 of its 9 tokens.*needs them all"):
            bestk.search(lm, [1], max_new_tokens=4, max_children=4, **setting)
    with pytest.raises(OptionError, match="needs them all"):
        bestk.run_method(lm, [1], "Ncls0.9", max_new_tokens=4)
    assert not engine.asked


def test_shaping_is_served_where_the_whole_vocabulary_is_listed() -> None:
    toy = random_toy(3, vocab_size=9)
    settings = {"max_new_tokens": 4, "temperature": 0.5, "repetition_penalty": 1.5}
    plain = bestk.search(bestk.LanguageModel(toy), [1], **settings)
    for limit in (None, 9):
        engine = PromptedToy(toy, max_listed=limit)
        shaped = bestk.search(bestk.LanguageModel(engine), [1], **settings)
        assert [h.token_ids for h in shaped.hypotheses] == [h.token_ids for h in plain.hypotheses]
        for one, other in zip(plain.hypotheses, shaped.hypotheses, strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-5)


def test_must_include_works_within_the_tokens_that_are_listed() -> None:
    engine = PromptedToy(random_toy(3, vocab_size=9), max_listed=6)
    lm = bestk.LanguageModel(engine)
    result = bestk.search(lm, [1], max_new_tokens=5, max_children=6, must_include=["4"])
    assert result.texts
    assert all("4" in text.split() for text in result.texts)


def test_broken_probabilities_are_told() -> None:
    toy = ToyBackend.table({(1, 1): [-1.0, 0.5, 0.5]}, [0.2, 0.4, 0.4])
    with pytest.raises(bestk.BestKError, match="NaN"):
        bestk.search(bestk.LanguageModel(PromptedToy(toy)), [1], max_new_tokens=4)


class OneStep(StepDriver):
    """Answers all that was asked at the first step, some of it with an error."""

    def __init__(self, failing: set[str]) -> None:
        super().__init__(self)
        self.failing, self.asked, self.taken_back = failing, list[str](), list[str]()

    def has_unfinished_requests(self) -> bool:
        return False

    def add(
        self, ids: list[str], prefixes: Sequence[list[int]], num_tokens: int, lora_request: Any
    ) -> None:
        self.asked += ids

    def step(self) -> list[tuple[str, TopLogprobs | ModelError]]:
        asked, self.asked = self.asked, []
        sound = TopLogprobs([1], [-0.5])
        return [(name, ModelError("gave up") if name in self.failing else sound) for name in asked]

    def abort(self, ids: list[str]) -> None:
        self.taken_back += ids


def test_an_engines_failure_is_told_to_who_asked_and_to_nobody_else() -> None:
    driver = OneStep(failing={"bestk-9"})
    driver.waiting.add("bestk-9")  # of another thread, which has it answered by our step
    driver.asked.append("bestk-9")
    assert driver.ask([[1], [2]], 1, None) == [TopLogprobs([1], [-0.5])] * 2
    assert isinstance(driver.answers["bestk-9"], ModelError), "it waits for the one who asked"
    driver.failing.add("bestk-2")
    with pytest.raises(ModelError, match="gave up"):
        driver.ask([[3]], 1, None)
    assert not driver.taken_back, "what was answered is no longer in the engine"


def test_an_answer_that_nobody_waits_for_is_not_kept() -> None:
    driver = OneStep(failing=set())
    driver.asked.append("bestk-taken-back")
    driver.ask([[1]], 1, None)
    assert not driver.answers
