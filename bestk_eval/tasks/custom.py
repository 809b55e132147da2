"""Finds a task by name, or makes one of a user's own file.

A JSONL file has `input` and `references` in each line (and `id`, if it likes; other keys may be
used by the prompt). A Python file has a `TASK`, made with `bestk_eval.tasks.Task`.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from bestk.errors import BestKError, MissingDataError, OptionError, SchemaError, unknown
from bestk_eval.examples import Example
from bestk_eval.tasks.base import Record, Task
from bestk_eval.tasks.catalog import TASKS
from bestk_eval.tasks.reading import SUFFIXES, read_jsonl

_OWN = {"id", "input", "references", "fields"}


def task_of(name: str | Task) -> Task:
    """Return a task by its name, or by the path of a .py, .jsonl or .jsonl.gz file."""
    if isinstance(name, Task):
        return name
    if name in TASKS:
        return TASKS[name]
    path = Path(name)
    if path.suffix == ".py":
        return _from_python(path)
    if path.name.endswith(SUFFIXES):
        return _from_jsonl(path)
    raise OptionError(unknown("task", name, TASKS) + " Or give a .jsonl or .py file.")


def _from_jsonl(path: Path) -> Task:
    _check(path)
    return Task(
        name=path.name.split(".jsonl")[0],
        plain="{input}",
        chat="{input}",
        long_field="input",
        examples=lambda: [_example(record, place) for place, record in read_jsonl(path)],
    )


def _example(record: Record, place: str) -> Example:
    more = {key: value for key, value in record.items() if key not in _OWN}
    fields = {"input": record.get("input"), **(record.get("fields") or {}), **more}
    return Example.from_json({"id": place, **record, "fields": fields}, place)


def _from_python(path: Path) -> Task:
    _check(path)
    try:
        task = runpy.run_path(str(path)).get("TASK")
    except BestKError:
        raise
    except Exception as error:
        raise SchemaError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise SchemaError(f"{path} must set TASK to a bestk_eval.tasks.Task, got {task!r}")
    return task


def _check(path: Path) -> None:
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}: check the name of the task")
