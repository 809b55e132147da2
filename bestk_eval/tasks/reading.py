"""Finds a task by name, or makes one of a user's own file; reads its examples, and chooses of them.

A JSONL file has `input` and `references` in each line (and `id`, if it likes; other keys may be
used by the prompt). A Python file has a `TASK`, made with `bestk_eval.tasks.Task`. Examples come
from JSONL files, plain or gzipped, or from datasets of the hub.
"""

from __future__ import annotations

import gzip
import json
import random
import runpy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bestk.errors import (
    BestKError,
    MissingDataError,
    OptionError,
    SchemaError,
    first_line,
    unknown,
)
from bestk_eval.examples import Example
from bestk_eval.extras import require
from bestk_eval.tasks.base import Record, Task
from bestk_eval.tasks.catalog import TASKS

SUFFIXES = (".jsonl", ".jsonl.gz")

_OWN = {"id", "input", "references", "fields"}


def task_of(name: str | Task) -> Task:
    """Return a task by its name, or by the path of a .py, .jsonl or .jsonl.gz file."""
    if isinstance(name, Task):
        return name
    if name in TASKS:
        return TASKS[name]
    path = Path(name)
    if not path.name.endswith((".py", *SUFFIXES)):
        raise OptionError(unknown("task", name, TASKS) + " Or give a .jsonl or .py file.")
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}: check the name of the task")
    return _from_python(path) if path.suffix == ".py" else _from_jsonl(path)


def read_examples(
    task: Task, data_dir: Path | None = None, split: str | None = None
) -> list[Example]:
    """Return all examples of a task that have an input and references, with different ids."""
    if split is not None:
        task = task.of_split(split)
    found = list(task.examples()) if task.examples else _read_records(task, data_dir)
    if task.gather is not None:
        found = task.gather(found)
    if not found:
        raise MissingDataError(f"task {task.name} has no examples: its file or function gave none")
    return _named(task, found)


def choose(examples: list[Example], num_examples: int | None, seed: int) -> list[Example]:
    """Choose examples at random, without replacement, and keep them in the order of the data."""
    if num_examples is None:
        return examples
    if num_examples < 1:
        raise OptionError(f"the number of examples must be at least 1, got {num_examples}")
    if num_examples >= len(examples):
        return examples
    places = random.Random(seed).sample(range(len(examples)), num_examples)
    return [examples[place] for place in sorted(places)]


def read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each record with the place to name if something is wrong with it."""
    opened = gzip.open if path.name.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path.name}:{number}", _parse(line, f"{path}:{number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise MissingDataError(f"{path} cannot be read: {error}") from error


def _read_records(task: Task, data_dir: Path | None) -> list[Example]:
    assert task.read is not None
    records = _hub(task) if data_dir is None else read_jsonl(_find(task, data_dir))
    found = []
    for place, record in records:
        try:
            example = task.read(record)
        except (KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
            raise SchemaError(
                f"{place} is not a record of {task.name}: {error!r} is missing or of another kind"
            ) from None
        found.append(example if example.id else replace(example, id=place))
    return found


def _find(task: Task, folder: Path) -> Path:
    if not folder.is_dir():
        raise MissingDataError(f"there is no data folder {folder}: check --data-dir")
    for pattern in task.files:
        matches = [path for path in sorted(folder.glob(pattern)) if path.name.endswith(SUFFIXES)]
        if matches:
            return matches[0]
    raise MissingDataError(
        f"{folder} has no file for {task.name}: it looks for " + ", ".join(task.files)
    )


def _hub(task: Task) -> Iterable[tuple[str, Any]]:
    if task.hub is None:
        raise MissingDataError(f"task {task.name} is not on the hub: give a folder, --data-dir")
    datasets = require("datasets", "datasets", "hub-data")
    hub = task.hub
    try:
        rows = datasets.load_dataset(hub.path, hub.name, split=hub.split, revision=hub.revision)
    except Exception as error:  # the hub's errors are of many kinds
        raise MissingDataError(
            f"{hub.path} cannot be had from the hub ({first_line(error)}): "
            "give a folder, --data-dir"
        ) from error
    return ((f"{hub.path}:{place}", row) for place, row in enumerate(rows))


def _parse(line: str, place: str) -> Any:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise SchemaError(f"{place} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise SchemaError(f"{place} must be a JSON object, got {type(record).__name__}")
    return record


def _named(task: Task, examples: list[Example]) -> list[Example]:
    """Check every example, and make ids that come twice different."""
    seen: dict[str, int] = {}
    named = []
    for example in examples:
        checked = Example.from_json(example.to_json(), f"example {example.id} of {task.name}")
        seen[checked.id] = seen.get(checked.id, 0) + 1
        again = seen[checked.id]
        named.append(checked if again == 1 else replace(checked, id=f"{checked.id}#{again}"))
    return named


def _from_jsonl(path: Path) -> Task:
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
    try:
        task = runpy.run_path(str(path)).get("TASK")
    except BestKError:
        raise
    except Exception as error:
        raise SchemaError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise SchemaError(f"{path} must set TASK to a bestk_eval.tasks.Task, got {task!r}")
    return task
