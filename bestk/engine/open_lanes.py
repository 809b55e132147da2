"""Lanes that stay open: searches of one setting that come and go while the others run.

Where a session can move its searches there is never an idle lane: each change of who runs makes
the batch fit again, with nothing read twice. Where it cannot (a captured CUDA graph, an encoder-
decoder) a fixed number of lanes is opened, and idle ones wait. Knows token ids, no text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bestk.backends.base import Backend
from bestk.config import SearchConfig
from bestk.core.best_k import Rule, Searches
from bestk.engine.lanes import Lanes, bucket

# Steps between two looks at which searches have ended, where a look waits for a GPU.
_LOOK_EVERY = 8


class OpenLanes:
    """Searches of one setting, each under a key of the caller's choice."""

    def __init__(
        self, backend: Backend, config: SearchConfig, most: int, rules: Sequence[Rule] = ()
    ) -> None:
        self.backend, self.config, self.rules = backend, config, tuple(rules)
        self.most = most
        self.lanes: Lanes | None = None
        self.rows: dict[str, int] = {}
        self._lengths: dict[str, int] = {}

    @property
    def searches(self) -> Searches:
        """The state of all searches; `rows` says where each is."""
        assert self.lanes is not None
        return self.lanes.searches

    def fits(self, prompt: Any, num_others: int = 0) -> bool:
        """Say whether a search can begin now, beside so many others that also will."""
        lanes = self.lanes
        if len(self.rows) + num_others >= self.most:
            return False
        if lanes is None or not self.rows:
            return True
        if lanes.can_move:
            return True
        has_lane = len(self.rows) + num_others < lanes.searches.batch
        return has_lane and lanes.can_refill and len(prompt) <= lanes.prompt_size

    def change(self, gone: Collection[str], come: Mapping[str, Any]) -> None:
        """Let searches go, and begin others: the prompts that come are read at once."""
        for key in gone:
            row = self.rows.pop(key)
            del self._lengths[key]
            if self.lanes is not None and not self.lanes.can_move:
                self.lanes.searches.time_out([row])  # the lane idles
        self._lengths |= {key: len(prompt) for key, prompt in come.items()}
        if not self._lengths:
            if self.lanes is not None and self.lanes.graphs is None:
                self.close()  # captured lanes are worth keeping
        elif self.lanes is not None and self.lanes.can_move:
            self._fit(come)
        elif come:
            self._fill_fixed(come)

    def advance(self, *, is_watched: bool = True) -> None:
        """Do a step of every search, or several where that is faster and nobody watches each."""
        assert self.lanes is not None
        is_async = self.backend.device.type == "cuda" and not is_watched
        for _ in range(_LOOK_EVERY if is_async else 1):
            self.lanes.advance()

    def ended(self) -> list[str]:
        """Name the searches that are over."""
        if self.lanes is None:
            return []
        over = set(self.lanes.ended())
        return [key for key, row in self.rows.items() if row in over]

    def close(self) -> None:
        """Drop all searches and free their memory."""
        if self.lanes is not None:
            self.lanes.close()
        self.lanes = None
        self.rows, self._lengths = {}, {}

    def _fit(self, come: Mapping[str, Any]) -> None:
        """Make the batch as large as the number of searches, then read the new prompts."""
        assert self.lanes is not None
        count, longest = len(self._lengths), max(self._lengths.values())
        is_same_shape = count == self.lanes.searches.batch and longest <= self.lanes.prompt_size
        if not is_same_shape:
            self.lanes = self.lanes.moved(list(self.rows.values()), count, longest)
            self.rows = {key: row for row, key in enumerate(self.rows)}
        self._fill(come)

    def _fill_fixed(self, come: Mapping[str, Any]) -> None:
        """Read prompts into idle lanes; open lanes where there are none that will do."""
        longest = max(map(len, come.values()))
        lanes = self.lanes
        if lanes is None or not lanes.can_refill or longest > lanes.prompt_size:
            assert not self.rows, "lanes that cannot move are opened anew only when they are empty"
            self._open(list(come.values()), longest)
        self._fill(come)

    def _open(self, prompts: Sequence[Any], longest: int) -> None:
        if self.lanes is not None:
            self.lanes.close()
        self.lanes = self._lanes(prompts, longest)
        if self.lanes.can_move or not self.lanes.can_refill:
            return
        # Every lane must have read something before the first step, idle ones too.
        self.lanes.close()
        count = self.most
        if self.backend.device.type == "cuda":
            longest = self._bucket(longest)
        every = [*prompts, *[prompts[0]] * (count - len(prompts))]
        self.lanes = self._lanes(every, longest)
        self.lanes.fill(dict(enumerate(every)))
        self.lanes.searches.time_out(range(count))

    def _lanes(self, prompts: Sequence[Any], longest: int) -> Lanes:
        return Lanes(self.backend, self.config, prompts, longest, self.rules)

    def _bucket(self, longest: int) -> int:
        size = bucket(longest, longest + 256)
        limit = self.backend.max_length
        return size if limit is None else max(min(size, limit), longest)

    def _fill(self, come: Mapping[str, Any]) -> None:
        assert self.lanes is not None
        taken = set(self.rows.values())
        free = [row for row in range(self.lanes.searches.batch) if row not in taken]
        fresh = dict(zip(come, free, strict=False))
        self.rows |= fresh
        if fresh:
            self.lanes.fill({row: come[key] for key, row in fresh.items()})
