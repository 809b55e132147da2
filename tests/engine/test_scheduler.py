"""Many searches through few rows: nothing lost, nothing changed, no step wasted."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import assert_same, facts
from toys import table_lm

import bestk
from bestk.backends.base import Memory
from bestk.backends.toy import ToyBackend, ToySession
from bestk.backends.transformers.model import available_memory
from bestk.baselines import requests_for, run_method
from bestk.engine import pool
from bestk.engine.memory import rows_for
from bestk.engine.request import requests_of
from bestk.engine.scheduler import Scheduler, queues
from bestk.errors import OutOfMemoryError, SearchInterrupted
from bestk.nodes import BatchSpec, NodeBatch

OPTIONS: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 5, "k": 3}


def prompts_of(vocab_size: int, number: int = 16, seed: int = 3) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(1, vocab_size) for _ in range(n * 5 % 11 + 1)] for n in range(number)]


class Watched(ToySession):
    """Tells its backend of every call before it is answered."""

    backend: Watching

    def prefill(self, nodes: NodeBatch, prompts: Mapping[int, Any], *, whole: bool) -> Any:
        self.backend.reads += [tuple(prompt) for prompt in prompts.values()]
        self.backend.see(self, "read")
        return super().prefill(nodes, prompts, whole=whole)

    def evaluate(self, nodes: NodeBatch, *, whole: bool) -> Any:
        self.backend.see(self, "step")
        return super().evaluate(nodes, whole=whole)


class Watching(ToyBackend):
    """A toy model that counts what is asked of it; what `see` raises, the search gets."""

    def __init__(self, inner: ToyBackend) -> None:
        super().__init__(inner.distribution, vocab_size=inner.vocab_size, eos_ids=inner.eos_ids)
        self.sizes: list[int] = []  # of the sessions, in searches
        self.reads: list[tuple[int, ...]] = []
        self.calls: Counter[str] = Counter()

    def start(
        self, prompts: Sequence[Sequence[int]], spec: BatchSpec, prompt_size: int = 0
    ) -> Watched:
        self.sizes.append(len(prompts))
        return Watched(self, [tuple(prompt) for prompt in prompts])

    def see(self, session: ToySession, call: str) -> None:
        self.calls[call] += 1


def counting_down(vocab_size: int = 12) -> ToyBackend:
    """A model whose only text after the prompt (n,) has n tokens and the end."""

    def distribution(prefix: tuple[int, ...]) -> list[float]:
        row = [0.0] * vocab_size
        row[1 if len(prefix) <= prefix[0] else 0] = 1.0
        return row

    return ToyBackend(distribution, vocab_size=vocab_size)


MODELS = {
    "toy": lambda: bestk.LanguageModel(random_toy(5, vocab_size=8)),
    "cached": lambda: bestk.from_transformers(tiny.model("llama")),
    "recomputed": lambda: bestk.from_transformers(tiny.model("bloom")),
}


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> tuple[bestk.LanguageModel, list[bestk.SearchResult]]:
    """A model, and what it finds for every prompt alone."""
    lm = MODELS[request.param]()
    prompts = prompts_of(8)
    alone = [bestk.search(lm, prompt, **OPTIONS) for prompt in prompts]
    assert sum(len(result.hypotheses) for result in alone) > 8, "too little found to compare"
    return lm, alone


@pytest.mark.parametrize("batch_size", [1, 3, 16, "auto"])
def test_batch_size_and_order_change_nothing(model: Any, batch_size: int | str) -> None:
    lm, alone = model
    order = random.Random(str(batch_size)).sample(range(16), 16)
    prompts = [alone[number].prompt for number in order]
    together = bestk.search(lm, prompts, batch_size=batch_size, **OPTIONS)
    assert [result.prompt for result in together] == prompts
    for number, result in zip(order, together, strict=True):
        assert_same(result, alone[number])
        assert result.stop_reason == alone[number].stop_reason
        assert result.cost.steps == alone[number].cost.steps


class TestRefilling:
    def test_a_free_row_is_filled_at_once(self) -> None:
        backend = Watching(counting_down())
        prompts = [[8], *[[1]] * 8]
        results = bestk.search(bestk.LanguageModel(backend), prompts, batch_size=2)
        assert [result.hypotheses[0].num_tokens for result in results] == [9, *[2] * 8]
        assert backend.sizes == [2], "one session serves all"
        assert len(backend.reads) == 9
        # While one row takes 8 steps, the other does eight searches of one step.
        assert backend.calls["step"] == 8, "batch after batch it would be 8 + 4"

    def test_a_search_that_ends_at_its_root_costs_no_step(self) -> None:
        backend = Watching(counting_down())
        results = bestk.search(bestk.LanguageModel(backend), [[3]] * 5, batch_size=2, budget=1, k=1)
        assert [result.stop_reason for result in results] == ["budget"] * 5
        assert backend.calls == {"read": 3}

    @pytest.mark.parametrize("batch_size", [1, 2, 5])
    def test_stop_strings(self, batch_size: int) -> None:
        words = ("red", "blue", "and", ".")
        lm = table_lm({}, [0.1, 0.3, 0.2, 0.2, 0.2], *words)
        prompts = ["red", "blue and", "and", "blue", "red red", "and ."]
        options: dict[str, Any] = {"stop": ".", "max_new_tokens": 4, "k": 2}
        alone = [bestk.search(lm, prompt, **options) for prompt in prompts]
        together = bestk.search(lm, prompts, batch_size=batch_size, **options)
        assert [facts(result) for result in together] == [facts(result) for result in alone]
        for result in together:
            ends = {hypothesis.token_ids[-1] for hypothesis in result.hypotheses}
            assert ends == {0, 4}, "both the end and the stop string complete texts"
            assert not any("." in text for text in result.texts)

    @pytest.mark.parametrize("batch_size", [1, 2, 9])
    def test_nan_in_two_of_many(self, batch_size: int) -> None:
        healthy = random_toy(7, vocab_size=12)

        def distribution(prefix: tuple[int, ...]) -> Any:
            is_broken = prefix[0] in (5, 8) and len(prefix) == 3
            return [float("nan")] * 12 if is_broken else healthy.distribution(prefix)

        prompts = [[n] for n in range(1, 10)]
        lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=12))
        with pytest.raises(SearchInterrupted, match=r"step \d of prompt 4:") as caught:
            bestk.search(lm, prompts, batch_size=batch_size, **OPTIONS)
        plain = bestk.search(bestk.LanguageModel(healthy), prompts, **OPTIONS)
        for number, (result, whole) in enumerate(zip(caught.value.partial, plain, strict=True)):
            if number in (4, 7):
                assert result.stop_reason == "broken"
                assert result.mass.total == pytest.approx(1)
            else:
                assert facts(result) == facts(whole)


class TestQueues:
    @settings(deadline=None)
    @given(st.lists(st.integers(1, 300), max_size=40), st.integers(1, 16))
    def test_every_prompt_once_among_its_like(self, lengths: list[int], most: int) -> None:
        lm = bestk.LanguageModel(counting_down())
        requests = requests_of(lm, [[1] * length for length in lengths], bestk.SearchConfig())
        found = list(queues(requests, most))
        order = [request.number for queue in found for request in queue]
        assert sorted(order) == list(range(len(lengths)))
        assert [lengths[n] for n in order] == sorted(lengths, reverse=True)
        for place, queue in enumerate(found):
            stragglers = [one for one in queue if one.length * 2 < queue[0].length]
            assert len(stragglers) < most
            assert not stragglers or place == len(found) - 1

    def test_lengths_far_apart_are_searched_apart(self) -> None:
        backend = Watching(random_toy(5, vocab_size=8))
        lm = bestk.LanguageModel(backend)
        lengths = [1, 40, 2, 38, 2, 37, 1, 40]
        prompts = [[n % 7 + 1] * length for n, length in enumerate(lengths)]
        results = bestk.search(lm, prompts, batch_size=2, **OPTIONS)
        assert backend.sizes == [2, 2]
        assert [len(read) for read in backend.reads] == [40, 40, 38, 37, 2, 2, 1, 1]
        assert [result.prompt for result in results] == prompts
        for result, prompt in zip(results, prompts, strict=True):
            assert facts(result) == facts(bestk.search(lm, prompt, **OPTIONS))


OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2 GiB"


class Cramped(Watching):
    """Runs out of memory at given calls, if more than one search is under way."""

    def __init__(self, inner: ToyBackend, at: set[int]) -> None:
        super().__init__(inner)
        self.at = at
        self.num_failures = 0

    def see(self, session: ToySession, call: str) -> None:
        super().see(session, call)
        if self.calls.total() in self.at and len(session.prompts) > 1:
            self.num_failures += 1
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)


class TestOutOfMemory:
    @pytest.mark.parametrize("seed", range(12))
    def test_at_any_call_of_any_batch_changes_nothing(self, seed: int) -> None:
        source = random.Random(seed)
        inner, prompts = random_toy(seed, vocab_size=8), prompts_of(8, 9, seed)
        backend = Cramped(inner, set(source.sample(range(1, 25), 3)))
        results = bestk.search(bestk.LanguageModel(backend), prompts, batch_size=8, **OPTIONS)
        assert backend.num_failures, "nothing was tried"
        plain = bestk.search(bestk.LanguageModel(inner), prompts, **OPTIONS)
        assert [facts(result) for result in results] == [facts(result) for result in plain]

    def test_what_has_ended_is_not_searched_again(self) -> None:
        # Prompts and steps take turns: call 8 cuts the long search and the fourth short one.
        backend = Cramped(counting_down(), at={8})
        bestk.search(bestk.LanguageModel(backend), [[8], *[[1]] * 8], batch_size=2)
        assert backend.num_failures == 1
        assert backend.sizes == [2, 1]
        assert backend.reads.count((8,)) == 2, "the long search was cut, and began again"
        assert backend.reads.count((1,)) == 9, "of the short ones only that which was cut"

    def test_halves_until_it_fits(self) -> None:
        class Small(Watching):
            def start(self, prompts: Any, *arguments: Any) -> Watched:
                session = super().start(prompts, *arguments)
                if len(prompts) > 2:
                    raise MemoryError
                return session

        backend, prompts = Small(random_toy(5, vocab_size=8)), prompts_of(8, 13)
        results = bestk.search(bestk.LanguageModel(backend), prompts, batch_size=9, **OPTIONS)
        assert backend.sizes == [9, 4, 2]
        plain = bestk.search(bestk.LanguageModel(random_toy(5, vocab_size=8)), prompts, **OPTIONS)
        assert [facts(result) for result in results] == [facts(result) for result in plain]

    @pytest.mark.parametrize("batch_size", [1, 2, 4, 5])
    def test_one_that_never_fits_keeps_the_others(self, batch_size: int) -> None:
        healthy = random_toy(7, vocab_size=12)

        def distribution(prefix: tuple[int, ...]) -> Any:
            if prefix[0] == 4 and len(prefix) == 4:
                raise RuntimeError(OUT_OF_MEMORY)
            return healthy.distribution(prefix)

        prompts = [[1], [2], [3], [4], [5]]
        lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=12))
        with pytest.raises(OutOfMemoryError, match="lower k") as caught:
            bestk.search(lm, prompts, batch_size=batch_size, **OPTIONS)
        partial = caught.value.partial
        assert [result.prompt for result in partial] == prompts, "one result per prompt"
        plain = bestk.search(bestk.LanguageModel(healthy), prompts, **OPTIONS)
        assert [facts(r) for r in partial[:3]] == [facts(r) for r in plain[:3]]
        cut, last = partial[3:]
        assert cut.stop_reason == last.stop_reason == "interrupted"
        assert 1 < cut.cost.expanded < plain[3].cost.expanded
        assert last.cost.expanded == 0 or batch_size == 5
        assert all(result.mass.total == pytest.approx(1) for result in partial)
        assert f"after {max(cut.cost.expanded, last.cost.expanded)} of 20" in str(caught.value)

    def test_a_batch_fails_again_with_less_than_was_found(self) -> None:
        class Full(Watching):
            def see(self, session: ToySession, call: str) -> None:
                super().see(session, call)
                if self.calls.total() >= 5:
                    raise MemoryError

        backend = Full(random_toy(5, vocab_size=8))
        with pytest.raises(OutOfMemoryError) as caught:
            bestk.search(bestk.LanguageModel(backend), [[1], [2]], **OPTIONS)
        assert backend.sizes == [2, 1], "the second try came no further than its prompt"
        assert all(result.cost.expanded > 1 for result in caught.value.partial)

    def test_the_last_to_come_wait_again(self) -> None:
        """Also where the last took the row of one that ended."""

        class Full(Watching):
            is_full = False

            def see(self, session: ToySession, call: str) -> None:
                super().see(session, call)
                if self.is_full:
                    self.is_full = False
                    raise torch.OutOfMemoryError(OUT_OF_MEMORY)

        backend = Full(counting_down())
        lm = bestk.LanguageModel(backend)
        config = bestk.SearchConfig()
        first, *others = (requests_of(lm, [[n]], config)[0] for n in (1, 9, 9, 9, 9))
        *early, last = others
        scheduler, results = Scheduler(4, serves=True), {}

        def step() -> None:
            results.update({u.request: u.result for u in scheduler.step() if u.result})

        for request in (first, *early):
            scheduler.add(request)
        while first not in results:
            step()
        scheduler.add(last)
        step()
        assert scheduler.num_running == 4, "the last one runs in the row of the first"
        backend.is_full = True
        step()
        step()
        assert [scheduler.is_waiting(one) for one in others] == [False, False, True, True]
        while scheduler.has_work:
            step()
        assert [facts(results[one]) for one in others] == [facts(bestk.search(lm, [9]))] * 4


@pytest.mark.parametrize("goes", [False, True])
def test_searches_that_begin_together_need_not_be_as_many_as_came(goes: bool) -> None:
    """There is room for some of them, or the client of one has gone."""
    lm = bestk.LanguageModel(random_toy(5, vocab_size=8))
    config = bestk.SearchConfig(**OPTIONS)
    scheduler, results = Scheduler(4 if goes else 3, serves=True), {}
    (other,) = requests_of(lm, [[1]], bestk.SearchConfig(beam_size=3, max_new_tokens=30))
    beams = requests_for(lm, [[2], [3], [4]], "BS", config)
    for request in (other, *beams):
        scheduler.add(request)
    if goes:
        scheduler.step()
        scheduler.cancel(beams[0])
    while scheduler.has_work:
        for update in scheduler.step():
            assert update.error is None
            results[update.request] = update.result
    for request in beams[1 if goes else 0 :]:
        (alone,) = run_method(lm, [request.prompt], "BS", config)
        assert facts(results[request]) == facts(alone)


def test_long_searches_hold_up_short_ones_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four long ones of other settings, and short ones one after the other; a turn is a second."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    lm = bestk.LanguageModel(random_toy(5, vocab_size=8))
    scheduler, num_turns = Scheduler(8, serves=True), 0
    for number in range(4):
        config = bestk.SearchConfig(k=1, budget=3000 + number, max_new_tokens=30)
        scheduler.add(requests_of(lm, [[1]], config)[0])
    for _ in range(20):
        scheduler.step()
    for _ in range(30):
        (short,) = requests_of(lm, [[2]], bestk.SearchConfig(budget=6, max_new_tokens=6, k=1))
        scheduler.add(short)
        while all(update.request is not short for update in scheduler.step()):
            num_turns += 1
    long = {row.request: row for batch in scheduler.batches for row in batch.rows.values()}
    assert len(long) == 4
    steps = [row.standing.expanded for row in long.values()]
    # Six steps each are the least; turns in a circle would make it five times as many.
    assert num_turns < 30 * 7 * 2
    assert min(steps) > 15, "the long ones go on"
    scheduler.close()


class TestTimeout:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """A clock that only the model moves: a second for every call."""
        now = [50.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])

        def tick(backend: Watching, session: ToySession, call: str) -> None:
            now[0] += 1
            backend.calls[call] += 1

        monkeypatch.setattr(Watching, "see", tick)
        return now

    @pytest.mark.usefixtures("clock")
    @pytest.mark.parametrize("batch_size", [1, 2, 5])
    def test_counts_for_each_search(self, batch_size: int) -> None:
        backend = Watching(counting_down())
        prompts = [[9]] * 5
        results = bestk.search(
            bestk.LanguageModel(backend), prompts, batch_size=batch_size, timeout=2.5
        )
        for result in results:
            assert result.stop_reason == "timeout"
            assert result.cost.model_calls == 3, "the root, and the steps at 1 and 2 seconds"
            assert result.cost.seconds == 3
            assert result.mass.total == pytest.approx(1)
        assert backend.calls.total() == 3 * -(-5 // batch_size)

    @pytest.mark.usefixtures("clock")
    def test_a_search_begun_later_has_its_whole_time(self) -> None:
        backend = Watching(counting_down())
        lm = bestk.LanguageModel(backend)
        # Prompts of (9) never end in time; (2) ends, and leaves its lane to one more of them.
        long, short, later = bestk.search(lm, [[9], [2], [9]], batch_size=2, timeout=4.5)
        assert [r.stop_reason for r in (long, short, later)] == ["timeout", "exhausted", "timeout"]
        # root, 2 steps and the later root are 4 seconds: one step more
        assert long.cost.model_calls == 4
        assert later.cost.model_calls == 5, "its root, and 4 steps"
        assert later.cost.expanded == 5


class TestMemoryEstimate:
    class Sized(Watching):
        free: int | None = 1000

        def memory(self, spec: BatchSpec, prompt_size: int) -> Memory | None:
            if self.free is None:
                return None
            return Memory(free=self.free, per_search=10 * prompt_size * spec.width)

    @pytest.mark.parametrize(
        ("free", "size"), [(None, 8), (0, 1), (449, 1), (1800, 4), (3600, 8), (10**9, 8)]
    )
    def test_chooses_what_fits(self, free: int | None, size: int) -> None:
        backend = self.Sized(random_toy(5, vocab_size=8))
        backend.free = free
        # The longest prompt of 12 tokens takes 360 bytes; of what is free 80% are used.
        prompts = [[1] * 12, *[[n % 7 + 1] * 8 for n in range(69)]]
        config = bestk.SearchConfig(**OPTIONS)
        lm = bestk.LanguageModel(backend)
        assert rows_for(requests_of(lm, prompts, config)) == size
        bestk.search(lm, prompts, config, max_new_tokens=2, budget=3)
        assert backend.sizes == [size]

    def test_memory_of_a_cpu(self, tmp_path: Path) -> None:
        told = tmp_path / "meminfo"
        told.write_text("MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:  300 kB\n")
        assert available_memory(told) == 300 * 1024
        assert available_memory(tmp_path / "nothing") is None
        told.write_text("MemTotal:  900 kB\n")
        assert available_memory(told) is None

    def test_no_prompts(self) -> None:
        assert bestk.search(bestk.LanguageModel(self.Sized(counting_down())), []) == []


class Kept:
    """A batch as on a GPU, with something captured that is worth keeping."""

    def __init__(self, backend: Any, key: str, rows: int = 8) -> None:
        self.key, self.num_rows, self.prompt_size = key, rows, 16
        self.backend, self.graphs = (lambda: backend), object()
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


class TestPool:
    def test_gives_the_same_for_the_same_shape_to_one_at_a_time(self) -> None:
        backend = counting_down()
        batch: Any = Kept(backend, "a")
        assert pool.keep(batch)
        assert pool.take(backend, "b", 8, 16) is None
        assert pool.take(backend, "a", 9, 16) is None
        assert pool.take(counting_down(), "a", 8, 16) is None, "of another model"
        assert pool.take(backend, "a", 8, 16) is batch
        assert pool.take(backend, "a", 8, 16) is None, "somebody has it"

    def test_keeps_the_newest_and_closes_the_rest(self) -> None:
        backend = counting_down()
        batches: list[Any] = [Kept(backend, name) for name in "abc"]
        assert all(map(pool.keep, batches))
        assert [batch.num_closed for batch in batches] == [1, 0, 0]
        assert pool.clear(backend)
        assert not pool.clear(backend)
        assert [batch.num_closed for batch in batches] == [1, 1, 1]

    def test_keeps_as_many_as_whoever_measures_asks_for(self) -> None:
        lm = bestk.LanguageModel(counting_down())
        before: Any = Kept(lm.backend, "before")
        pool.keep(before)
        with bestk.kept_batches(lm, 3):
            assert before.num_closed == 1, "nothing is kept from before"
            batches: list[Any] = [Kept(lm.backend, name) for name in "abcd"]
            assert all(map(pool.keep, batches))
            assert [batch.num_closed for batch in batches] == [1, 0, 0, 0]
        assert [batch.num_closed for batch in batches] == [1, 1, 1, 1]
        with bestk.kept_batches(lm, 0):
            none: Any = Kept(lm.backend, "e")
            assert pool.keep(none)
            assert none.num_closed == 1

    def test_what_was_not_captured_is_not_kept(self) -> None:
        lm = bestk.LanguageModel(Watching(counting_down()))
        for _ in range(2):
            bestk.search(lm, [[3]])
        assert lm.backend.sizes == [1, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{}, {"stop": "2"}, {"must_include": ["3"]}, {"top_k": 3}])
def test_a_model_that_nobody_names_is_gone(options: dict[str, Any]) -> None:
    lm = bestk.LanguageModel(random_toy(5, vocab_size=8))
    gone = [weakref.ref(lm), weakref.ref(lm.backend)]
    bestk.search(lm, [[1], [2, 3]], **OPTIONS, **options)
    del lm
    gc.collect()
    assert [model() for model in gone] == [None, None]
