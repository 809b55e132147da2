"""Scores that took long, kept beside the texts that they are of: `scores.json.gz` of a run.

A score is used again for exactly the same thing: the metric's signature, the view, the method, and
a digest of the texts and examples that it was computed from. Knows files and numbers, no metrics.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from bestk.durable import replace
from bestk.errors import OptionError, SchemaError
from bestk_eval.examples import Pool, digest
from bestk_eval.statistics import Numbers

FILE = "scores.json.gz"
FORMAT = "bestk.scores"
FORMAT_VERSION = 1
DECIMALS = 4  # of scores from 0 to 100: more than a table shows, and half the bytes

_MEND = "take a whole copy of it, or remove it and the scores are computed again"

Kept = Numbers | float  # by example, or one number for all


@dataclass(frozen=True, kw_only=True)
class Label:
    """What the scores of one metric are of."""

    metric: str  # its signature
    texts: str  # the view, with the number of texts where it has one
    method: str


@dataclass(frozen=True, kw_only=True)
class _Entry:
    digest: str
    values: dict[str, Any]  # by column: a list, or a number; None is NaN


class KeptScores:
    """The scores that the folders of runs hold, each file read when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[Path, dict[Label, _Entry]] = {}
        self._new: dict[Path, dict[Label, _Entry]] = {}

    def find(
        self, folder: Path, label: Label, digest: str, columns: Sequence[str], num_examples: int
    ) -> list[Kept] | None:
        """Return the scores of some columns, None where they are of something else."""
        if folder not in self._known:
            self._known[folder] = _read(folder / FILE)
        entry = self._known[folder].get(label)
        if entry is None or entry.digest != digest or list(entry.values) != list(columns):
            return None
        found = [_unpacked(values) for values in entry.values.values()]
        for values in found:
            if isinstance(values, np.ndarray) and len(values) != num_examples:
                raise SchemaError(
                    f"{folder / FILE} has {len(values)} scores for {num_examples} examples: {_MEND}"
                )
        return found

    def add(self, folder: Path, label: Label, digest: str, values: dict[str, Any]) -> None:
        """Note scores, for `save`; what can be resampled only is not kept."""
        if not any(callable(found) for found in values.values()):
            packed = {column: _packed(found) for column, found in values.items()}
            self._new.setdefault(folder, {})[label] = _Entry(digest=digest, values=packed)

    def save(self) -> None:
        """Write the new scores beside the old ones, and beside those of other reports."""
        for folder, entries in self._new.items():
            path = folder / FILE
            with _held(folder):
                told = [
                    {**asdict(label), **asdict(entry)}
                    for label, entry in (_read(path) | entries).items()
                ]
                whole = {"format": FORMAT, "version": FORMAT_VERSION, "scores": told}
                data = json.dumps(whole, separators=(",", ":")).encode()
                replace(path, gzip.compress(data, 9, mtime=0))
        self._new.clear()


def _held(folder: Path) -> FileLock:
    """Keep other reports from writing to a folder; nothing is left in it."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"bestk-scores-{name}.lock")


def check_folders(folders: Sequence[Path]) -> None:
    """Raise if scores could not be kept, before any is computed."""
    for folder in folders:
        if not os.access(folder, os.W_OK):
            raise OptionError(f"{folder} may not be written to: scores cannot be kept there")


def rounded(values: Any) -> Any:
    """Round as scores are kept, so that those just computed are the same."""
    if callable(values):
        return values
    return np.round(values, DECIMALS) if isinstance(values, np.ndarray) else round(values, DECIMALS)


def digest_of(pools: Sequence[Pool], view: str, top: int) -> str:
    """Name the texts of a view, and the examples that they are of, by what is in them."""
    texts = json.dumps([pool.chosen(view, top) for pool in pools])
    examples = digest([pool.example for pool in pools])
    return hashlib.sha256(f"{examples} {texts}".encode()).hexdigest()[:16]


def _read(path: Path) -> dict[Label, _Entry]:
    if not path.exists():
        return {}
    try:
        told = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise SchemaError(f"{path} cannot be read ({error}): {_MEND}") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise SchemaError(f"{path} holds no scores, its format is not {FORMAT!r}: {_MEND}")
    if told.get("version") != FORMAT_VERSION:
        raise SchemaError(
            f"{path} is of version {told.get('version')}, this bestk reads {FORMAT_VERSION}"
        )
    try:
        return dict(_entry(**record) for record in told["scores"])
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"{path} has what is no score ({error!r}): {_MEND}") from None


def _entry(
    *, metric: str, texts: str, method: str, digest: str, values: dict[str, Any]
) -> tuple[Label, _Entry]:
    if not all(isinstance(name, str) for name in (metric, texts, method, digest)):
        raise TypeError(f"{(metric, texts, method, digest)} are no names")
    if not isinstance(values, dict):
        raise TypeError(f"{str(values)[:40]!r} are no values by column")
    for found in values.values():
        _unpacked(found)
    label = Label(metric=metric, texts=texts, method=method)
    return label, _Entry(digest=digest, values=values)


def _packed(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return [_packed(value) for value in values.tolist()]
    return None if np.isnan(values) else float(values)


def _unpacked(values: Any) -> Kept:
    if isinstance(values, list):
        return np.array([_number(value) for value in values], dtype=np.float64)
    return _number(values)


def _number(value: Any) -> float:
    if value is None:
        return float("nan")
    if not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    return float(value)
