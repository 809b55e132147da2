"""Where the files of a job are: on this machine, or elsewhere by a URL such as s3://bucket/rows.jsonl.

What lies elsewhere is read and written through fsspec, by whatever package knows the scheme. Knows
bytes, no rows.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from bestk.errors import MissingExtraError, OptionError, first_line


@dataclass(frozen=True)
class RemoteFile:
    """A file that a URL names."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """The file system, and the file's path there."""
        from fsspec.core import url_to_fs

        with self._reached():
            filesystem, path = url_to_fs(self.url)
        return filesystem, str(path)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Tell in one line why a store cannot be reached: its packages raise what they like."""
        try:
            yield
        except Exception as error:
            kind = MissingExtraError if isinstance(error, ImportError) else OptionError
            raise kind(f"{self.url} cannot be reached: {first_line(error)}") from error

    def is_file(self) -> bool:
        """Return whether it is there."""
        filesystem, path = self._place
        with self._reached():
            return bool(filesystem.exists(path))

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open it."""
        filesystem, path = self._place
        with self._reached():
            opened: IO[bytes] = filesystem.open(path, mode)
        return opened

    def size(self) -> int:
        """Count its bytes."""
        filesystem, path = self._place
        with self._reached():
            return int(filesystem.size(path))

    def put(self, source: Path) -> None:
        """Write it whole, from a file of this machine."""
        filesystem, path = self._place
        with self._reached():
            filesystem.put_file(str(source), path)


AnyFile = Path | RemoteFile


def file_of(name: str | Path) -> AnyFile:
    """Tell a URL from a path."""
    return RemoteFile(str(name)) if "://" in str(name) else Path(name)


def size_of(file: AnyFile) -> int:
    """Count the bytes of a file."""
    return file.size() if isinstance(file, RemoteFile) else file.stat().st_size


def digest_of(file: AnyFile) -> str:
    """Name a file by all of its bytes, to see whether it changed."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return f"{size_of(file)} bytes, sha256 {digest.hexdigest()[:16]}"
