"""Reads examples: JSONL files, plain or gzipped, or datasets of the hub. Chooses which to use."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bestk.errors import MissingDataError, OptionError, SchemaError
from bestk_eval.examples import Example
from bestk_eval.extras import require
from bestk_eval.tasks.base import Hub, Task

SUFFIXES = (".jsonl", ".jsonl.gz")


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
    try:
        rows = _load(datasets, task.hub)
    except Exception as error:  # the hub's errors are of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise MissingDataError(
            f"{task.hub.path} cannot be had from the hub ({reason}): give a folder, --data-dir"
        ) from error
    return ((f"{task.hub.path}:{place}", row) for place, row in enumerate(rows))


def _load(datasets: Any, hub: Hub) -> Any:
    return datasets.load_dataset(hub.path, hub.name, split=hub.split, revision=hub.revision)


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
