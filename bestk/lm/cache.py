"""The user's cache folder: what was made once and is slow to make again.

Knows folders; nothing of what is in them.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from bestk.errors import ModelError


def cache_folder() -> Path:
    """Return where converted models are kept: $BESTK_CACHE, or bestk in the user's cache folder."""
    if folder := os.environ.get("BESTK_CACHE"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "bestk"


def made(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made first if need be: it is there whole or not at all."""
    folder = _own(cache_folder()) / name
    if folder.exists():
        return folder
    from filelock import FileLock

    with FileLock(str(folder) + ".lock"):
        if not folder.exists():
            for left_behind in folder.parent.glob(folder.name + ".*.part"):
                shutil.rmtree(left_behind, ignore_errors=True)  # by a process that was killed
            _make(folder, make)
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    """Fill a folder beside the target, then move it there in one step."""
    scratch = Path(tempfile.mkdtemp(prefix=folder.name + ".", suffix=".part", dir=folder.parent))
    try:
        make(scratch)
        os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _own(folder: Path) -> Path:
    """Make a folder that only its owner writes to, or see that it is one: models are run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & stat.S_IWOTH:
        raise ModelError(f"anybody can write to {folder}: chmod o-w it, or set BESTK_CACHE")
    return folder
