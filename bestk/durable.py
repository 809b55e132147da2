"""Files that survive a kill: whole lines, whole files, one writer, one set of settings.

What evaluations and batch jobs share. A process may be killed between any two calls here: what was
written before is whole, and whoever comes next goes on from there. Knows bytes and JSON, no models.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bestk.errors import OptionError


class Folder:
    """A folder that one process at a time writes to."""

    def __init__(self, path: Path, writer: str) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"{path} cannot be a folder for results: {error}") from None
        self._lock = FileLock(str(path / ".lock"))
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise OptionError(f"another {writer} is writing to {path}: wait for it") from None

    def close(self) -> None:
        """Let others write."""
        self._lock.release()


def line(record: Mapping[str, Any]) -> str:
    """Write a record as one line of JSON, always the same for the same record."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


def append(path: Path, data: bytes) -> None:
    """Add to a file, on disk when this returns."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: str | bytes) -> None:
    """Write a file that is there whole, with the old content or the new."""
    scratch = path.with_name(path.name + ".new")
    with removed_on_failure(scratch):
        with scratch.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)


@contextlib.contextmanager
def removed_on_failure(scratch: Path) -> Iterator[None]:
    """Leave nothing of a file that could not be written: the disk may be full."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """See that a file which is written is on disk too, before it takes another's place."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def whole_lines(path: Path) -> list[bytes]:
    """Read the lines of a file; one that was cut off is none."""
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]  # what follows the last newline was cut off


def cut_bytes(path: Path, size: int) -> None:
    """Keep the first bytes of a file, where it has more."""
    if path.exists() and path.stat().st_size > size:
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())


def refuse_other(
    where: Path, old: Mapping[str, Any], new: Mapping[str, Any], way_out: str = "another folder"
) -> None:
    """Refuse to go on with settings that something was not begun with."""
    for name in [*new, *(name for name in old if name not in new)]:
        if old.get(name) != new.get(name):
            raise OptionError(
                f"{where} was begun with {name}={_short(old.get(name))}, now it is "
                f"{_short(new.get(name))}: runs do not mix, give {way_out}"
            )


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"
