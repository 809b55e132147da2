"""The folder of an evaluation: settings, examples, and results in the order of the plan.

    settings.json    what the run depends on; another run may not be mixed with it
    examples.jsonl   the examples, so that a report needs no data
    results.jsonl    a line for each example and method, byte for byte the same however often the
                     run was killed
    times.jsonl      the seconds of each, which are never the same; the last line for a pair counts
    scores.json.gz   slow scores, where a report was told to keep them (`kept.py`)

A finished run may be packed with xz or gzip, file by file, and its examples left out: reports read
it as it is, and take the examples from the data again. A batch of results is one write. After a
kill the results go back to the last whole batch, so that a resumed run does exactly what an
unbroken one does. Knows files, not models.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bestk.durable import (
    Folder,
    append,
    cut_bytes,
    line,
    refuse_other,
    replace,
    whole_lines,
)
from bestk.errors import OptionError, SchemaError
from bestk_eval.examples import Example

FORMAT = "bestk.evaluation"
FORMAT_VERSION = 1
MEND = "take a whole copy of the folder, or run bestk eval into another"

# What a report reads of the settings; the others are there to be compared.
_READ: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("task", "kind", "model", "data", "style", "bestk"), str),
    **dict.fromkeys(("examples", "beam_size", "seed"), int),
    "max_new_tokens": (int, str),
    "methods": list,
    **dict.fromkeys(("source", "split"), (str, type(None))),
}

# How a finished run that was put away is read, by what its files' names end with.
_UNPACK: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.decompress, ".gz": gzip.decompress}
_TORN = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what they raise

Key = tuple[str, str]  # example, method


class Store:
    """One folder, opened for writing; only one process may have it open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results.jsonl"
        self.times = folder / "times.jsonl"
        self._held = Folder(folder, "evaluation")

    def begin(self, settings: dict[str, Any], examples: Sequence[Example]) -> None:
        """Write down what is to be run, or check that it is what the folder was begun with."""
        if (packed := _packed(self.results)) is not None:
            way_out = f"{'unxz' if packed.suffix == '.xz' else 'gunzip'} its files to go on with it"
            raise OptionError(f"{self.folder} has a packed run: {way_out}")
        told = {"format": FORMAT, "version": FORMAT_VERSION, **settings}
        if (self.folder / "settings.json").exists():
            refuse_other(self.folder, read_settings(self.folder), told)
            return
        if self.results.exists():
            raise OptionError(f"{self.results} has no settings beside it: give another folder")
        lines = "".join(line(example.to_json()) for example in examples)
        replace(self.folder / "examples.jsonl", lines)
        # Last: where there are settings, the examples are whole.
        replace(self.folder / "settings.json", json.dumps(told, indent=2, ensure_ascii=False))

    def resume(self, plan: Sequence[Sequence[Key]]) -> int:
        """Cut both files back to whole batches and return how many batches of the plan are done."""
        _cut(self.times, len(whole_lines(self.times)))
        lines = whole_lines(self.results)
        done, num_lines = 0, 0
        for batch in plan:
            found = [_key(text, self.results) for text in lines[num_lines : num_lines + len(batch)]]
            if found != list(batch[: len(found)]):
                raise SchemaError(
                    f"{self.results} was changed: line {num_lines + 1} is not the one that was "
                    "written there. Give another folder"
                )
            if len(found) < len(batch):
                break
            done, num_lines = done + 1, num_lines + len(batch)
        _cut(self.results, num_lines)
        return done

    def append(self, records: Iterable[dict[str, Any]], times: Iterable[dict[str, Any]]) -> None:
        """Add a batch, on disk when this returns."""
        append(self.times, "".join(map(line, times)).encode())
        append(self.results, "".join(map(line, records)).encode())

    def close(self) -> None:
        """Let others write."""
        self._held.close()


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a run."""
    path = folder / "settings.json"
    if not path.is_file():
        raise OptionError(f"{folder} has no evaluation: bestk eval TASK -o {folder} makes one")
    try:
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path} is not JSON ({error}): {MEND}") from None
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise SchemaError(f"{path} is not of an evaluation: its format is not {FORMAT!r}")
    if settings.get("version") != FORMAT_VERSION:
        raise SchemaError(
            f"{path} is of version {settings.get('version')}, this bestk reads {FORMAT_VERSION}"
        )
    for name, kind in _READ.items():
        if not isinstance(settings.get(name), kind):
            found = f"{name} {settings[name]!r}" if name in settings else f"no {name}"
            raise SchemaError(f"{path} has {found}, it was changed: {MEND}")
    if not settings["methods"] or not all(isinstance(name, str) for name in settings["methods"]):
        raise SchemaError(f"{path} has methods that are no names, it was changed: {MEND}")
    return settings


def has_lines(path: Path) -> bool:
    """Return whether a file is there, plain or packed."""
    return path.exists() or _packed(path) is not None


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the whole lines of a file, each with its place; one that was cut off is none."""
    packed = _packed(path)
    found = packed or path
    try:
        lines = whole_lines(path) if packed is None else _unpacked(packed)
    except _TORN as error:
        raise SchemaError(f"{found} cannot be read ({error}): {MEND}") from None
    for number, text in enumerate(lines, start=1):
        place = f"{found}:{number}"
        try:
            record = json.loads(text)
        except ValueError as error:
            raise SchemaError(f"{place} is not JSON ({error}): {MEND}") from None
        if not isinstance(record, dict):
            raise SchemaError(f"{place} is not a JSON object: {MEND}")
        yield place, record


def _packed(path: Path) -> Path | None:
    """Return the packed form of a file, None where there is none."""
    forms = (path.with_name(path.name + suffix) for suffix in _UNPACK)
    return next((form for form in forms if form.exists()), None)


def _unpacked(path: Path) -> list[bytes]:
    return _UNPACK[path.suffix](path.read_bytes()).split(b"\n")[:-1]


def _key(text: bytes, path: Path) -> Key:
    try:
        record = json.loads(text)
        return record["example"], record["method"]
    except (ValueError, KeyError, TypeError):
        raise SchemaError(f"{path} has a line that is no result: {text[:60]!r}") from None


def _cut(path: Path, num_lines: int) -> None:
    """Keep the first lines of a file, where it has more."""
    cut_bytes(path, sum(len(kept) + 1 for kept in whole_lines(path)[:num_lines]))
