"""A job: every row of a file through a search, into another file; stopped, it goes on where it was.

    >>> run_batch("smollm2", "prompts.jsonl", "texts.jsonl", stop=".")       # doctest: +SKIP

Rows are read, searched and written window by window, in their order. What a window gives depends on
its rows and the settings alone, so a job that was killed and resumed, split into shards or spread
over a cluster writes what an unbroken one on one machine writes. Knows neither formats nor models.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from bestk.batch.files import AnyFile, RemoteFile, file_of
from bestk.batch.formats import assembler, copies_columns, open_source
from bestk.batch.on_ray import OnRay, RaySettings
from bestk.batch.sources import Offset, Shard, Source, format_of
from bestk.batch.store import JobStore
from bestk.batch.window import JobConfig, WindowRunner, facts_of, prepare
from bestk.config import DIVERSITY, SearchConfig
from bestk.engine.memory import check_batch_size
from bestk.errors import OptionError
from bestk.lm.language_model import LanguageModel
from bestk.lm.loading import load
from bestk.settings import SearchOptions
from bestk.version import __version__

# Windows are so many batches long: these seldom run empty, and a kill costs little.
_ROUNDS = 16
# Options of a model that no file may hold; what comes out does not depend on them.
_SECRET = ("api_key", "headers")


@dataclass(frozen=True)
class ModelName:
    """A model that is loaded where it is needed: what `bestk.load` takes."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def load(self) -> LanguageModel:
        """Load it."""
        return load(self.name, **self.options)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be done."""

    model: LanguageModel | ModelName
    input: AnyFile
    output: AnyFile
    wanted: JobConfig = field(default_factory=JobConfig)
    batch_size: int | str = "auto"  # rows searched side by side
    window: int | None = None  # rows between two writes; 16 times the batch size
    shard: Shard = field(default_factory=Shard)
    ray: RaySettings | None = None

    def __post_init__(self) -> None:
        check_batch_size(self.batch_size)
        if self.window is not None and self.window < 1:
            raise OptionError(f"window must be at least 1 row, got {self.window}")
        if self.ray is not None and isinstance(self.model, LanguageModel):
            raise OptionError("on Ray every worker loads the model: give its name, not the model")
        if _where(self.input) == _where(self.output):
            raise OptionError(f"{self.input} cannot be input and output: give another output")

    @property
    def local_output(self) -> Path:
        """Where the output is made: for one that goes elsewhere, in the folder at hand."""
        return Path(self.output.name) if isinstance(self.output, RemoteFile) else self.output

    @functools.cached_property
    def language_model(self) -> LanguageModel:
        """The model, loaded when it is first needed."""
        return self.model.load() if isinstance(self.model, ModelName) else self.model


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """Where a job stands; `share` of its rows are read, None where nobody knows how many."""

    num_read: int  # since this process began
    num_rows: int  # with results
    num_bad: int
    share: float | None
    is_done: bool
    output: AnyFile
    errors: Path  # is there if any row was bad


def run_batch(
    model: LanguageModel | ModelName | str,
    input: str | Path,
    output: str | Path,
    config: SearchConfig | None = None,
    *,
    raw: bool = False,
    system: str | None = None,
    select: str | None = None,
    diversity: float = DIVERSITY,
    rerank: str | None = None,
    full: bool = False,
    tree: bool = False,
    allowed: str | Path | None = None,
    keep: Sequence[str] | None = None,
    batch_size: int | str = "auto",
    window: int | None = None,
    shard: str | None = None,
    ray: RaySettings | None = None,
    **options: Unpack[SearchOptions],
) -> JobProgress:
    """Search every row of a JSONL or Parquet file and write another; returns where it stands then.

    `options` are the fields of `SearchConfig`. Called again after it was broken off, it goes on;
    once it is done, it does nothing. Of Parquet and JSON lines, gzipped or not, any goes with any.
    With `allowed`, a file of a trie, every text is an item; `exclude` of a row leaves some out.
    `keep` names the columns that go to the output, by default all but those that say what to do.
    Files may lie elsewhere: s3://, gs://, hf:// and whatever else fsspec has a package for.
    """
    wanted = JobConfig(
        config=SearchConfig.of(options, config),
        raw=raw,
        system=system,
        select=select,
        diversity=diversity,
        rerank=rerank,
        full=full,
        tree=tree,
        allowed=None if allowed is None else str(allowed),
        keep=None if keep is None else tuple(keep),
    )
    job = Job(
        model=ModelName(model) if isinstance(model, str) else model,
        input=file_of(input),
        output=file_of(output),
        wanted=wanted,
        batch_size=batch_size,
        window=window,
        shard=Shard() if shard is None else Shard.of(shard),
        ray=ray,
    )
    *_, last = follow_batch(job)
    return last


def follow_batch(job: Job) -> Iterator[JobProgress]:
    """Run what is left of a job; yields after every window, first for what was done before.

    Everything yielded is on disk: leaving off at any moment, or a kill, loses the window at hand.
    """
    source = open_source(job.input)
    format_of(job.output)
    on_ray = None if job.ray is None else OnRay(job.ray, job.model)
    store = JobStore(job.local_output)
    try:
        _check_remote(job, store)
        batch_size, window = _sizes(job, source, on_ray, store)
        start, stop = _span(source, job.shard, window)
        store.begin(_facts(job, source, batch_size, window) | _number_format(job, store), start)
        report = _Reporter(job, store, source, start, stop)
        yield report()
        if store.state.stage == "done":
            _send(job, store)
            return
        columns = not copies_columns(job.output, source)
        if store.state.stage == "searching" and on_ray is not None:
            parts = on_ray.run(
                source,
                store.state.place,
                stop,
                wanted=job.wanted,
                batch_size=batch_size,
                window=window,
                with_columns=columns,
            )
            for found, end in parts:
                store.commit(found, end)
                yield report()
        elif store.state.stage == "searching":
            _check_number_format(job, store)
            runner = WindowRunner(job.language_model, job.wanted, with_columns=columns)
            for read in source.windows(store.state.place, stop, window):
                for scheduler in runner.schedulers(read.rows, batch_size):
                    while scheduler.has_work:
                        for update in scheduler.step():
                            runner.note(update)
                store.commit(runner.output(), read.end)
                yield report()
        store.finish(assembler(job.output, source, job.wanted.keep))
        _send(job, store)
        yield report()
    finally:
        store.close()


def _where(file: AnyFile) -> str:
    return file.url if isinstance(file, RemoteFile) else str(file.resolve())


def _check_remote(job: Job, store: JobStore) -> None:
    """Refuse an output elsewhere that is there before the job is."""
    is_there = isinstance(job.output, RemoteFile) and job.output.is_file()
    if is_there and store.settings() is None:
        raise OptionError(f"{job.output} is there already, and not from a job: give another name")


def _send(job: Job, store: JobStore) -> None:
    """Copy a finished output, and what was wrong with rows, to where they are wanted."""
    if not isinstance(job.output, RemoteFile) or job.output.is_file():
        return
    if store.errors_output.exists():
        RemoteFile(f"{job.output.url}.errors.jsonl").put(store.errors_output)
    job.output.put(store.output)  # last: where it is, the job is done


class _Reporter:
    """Reports where a job stands."""

    def __init__(
        self, job: Job, store: JobStore, source: Source, start: Offset, stop: int | None
    ) -> None:
        self.job, self.store, self.source = job, store, source
        self.start, self.stop = start, stop
        self.begun_at = store.state.line

    def __call__(self) -> JobProgress:
        state = self.store.state
        return JobProgress(
            num_read=state.line - self.begun_at,
            num_rows=state.num_rows,
            num_bad=state.num_bad,
            share=1.0 if state.stage != "searching" else self._share(),
            is_done=state.stage == "done",
            output=self.job.output,
            errors=self.store.errors_output,
        )

    def _share(self) -> float | None:
        state = self.store.state
        if self.stop is not None:
            return (state.line - self.start.line) / max(self.stop - self.start.line, 1)
        return self.source.share_of(state.place)


def _sizes(job: Job, source: Source, on_ray: OnRay | None, store: JobStore) -> tuple[int, int]:
    """Choose how many rows run side by side, and together; a job that was begun keeps both."""
    known = store.settings() or {}
    batch_size = check_batch_size(job.batch_size) or known.get("batch_size")
    if not known:
        first = next(source.windows(Offset(), None, 8 * 64), None)
        rows = first.rows if first else ()
        if on_ray is not None:
            batch_size = on_ray.prepare(job.wanted, rows, batch_size)
        else:
            batch_size = prepare(job.language_model, job.wanted, rows, batch_size)
    assert batch_size is not None
    return batch_size, job.window or known.get("window") or _ROUNDS * batch_size


def _span(source: Source, shard: Shard, window: int) -> tuple[Offset, int | None]:
    """Return where a shard begins, and after which row it ends; a whole file needs no counting."""
    if shard.count == 1:
        return Offset(), None
    first, last = shard.lines(source.count(), window)
    return source.place_of(first), last


def _number_format(job: Job, store: JobStore) -> dict[str, str]:
    """Name what the weights are held in, which "auto" leaves to the machine that begins a job."""
    known = store.settings()
    if known is not None:
        return {name: value for name, value in known.items() if name == "dtype"}
    # On Ray there may be machines of several kinds.
    return {} if job.ray else {"dtype": str(job.language_model.backend.facts()["dtype"])}


def _check_number_format(job: Job, store: JobStore) -> None:
    """Refuse to go on with a job whose model held its weights otherwise."""
    (told,) = _number_format(job, store).values() or (None,)
    found = job.language_model.backend.facts()["dtype"]
    if told not in (None, found):
        raise OptionError(
            f"{job.output} was begun with weights in {told}, here they are in {found}: "
            f"say dtype {told}, or give another output"
        )


def _facts(job: Job, source: Source, batch_size: int, window: int) -> dict[str, Any]:
    """List everything that the output depends on."""
    model = job.model
    options = model.options if isinstance(model, ModelName) else {}
    facts = {
        "bestk": __version__,
        "model": model.name,
        "load": {name: str(value) for name, value in options.items() if name not in _SECRET},
        "input": source.digest(),
        "output": format_of(job.output),
        "shard": str(job.shard),
        "window": window,
        "batch_size": batch_size,
    }
    told: dict[str, Any] = json.loads(json.dumps(facts | facts_of(job.wanted)))
    return told
