"""CUDA graphs of the passes of a batch: captured once, replayed without Python in between.

Knows functions without arguments and the tensors that they read; nothing of searches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Calls that run uncaptured first: they warm libraries up, and are real passes of the searches.
_WARM_UP = 2


class GraphRunner:
    """Graphs by name, with what they read and give."""

    def __init__(self) -> None:
        self._captured: dict[str, tuple[Callable[[], None], Any]] = {}
        self._calls: dict[str, int] = {}
        self._buffers: dict[str, list[Tensor]] = {}

    def run(self, name: str, work: Callable[[], Any], *, warm_up: int = _WARM_UP) -> Any:
        """Do what `work` does: by calling it at first, then by replaying it.

        It must be a fixed series of kernels, and what it returns stays where it is.
        """
        calls = self._calls[name] = self._calls.get(name, 0) + 1
        if calls <= warm_up:
            return work()
        if name not in self._captured:
            self._captured[name] = self._capture(work)
        replay, result = self._captured[name]
        replay()
        return result

    def feed(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors to where the graphs read them, always the same place."""
        if name not in self._buffers:
            self._buffers[name] = [torch.empty_like(tensor) for tensor in tensors]
        for buffer, tensor in zip(self._buffers[name], tensors, strict=True):
            buffer.copy_(tensor)
        return self._buffers[name]

    def _capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph, pool=_pool()):
            result = work()
        return graph.replay, result


_KEEPERS: list[torch.cuda.CUDAGraph] = []


def _pool() -> Any:
    """Return the memory that all graphs share: no two of them run at a time.

    One graph is never dropped: a pool that lost its last one takes no other.
    """
    if not _KEEPERS:
        keeper = torch.cuda.CUDAGraph()
        with torch.cuda.graph(keeper):
            torch.zeros(1, device="cuda")
        _KEEPERS.append(keeper)
    return _KEEPERS[0].pool()
