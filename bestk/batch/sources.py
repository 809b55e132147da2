"""The input of a job as windows: so many rows in a row, always the same ones for the same file.

JSON lines, gzipped or not, and Parquet files are read as a stream, from any row on. A file of any
size takes the memory of a window. Knows places in files; what is in a row is in `rows`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from bestk.batch.files import AnyFile, digest_of, size_of
from bestk.batch.rows import RawRow
from bestk.errors import OptionError, SchemaError

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "gzip",
    ".ndjson.gz": "gzip",
    ".parquet": "parquet",
}
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Offset:
    """Between two rows: how many come before it, and where they end, in bytes of text."""

    line: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Window:
    """Rows that are searched together."""

    rows: tuple[RawRow, ...]
    end: Offset


@dataclass(frozen=True)
class Shard:
    """One of several parts of a job; the parts in their order are the whole."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise OptionError(f"a shard is written i/n with i from 1 to n, got {self}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def of(cls, text: str) -> Shard:
        """Read `i/n`."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal()):
            raise OptionError(f"a shard is written i/n with i from 1 to n, got {text!r}")
        return cls(int(number), int(count))

    def lines(self, total: int, window: int) -> tuple[int, int]:
        """Say from which row to which it goes, in whole windows.

        >>> [Shard(i, 3).lines(100, 16) for i in (1, 2, 3)]
        [(0, 32), (32, 64), (64, 100)]
        """
        num_windows = -(-total // window)
        first, last = ((n * num_windows) // self.count for n in (self.number - 1, self.number))
        return first * window, min(last * window, total)


class Source(ABC):
    """A file with rows."""

    def __init__(self, path: AnyFile) -> None:
        self.path = path

    @abstractmethod
    def rows(self, start: Offset) -> Iterator[tuple[RawRow, Offset]]:
        """Yield the rows from a place on, each with the place after it."""

    @abstractmethod
    def count(self) -> int:
        """Count the rows."""

    @abstractmethod
    def place_of(self, line: int) -> Offset:
        """Find the place before a row, counted from 0."""

    def windows(self, start: Offset, stop: int | None, size: int) -> Iterator[Window]:
        """Yield the windows from a place on, up to a row if one is given."""
        rows: list[RawRow] = []
        end = start
        with contextlib.closing(self.rows(start)) as found:  # type: ignore[type-var]
            for row, after in found:
                if stop is not None and row.line > stop:
                    break
                rows.append(row)
                end = after
                if len(rows) == size:
                    yield Window(tuple(rows), end)
                    rows = []
        if rows:
            yield Window(tuple(rows), end)

    def share_of(self, place: Offset) -> float | None:
        """Return how much of the file lies before a place, 0 to 1; None where nobody knows."""
        return None

    def digest(self) -> str:
        """Name the file by all of its bytes, to see whether it changed."""
        return digest_of(self.path)


class JsonLines(Source):
    """A row in every line."""

    def rows(self, start: Offset) -> Iterator[tuple[RawRow, Offset]]:
        line, offset = start.line, start.offset
        with self._open() as file:
            file.seek(offset)
            with self._readable():
                for content in file:
                    line, offset = line + 1, offset + len(content)
                    yield RawRow(line, content), Offset(line, offset)

    def count(self) -> int:
        total, last = 0, b"\n"
        with self._open() as file, self._readable():
            while block := file.read(_BLOCK):
                total += block.count(b"\n")
                last = block[-1:]
        return total + (last != b"\n")

    def place_of(self, line: int) -> Offset:
        left, offset = line, 0
        with self._open() as file, self._readable():
            while left > 0 and (content := file.readline()):
                left, offset = left - 1, offset + len(content)
        return Offset(line - left, offset)

    def share_of(self, place: Offset) -> float | None:
        return place.offset / max(size_of(self.path), 1)

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        with self.path.open("rb") as file:
            yield file

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, OSError) as error:
            raise SchemaError(f"{self.path} cannot be read: {error}") from error


class GzipLines(JsonLines):
    """The same, compressed; offsets are those of the text."""

    _compressed: IO[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open file behind: another process opens its own."""
        return {name: value for name, value in vars(self).items() if name != "_compressed"}

    def share_of(self, place: Offset) -> float | None:
        """Return how far the last reader is, which is a little ahead of what it has given."""
        if self._compressed is None or self._compressed.closed:
            return None
        return self._compressed.tell() / max(size_of(self.path), 1)

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        with (
            self.path.open("rb") as self._compressed,
            gzip.GzipFile(fileobj=self._compressed) as file,
        ):
            yield io.BufferedReader(file, _BLOCK)


def format_of(path: AnyFile) -> str:
    """Tell the format of a file by its name."""
    for suffix, kind in SUFFIXES.items():
        if path.name.endswith(suffix):
            return kind
    raise OptionError(f"{path.name} must end in one of {', '.join(SUFFIXES)}: rename it")
