"""The server's loop: searches that share a model end as alone, and none waits for ever."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Slow, facts, letters_lm, until

import bestk
from bestk.core.state import SearchState
from bestk.errors import ModelError, OptionError, OutOfMemoryError, PromptError
from bestk.server.handle import BusyError, Handle, SearchCall, StoppingError
from bestk.server.limits import Limits
from bestk.server.loop import SearchLoop

SHORT: dict[str, Any] = {"max_new_tokens": 5, "beam_size": 3, "k": 2}


@contextlib.contextmanager
def loop(**limits: Any) -> Iterator[SearchLoop]:
    made = SearchLoop(Limits(**limits))
    made.start()
    try:
        yield made
    finally:
        made.drain(0)
        assert made.join(30)


def job(lm: bestk.LanguageModel, prompt: Any = "ab", **options: Any) -> Handle:
    fields = ("method", "is_followed", "with_graph", "max_seconds")
    call = {name: options.pop(name) for name in fields if name in options}
    config = bestk.SearchConfig(**SHORT | options)
    return Handle(SearchCall(lm=lm, prompt=prompt, config=config, **call))


def done(*jobs: Handle) -> list[bestk.SearchResult]:
    for one in jobs:
        until(lambda one=one: one.is_over)
        if one.error is not None:
            raise one.error
    return [one.result for one in jobs if one.result is not None]


class Gate:
    """Holds the model's steps up until it is opened."""

    def __init__(self, lm: bestk.LanguageModel) -> None:
        self.event = threading.Event()
        lm.backend.before_step = lambda: self.event.wait(30)  # type: ignore[attr-defined]

    def open(self) -> None:
        self.event.set()


def test_results_are_those_of_a_direct_search() -> None:
    lm = letters_lm()
    others: list[dict[str, Any]] = [
        {},
        {"scoring": "sum"},
        {"stop": ".", "max_new_tokens": 8},
        {"stop": list("abcdefghijklm"), "min_new_tokens": 4, "max_new_tokens": 8},
        {"temperature": 1.5},
        {"must_include": "a", "max_new_tokens": 8},
    ]
    with loop(searches=6) as running:
        asked = [(prompt, options) for prompt in ("ab", "hello", "xyz") for options in others]
        jobs = [job(lm, prompt, **options) for prompt, options in asked]
        for one in jobs:
            running.submit(one)
        for (prompt, options), result in zip(asked, done(*jobs), strict=True):
            direct = bestk.search(letters_lm(), prompt, raw=True, **SHORT | options)
            assert facts(result) == facts(direct)
    assert all(one.begun is not None for one in jobs)


@pytest.mark.parametrize("method", ["BS", "Ncls0.8", "BKS_last", "bks_mean", "BFS"])
def test_methods_by_name(method: str) -> None:
    lm = letters_lm()
    with loop() as running:
        one = job(lm, "hello", method=method, seed=3, max_seconds=60)
        running.submit(one)
        (result,) = done(one)
    direct = bestk.run_method(letters_lm(), "hello", method, raw=True, seed=3, **SHORT)
    assert facts(result) == facts(direct)


def test_equal_settings_share_model_calls() -> None:
    lm = letters_lm()
    gate = Gate(lm)
    with loop(searches=8) as running:
        first = job(lm, "a")
        running.submit(first)
        until(lambda: lm.backend.num_steps == 1)  # held in its first step
        rest = [job(lm, prompt) for prompt in ("b", "c", "d", "e", "f")]
        for one in rest:
            running.submit(one)
        gate.open()
        results = done(first, *rest)
    calls = sum(result.cost.model_calls for result in results)
    assert lm.backend.num_steps < calls / 2, "each search had calls of its own"


def test_different_settings_take_turns() -> None:
    lm = letters_lm()
    gate = Gate(lm)
    with loop() as running:
        long, short = job(lm, budget=100, max_new_tokens=40, k=1), job(lm, budget=5)
        running.submit(long)
        until(lambda: lm.backend.num_steps == 1)
        running.submit(short)
        gate.open()
        done(short)
        spent = long.expanded
        done(long)
    assert spent < 50, "the short search waited for the long one"


def test_a_dropped_search_leaves_its_row_to_the_next() -> None:
    lm = letters_lm()
    lm.backend.before_step = lambda: time.sleep(0.01)
    with loop(searches=1) as running:
        endless = job(lm, budget=2000, max_new_tokens=400, k=1)
        waiting = job(lm, "next")
        running.submit(endless)
        running.submit(waiting)
        until(lambda: lm.backend.num_steps > 2)
        assert running.position(waiting) == 0
        running.cancel(endless)
        done(waiting)
        assert endless.result is None
        assert endless.expanded < 2000
        until(lambda: running.num_running == 0)


@pytest.mark.parametrize("method", ["BS", "Ncls0.8"])
def test_another_method_ends_when_its_client_leaves(method: str) -> None:
    lm = letters_lm()
    lm.backend.before_step = lambda: time.sleep(0.01)
    with loop(searches=1) as running:
        endless = job(lm, method=method, max_new_tokens=300, min_new_tokens=299)
        running.submit(endless)
        until(lambda: lm.backend.num_steps > 2)
        running.cancel(endless)
        running.submit(waiting := job(lm, budget=2))
        done(waiting)
        assert endless.result is None
        assert lm.backend.num_steps < 100


def test_another_method_ends_when_the_loop_must() -> None:
    lm = letters_lm()
    lm.backend.before_step = lambda: time.sleep(0.01)
    with loop() as running:
        running.submit(one := job(lm, method="BS", max_new_tokens=300, min_new_tokens=299))
        until(lambda: lm.backend.num_steps > 2)
        running.drain(0)
        with pytest.raises(StoppingError):
            done(one)
        assert lm.backend.num_steps < 100


def test_one_who_waits_can_leave() -> None:
    lm = letters_lm()
    gate = Gate(lm)
    with loop(searches=1) as running:
        first, second, third = (job(lm, prompt) for prompt in "abc")
        for one in (first, second, third):
            running.submit(one)
        until(lambda: lm.backend.num_steps == 1)
        running.cancel(second)
        gate.open()
        done(first, third)
        assert not second.is_over


def test_the_queue_is_bounded() -> None:
    lm = letters_lm()
    gate = Gate(lm)
    with loop(searches=1, queue=2) as running:
        running.submit(running_one := job(lm))
        until(lambda: running.num_running == 1)
        jobs = [job(lm), job(lm)]
        for one in jobs:
            running.submit(one)
        with pytest.raises(BusyError, match="1 searches run and 2 wait") as caught:
            running.submit(job(lm))
        assert 1 <= caught.value.retry_after <= 60
        gate.open()
        done(running_one, *jobs)


def test_those_who_wait_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search with rules of its own is made when it begins; 64 that wait would be 64 trees."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    begin = SearchState.__init__

    def counted(self: SearchState, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        alive.add(self)

    monkeypatch.setattr(SearchState, "__init__", counted)
    lm = letters_lm()
    gate = Gate(lm)
    running = SearchLoop(Limits(searches=1))
    jobs = [job(lm, temperature=2.0) for _ in range(5)]
    for one in jobs:
        running.submit(one)
    running.start()
    until(lambda: lm.backend.num_steps == 1)  # the first runs, the others were looked at
    assert all(one.request is not None for one in jobs)
    assert len(alive) == 1
    gate.open()
    done(*jobs)
    running.drain(0)
    assert running.join(30)


def test_without_a_queue_searches_still_run() -> None:
    lm = letters_lm()
    gate = Gate(lm)
    with loop(searches=2, queue=0) as running:
        jobs = [job(lm), job(lm)]
        for one in jobs:
            running.submit(one)
        with pytest.raises(BusyError, match="of 2 that may run and 0 that may wait"):
            running.submit(job(lm))
        gate.open()
        done(*jobs)


@pytest.mark.parametrize(
    ("prompt", "options", "kind", "message"),
    [
        ("", {}, PromptError, "the prompt is empty"),
        ("a" * 30, {}, PromptError, "30 tokens, at most 20 on this server"),
        ("a", {"stop_ids": 99}, OptionError, "stop_ids go from 0"),
        ("a", {"method": "BSS"}, OptionError, "unknown method"),
        ([1, 99], {}, PromptError, "token ids go from 0"),
    ],
)
def test_bad_orders_are_refused_before_they_wait(
    prompt: Any, options: dict[str, Any], kind: type, message: str
) -> None:
    lm = letters_lm()
    with loop(prompt_tokens=20) as running:
        one = job(lm, prompt, **options)
        running.submit(one)
        with pytest.raises(kind, match=message):
            done(one)
        assert one.request is None
        running.submit(good := job(lm))
        done(good)


class TestNews:
    def test_every_text_once_in_the_order_found(self) -> None:
        lm = letters_lm()
        with loop() as running:
            one = job(lm, "hello", is_followed=True, max_new_tokens=8)
            running.submit(one)
            told: list[str] = []
            steps: list[int] = []
            while True:
                is_last = one.is_over
                progress = one.take()
                if progress is not None:
                    told += [hypothesis.text for hypothesis in progress.texts]
                    steps.append(progress.step)
                    assert progress.num_texts == len(told)
                    assert progress.mass.total == pytest.approx(1)
                elif is_last:
                    break
        expected = [
            h.text
            for h in bestk.stream(letters_lm(), "hello", raw=True, **SHORT | {"max_new_tokens": 8})
        ]
        # What was found after the last look is in the result.
        assert told == expected[: len(told)]
        assert len(told) > 3
        assert steps == sorted(set(steps))

    def test_none_are_put_down_while_the_reader_takes(self) -> None:
        """Else one who finds nothing and clears the place would clear away what just came."""
        with loop() as running:
            one = job(letters_lm(), is_followed=True)
            with one._lock:  # as `take` holds it
                running.submit(one)
                until(lambda: one.expanded > 0)
                time.sleep(0.05)
                assert one._progress is None
            done(one)
            assert one.take() is not None

    def test_a_slow_reader_gets_what_it_missed_in_one(self) -> None:
        lm = letters_lm()
        with loop() as running:
            one = job(lm, "hello", is_followed=True, max_new_tokens=8)
            running.submit(one)
            (result,) = done(one)
            first = one.take()
            assert first is not None
            assert first.step == 0, "news wait until they are taken"
            assert one.take() is None, "and no others are kept"
        assert len(result.hypotheses) > 3


class TestTime:
    def test_the_servers_limit_ends_a_search_with_what_it_found(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.01)
        with loop() as running:
            one = job(lm, budget=2000, max_new_tokens=400, max_seconds=0.1)
            own = job(lm, budget=2000, max_new_tokens=400, temperature=2.0, max_seconds=0.1)
            for each in (one, own):
                running.submit(each)
            for result in done(one, own):
                assert result.stop_reason == "timeout"
                assert result.config.timeout is None, "the limit is the server's, not the client's"
                assert 0 < result.cost.expanded < 2000

    def test_a_clients_timeout(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.01)
        with loop() as running:
            one = job(lm, budget=2000, max_new_tokens=400, timeout=0.05, max_seconds=60)
            running.submit(one)
            assert done(one)[0].stop_reason == "timeout"


class TestFailure:
    def test_nan_fails_one_search_alone(self) -> None:
        lm = letters_lm()
        sound = lm.backend.distribution
        bad = lm.encode("bad")[:3]

        def distribution(prefix: tuple[int, ...]) -> Any:
            is_bad = list(prefix[:3]) == bad and len(prefix) > 4
            return [float("nan")] * 30 if is_bad else sound(prefix)

        lm.backend.distribution = distribution  # type: ignore[attr-defined]
        with loop() as running:
            jobs = [job(lm, prompt) for prompt in ("abc", "bad", "cde")]
            for one in jobs:
                running.submit(one)
            done(jobs[0], jobs[2])
            with pytest.raises(ModelError, match="NaN"):
                done(jobs[1])

    def test_memory_that_runs_out_halves_the_batch(self) -> None:
        lm = letters_lm()
        gate = Gate(lm)
        with loop(searches=8) as running:
            jobs = [job(lm, prompt, is_followed=True) for prompt in "abcdef"]
            running.submit(jobs[0])
            until(lambda: lm.backend.num_steps == 1)
            for one in jobs[1:]:
                running.submit(one)
            failed = []

            def step() -> None:
                if running.num_running > 3 and len(failed) < 1:
                    failed.append(running.num_running)
                    raise RuntimeError("CUDA out of memory. Tried to allocate")

            lm.backend.before_step = step
            gate.open()
            results = done(*jobs)
        assert failed == [6]
        for prompt, result in zip("abcdef", results, strict=True):
            assert facts(result) == facts(bestk.search(letters_lm(), prompt, raw=True, **SHORT))

    def test_memory_that_one_search_does_not_get(self) -> None:
        lm = letters_lm()

        def step() -> None:
            raise RuntimeError("out of memory")

        lm.backend.before_step = step
        with loop() as running:
            one = job(lm)
            running.submit(one)
            with pytest.raises(OutOfMemoryError, match="lower k"):
                done(one)

    def test_a_model_that_cannot_say_its_room_fails_the_search_not_the_loop(self) -> None:
        lm = letters_lm()

        def memory(*_: Any) -> int:
            raise RuntimeError("on purpose")

        lm.backend.memory = memory  # type: ignore[assignment,method-assign]
        with loop() as running:
            one = job(lm)
            running.submit(one)
            with pytest.raises(RuntimeError, match="on purpose"):
                done(one)
            del lm.backend.memory
            running.submit(two := job(lm))
            done(two)

    def test_a_session_that_fails_at_its_end_does_not_end_the_loop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lm = letters_lm()

        def close(session: Any) -> None:
            raise OSError("on purpose")

        monkeypatch.setattr(Slow, "close", close)
        with loop() as running:
            for prompt in "ab":
                running.submit(one := job(lm, prompt))
                done(one)

    def test_those_who_ran_out_of_memory_together_may_all_leave(self) -> None:
        lm = letters_lm()
        with loop() as running:
            jobs = [job(lm, prompt) for prompt in "ab"]

            def step() -> None:
                if running.num_running > 1:
                    for one in jobs:
                        running.cancel(one)
                    raise RuntimeError("out of memory")
                time.sleep(0.01)

            lm.backend.before_step = step
            for one in jobs:
                running.submit(one)
            until(lambda: all(one.is_cancelled for one in jobs))
            until(lambda: running.num_waiting == 0)
            lm.backend.before_step = lambda: None
            running.submit(last := job(lm))
            done(last)

    def test_a_bug_in_the_model_fails_the_search_not_the_loop(self) -> None:
        lm = letters_lm()

        def step() -> None:
            raise ZeroDivisionError("on purpose")

        lm.backend.before_step = step
        with loop() as running:
            shared, own = job(lm), job(lm, temperature=2.0)
            for one in (shared, own):
                running.submit(one)
                with pytest.raises(ZeroDivisionError):
                    done(one)
            lm.backend.before_step = lambda: None
            running.submit(good := job(lm))
            done(good)


class TestStopping:
    def test_what_runs_may_end(self) -> None:
        lm = letters_lm()
        gate = Gate(lm)
        with loop(searches=1) as running:
            jobs = [job(lm, "a"), job(lm, "b")]
            for one in jobs:
                running.submit(one)
            until(lambda: lm.backend.num_steps == 1)
            running.drain(30)
            with pytest.raises(StoppingError, match="shutting down"):
                running.submit(job(lm))
            gate.open()
            assert len(done(*jobs)) == 2
            assert running.join(30)

    def test_what_does_not_end_in_time_is_told(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.01)
        with loop(searches=1) as running:
            one, waiting = (job(lm, budget=2000, max_new_tokens=400, k=1) for _ in range(2))
            running.submit(one)
            running.submit(waiting)
            until(lambda: lm.backend.num_steps > 2)
            running.drain(0.05)
            for each in (one, waiting):
                with pytest.raises(StoppingError, match="of 2000 expansions were done"):
                    done(each)
            assert running.join(30)
