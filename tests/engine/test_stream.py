"""Streams, stop rules, and the kinds of prompts."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from typing import Any

import pytest
import tiny
from conftest import random_toy
from toys import Words, search_ids, table_lm

import bestk
from bestk.backends.toy import ToyBackend, ToySession
from bestk.backends.transformers.decoder_only import TreeSession
from bestk.core.policy import spec_of
from bestk.engine.request import Update
from bestk.lm.language_model import is_batch
from bestk.nodes import NodeBatch

TOY = bestk.LanguageModel(random_toy(4, vocab_size=7))
OPTIONS: dict[str, Any] = {"max_new_tokens": 6, "beam_size": 5, "k": 3}


class TestStream:
    def test_yields_what_search_finds_in_the_order_found(self) -> None:
        streamed = list(bestk.stream(TOY, [1], **OPTIONS))
        result = bestk.search(TOY, [1], **OPTIONS)
        assert len(streamed) > 5
        assert {h.token_ids: h.log_prob for h in streamed} == {
            h.token_ids: h.log_prob for h in result.hypotheses
        }
        assert [h.step for h in streamed] == sorted(h.step for h in streamed)

    def test_yields_each_text_when_it_completes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        evaluate = ToySession.evaluate

        def counted(session: ToySession, nodes: NodeBatch, *, whole: bool) -> Any:
            calls.append(nodes)
            return evaluate(session, nodes, whole=whole)

        monkeypatch.setattr(ToySession, "evaluate", counted)
        for hypothesis in bestk.stream(TOY, [1], **OPTIONS):
            assert len(calls) == hypothesis.step, "a text came after its step"

    def test_repeats_no_text(self) -> None:
        lm = table_lm({(): [0.0, 0.3, 0.7]}, [1.0, 0.0, 0.0], "same", "same")
        assert [h.text for h in bestk.stream(lm, "same")] == ["same"]

    def test_nothing_runs_before_the_first_text_is_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise AssertionError("a session was opened")

        monkeypatch.setattr(ToyBackend, "start", fail)
        stream = bestk.stream(TOY, [1])
        stream.close()  # type: ignore[attr-defined]

    @pytest.mark.parametrize("how", ["close", "drop", "break", "end"])
    def test_ending_it_frees_the_cache(self, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        caches: list[Any] = []
        prefill = TreeSession.prefill

        def watched(session: TreeSession, nodes: NodeBatch, prompts: Any, *, whole: bool) -> Any:
            found = prefill(session, nodes, prompts, whole=whole)
            caches.append(weakref.ref(session.cache.layers[0].keys))
            return found

        lm = bestk.from_transformers(tiny.model("llama"))
        lm.backend.start([[1]], spec_of(bestk.SearchConfig(), tiny.VOCAB))  # probes the model
        monkeypatch.setattr(TreeSession, "prefill", watched)
        stream = bestk.stream(lm, [5, 6, 7], **OPTIONS | {"min_prob": 0.01, "beam_size": 20})
        if how == "end":
            list(stream)
        elif how == "break":
            for _ in stream:
                break
            stream.close()  # type: ignore[attr-defined]
        else:
            next(stream)
            (alive,) = caches
            assert alive() is not None, "the watched tensor is not the one in use"
            if how == "close":
                stream.close()  # type: ignore[attr-defined]
            else:
                del stream
        gc.collect()
        (cache,) = caches
        assert cache() is None, "the cache outlives its stream"


def where(update: Update) -> tuple[int, int]:
    """The prompt and the step that an update tells of."""
    assert update.row is not None
    return update.request.number, update.row.standing.step


def test_a_run_can_be_closed_between_steps() -> None:
    run = bestk.Run(TOY, [[1], [2]], bestk.SearchConfig(**OPTIONS))
    steps = [where(update) for update in itertools.islice(run, 6)]
    run.close()
    assert steps == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    for result in run.results():
        assert result.stop_reason == "interrupted"
        assert result.mass.total == pytest.approx(1)


def test_fresh_tells_of_every_completion_once() -> None:
    run = bestk.Run(TOY, [[1], [2], [3]], bestk.SearchConfig(**OPTIONS))
    told: list[list[Any]] = [[], [], []]
    for update in run:
        _, step = where(update)
        for row, found in enumerate(run.fresh()):
            assert all(h.step == step for h in found)
            told[row] += [h.token_ids for h in found]
    for row, result in enumerate(run.results()):
        assert sorted(told[row]) == sorted(h.token_ids for h in result.hypotheses)


class TestStopRules:
    def test_max_completions(self) -> None:
        whole = bestk.search(TOY, [1], **OPTIONS)
        result = bestk.search(TOY, [1], max_completions=3, **OPTIONS)
        assert result.stop_reason == "max_completions"
        assert 3 <= result.num_completions < whole.num_completions
        assert result.cost.expanded < whole.cost.expanded

    def test_timeout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = itertools.count(100.0)  # a second passes between any two looks at the clock
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        result = bestk.search(TOY, [1], timeout=3.5, **OPTIONS)
        assert result.stop_reason == "timeout"
        assert result.cost.model_calls == 4, "the root, and the steps at 1, 2 and 3 seconds"
        assert result.mass.total == pytest.approx(1)

    def test_a_timeout_that_is_not_reached(self) -> None:
        result = bestk.search(TOY, [1], timeout=1000, **OPTIONS)
        assert result.stop_reason == "budget"

    def test_an_empty_frontier(self) -> None:
        result = search_ids(table_lm({}, [0.9, 0.1]), max_new_tokens=3)
        assert result.stop_reason == "exhausted"
        assert result.mass.frontier == 0

    def test_rows_stop_each_for_itself(self) -> None:
        backend = ToyBackend.table({(2,): [1.0, 0.0, 0.0]}, [0.2, 0.4, 0.4])
        lm = bestk.LanguageModel(backend)
        long, short = bestk.search(lm, [[1], [2]], max_new_tokens=6)
        assert (short.stop_reason, short.cost.expanded) == ("exhausted", 1)
        assert short.cost.model_calls == 1
        assert (long.stop_reason, long.cost.expanded) == ("budget", 60)


class TestPrompts:
    CHAT = bestk.LanguageModel(
        ToyBackend.table({(1, 2): [1.0, 0.0, 0.0]}, [0.0, 1.0, 0.0]),
        Words("user", "hello", chat_template="{{ messages }}"),
    )
    MESSAGES = ({"role": "user", "content": "hello"},)

    def test_text_ids_and_messages_are_one_prompt_each(self) -> None:
        for prompt in ("hello", [1, 2], (1, 2), list(self.MESSAGES)):
            assert not is_batch(prompt)
            result = bestk.search(self.CHAT, prompt, max_new_tokens=2)
            assert isinstance(result, bestk.SearchResult)
            assert [h.token_ids for h in result.hypotheses] == [(0,)]
            assert result.prompt == prompt

    def test_a_chat_model_answers_a_text_and_continues_a_raw_one(self) -> None:
        lm = bestk.LanguageModel(
            ToyBackend.table({(1, 2): [1.0, 0.0, 0.0]}, [0.0, 1.0, 0.0]),
            Words("user", "hello", chat_template="{{ messages }}"),
        )
        chatted, plain = lm.encode(list(self.MESSAGES)), lm.encode("hello")
        assert (chatted, plain) == ([1, 2], [2])
        calls: list[Any] = [
            lambda **raw: bestk.search(lm, "hello", max_new_tokens=2, **raw),
            lambda **raw: bestk.search(lm, ["hello"], max_new_tokens=2, **raw)[0],
            lambda **raw: bestk.best_first(lm, "hello", max_new_tokens=2, **raw),
            lambda **raw: list(bestk.stream(lm, "hello", max_new_tokens=2, **raw)),
            lambda **raw: bestk.run_method(lm, "hello", "BS", max_new_tokens=2, **raw),
        ]
        for call in calls:
            assert call()[0].token_ids == (0,)
            assert not [one for one in call(raw=True) if one.token_ids == (0,)]
        plain_lm = bestk.LanguageModel(lm.backend, Words("user", "hello"))
        assert bestk.search(plain_lm, "user hello", max_new_tokens=2)[0].token_ids == (0,)
        with pytest.raises(bestk.BestKError, match="give it without raw"):
            lm.asked("hello", raw=True, system="Be kind.")

    def test_lists_of_prompts_are_batches(self) -> None:
        for batch in (["hello"], [[1, 2]], [list(self.MESSAGES)], ("hello", [1, 2])):
            assert is_batch(batch)
            results = bestk.search(self.CHAT, batch, max_new_tokens=2)
            assert [r.hypotheses[0].token_ids for r in results] == [(0,)] * len(batch)

    def test_no_prompts_no_results(self) -> None:
        assert bestk.search(self.CHAT, []) == []

    @pytest.mark.model
    def test_the_template_of_a_chat_model(self, smollm2: bestk.LanguageModel) -> None:
        assert smollm2.is_chat
        messages = [{"role": "user", "content": "Say hello."}]
        text = smollm2.tokenizer.decode(smollm2.encode(messages))
        assert text.endswith("<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n")
        result = bestk.search(smollm2, messages, beam_size=2, max_new_tokens=8, k=2)
        assert result.prompt == messages
        assert result.cost.expanded == 16
