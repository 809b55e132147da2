"""Disks that are full, gone or read-only: one line, nothing lost, and the same command goes on."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_jobs import OPTIONS, rows_of, write_rows

SIZES = ("--batch-size", "2", "--window", "4")
TROUBLES = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOTCONN, errno.ESTALE]


def unbroken(cli: Any, folder: Path, name: str) -> tuple[Path, bytes, bytes]:
    source = write_rows(folder / "in.jsonl", [*rows_of(10), "bad", *rows_of(5, seed=1)])
    whole = folder / f"whole-{name}"
    assert cli("batch", str(source), "-o", str(whole), *OPTIONS, *SIZES)[0] == 1
    return source, whole.read_bytes(), (folder / f"whole-{name}.errors.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_disk_that_fails_at_any_write(
    cli: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, wanted, errors = unbroken(cli, tmp_path, name)
    sync, num_broken = os.fsync, 0
    for place in range(40):
        folder = tmp_path / str(place)
        folder.mkdir()
        arguments = ("batch", str(source), "-o", str(folder / name), *OPTIONS, *SIZES)
        left = iter(range(place))
        trouble = TROUBLES[place % len(TROUBLES)]

        def failing(number: int) -> None:
            if next(left, None) is None:  # noqa: B023
                raise OSError(trouble, os.strerror(trouble))  # noqa: B023
            sync(number)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            code, _, err = cli(*arguments)
        if code == 1:  # it was done before the write came
            break
        num_broken += 1
        assert code == 2
        assert err.startswith(f"Error: {os.strerror(trouble)}")
        assert err.count("\n") == 1, "one line"
        assert not list(folder.rglob("*.new")), "what could not be written takes up room"
        assert cli(*arguments)[0] == 1
        assert (folder / name).read_bytes() == wanted, f"broken off at write {place}"
        assert (folder / f"{name}.errors.jsonl").read_bytes() == errors
    assert 10 < num_broken < 39, "every write failed once, and the last run went through"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_real_disk_that_is_full(cli: Any, tmp_path: Path, small_disk: Path) -> None:
    source, wanted, errors = unbroken(cli, tmp_path, "out.jsonl")
    arguments = ("batch", str(source), "-o", str(small_disk / "out.jsonl"), *OPTIONS, *SIZES)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 4096 * 13)
    code, _, err = cli(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert "No space left on device" in err
    filler.unlink()
    assert cli(*arguments)[0] == 1
    assert (small_disk / "out.jsonl").read_bytes() == wanted
    assert (small_disk / "out.jsonl.errors.jsonl").read_bytes() == errors


def test_the_whole_input_is_looked_at(cli: Any, tmp_path: Path) -> None:
    """A change in the middle of a large file is a change."""
    rows = [{"prompt": "the dog", "note": "x" * 999_999} for _ in range(4)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    arguments = ("batch", str(source), "-o", str(tmp_path / "out.jsonl"), *OPTIONS)
    assert cli(*arguments)[0] == 0
    text = source.read_bytes()
    middle = len(text) // 2
    source.write_bytes(text[:middle] + b"y" + text[middle + 1 :])
    code, _, err = cli(*arguments)
    assert code == 2
    assert "was begun with input=" in err
