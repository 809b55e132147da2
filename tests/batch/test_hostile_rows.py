"""Rows made to hurt: each goes to the errors file with its reason, and the job goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from batch_jobs import read_rows, rows_of, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_constraints import tokenizer, writer

import bestk
from bestk.batch import JobConfig, run_batch
from bestk.batch.sources import JsonLines, Offset
from bestk.batch.window import WindowRunner
from bestk.engine.batch import Batch
from bestk.errors import SearchInterrupted
from bestk.lm.toy_language import toy_language

__all__ = ["tokenizer"]  # the fixture
SMALL: dict[str, Any] = {"beam_size": 3, "max_new_tokens": 6, "batch_size": 4, "window": 8}


TINY = {"budget": 6, "max_new_tokens": 3}


def nested(depth: int) -> Any:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "deep schema": ({"options": {"json_schema": nested(400)}}, "at most 64 here"),
    "wide schema": ({"options": {"json_schema": {"enum": [*range(20_000)]}}}, "at most"),
    "deep groups": ({"options": {"regex": "(" * 9000 + ")" * 9000}}, "at most 64 here"),
    "no regex": ({"options": {"regex": "(a"}}, "cannot be used"),
    "no schema": ({"options": {"json_schema": {"type": 3}}}, "is not a schema"),
    "slow pattern": ({"options": {"json_schema": {"pattern": "(a+)+(?=b)"}}}, "leave that out"),
    "words of others": ({"options": {"out of memory": 1}}, "unknown option"),
    "numbers": ({"options": {"k": 10**400}}, "k must be at most 9007199254740992"),
    "a deep column": ({"tag": nested(400)}, ""),
}


def test_no_row_ends_a_job(tokenizer: Any, tmp_path: Path) -> None:
    lm = bestk.LanguageModel(writer(0), tokenizer)
    good = [{"id": number, "prompt": "abc"} for number in range(6)]
    bad = [{"prompt": "abc", "id": name} | row for name, (row, _) in HOSTILE.items()]
    source = write_rows(tmp_path / "in.jsonl", [*good[:3], *bad, "[" * 100_000, *good[3:]])
    done = run_batch(lm, source, tmp_path / "out.jsonl", **SMALL)
    found = {row["id"]: row for row in read_rows(tmp_path / "out.jsonl")}
    errors = {row.get("id"): row["error"] for row in read_rows(done.errors)}
    assert {*found} >= {*range(6)}
    alone = bestk.search(lm, "abc", beam_size=3, max_new_tokens=6)
    assert all(found[number]["texts"] == alone.texts for number in range(6))
    for name, (_, told) in HOSTILE.items():
        if told:
            assert told in errors[name], name
        else:
            assert name in found
    assert "the line is not JSON" in errors[None]
    assert (done.num_rows, done.num_bad, done.is_done) == (7, len(HOSTILE), True)


class Broken(RecursionError):
    """What nobody foresaw."""


def broken_for(monkeypatch: pytest.MonkeyPatch, is_bad: Any) -> None:
    step = Batch.step

    def failing(self: Batch) -> None:
        if any(is_bad(row.request.prompt) for row in self.rows.values()):
            raise Broken("maximum recursion depth exceeded")
        step(self)

    monkeypatch.setattr(Batch, "step", failing)


def test_a_row_that_breaks_a_search_does_not_take_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(8)
    rows[2]["prompt"] = rows[5]["prompt"] = "bird bird"
    broken_for(monkeypatch, lambda prompt: prompt == "bird bird")
    source = write_rows(tmp_path / "in.jsonl", rows)
    done = run_batch(toy_language(), source, tmp_path / "out.jsonl", raw=True, **SMALL)
    assert (done.num_rows, done.num_bad, done.is_done) == (6, 2, True)
    errors = read_rows(done.errors)
    assert [row["line"] for row in errors] == [3, 6]
    assert {row["error"] for row in errors} == {"Broken: maximum recursion depth exceeded"}


def test_where_every_row_fails_the_job_stops_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_rows(tmp_path / "in.jsonl", rows_of(16))
    run_batch(toy_language(), source, tmp_path / "whole.jsonl", **SMALL)
    with monkeypatch.context() as patch:
        broken_for(patch, lambda prompt: True)
        with pytest.raises((Broken, SearchInterrupted)):
            run_batch(toy_language(), source, tmp_path / "out.jsonl", **SMALL)
    run_batch(toy_language(), source, tmp_path / "out.jsonl", **SMALL)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NAMES = st.sampled_from([*bestk.SearchConfig.__dataclass_fields__, "x"])
ROWS = st.one_of(
    st.binary(max_size=40).filter(lambda line: b"\n" not in line),
    st.fixed_dictionaries(
        {"prompt": st.just("the dog") | VALUES},
        optional={
            "options": st.dictionaries(NAMES, VALUES, max_size=2) | VALUES,
            "messages": VALUES,
            "token_ids": VALUES,
            "id": VALUES,
            "texts": VALUES,
        },
    ).map(lambda row: json.dumps(row).encode()),
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(ROWS, min_size=1, max_size=6))
def test_any_rows_are_searched_or_told_of(rows: list[bytes], tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(rows) + b"\n")
    runner = WindowRunner(toy_language(), JobConfig(config=bestk.SearchConfig(**TINY)))
    (window,) = JsonLines(source).windows(Offset(), None, 9)
    for scheduler in runner.schedulers(window.rows, 4):
        while scheduler.has_work:
            for update in scheduler.step():
                runner.note(update)
    found = runner.output()
    assert found.num_rows + found.num_bad == sum(bool(row.strip()) for row in rows)
