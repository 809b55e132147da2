"""Opens the input of a job by its format, and makes the output from the lines of its results.

JSON lines are the results as they are, and move into their place; gzip and Parquet are written from
them as a stream. Knows formats, no models.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bestk.batch.files import AnyFile
from bestk.batch.sources import GzipLines, JsonLines, Source, format_of
from bestk.errors import MissingExtraError, OptionError


def open_source(path: AnyFile) -> Source:
    """Open an input by the format that its name says."""
    kind = format_of(path)
    if not path.is_file():
        raise OptionError(f"{path} is not there: give a file with rows")
    if kind == "parquet":
        found: Source = parquet().Parquet(path)
        return found
    return (JsonLines if kind == "jsonl" else GzipLines)(path)


def parquet() -> Any:
    """Import what reads and writes Parquet."""
    try:
        from bestk.batch import parquet
    except ImportError:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'bestk[parquet]'") from None
    return parquet


def assembler(
    output: AnyFile, source: Source, keep: Sequence[str] | None
) -> Callable[[Path, Path], None] | None:
    """Return what writes the output from the results; None where these are the output."""
    kind = format_of(output)
    if kind == "jsonl":
        return None
    if kind == "gzip":
        return _compress
    if copies_columns(output, source):
        return lambda results, target: parquet().write_joined(results, target, source, keep)
    return lambda results, target: parquet().write(results, target)


def copies_columns(output: AnyFile, source: Source) -> bool:
    """Whether the columns to pass through come from the input when the output is written."""
    return format_of(output) == format_of(source.path) == "parquet"


def _compress(results: Path, target: Path) -> None:
    # Neither time nor name: the same results are the same bytes.
    with (
        results.open("rb") as plain,
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)
