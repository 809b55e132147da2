"""How many searches fit side by side, and how running out of memory is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bestk.backends.base import Memory
from bestk.engine.prefetch import rows_of_pass, with_room
from bestk.errors import OptionError

if TYPE_CHECKING:
    from bestk.engine.request import Request

# Beyond this many searches side by side a pass is bound by arithmetic, and memory is better kept.
MOST_ROWS = 64
_ROWS_ON_CPU = 8
_NODES_ON_CPU = 128  # in a pass: with more it only waits for its slowest search
# How allocators word it, whatever they raise.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed")
_USABLE = 0.8  # of the free memory


def rows_for(requests: Sequence[Request], most: int | None = None) -> int:
    """Choose how many of these searches run side by side, `most` at the most."""
    first, longest = requests[0], max(request.length for request in requests)
    backend, can = first.lm.backend, first.lm.backend.capabilities
    spec, limit = first.spec, can.max_rows
    on_cpu = max(1, min(_ROWS_ON_CPU, _NODES_ON_CPU // spec.width))
    memory = backend.memory(spec, longest)
    if memory is None:
        fitting = limit or on_cpu
        return fitting if most is None else most
    # An engine's model is elsewhere: the device is that of the search's own tensors.
    is_on_cpu = backend.device.type == "cpu" and limit is None
    fitting = rows_in(memory, on_cpu if is_on_cpu else MOST_ROWS)
    # What is evaluated ahead of time takes places too, fewer where more searches share a pass.
    memory = backend.memory(with_room(spec, rows_of_pass(first, can, fitting)), longest)
    assert memory is not None
    return min(rows_in(memory, fitting), most or fitting)


def rows_in(memory: Memory, most: int = MOST_ROWS) -> int:
    """Return how many searches to run side by side in so much memory; one is always tried."""
    return int(max(1, min(memory.free * _USABLE // memory.per_search, most)))


def check_batch_size(batch_size: int | str) -> int | None:
    """Return the number asked for, None for "auto"."""
    if batch_size == "auto":
        return None
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size must be 'auto' or at least 1, got {batch_size!r}")
    return batch_size


def is_out_of_memory(error: BaseException) -> bool:
    """Tell running out of memory from other failures; torch says it in several ways."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in text for sign in _OUT_OF_MEMORY)


def out_of_memory(request: Request, expanded: int) -> str:
    """Word the error of a search that did not fit alone: what happened, and what to lower."""
    config = request.config
    size = "beam_size" if config.budget is None else "budget"
    return (
        f"out of memory on {request.lm.backend.device} after {expanded} of {config.total_budget} "
        f"expansions: lower k ({config.k}), {size} ({getattr(config, size)}) "
        f"or max_new_tokens ({config.max_new_tokens})"
    )
