"""The output of a finished job in its final format, made from the lines of its results.

JSON lines are the results as they are, and move into their place; gzip and Parquet are written from
them as a stream. Knows formats, no models.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bestk.batch.files import AnyFile
from bestk.batch.sources import Source, format_of, parquet


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
