"""Bad input through the Python API: one line with the value, the rule and the way out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from conftest import random_toy
from stepping import steps
from toys import Words, search_ids, table_lm

import bestk
from bestk.backends.toy import ToyBackend, ToySession
from bestk.errors import (
    BestKError,
    ModelError,
    OptionError,
    OutOfMemoryError,
    PromptError,
    SearchInterrupted,
)
from bestk.nodes import BatchSpec, NodeBatch

LM = table_lm({}, [0.4, 0.3, 0.3], "yes", "no")


def message_of(kind: type[BestKError], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind, "an error of another kind"
    text = str(caught.value)
    assert "\n" not in text, "an error is one line"
    return text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, ["k must be at least 1", "got 0"]),
        ({"k": -3}, ["k must be at least 1", "got -3"]),
        ({"k": 2.5}, ["k must be a whole number", "2.5"]),
        ({"k": True}, ["k must be a whole number", "True"]),
        ({"k": 301}, ["k must be at most the budget of 300", "got 301", "raise budget"]),
        ({"k": 5, "budget": 3}, ["k must be at most the budget of 3", "got 5", "lower k"]),
        ({"beam_size": 0}, ["beam_size must be at least 1", "got 0"]),
        ({"max_new_tokens": 0}, ["max_new_tokens must be at least 1", "got 0"]),
        ({"min_new_tokens": -1}, ["min_new_tokens must be at least 0", "got -1"]),
        ({"min_new_tokens": 31}, ["at most max_new_tokens=30", "got 31"]),
        ({"budget": 0}, ["budget must be at least 1", "got 0"]),
        ({"max_frontier": 0}, ["max_frontier must be at least 1", "got 0"]),
        ({"max_completions": 0}, ["max_completions must be at least 1", "got 0"]),
        ({"certify": 0}, ["certify must be at least 1", "got 0"]),
        ({"max_children": 0}, ["max_children must be at least 1", "got 0"]),
        ({"min_prob": -0.1}, ["min_prob goes from 0 to 1", "got -0.1"]),
        ({"min_prob": 1.1}, ["min_prob goes from 0 to 1", "got 1.1"]),
        ({"min_prob": float("nan")}, ["min_prob must be finite", "nan"]),
        ({"min_prob": "5%"}, ["min_prob must be a number", "'5%'"]),
        ({"decay_weight": -1}, ["decay_weight goes from 0 to 1e+06", "got -1"]),
        ({"decay_weight": float("inf")}, ["decay_weight must be finite", "inf"]),
        ({"decay_power": 0}, ["decay_power must be above 0 and at most 20", "got 0"]),
        ({"length_alpha": 1000}, ["length_alpha goes from -20 to 20, got 1000"]),
        ({"length_alpha": -1000}, ["length_alpha goes from -20 to 20, got -1000"]),
        ({"decay_power": 1e4}, ["decay_power must be above 0 and at most 20, got 10000"]),
        ({"decay_weight": 1e308}, ["decay_weight goes from 0 to 1e+06, got 1e+308"]),
        ({"include_bonus": 1e308}, ["include_bonus goes from 0 to 1e+06, got 1e+308"]),
        ({"timeout": 0}, ["timeout must be above 0", "got 0"]),
        ({"length_alpha": 0.5, "scoring": "sum"}, ["length_alpha=0.5", "'sum'", "give one"]),
        ({"scoring": "meen"}, ["unknown scoring 'meen'", "did you mean 'mean'?"]),
        ({"scoring": "xyz"}, ["unknown scoring 'xyz'", "known: last, mean, sum"]),
        ({"decay": "powr"}, ["unknown decay 'powr'", "did you mean 'power'?"]),
        ({"rank_by": "sume"}, ["unknown rank_by 'sume'", "did you mean 'sum'?"]),
        ({"beamsize": 4}, ["unknown option 'beamsize'", "did you mean 'beam_size'?"]),
        ({"zzz": 4}, ["unknown option 'zzz'", "known: "]),
        ({"stop_ids": [3]}, ["stop_ids go from 0 to 2", "got 3"]),
        ({"stop_ids": ["a"]}, ["stop_ids must be a list of int", "['a']"]),
        ({"stop": ""}, ["stop must not hold an empty string"]),
        ({"stop": [1]}, ["stop must be a list of str", "[1]"]),
        ({"batch_size": 0}, ["batch_size must be 'auto' or at least 1", "got 0"]),
    ],
)
def test_options(options: dict[str, Any], words: list[str]) -> None:
    text = message_of(OptionError, lambda: bestk.search(LM, "yes", **options))
    for word in words:
        assert word in text
    if "batch_size" not in options:
        assert message_of(OptionError, lambda: bestk.stream(LM, "yes", **options)) == text


@pytest.mark.parametrize("name", ["k", "decay", "min_prob", "max_frontier"])
def test_best_first_sets_its_own(name: str) -> None:
    text = message_of(OptionError, lambda: bestk.best_first(LM, "yes", **{name: 1}))
    assert text == f"best_first sets {name} itself: use search to choose it"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", ["prompt is empty", "at least one word"]),
        (" \n\t", ["prompt is empty", "at least one word"]),
        ("yes \udcff", ["not UTF-8 text", "bytes that are no character"]),
        ([[]], ["a prompt must be text, token ids or chat messages", "[]"]),
        (None, ["a prompt must be text", "None"]),
        (7, ["a prompt must be text", "7"]),
        ([1, "yes"], ["a prompt must be text", "[1, 'yes']"]),
        ([1, True], ["a prompt must be text", "[1, True]"]),
        ([3], ["token ids go from 0 to 2", "got 3"]),
        ([-1], ["token ids go from 0 to 2", "got -1"]),
        ([{"role": "user", "content": "yes"}], ["no chat template", "as text instead"]),
        (["yes", ""], ["prompt is empty"]),
    ],
)
def test_prompts(prompt: Any, words: list[str]) -> None:
    text = message_of(PromptError, lambda: bestk.search(LM, prompt))
    for word in words:
        assert word in text


def test_a_bad_prompt_is_refused_before_anything_is_searched() -> None:
    lm = bestk.LanguageModel(Failing(AssertionError("a session was opened"), at=-1))
    message_of(PromptError, lambda: bestk.search(lm, [[1], [2], [6]], batch_size=1))


def test_chat_messages_that_the_template_refuses() -> None:
    lm = bestk.LanguageModel(LM.backend, Words("yes", "no", chat_template="x"), "chatty")
    text = message_of(PromptError, lambda: bestk.search(lm, [{"speaker": "yes"}]))
    assert "chat template of chatty" in text
    assert "role and content" in text


def test_a_prompt_that_leaves_no_room() -> None:
    lm = bestk.from_transformers(tiny.model("llama"))
    bestk.search(lm, [1] * 59, max_new_tokens=5, beam_size=1)
    text = message_of(PromptError, lambda: bestk.search(lm, [1] * 60, max_new_tokens=5))
    assert text == (
        "the prompt has 60 tokens, at most 59 fit (64 of the model less max_new_tokens=5): "
        "shorten either"
    )


def test_stream_takes_one_prompt() -> None:
    assert "use search" in message_of(PromptError, lambda: bestk.stream(LM, ["yes", "no"]))


def test_a_model_without_a_tokenizer() -> None:
    lm = bestk.LanguageModel(LM.backend)
    text = message_of(ModelError, lambda: bestk.search(lm, "yes"))
    assert text == "model toy has no tokenizer: pass one, or give prompts as token ids"


class TestLoading:
    def test_a_misspelt_name(self) -> None:
        text = message_of(ModelError, lambda: bestk.load("smolm2"))
        assert "unknown model 'smolm2': did you mean 'smollm2'?" in text

    @pytest.mark.parametrize("name", ["", "None"])
    def test_no_name(self, name: str) -> None:
        assert f"unknown model {name!r}" in message_of(ModelError, lambda: bestk.load(name))

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        text = message_of(ModelError, lambda: bestk.load(tmp_path / "gone"))
        assert text == f"model folder {tmp_path / 'gone'} does not exist: check the path"

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        text = message_of(ModelError, lambda: bestk.load(tmp_path))
        assert text.startswith(f"model {tmp_path} cannot be loaded: ")

    def test_a_folder_without_a_tokenizer(self, tmp_path: Path) -> None:
        tiny.model("llama").save_pretrained(tmp_path)
        text = message_of(ModelError, lambda: bestk.load(tmp_path))
        assert text.startswith(f"model {tmp_path} has no tokenizer that loads")
        assert "put one beside the weights" in text

    def test_corrupt_weights(self, tmp_path: Path) -> None:
        tiny.model("llama").save_pretrained(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"not weights at all")
        text = message_of(ModelError, lambda: bestk.load(tmp_path))
        assert text.startswith(f"model {tmp_path} cannot be loaded: ")

    def test_a_hub_name_out_of_reach(self) -> None:
        text = message_of(ModelError, lambda: bestk.load("nobody/nothing-of-the-kind"))
        assert text.startswith("model nobody/nothing-of-the-kind cannot be loaded: ")

    def test_dtype_and_device(self, tmp_path: Path) -> None:
        text = message_of(OptionError, lambda: bestk.load(tmp_path, dtype="float23"))
        assert text == "unknown dtype 'float23': did you mean 'float32'?"
        text = message_of(OptionError, lambda: bestk.load(tmp_path, device="gpu"))
        assert text == "device must be like cpu, cuda or cuda:1, got 'gpu'"

    def test_not_a_model(self) -> None:
        text = message_of(ModelError, lambda: bestk.from_transformers("gpt2"))
        assert text == "a transformers model has forward and config, got str"


class TestBrokenModels:
    NAN = float("nan")

    def test_nan_says_the_step_and_keeps_what_was_found(self) -> None:
        lm = table_lm({(1, 1): [0.5, self.NAN, 0.5]}, [0.4, 0.4, 0.2])
        with pytest.raises(SearchInterrupted, match="NaN or infinite logits at step 2") as caught:
            search_ids(lm, k=1, scoring="last", max_new_tokens=4)
        (partial,) = caught.value.partial
        assert {h.token_ids for h in partial.hypotheses} >= {(0,), (1, 0)}
        assert partial.stop_reason == "broken"
        assert partial.certified == 0, "what a broken model says proves nothing"
        assert partial.mass.total == pytest.approx(1)
        assert "NaN" not in partial.dumps(tree=True)

    def test_nan_in_one_search_leaves_the_others(self) -> None:
        rows = {(1, 2): [self.NAN] * 3}
        backend = ToyBackend.table(rows, [0.4, 0.3, 0.3])
        lm = bestk.LanguageModel(backend)
        with pytest.raises(SearchInterrupted, match="step 1 of prompt 0") as caught:
            bestk.search(lm, [[1], [2]], max_new_tokens=3)
        whole = bestk.search(lm, [2], max_new_tokens=3)
        assert caught.value.partial[1].hypotheses == whole.hypotheses

    @pytest.mark.parametrize("batch_size", [1, 2, 3])
    def test_nan_leaves_the_searches_before_and_after(self, batch_size: int) -> None:
        lm = bestk.LanguageModel(ToyBackend.table({(2,): [self.NAN] * 3}, [0.4, 0.3, 0.3]))
        with pytest.raises(SearchInterrupted, match="step 0 of prompt 1") as caught:
            bestk.search(lm, [[1], [2], [1], [2]], batch_size=batch_size, max_new_tokens=2)
        first, broken, last, also_broken = caught.value.partial
        whole = bestk.search(lm, [1], max_new_tokens=2)
        for result in (first, last):
            assert result.stop_reason == "exhausted"
            assert result.hypotheses == whole.hypotheses
        for result in (broken, also_broken):
            assert result.stop_reason == "broken"
            assert result.hypotheses == ()

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("family", ["llama", "bloom"])
    def test_weights_that_are_no_numbers(self, family: str, value: float) -> None:
        model = tiny.fresh(family)
        with torch.no_grad():
            model.get_output_embeddings().weight[7] = value
        lm = bestk.from_transformers(model)
        text = message_of(SearchInterrupted, lambda: bestk.search(lm, [[5, 6], [4]]))
        assert "NaN or infinite logits at step 0" in text
        assert "float32" in text


class Failing(ToyBackend):
    """A backend whose sessions fail at one of their calls."""

    def __init__(self, error: BaseException, at: int) -> None:
        self.inner = random_toy(2, vocab_size=6)
        super().__init__(self.inner.distribution, vocab_size=6)
        self.error, self.at, self.calls, self.is_closed = error, at, 0, False
        self.num_started = 0

    def start(
        self, prompts: Sequence[Sequence[int]], spec: BatchSpec, prompt_size: int = 0
    ) -> FailingSession:
        self.num_started += 1
        if self.at < 0:
            raise self.error.with_traceback(None)
        return FailingSession(self, [tuple(prompt) for prompt in prompts])

    def see(self) -> None:
        self.calls += 1
        if self.calls > self.at:
            raise self.error.with_traceback(None)


class FailingSession(ToySession):
    """Tells its backend of every call before it is answered."""

    backend: Failing

    def prefill(self, nodes: NodeBatch, prompts: Mapping[int, Any], *, whole: bool) -> Any:
        self.backend.see()
        return super().prefill(nodes, prompts, whole=whole)

    def evaluate(self, nodes: NodeBatch, *, whole: bool) -> Any:
        self.backend.see()
        return super().evaluate(nodes, whole=whole)

    def close(self) -> None:
        super().close()
        self.backend.is_closed = True


MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    MemoryError(),
]


class TestOutOfMemory:
    @pytest.mark.parametrize("error", MEMORY, ids=lambda error: type(error).__name__)
    @pytest.mark.parametrize("at", [-1, 0, 1, 4])
    def test_says_what_to_lower_and_keeps_what_was_found(
        self, error: BaseException, at: int
    ) -> None:
        backend = Failing(error, at)
        lm = bestk.LanguageModel(backend)
        with pytest.raises(OutOfMemoryError) as caught:
            bestk.search(lm, [[1], [2]], k=3, beam_size=4, max_new_tokens=8)
        (first, second) = caught.value.partial
        largest = max(first.cost.expanded, second.cost.expanded)
        # Two were tried side by side, then one: there is no smaller batch to advise.
        assert str(caught.value) == (
            f"out of memory on cpu after {largest} of 32 expansions: lower k (3), beam_size (4) "
            "or max_new_tokens (8)"
        )
        assert backend.num_started == 2
        assert caught.value.__cause__ is error
        assert backend.is_closed or at < 0
        for result in (first, second):
            assert result.stop_reason == "interrupted"
            assert result.mass.total == pytest.approx(1), "popped nodes were lost"
            assert result.cost.expanded <= 1 + 3 * max(at - 1, 0)
        if at == 4:
            healthy = steps(bestk.LanguageModel(backend.inner), [[1], [2]], first.config)
            *_, (_, _, last) = itertools.islice(healthy, at)
            assert first.cost.expanded == int(last.tree.count[0])
            assert first.num_completions == int(last.num_completions[0]) > 0

    def test_a_run_says_so_when_one_search_alone_did_not_fit(self) -> None:
        backend = Failing(MEMORY[0], at=2)
        run = bestk.Run(bestk.LanguageModel(backend), [[1], [2]], bestk.SearchConfig())
        with pytest.raises(OutOfMemoryError, match=r": lower k \(5\)") as caught:
            list(run)
        assert backend.num_started == 2, "two were searched at once, then one"
        assert caught.value.partial == run.results()
        assert [result.cost.expanded > 0 for result in run.results()] == [True, True]

    def test_before_the_first_step(self) -> None:
        with pytest.raises(OutOfMemoryError) as caught:
            bestk.search(LM, ["yes", "no"], budget=10**13)
        assert [result.prompt for result in caught.value.partial] == ["yes", "no"]
        for result in caught.value.partial:
            assert result.stop_reason == "interrupted"
            assert (result.cost.expanded, result.mass.frontier) == (0, 1)
            assert result == bestk.SearchResult.from_json(result.dumps())
        text = message_of(OutOfMemoryError, lambda: search_ids(LM, budget=10**13))
        assert "after 0 of 10000000000000 expansions" in text
        assert "budget (10000000000000)" in text

    def test_streams_too(self) -> None:
        lm = bestk.LanguageModel(Failing(MEMORY[0], at=4))
        texts = []
        stream = bestk.stream(lm, [1], k=3, max_new_tokens=8)
        with pytest.raises(OutOfMemoryError) as caught:
            texts.extend(hypothesis.text for hypothesis in stream)
        assert texts
        assert set(texts) == set(caught.value.partial[0].texts)


def test_errors_of_the_start_keep_their_kind() -> None:
    for error in (PromptError("no such prompt"), ModelError("no such model")):
        lm = bestk.LanguageModel(Failing(error, at=-1))
        assert message_of(type(error), lambda lm=lm: bestk.search(lm, [1])) == str(error)


def test_errors_under_way_keep_what_was_found() -> None:
    lm = bestk.LanguageModel(Failing(ModelError("the server has gone"), at=3))
    with pytest.raises(SearchInterrupted, match="the server has gone") as caught:
        bestk.search(lm, [1], max_new_tokens=8)
    assert caught.value.partial[0].cost.expanded > 1


def test_bugs_are_not_dressed_up() -> None:
    lm = bestk.LanguageModel(Failing(RuntimeError("shapes do not match"), at=2))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        bestk.search(lm, [1])


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("length_alpha", 1e5, "length_alpha goes from -20 to 20, got 100000"),
        ("temperature", 1e-300, "temperature goes from 0.0001 to 10000, got 1e-300"),
        ("decay_power", 500, "decay_power must be above 0 and at most 20, got 500"),
    ],
)
def test_numbers_that_would_overflow(name: str, value: float, told: str) -> None:
    assert message_of(OptionError, lambda: bestk.SearchConfig(**{name: value})) == told
