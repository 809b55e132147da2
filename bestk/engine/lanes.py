"""Any number of searches through a fixed number of lanes: continuous batching.

A lane is one row of a batch. When its search ends, the next prompt takes its place at once, while
the other lanes go on. Prompts are taken longest first, so that each fits where the one before it
was; results do not depend on the order. On a GPU the whole step (pop, forward, children, push,
prune) is captured once as a CUDA graph and replayed. Knows token ids, no text.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bestk.backends.base import Backend, Group
from bestk.config import SearchConfig
from bestk.core.best_k import Rule, Searches, room

# Replays between two looks at which searches have ended; a look waits for the device.
_LOOK_EVERY = 8
# Prompts shorter than this part of a batch's longest one get a batch of their own.
_LEAST_FILL = 0.5
# Steps that run uncaptured first: they warm libraries up, and are real steps of the search.
_WARM_UP = 2


class Lanes:
    """A batch of searches, each of which can be replaced by another."""

    def __init__(
        self,
        backend: Backend,
        config: SearchConfig,
        prompts: Sequence[Sequence[int]],
        prompt_size: int,
        rules: Sequence[Rule] = (),
    ) -> None:
        self.backend = backend
        self.searches = Searches(
            config,
            batch=len(prompts),
            vocab_size=backend.vocab_size,
            eos_ids=backend.eos_ids,
            device=backend.device,
            rules=rules,
        )
        wanted = dataclasses.replace(room(config, backend.vocab_size), prompt_size=prompt_size)
        self.prompt_size = prompt_size
        self.session: Any = backend.start(prompts, wanted)
        is_static = bool(getattr(self.session, "is_static", False)) and not rules
        self.graphs = Graphs() if is_static and backend.device.type == "cuda" else None
        self.calls = 0

    @property
    def can_refill(self) -> bool:
        """Say whether a search can be replaced while the others go on; else each starts once."""
        return hasattr(self.session, "refill")

    def fill(self, prompts: Mapping[int, Sequence[int]]) -> None:
        """Start a search for each of these prompts, in the lane given with it."""
        if self.graphs is not None and self._can_read(prompts):
            self._fill_captured(prompts)
        elif self.can_refill:
            rows = torch.tensor(list(prompts), device=self.backend.device)
            self.searches.begin(lambda group: self.session.refill(group, prompts), rows)
        else:
            self.searches.begin(self.session.root)

    def advance(self) -> Group:
        """Do one step of every lane whose search has not ended."""
        self.calls += 1
        if self.graphs is None or self.calls <= _WARM_UP:
            return self._step()
        group: Group = self.graphs.replay("step", self._step)
        return group

    def ended(self) -> list[int]:
        """Name the lanes whose search is over."""
        return [row for row, active in enumerate(self.searches.is_active.tolist()) if not active]

    @property
    def can_move(self) -> bool:
        """Say whether running searches can go on in lanes of another number."""
        return self.graphs is None and self.can_refill and hasattr(self.session, "moved")

    def moved(self, rows: Sequence[int], count: int, prompt_size: int) -> Lanes:
        """Return `count` lanes where these searches go on, in the first ones; others are idle."""
        other = copy.copy(self)
        other.searches = moved_searches(self.searches, rows, count)
        other.session = self.session.moved(rows, count, prompt_size)
        other.prompt_size = prompt_size
        self.session.close()
        return other

    def close(self) -> None:
        """Free the model's memory of all searches."""
        self.session.close()
        self.graphs = None

    def _step(self) -> Group:
        return self.searches.advance(self.session.expand)

    def _can_read(self, prompts: Mapping[int, Sequence[int]]) -> bool:
        """Say whether the session reads these prompts from tensors, as a CUDA graph must."""
        can_read = getattr(self.session, "can_read", None)  # a session of plain texts has none
        return hasattr(self.session, "read") and (can_read is None or can_read(prompts.values()))

    def _fill_captured(self, prompts: Mapping[int, Sequence[int]]) -> None:
        """Replay the reading of prompts, padded to a few shapes; the padding repeats a prompt."""
        assert self.graphs is not None
        rows, texts = list(prompts), list(prompts.values())
        count = min(_next_power_of_2(len(rows)), self.searches.batch)
        rows += rows[:1] * (count - len(rows))
        texts += texts[:1] * (count - len(texts))
        width = bucket(max(map(len, texts)), self.prompt_size)
        name = f"fill {count} x {width}"
        tokens, lengths, into = self.graphs.inputs(
            name, self.backend.device, (count, width), (count,), (count,)
        )
        padded = [[*text, *[0] * (width - len(text))] for text in texts]
        tokens.copy_(torch.tensor(padded))
        lengths.copy_(torch.tensor([len(text) for text in texts]))
        into.copy_(torch.tensor(rows))

        def read() -> None:
            self.searches.begin(lambda g: self.session.read(g, tokens, lengths, into), into)

        self.graphs.replay(name, read, warm_up=True)


def moved_searches(searches: Searches, rows: Sequence[int], batch: int) -> Searches:
    """Return a batch of another size that goes on with these searches, in its first rows."""
    device = searches.clock.device
    other = Searches(
        searches.config,
        batch=batch,
        vocab_size=searches.vocab_size,
        eos_ids=searches.eos_ids,
        device=device,
        rules=searches.rules,
    )
    index = torch.tensor(rows, dtype=torch.int64, device=device)
    for new, old in zip(other.columns(), searches.columns(), strict=True):
        new[: len(rows)] = old[index]
    other.is_active[len(rows) :] = False
    return other


class Graphs:
    """CUDA graphs by name, with the tensors that they read."""

    def __init__(self) -> None:
        self._captured: dict[str, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._inputs: dict[str, list[Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def inputs(self, name: str, device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Return the tensors of whole numbers that a graph reads, the same ones every time."""
        if name not in self._inputs:
            self._inputs[name] = [
                torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes
            ]
        return self._inputs[name]

    def replay(self, name: str, work: Callable[[], Any], *, warm_up: bool = False) -> Any:
        """Do what `work` does: by calling it the first time where that warms up, then by replay."""
        if name not in self._captured:
            if warm_up and name + " warm" not in self._inputs:
                self._inputs[name + " warm"] = []
                return work()
            graph = torch.cuda.CUDAGraph()
            with torch.inference_mode(), torch.cuda.graph(graph, pool=self._pool):
                result = work()
            self._captured[name] = graph, result
        graph, result = self._captured[name]
        graph.replay()
        return result


def run_lanes(
    lanes: Lanes, queue: Sequence[tuple[int, Sequence[int]]], running: dict[int, int]
) -> Iterator[tuple[dict[int, int], float]]:
    """Search every (number, prompt) of a queue; yield the lanes that ended, and their seconds.

    A yield maps lanes to the numbers of their prompts. Their results must be taken before the
    generator goes on, since the lanes are then filled anew. `running` says the same of the lanes
    that have not ended, for whoever must pick up the pieces. A timeout counts for each search from
    the reading of its prompt.
    """
    searches, timeout = lanes.searches, lanes.searches.config.timeout
    waiting = list(queue)
    begun: dict[int, float] = {}
    ends: dict[int, int] = {}  # lane -> the call at which its budget is spent if all goes well
    free = list(range(searches.batch))
    while waiting or running:
        fresh = {lane: waiting.pop(0) for lane in free[: len(waiting)]}
        if fresh:
            running |= {lane: number for lane, (number, _) in fresh.items()}
            begun |= dict.fromkeys(fresh, time.monotonic())
            free = [lane for lane in free if lane not in fresh]
            lanes.fill({lane: prompt for lane, (_, prompt) in fresh.items()})
            ends |= dict.fromkeys(fresh, lanes.calls + _full_steps(searches))
        if timeout is not None:
            now = time.monotonic()
            searches.time_out([lane for lane in running if now - begun[lane] >= timeout])
        ended = {lane: running[lane] for lane in lanes.ended() if lane in running}
        if ended:
            yield ended, time.monotonic() - min(begun[lane] for lane in ended)
            for lane in ended:
                del running[lane]
            free += ended
            continue
        # A search that never runs short of nodes ends when its budget does: look then, not later.
        ahead = [ends[lane] - lanes.calls for lane in running if ends[lane] > lanes.calls]
        _advance_some(lanes, left=min(ahead, default=1))


def _full_steps(searches: Searches) -> int:
    """Count the steps that spend a budget, the root's expansion aside."""
    return -(-(searches.config.total_budget - 1) // searches.room.width)


def _advance_some(lanes: Lanes, left: int) -> None:
    """Do steps until the next look at which searches have ended, `left` at most."""
    is_async = lanes.backend.device.type == "cuda" and lanes.searches.config.timeout is None
    for _ in range(min(_LOOK_EVERY, left) if is_async else 1):
        lanes.advance()


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[tuple[list[int], int]]:
    """Split prompts, longest first, into queues of similar lengths: their numbers, and lanes."""
    order = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    while order:
        longest = lengths[order[0]]
        queue = [n for n in order if lengths[n] >= longest * _LEAST_FILL]
        # A few stragglers are not worth a batch of their own.
        if len(order) - len(queue) < batch_size:
            queue = order
        order = order[len(queue) :]
        yield queue, min(batch_size, len(queue))


def bucket(length: int, most: int) -> int:
    """Round a prompt's length up to one of a few sizes, so that few graphs are captured."""
    step = 32 if length <= 256 else 64 if length <= 1024 else 256
    return max(min(-(-length // step) * step, most), length)


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


class LanesCache:
    """Keeps the lanes of the last few shapes, with their captured graphs."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self._kept: dict[Any, Lanes] = {}

    @contextlib.contextmanager
    def borrowed(
        self,
        backend: Backend,
        config: SearchConfig,
        prompts: Sequence[Sequence[int]],
        prompt_size: int,
        rules: Sequence[Rule] = (),
    ) -> Iterator[Lanes]:
        """Lend lanes for a batch of this shape; only captured ones are kept for later."""
        key = (config, len(prompts), prompt_size)
        lanes = self._kept.pop(key, None)
        if lanes is None:
            while len(self._kept) >= self.size:
                self._kept.pop(next(iter(self._kept))).close()
            lanes = Lanes(backend, config, prompts, prompt_size, rules)
        is_whole = False
        try:
            yield lanes
            is_whole = lanes.graphs is not None
        finally:
            if is_whole:
                self._kept[key] = lanes
            else:
                lanes.close()

    def clear(self) -> None:
        """Free everything that is kept."""
        while self._kept:
            self._kept.popitem()[1].close()
