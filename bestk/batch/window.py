"""Searches the rows of a window: raw rows in, lines of results and of errors out.

A window is searched from an empty start and alone, so what comes out depends on its rows and the
settings only: not on what ran before it, nor in which process. Knows rows and models, no files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bestk.batch.rows import RawRow, RowRequest, columns_of, read_row
from bestk.config import DIVERSITY, SearchConfig
from bestk.constraints import compile_apart
from bestk.constraints.allowed import of_trie
from bestk.constraints.trie import Trie
from bestk.durable import line
from bestk.engine.memory import is_out_of_memory, rows_for
from bestk.engine.request import Request, Update, requests_of
from bestk.engine.scheduler import Scheduler, queues
from bestk.errors import (
    BestKError,
    MissingExtraError,
    OptionError,
    PromptError,
    SearchInterrupted,
)
from bestk.lm.language_model import LanguageModel
from bestk.processors.pipeline import Hooks
from bestk.rerank.postprocess import Finish
from bestk.result import SearchResult

_DIGITS = 6  # of scores and masses, as in evaluations
_BROKEN = (
    "the model gave NaN or infinite logits: load it in a wider dtype (float32), "
    "or check its weights"
)
# Prompts whose lengths decide how many searches fit side by side.
_LOOKED_AT = 256
_ROWS = 8  # where there are none to look at


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """What is to be done with every row."""

    config: SearchConfig = field(default_factory=SearchConfig)
    raw: bool = False  # prompts are continued as they are, without chat formatting
    system: str | None = None
    select: str | None = None
    diversity: float = DIVERSITY
    rerank: str | None = None
    full: bool = False  # everything that is known of the texts, not their scores alone
    tree: bool = False  # with the search tree
    allowed: str | None = None  # a file with a trie: every text is one of its items
    keep: tuple[str, ...] | None = None  # columns of the output; None: all that say not what to do

    def __post_init__(self) -> None:
        if self.raw and self.system is not None:
            raise OptionError("a system text needs chat formatting: give it without raw")
        if self.tree and not self.full:
            raise OptionError("tree=True is part of full results: give full=True too")
        if self.rerank is not None and not isinstance(self.rerank, str):
            raise OptionError(
                "a job takes rerankers by name, since it may go on elsewhere, got "
                f"{self.rerank!r:.60}: rerank what it has found, with full=True"
            )


@dataclass(frozen=True)
class WindowOutput:
    """What a window gave."""

    results: bytes = b""
    errors: bytes = b""
    num_rows: int = 0
    num_bad: int = 0


class WindowRunner:
    """Makes requests of rows, and lines of what becomes of them."""

    def __init__(self, lm: LanguageModel, wanted: JobConfig, *, with_columns: bool = True) -> None:
        self.lm = lm
        self.wanted = wanted
        self.with_columns = with_columns
        self.finish = Finish(rerank=wanted.rerank, select=wanted.select, diversity=wanted.diversity)
        trie = None if wanted.allowed is None else Trie.load(wanted.allowed, mmap=True)
        self.hooks = Hooks(**of_trie(trie))
        self._rows: dict[Request, RowRequest] = {}
        self._records: dict[int, bytes] = {}
        self._errors: dict[int, dict[str, Any]] = {}
        self._failed: dict[Request, Exception] = {}  # for reasons that nobody foresaw

    def begin(self, rows: Sequence[RawRow]) -> list[Request]:
        """Make requests of all rows that can be searched; the others are errors, with reasons."""
        self._rows, self._records, self._errors = {}, {}, {}
        for row in rows:
            if not row.is_blank():
                self._read(row)
        return list(self._rows)

    def schedulers(self, rows: Sequence[RawRow], batch_size: int) -> Iterator[Scheduler]:
        """Yield schedulers with all the work that rows make, each to be run to its end.

        Of rows that failed together only those that fail alone too are errors.
        """
        requests = self.begin(rows)
        # From an empty start and alone, so that nothing depends on what ran before.
        with contextlib.closing(Scheduler(batch_size)) as scheduler:
            for queue in queues(requests, batch_size):
                for request in queue:
                    scheduler.add(request)
                yield scheduler
        together, self._failed = self._failed, {}
        for request in together:
            with contextlib.closing(Scheduler(1)) as scheduler:
                scheduler.add(request)
                yield scheduler
        alone, self._failed = self._failed, {}
        if len(alone) > 1 and len(alone) == len(requests):
            raise next(iter(alone.values()))  # whatever is asked for fails: no row's fault
        for request, error in alone.items():
            row = self._rows[request]
            self._fail(row.line, row.columns, _reason(error))

    def note(self, update: Update) -> None:
        """Write down what became of a row; what is the machine's or the model's ends the window."""
        row, result, error = self._rows[update.request], update.result, update.error
        if error is None and result is not None:
            self._finish(row, result)
        elif result is not None and result.stop_reason == "broken":
            self._fail(row.line, row.columns, _BROKEN)
        elif isinstance(error, OptionError) and row.config != self.wanted.config:
            self._fail(row.line, row.columns, str(error))  # settings of the job are no row's fault
        elif error is not None and is_out_of_memory(error):
            self._fail(row.line, row.columns, str(error))  # it did not fit alone
        elif isinstance(error, BestKError) and not isinstance(error, OptionError):
            raise SearchInterrupted(str(error), []) from error
        elif isinstance(error, OptionError | OSError):
            raise error
        elif error is not None:
            self._failed[update.request] = error

    def output(self) -> WindowOutput:
        """Return the lines of the window, in the order of its rows."""
        records, errors = self._records, self._errors
        return WindowOutput(
            results=b"".join(records[number] for number in sorted(records)),
            errors="".join(line(errors[number]) for number in sorted(errors)).encode(),
            num_rows=len(records),
            num_bad=len(errors),
        )

    def _read(self, row: RawRow) -> None:
        columns: dict[str, Any] = {}
        wanted = self.wanted
        is_own = True  # settings that are wrong are the row's, not the job's
        try:
            columns = columns_of(row)
            read = read_row(
                row,
                columns,
                self.lm,
                wanted.config,
                raw=wanted.raw,
                system=wanted.system,
                keep=wanted.keep,
            )
            is_own = read.config != wanted.config
            self.finish.check(read.config)
            if is_own:
                compile_apart(read.config, self.lm)
            exclude = columns.get("exclude") if wanted.allowed is not None else None
            is_own = is_own or bool(exclude)
            if wanted.allowed is not None and "items" in read.columns:
                raise PromptError("column 'items' is one of the output's own: rename it")
            (request,) = requests_of(
                self.lm,
                [read.prompt],
                read.config,
                self.hooks,
                exclude=[exclude] if exclude else (),
                keep_tree=wanted.tree,
            )
        except Exception as error:
            of_job = not is_own and isinstance(error, OptionError | MissingExtraError)
            if of_job or _is_of_machine(error):
                raise
            self._fail(row.line, columns, _reason(error))
        else:
            self._rows[request] = read

    def _finish(self, row: RowRequest, result: SearchResult) -> None:
        """Rerank and choose, or note why that cannot be done with this row."""
        try:
            self._records[row.line] = line(self._record(row, self.finish(result))).encode()
        except Exception as error:
            if _is_of_machine(error):
                raise
            self._fail(row.line, row.columns, _reason(error))

    def _fail(self, number: int, columns: Mapping[str, Any], reason: str) -> None:
        told = {"id": columns["id"]} if "id" in columns else {}
        self._errors[number] = {"line": number, **told, "error": reason}

    def _record(self, row: RowRequest, result: SearchResult) -> dict[str, Any]:
        hypotheses = result.hypotheses
        record: dict[str, Any] = {"line": row.line}
        record |= row.columns if self.with_columns else {}
        record["texts"] = [h.text for h in hypotheses]
        record["scores"] = [round(h.score, _DIGITS) for h in hypotheses]
        if self.wanted.allowed is not None:
            record["items"] = [h.item for h in hypotheses]
        if self.finish.reranker is not None:
            record["rerank_scores"] = [round(h.rerank_score or 0.0, _DIGITS) for h in hypotheses]
        data = result.to_json(tree=self.wanted.tree)
        # Passes depend on who shared them, steps do not.
        cost = {"expanded": result.cost.expanded, "model_calls": result.cost.steps}
        record["mass"] = {name: round(value, _DIGITS) for name, value in data["mass"].items()}
        record["cost"] = cost
        record["stop_reason"], record["notice"] = result.stop_reason, result.notice
        record["signature"] = result.signature
        if self.wanted.full:
            # The seconds are never the same twice, and are of a whole batch anyway.
            record["result"] = data | {"cost": cost | {"seconds": None}}
        return record


def search_window(
    lm: LanguageModel, wanted: JobConfig, batch_size: int, rows: Sequence[RawRow], columns: bool
) -> WindowOutput:
    """Search a window by itself."""
    runner = WindowRunner(lm, wanted, with_columns=columns)
    for scheduler in runner.schedulers(rows, batch_size):
        while scheduler.has_work:
            for update in scheduler.step():
                runner.note(update)
    return runner.output()


def _is_of_machine(error: Exception) -> bool:
    """Whether an error is of the disk, the memory or the model, and not of what a row says."""
    if isinstance(error, BestKError):  # its words may be the row's
        return not isinstance(error, PromptError | OptionError | MissingExtraError)
    return isinstance(error, OSError) or is_out_of_memory(error)


def _reason(error: Exception) -> str:
    """Word an error of any kind on one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, BestKError) else f"{type(error).__name__}: {text}"


def prepare(
    lm: LanguageModel, wanted: JobConfig, rows: Sequence[RawRow], batch_size: int | None
) -> int:
    """Refuse settings that the model cannot take; choose how many rows run side by side."""
    runner = WindowRunner(lm, wanted)
    requests_of(lm, [], wanted.config, runner.hooks)
    if batch_size is not None:
        return batch_size
    requests = runner.begin(rows[:_LOOKED_AT])
    return rows_for(requests) if requests else _ROWS


def facts_of(wanted: JobConfig) -> dict[str, Any]:
    """List what the results depend on, as plain data."""
    facts = asdict(wanted)
    config = facts.pop("config")
    # What it holds, wherever it lies; jobs that were begun before there were any know of none.
    facts.pop("allowed")
    if wanted.keep is None:
        facts.pop("keep")
    if wanted.allowed is not None:
        facts["allowed"] = Trie.load(wanted.allowed, mmap=True).digest
    # As JSON reads it back: tuples become lists.
    told: dict[str, Any] = json.loads(json.dumps({**facts, **config}))
    return told
