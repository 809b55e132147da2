"""Searches the rows of a window: raw rows in, lines of results and of errors out.

A window is searched from an empty start and alone, so what comes out depends on its rows and the
settings only: not on what ran before it, nor in which process. Knows rows and models, no files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bestk.api import search_all
from bestk.batch.rows import RawRow, Request, columns_of, read_request
from bestk.config import DIVERSITY, SELECTIONS, SearchConfig
from bestk.constraints import constraints_of
from bestk.durable import line
from bestk.engine.many import auto_batch_size, check_prompts
from bestk.errors import OptionError, OutOfMemoryError, PromptError, SearchInterrupted
from bestk.lm.language_model import LanguageModel
from bestk.processors.pipeline import Hooks, shaping_steps
from bestk.rerank.postprocess import Finish
from bestk.result import SearchResult

_DIGITS = 6  # of scores and masses, as in evaluations
_BROKEN = (
    "the model gave NaN or infinite logits: load it in a wider dtype (float32), "
    "or check its weights"
)
# Prompts whose lengths decide how many searches fit side by side.
_LOOKED_AT = 256


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be done with every row."""

    config: SearchConfig = field(default_factory=SearchConfig)
    raw: bool = False  # prompts are continued as they are, without chat formatting
    system: str | None = None
    num_texts: int | None = None
    select: str = SELECTIONS[0]
    diversity: float = DIVERSITY
    rerank: str | None = None
    full: bool = False  # everything that is known of the texts, not their scores alone
    tree: bool = False  # with the search tree

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
class Found:
    """What a window gave."""

    results: bytes = b""
    errors: bytes = b""
    num_rows: int = 0
    num_bad: int = 0


class Searcher:
    """A model and what is wanted of it."""

    def __init__(
        self, lm: LanguageModel, wanted: Wanted, batch_size: int, *, with_columns: bool = True
    ) -> None:
        self.lm = lm
        self.wanted = wanted
        self.batch_size = batch_size
        self.with_columns = with_columns
        self.finish = Finish(
            rerank=wanted.rerank,
            num_texts=wanted.num_texts,
            select=wanted.select,
            diversity=wanted.diversity,
        )

    def __call__(self, rows: Sequence[RawRow]) -> Found:
        """Search all rows that can be searched; the others are errors, with their reasons."""
        errors: dict[int, dict[str, Any]] = {}
        requests = [r for row in rows if (r := self._request(row, errors)) is not None]
        records: dict[int, dict[str, Any]] = {}
        groups: dict[SearchConfig, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.config, []).append(request)
        for config, members in groups.items():
            for request, outcome in zip(members, self._outcomes(members, config), strict=True):
                if isinstance(outcome, SearchResult):
                    outcome = self._finished(outcome)
                if isinstance(outcome, SearchResult):
                    records[request.line] = self._record(request, outcome)
                else:
                    errors[request.line] = _error(request.line, request.columns, outcome)
        return Found(
            results="".join(line(records[number]) for number in sorted(records)).encode(),
            errors="".join(line(errors[number]) for number in sorted(errors)).encode(),
            num_rows=len(records),
            num_bad=len(errors),
        )

    def _request(self, row: RawRow, errors: dict[int, dict[str, Any]]) -> Request | None:
        columns: dict[str, Any] = {}
        if row.is_blank():
            return None
        try:
            columns = columns_of(row)
            return read_request(
                row,
                columns,
                self.lm,
                self.wanted.config,
                raw=self.wanted.raw,
                system=self.wanted.system,
            )
        except (PromptError, OptionError) as error:
            errors[row.line] = _error(row.line, columns, str(error))
            return None

    def _outcomes(
        self, members: Sequence[Request], config: SearchConfig
    ) -> list[SearchResult | str]:
        """Search some rows; an outcome that is text says why there is no result."""
        prompts = [request.prompt for request in members]
        try:
            results = search_all(
                self.lm,
                prompts,
                config,
                batch_size=self.batch_size,
                keep_tree=self.wanted.tree,
            )
        except OptionError as error:
            # Settings of the job are none of a row's faults.
            if config == self.wanted.config:
                raise
            return [str(error)] * len(members)
        except OutOfMemoryError as error:
            # Only a search that does not fit alone is given up.
            if len(members) == 1:
                return [str(error)]
            return [self._outcomes([request], config)[0] for request in members]
        except SearchInterrupted as error:
            results = error.partial
            if not results or any(result.stop_reason == "interrupted" for result in results):
                raise
        return [_BROKEN if result.stop_reason == "broken" else result for result in results]

    def _finished(self, result: SearchResult) -> SearchResult | str:
        """Rerank and choose; text says why that cannot be done with this row."""
        try:
            return self.finish(result)
        except (PromptError, OptionError) as error:
            return str(error)

    def _record(self, request: Request, result: SearchResult) -> dict[str, Any]:
        hypotheses = result.hypotheses
        record: dict[str, Any] = {"line": request.line}
        record |= request.columns if self.with_columns else {}
        record["texts"] = [h.text for h in hypotheses]
        record["scores"] = [round(h.score, _DIGITS) for h in hypotheses]
        if self.finish.reranker is not None:
            record["rerank_scores"] = [round(h.rerank_score or 0.0, _DIGITS) for h in hypotheses]
        data = result.to_json(tree=self.wanted.tree)
        cost = {"expanded": result.cost.expanded, "model_calls": result.cost.model_calls}
        record["mass"] = {name: round(value, _DIGITS) for name, value in data["mass"].items()}
        record["cost"] = cost
        record["stop_reason"], record["notice"] = result.stop_reason, result.notice
        record["signature"] = result.signature
        if self.wanted.full:
            # The seconds are never the same twice, and are of a whole batch anyway.
            record["result"] = data | {"cost": cost | {"seconds": None}}
        return record


def prepare(
    lm: LanguageModel, wanted: Wanted, rows: Sequence[RawRow], batch_size: int | None
) -> int:
    """Refuse settings that the model cannot take; choose how many rows run side by side."""
    check_prompts(lm, [], wanted.config)
    constraints_of(wanted.config, lm)
    shaping_steps(
        wanted.config,
        Hooks(),
        device=lm.backend.device,
        vocab_size=lm.backend.vocab_size,
        eos_ids=lm.backend.eos_ids,
        tokenizer=lm.tokenizer,
    )
    searcher = Searcher(lm, wanted, 1)
    if batch_size is not None:
        return batch_size
    errors: dict[int, dict[str, Any]] = {}
    read = (searcher._request(row, errors) for row in rows[:_LOOKED_AT])
    ids = [lm.encode(request.prompt) for request in read if request is not None]
    return auto_batch_size(lm, wanted.config, ids)


def facts_of(wanted: Wanted) -> dict[str, Any]:
    """List what the results depend on, as plain data."""
    facts = asdict(wanted)
    config = facts.pop("config")
    # As JSON reads it back: tuples become lists.
    told: dict[str, Any] = json.loads(json.dumps({**facts, **config}))
    return told


def _error(number: int, columns: dict[str, Any], reason: str) -> dict[str, Any]:
    told = {"id": columns["id"]} if "id" in columns else {}
    return {"line": number, **told, "error": reason}
