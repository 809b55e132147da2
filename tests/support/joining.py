"""Searches that join a running batch, as those of a server's clients do."""

from __future__ import annotations

from collections.abc import Sequence

import bestk
from bestk.engine.request import Request
from bestk.engine.scheduler import Scheduler


def joined_late(requests: Sequence[Request], steps: Sequence[int]) -> list[bestk.SearchResult]:
    """Add each request at its step, and return the results in the order of the requests."""
    waiting = list(zip(steps, requests, strict=True))
    scheduler, found, time = Scheduler(3, serves=True), {}, 0
    while waiting or scheduler.has_work:
        for joined in [one for one in waiting if one[0] <= time]:
            scheduler.add(joined[1])
            waiting.remove(joined)
        for update in scheduler.step():
            assert update.error is None, update.error
            if update.result is not None:
                found[update.request.number] = update.result
        time += 1
    return [found[request.number] for request in requests]
