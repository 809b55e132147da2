"""Keeps captured batches between calls: what was captured once is replayed by the next.

A batch is kept with its backend, and goes when that goes. Whoever takes one has it alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bestk.backends.base import Backend

if TYPE_CHECKING:
    from bestk.engine.batch import Batch
    from bestk.lm.language_model import LanguageModel

# Batches kept for a model: each holds the memory of its searches.
_KEPT = 2

_BATCHES: weakref.WeakKeyDictionary[Backend, list[Batch]] = weakref.WeakKeyDictionary()
_MOST: weakref.WeakKeyDictionary[Backend, int] = weakref.WeakKeyDictionary()


def take(backend: Backend, key: Hashable, rows: int, prompt_size: int) -> Batch | None:
    """Take a batch of this shape out, None if there is none."""
    kept = _BATCHES.get(backend, [])
    for batch in kept:
        if (batch.key, batch.num_rows, batch.prompt_size) == (key, rows, prompt_size):
            kept.remove(batch)
            return batch
    return None


def keep(batch: Batch) -> bool:
    """Keep a batch that nobody uses if it was captured; the oldest make room."""
    backend = batch.backend()
    if batch.graphs is None or backend is None:
        return False
    kept = _BATCHES.setdefault(backend, [])
    kept.append(batch)
    while len(kept) > _MOST.get(backend, _KEPT):
        kept.pop(0).close()
    return True


def clear(backend: Backend) -> bool:
    """Free all that is kept for a model; return whether there was anything."""
    kept = _BATCHES.pop(backend, [])
    for batch in kept:
        batch.close()
    return bool(kept)


@contextmanager
def kept_batches(lm: LanguageModel, most: int) -> Iterator[None]:
    """Keep up to `most` captured batches of a model for its next calls; free them all afterwards.

    For who measures: with 0 every call begins with nothing. Nothing is kept from before either.
    """
    clear(lm.backend)
    _MOST[lm.backend] = most
    try:
        yield
    finally:
        clear(lm.backend)
        del _MOST[lm.backend]
