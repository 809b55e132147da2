"""Many searches through few lanes: nothing lost, nothing changed, no step wasted."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from bestk.engine.lanes import LanesCache, batches
from conftest import random_toy
from hypothesis import given
from hypothesis import strategies as st
from test_batching import assert_same, facts
from toys import table_lm

import bestk
from bestk.backends.base import Children, Group, Room, Shaper
from bestk.backends.toy import ToyBackend, ToySession
from bestk.backends.transformers.model import available_memory
from bestk.core.best_k import Searches
from bestk.engine import lanes, many
from bestk.errors import OutOfMemoryError, SearchInterrupted

OPTIONS: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 5, "k": 3}


def prompts_of(vocab_size: int, number: int = 16, seed: int = 3) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(1, vocab_size) for _ in range(n * 5 % 11 + 1)] for n in range(number)]


class Watched(ToySession):
    """Tells its backend of every call before it is answered."""

    backend: Watching

    def refill(self, group: Group, prompts: Mapping[int, Sequence[int]]) -> Children:
        self.backend.reads += [tuple(prompt) for prompt in prompts.values()]
        self.backend.see(self, "read")
        return super().refill(group, prompts)

    def expand(self, group: Group) -> Children:
        self.backend.see(self, "step")
        return super().expand(group)


class Watching(ToyBackend):
    """A toy model that counts what is asked of it; what `see` raises, the search gets."""

    def __init__(self, inner: ToyBackend) -> None:
        super().__init__(inner.distribution, vocab_size=inner.vocab_size, eos_ids=inner.eos_ids)
        self.sizes: list[int] = []  # of the sessions, in searches
        self.reads: list[tuple[int, ...]] = []
        self.calls: Counter[str] = Counter()

    def start(
        self, prompts: Sequence[Sequence[int]], room: Room, shaper: Shaper | None = None
    ) -> Watched:
        self.sizes.append(len(prompts))
        return Watched(self, [tuple(prompt) for prompt in prompts], room.num_children, shaper)

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
        assert result.cost.model_calls == alone[number].cost.model_calls


class TestRefilling:
    def test_a_free_lane_is_filled_at_once(self) -> None:
        backend = Watching(counting_down())
        prompts = [[8], *[[1]] * 8]
        results = bestk.search(bestk.LanguageModel(backend), prompts, batch_size=2)
        assert [result.hypotheses[0].num_tokens for result in results] == [9, *[2] * 8]
        assert backend.sizes == [2], "one session serves all"
        assert len(backend.reads) == 9
        # While one lane takes 8 steps, the other does eight searches of one step.
        assert backend.calls["step"] == 8, "batch after batch it would be 8 + 4"

    def test_a_search_that_ends_at_its_root_costs_no_step(self) -> None:
        backend = Watching(counting_down())
        results = bestk.search(bestk.LanguageModel(backend), [[3]] * 5, batch_size=2, budget=1, k=1)
        assert [result.stop_reason for result in results] == ["budget"] * 5
        assert backend.calls == {"read": 3}

    def test_sessions_that_cannot_be_refilled(self) -> None:
        class Rigid:
            def __init__(self, session: ToySession) -> None:
                self.root, self.expand, self.close = session.root, session.expand, session.close

        class RigidBackend(Watching):
            def start(self, *arguments: Any) -> Any:
                return Rigid(super().start(*arguments))

        backend = RigidBackend(random_toy(5, vocab_size=8))
        prompts = [[n % 7 + 1, 3] for n in range(8)]
        results = bestk.search(bestk.LanguageModel(backend), prompts, batch_size=3, **OPTIONS)
        assert backend.sizes == [3, 3, 2]
        assert backend.reads == []
        plain = bestk.search(bestk.LanguageModel(random_toy(5, vocab_size=8)), prompts, **OPTIONS)
        assert [facts(result) for result in results] == [facts(result) for result in plain]

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
    @given(
        st.lists(st.integers(1, 300), max_size=40),
        st.integers(1, 16),
    )
    def test_every_prompt_once_among_its_like(self, lengths: list[int], batch_size: int) -> None:
        queues = list(batches(lengths, batch_size))
        order = [number for queue, _ in queues for number in queue]
        assert sorted(order) == list(range(len(lengths)))
        assert [lengths[n] for n in order] == sorted(lengths, reverse=True)
        for place, (queue, number_of_lanes) in enumerate(queues):
            assert number_of_lanes == min(batch_size, len(queue))
            stragglers = [n for n in queue if lengths[n] * 2 < lengths[queue[0]]]
            assert len(stragglers) < batch_size
            assert not stragglers or place == len(queues) - 1

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

    def test_a_search_that_timed_out_stays_where_it_is(self) -> None:
        backend = counting_down()
        config = bestk.SearchConfig()
        searches = Searches(
            config, batch=2, vocab_size=12, eos_ids=(0,), device=torch.device("cpu")
        )
        session = backend.start([[9], [9]], searches.room)
        searches.begin(session.root)
        searches.time_out([0])
        for _ in range(3):
            searches.advance(session.expand)
        assert searches.tree.count.tolist() == [1, 4]
        assert searches.stop_reasons() == ["timeout", "interrupted"]
        searches.begin(session.root, torch.tensor([0]))
        assert searches.is_active.tolist() == [True, True], "the lane's next search is a new one"
        assert searches.stop_reasons() == ["interrupted"] * 2


class OnGpu:
    """A backend that says it is on a GPU, and is asked for nothing else."""

    device = torch.device("cuda")

    def __init__(self, backend: Any) -> None:
        self.vocab_size = backend.vocab_size
        self.free_bytes, self.lane_bytes = backend.free_bytes, backend.lane_bytes


class TestMemoryEstimate:
    class Sized(Watching):
        free: int | None = 1000

        def free_bytes(self) -> int | None:
            return self.free

        def lane_bytes(self, prompt_size: int, room: Room) -> int:
            return 10 * prompt_size * room.width

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
        assert many.auto_batch_size(lm, config, prompts) == size
        bestk.search(lm, prompts, config, max_new_tokens=2, budget=3)
        assert backend.sizes == [size]

    def test_a_gpu_takes_more_at_most(self) -> None:
        config, prompts = bestk.SearchConfig(**OPTIONS), [[1] * 12]
        for free, size in ((3600, 8), (10**9, 64)):
            backend = self.Sized(random_toy(5, vocab_size=8))
            backend.free = free
            lm = SimpleNamespace(backend=OnGpu(backend))
            assert many.auto_batch_size(lm, config, prompts) == size  # type: ignore[arg-type]

    def test_memory_of_a_cpu(self, tmp_path: Path) -> None:
        told = tmp_path / "meminfo"
        told.write_text("MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:  300 kB\n")
        assert available_memory(told) == 300 * 1024
        assert available_memory(tmp_path / "nothing") is None
        told.write_text("MemTotal:  900 kB\n")
        assert available_memory(told) is None

    def test_no_prompts(self) -> None:
        assert bestk.search(bestk.LanguageModel(self.Sized(counting_down())), []) == []


class FakeLanes:
    """Lanes as on a GPU, with something captured that is worth keeping."""

    def __init__(self, *_: Any) -> None:
        self.graphs: Any = object()
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


class TestCache:
    CONFIGS = tuple(bestk.SearchConfig(k=k) for k in (1, 2, 3))

    @pytest.fixture
    def cache(self, monkeypatch: pytest.MonkeyPatch) -> LanesCache:
        monkeypatch.setattr(lanes, "Lanes", FakeLanes)
        return LanesCache(size=2)

    def borrow(self, cache: LanesCache, config: bestk.SearchConfig, size: int = 8) -> Any:
        with cache.borrowed(counting_down(), config, [[1], [2]], size) as lent:
            assert lent.num_closed == 0  # type: ignore[attr-defined]
        return lent

    def test_lends_the_same_for_the_same_shape(self, cache: LanesCache) -> None:
        one = self.borrow(cache, self.CONFIGS[0])
        assert self.borrow(cache, self.CONFIGS[0]) is one
        assert self.borrow(cache, self.CONFIGS[0], size=9) is not one
        assert one.num_closed == 0

    def test_keeps_the_newest_and_closes_the_rest(self, cache: LanesCache) -> None:
        first, second = (self.borrow(cache, config) for config in self.CONFIGS[:2])
        assert self.borrow(cache, self.CONFIGS[0]) is first  # now the newer one
        third = self.borrow(cache, self.CONFIGS[2])
        assert [lent.num_closed for lent in (first, second, third)] == [0, 1, 0]
        cache.clear()
        assert [lent.num_closed for lent in (first, second, third)] == [1, 1, 1]
        assert self.borrow(cache, self.CONFIGS[2]) is not third

    def test_what_failed_is_closed(self, cache: LanesCache) -> None:
        one = self.borrow(cache, self.CONFIGS[0])
        with (
            pytest.raises(RuntimeError, match="on purpose"),
            cache.borrowed(counting_down(), self.CONFIGS[0], [[1], [2]], 8),
        ):
            raise RuntimeError("on purpose")
        assert one.num_closed == 1
        assert self.borrow(cache, self.CONFIGS[0]) is not one

    def test_what_was_not_captured_is_not_kept(self) -> None:
        lm = bestk.LanguageModel(Watching(counting_down()))
        for _ in range(2):
            bestk.search(lm, [[3]])
        assert lm.backend.sizes == [1, 1]  # type: ignore[attr-defined]
