"""The one loop: lets searches begin, takes a step of a batch, tells what happened.

`search` drives it, and so do a stream, a command, a job and the server's thread. Requests begin in
the order they came; those that have enough in common share a batch, and batches take turns: long
searches hold up short ones little. Where memory runs out a batch is halved: nothing found is lost.
Not safe from several threads.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence

import torch

from bestk.engine import pool
from bestk.engine.batch import Batch, Row, bucket
from bestk.engine.memory import MOST_ROWS, is_out_of_memory, out_of_memory, rows_for
from bestk.engine.request import Request, Update
from bestk.engine.results import complaint
from bestk.errors import BestKError, ModelError, OutOfMemoryError
from bestk.result import SearchResult, not_started

logger = logging.getLogger("bestk")

# Prompts shorter than this part of a queue's longest one get a queue of their own.
_LEAST_FILL = 0.5


class Scheduler:
    """Runs requests; `most_rows` of them side by side in a batch, by default as memory allows.

    One that `serves` does not know who else will come: it runs so many in all, batches fit who is
    there, and those who wait begin in the order they came.
    """

    def __init__(self, most_rows: int | None = None, *, serves: bool = False) -> None:
        self.most_rows, self.serves = most_rows, serves
        self.batches: list[Batch] = []
        self.waiting: dict[Hashable, deque[Request]] = {}
        self._fewer: dict[Hashable, int] = {}  # rows, where memory ran out
        self._partial: dict[Request, SearchResult] = {}  # of searches that must begin again

    def add(self, request: Request) -> None:
        """Take a request; it begins when there is room."""
        self.waiting.setdefault(request.key, deque()).append(request)

    def cancel(self, request: Request) -> None:
        """Drop a request whose client has gone; what it held is free after the step under way."""
        for queue in self.waiting.values():
            if request in queue:
                queue.remove(request)
        for batch in self.batches:
            batch.leave(request)

    def is_waiting(self, request: Request) -> bool:
        """Return whether a request has not begun."""
        return any(request in queue for queue in self.waiting.values())

    @property
    def has_work(self) -> bool:
        """Whether any request is not over."""
        return any(self.waiting.values()) or any(batch.requests for batch in self.batches)

    @property
    def num_running(self) -> int:
        """Count the searches that have begun and are not over."""
        return sum(len(batch.requests) for batch in self.batches)

    def run(self, requests: Iterable[Request]) -> Iterator[Update]:
        """Run requests that are all known, longest prompts first, and tell as it happens."""
        for queue in queues(list(requests), self.most_rows):
            for request in queue:
                self.add(request)
            while self.has_work:
                yield from self.step()

    def step(self) -> list[Update]:
        """Let requests begin, take a turn of one batch, tell what happened."""
        updates = self._admit()
        for idle in [batch for batch in self.batches if not batch.requests]:
            self._retire(idle)  # those who wait did not fit in
        if not self.batches:
            return updates
        batch = min(self.batches, key=lambda one: one.clock)
        began = time.perf_counter()
        try:
            if batch.is_short:
                batch = self._refitted(batch)
            if self.serves and not self.waiting.get(batch.key):
                batch.shrink()
            batch.step()
            batch.charge(time.perf_counter() - began)
            updates += self._collect(batch)
        except Exception as error:
            return updates + self._recover(batch, error)
        if not batch.requests and not self.waiting.get(batch.key):
            self._retire(batch)
        return updates

    def partial(self, request: Request) -> SearchResult | None:
        """Return what a search has found that is not over, None if it has not begun."""
        for row in [row for batch in self.batches for row in batch.rows.values()]:
            if row.request is request:
                return self._best(row)
        return self._partial.get(request)

    def close(self) -> None:
        """Drop all requests and free their memory."""
        self.waiting.clear()
        while self.batches:
            self._retire(self.batches[0])

    def _admit(self) -> list[Update]:
        """Let requests begin in their order; those that must wait let only other kinds pass."""
        updates: list[Update] = []
        blocked: set[Hashable] = set()
        while not self._is_full:
            open_queues = [(k, q) for k, q in self.waiting.items() if q and k not in blocked]
            if not open_queues:
                break
            key, queue = min(open_queues, key=lambda pair: pair[1][0].submitted)
            try:
                batch = self._batch_for(key, queue)
            except Exception as error:  # no memory for it, or of a model asked what it has
                updates = self._refuse(queue, error)
                if updates:
                    break  # who hears of it may not want the next one tried
                continue
            if batch is None:
                blocked.add(key)
            else:
                batch.arrive(queue.popleft())
        self.waiting = {key: queue for key, queue in self.waiting.items() if queue}
        return updates

    @property
    def _is_full(self) -> bool:
        return self.serves and self.num_running >= (self.most_rows or MOST_ROWS)

    def _batch_for(self, key: Hashable, queue: Sequence[Request]) -> Batch | None:
        """Find or open the batch that the next of a queue can begin in now; None: it waits."""
        request = queue[0]
        alike = [b for b in self.batches if b.key == key]
        most = self._most(key, queue)
        for batch in alike:
            if batch.fits(request, most):
                return batch
        used = sum(batch.num_rows for batch in alike)
        if used >= most or any(batch.can_resize for batch in alike):
            return None
        batch = self._open(key, queue, most - used)
        self.batches.append(batch)
        return batch

    def _most(self, key: Hashable, queue: Sequence[Request]) -> int:
        """Choose how many rows a kind of searches gets."""
        if key in self._fewer:
            return self._fewer[key]
        if self.most_rows is not None and not self.serves:
            return self.most_rows
        return rows_for(queue, self.most_rows)

    def _open(self, key: Hashable, queue: Sequence[Request], most: int) -> Batch:
        request = queue[0]
        backend = request.lm.backend
        rows, longest = min(len(queue), most), max(one.length for one in queue)
        if backend.device.type == "cuda":
            # A few sizes of prompts and batches, to capture less.
            limit = backend.capabilities.max_length
            size = bucket(longest, longest + 256)
            longest = max(longest, size if limit is None else min(size, limit))
            if self.serves:
                rows = min(1 << (rows - 1).bit_length(), most)
        kept = pool.take(backend, key, rows, longest)
        batch = Batch(list(queue)[:rows], rows, longest) if kept is None else kept
        batch.clock = min((other.clock for other in self.batches), default=0.0)
        return batch

    def _refitted(self, batch: Batch) -> Batch:
        """Open a batch anew for searches that begin together, and are fewer than it was for."""
        fitting = self._open(batch.key, batch.arrivals, len(batch.arrivals))
        for request in batch.arrivals:
            fitting.arrive(request)
        batch.arrivals = []
        self.batches[self.batches.index(batch)] = fitting
        self._close(batch)
        return fitting

    def _collect(self, batch: Batch) -> list[Update]:
        """Tell what a step brought: results of searches that ended, steps of watched ones."""
        ended = batch.ended()
        watched = [row for row in batch.rows.values() if row.request.is_watched]
        moved = range(batch.num_rows) if batch.moved is None else batch.moved
        updates = [Update(request=one.request, row=one) for one in watched if one.number in moved]
        for row, finding, result in batch.finish(ended) if ended else ():
            self._partial.pop(row.request, None)
            broken = finding.broken_at >= 0
            error = ModelError(complaint(finding, row.request.number)) if broken else None
            updates.append(Update(request=row.request, result=result, error=error))
        return updates

    def _recover(self, batch: Batch, error: Exception) -> list[Update]:
        """Search again with fewer side by side where memory ran out; else tell of the failure."""
        requests = batch.requests
        for row in list(batch.rows.values()):
            with contextlib.suppress(RuntimeError):  # the device may answer no more
                self._partial[row.request] = self._best(row)
        self.batches.remove(batch)
        is_full = is_out_of_memory(error)
        could_free = is_full and pool.clear(requests[0].lm.backend)
        self._close(batch)
        if is_full:
            _empty_cache(batch.device)
        if is_full and (batch.num_rows > 1 or could_free):
            logger.warning("out of memory with %d searches side by side: fewer", batch.num_rows)
            self._fewer[batch.key] = max(1, batch.num_rows // 2)
            self.waiting.setdefault(batch.key, deque()).extendleft(reversed(requests))
            return []
        updates = [self._failure(request, error) for request in requests]
        for update in updates:
            request = update.request
            if update.result is None:
                update.result = not_started(request.prompt, request.config, request.lm.name)
        return updates

    def _refuse(self, queue: deque[Request], error: Exception) -> list[Update]:
        """Tell the next of a queue that it cannot begin, or halve what begins at once."""
        if is_out_of_memory(error) and len(queue) > 1 and self._fewer.get(queue[0].key) != 1:
            most = min(self._most(queue[0].key, queue), len(queue))
            self._fewer[queue[0].key] = max(1, most // 2)
            pool.clear(queue[0].lm.backend)
            _empty_cache(queue[0].lm.backend.device)
            return []
        return [self._failure(queue.popleft(), error)]

    def _failure(self, request: Request, error: Exception) -> Update:
        alike = [found for one, found in self._partial.items() if one.key == request.key]
        partial = self._partial.pop(request, None)
        if is_out_of_memory(error) and not isinstance(error, BestKError):
            expanded = max((found.cost.expanded for found in alike), default=0)
            told = OutOfMemoryError(out_of_memory(request, expanded))
            told.__cause__ = error
            error = told
        return Update(request=request, result=partial, error=error)

    def _best(self, row: Row) -> SearchResult:
        """Return what a search has found, now or before it had to begin again."""
        result, before = row.result(), self._partial.get(row.request)
        if before is not None and before.cost.expanded > result.cost.expanded:
            return before
        return result

    def _retire(self, batch: Batch) -> None:
        """Close a batch that nobody uses, or keep what was captured for the next of its kind."""
        self.batches.remove(batch)
        if self.serves:  # the next of its kind may find more memory
            self._fewer.pop(batch.key, None)
        if batch.requests or not pool.keep(batch):
            self._close(batch)

    def _close(self, batch: Batch) -> None:
        """Free what a batch holds; a session that fails at its end must not end the others."""
        try:
            batch.close()
        except Exception:
            logger.exception("a batch could not be closed")


def queues(requests: list[Request], most_rows: int | None) -> Iterator[list[Request]]:
    """Split requests into queues of one kind with prompts of similar lengths, longest first."""
    kinds: dict[Hashable, list[Request]] = {}
    for request in requests:
        kinds.setdefault(request.key, []).append(request)
    for kind in kinds.values():
        most = most_rows or rows_for(kind)
        left = sorted(kind, key=lambda request: -request.length)
        while left:
            longest = left[0].length
            queue = [one for one in left if one.length >= longest * _LEAST_FILL]
            # A few stragglers are not worth a queue of their own.
            if len(left) - len(queue) < most:
                queue = left
            left = left[len(queue) :]
            yield queue


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
