"""Many prompts: chooses how many are searched side by side, and halves that when memory runs out.

Finished searches are never lost: a batch that fails is split, and only its unfinished prompts are
searched again, with the same results. Knows prompts and results, no tensors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bestk.config import SearchConfig
from bestk.constraints.stop_strings import StopStrings
from bestk.core.best_k import Rule, room
from bestk.engine.lanes import Lanes, batches, bucket, run_lanes
from bestk.errors import BestKError, OptionError, OutOfMemoryError, SearchInterrupted
from bestk.lm.language_model import LanguageModel
from bestk.result import SearchResult, collect, not_started

# Beyond this many searches side by side a step is bound by arithmetic, and memory is better kept.
_MOST_LANES = 64
_LANES_ON_CPU = 8
# How allocators word it, whatever they raise.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed")
_USABLE = 0.8  # of the free memory


def search_many(
    lm: LanguageModel,
    prompts: Sequence[Any],
    config: SearchConfig,
    *,
    batch_size: int | str = "auto",
    keep_tree: bool = True,
) -> list[SearchResult]:
    """Search all prompts; results come in the prompts' order."""
    most = check_batch_size(batch_size)
    job = _Job(lm, list(prompts), encode_all(lm, prompts, config), config, keep_tree)
    try:
        job.run(most or auto_batch_size(lm, config, job.ids))
    except SearchInterrupted:
        raise
    except BestKError as error:
        if not job.has_begun:
            raise
        raise SearchInterrupted(str(error), job.partial()) from error
    if job.complaints:
        raise SearchInterrupted(job.complaints[min(job.complaints)], job.partial())
    return job.partial()


class _Job:
    """The prompts of one call, and what has been found for them."""

    def __init__(
        self,
        lm: LanguageModel,
        prompts: list[Any],
        ids: list[list[int]],
        config: SearchConfig,
        keep_tree: bool,
    ) -> None:
        self.lm = lm
        self.prompts = prompts
        self.ids = ids
        self.config = config
        self.keep_tree = keep_tree
        self.results: dict[int, SearchResult] = {}
        self.unfinished: dict[int, SearchResult] = {}
        self.complaints: dict[int, str] = {}  # of searches whose model broke

    @property
    def has_begun(self) -> bool:
        """Say whether anything was searched."""
        return bool(self.results or self.unfinished)

    def partial(self) -> list[SearchResult]:
        """Return one result per prompt, as good as is known."""
        known = self.unfinished | self.results
        return [
            known.get(number) or not_started(prompt, self.config, self.lm.name)
            for number, prompt in enumerate(self.prompts)
        ]

    def run(self, size: int) -> None:
        """Search all prompts, at most `size` side by side, fewer where memory runs out."""
        for queue, lanes in batches([len(ids) for ids in self.ids], size):
            while left := [number for number in queue if number not in self.results]:
                lanes = min(lanes, len(left))
                if not self._fits(left, lanes):
                    lanes //= 2

    def _fits(self, queue: list[int], count: int) -> bool:
        try:
            self._run_queue(queue, count)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.lm.lanes.clear()
            if count == 1:
                expanded = [found.cost.expanded for found in self.unfinished.values()]
                message = out_of_memory(self.lm, self.config, count, max(expanded, default=0))
                raise OutOfMemoryError(message, self.partial()) from error
        else:
            return True
        # Only here has the error let go of the tensors that it was raised among.
        _empty_cache(self.lm)
        return False

    def _run_queue(self, queue: list[int], count: int) -> None:
        """Search a queue through some lanes; only its head where lanes cannot be filled again."""
        rules = stop_rules(self.lm, self.config)
        first = [self.ids[number] for number in queue[:count]]
        size, started = self._prompt_size(len(first[0])), time.monotonic()
        with self.lm.lanes.borrowed(self.lm.backend, self.config, first, size, rules) as lanes:
            waiting = [(number, self.ids[number]) for number in queue]
            running: dict[int, int] = {}
            try:
                reachable = waiting if lanes.can_refill else waiting[:count]
                for ended, seconds in run_lanes(lanes, reachable, running):
                    self._finish(lanes, ended, seconds)
            except BaseException:
                self._save_running(lanes, running, time.monotonic() - started)
                raise

    def _prompt_size(self, longest: int) -> int:
        """Choose how many places a prompt gets: on a GPU one of a few sizes, to capture less."""
        backend = self.lm.backend
        size = bucket(longest, longest + 256) if backend.device.type == "cuda" else longest
        most = size if backend.max_length is None else backend.max_length
        return max(min(size, most), longest)

    def _finish(self, lanes: Lanes, ended: dict[int, int], seconds: float) -> None:
        found = self._collect(lanes, ended, seconds)
        self.results |= found
        for lane, number in ended.items():
            self.unfinished.pop(number, None)
            # A search that broke has ended; the others go on before anyone is told.
            if found[number].stop_reason == "broken":
                complaint = lanes.searches.complaint({lane: number})
                assert complaint is not None
                self.complaints[number] = complaint

    def _collect(
        self, lanes: Lanes, ended: dict[int, int], seconds: float
    ) -> dict[int, SearchResult]:
        results = collect(
            lanes.searches,
            prompts={lane: self.prompts[number] for lane, number in ended.items()},
            decode=self._decode,
            model=self.lm.name,
            seconds=seconds,
            keep_tree=self.keep_tree,
            token_texts=self.lm.token_texts,
        )
        return dict(zip(ended.values(), results, strict=True))

    def _decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self.lm.decode(sequences, self.config.stop, self.config.min_new_tokens)

    def _save_running(self, lanes: Lanes, running: dict[int, int], seconds: float) -> None:
        """Keep what unfinished searches have found, as far as the device still answers."""
        try:
            found = self._collect(lanes, running, seconds)
        except RuntimeError:
            return
        for number, result in found.items():
            best = self.unfinished.get(number, result)
            self.unfinished[number] = max(best, result, key=lambda r: r.cost.expanded)


def encode_all(lm: LanguageModel, prompts: Sequence[Any], config: SearchConfig) -> list[list[int]]:
    """Turn prompts into ids, and refuse what cannot be searched before anything is."""
    encoded = [lm.encode(prompt) for prompt in prompts]
    check_prompts(lm, encoded, config)
    return encoded


def check_prompts(lm: LanguageModel, ids: Sequence[Any], config: SearchConfig) -> None:
    """Refuse prompts that leave no room for a text, and stop ids that do not exist."""
    size = lm.backend.vocab_size
    for token in config.stop_ids:
        if not 0 <= token < size:
            raise OptionError(f"stop_ids go from 0 to {size - 1}, got {token}")
    for prompt in ids:
        lm.check_length(prompt, config.max_new_tokens)


def stop_rules(lm: LanguageModel, config: SearchConfig) -> list[Rule]:
    """Make the rules that the settings ask for."""
    if not config.stop:
        return []
    return [StopStrings(config.stop, lm.decode, config.min_new_tokens)]


def auto_batch_size(
    lm: LanguageModel,
    config: SearchConfig,
    ids: Sequence[Sequence[int]],
    unknown: int = _LANES_ON_CPU,
) -> int:
    """Choose how many searches fit side by side; `unknown` where nobody knows what is free."""
    backend: Any = lm.backend
    free = backend.free_bytes() if hasattr(backend, "free_bytes") else None
    if free is None or not ids:
        lanes: int = getattr(backend, "num_lanes", unknown)
        return lanes
    each = backend.lane_bytes(max(map(len, ids)), room(config, backend.vocab_size))
    # An engine's model is elsewhere: the device is that of the search's own tensors.
    on_cpu = backend.device.type == "cpu" and not hasattr(backend, "num_lanes")
    return most_lanes(free, each, _LANES_ON_CPU if on_cpu else _MOST_LANES)


def most_lanes(free_bytes: int, lane_bytes: int, most: int = _MOST_LANES) -> int:
    """Say how many searches to run side by side in so much memory; one is always tried."""
    return int(max(1, min(free_bytes * _USABLE // lane_bytes, most)))


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


def out_of_memory(lm: LanguageModel, config: SearchConfig, batch: int, expanded: int) -> str:
    """Word the error: what happened, and what to lower."""
    size = "beam_size" if config.budget is None else "budget"
    fewer = f"batch_size (now {batch}), " if batch > 1 else ""
    return (
        f"out of memory on {lm.backend.device} after {expanded} of {config.total_budget} "
        f"expansions: lower {fewer}k ({config.k}), {size} ({getattr(config, size)}) "
        f"or max_new_tokens ({config.max_new_tokens})"
    )


def _empty_cache(lm: LanguageModel) -> None:
    import torch

    if lm.backend.device.type == "cuda":
        torch.cuda.empty_cache()
