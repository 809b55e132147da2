"""The cache folder is its owner's; a result that cannot be saved leaves nothing behind."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from conftest import random_toy

import bestk
from bestk.errors import ModelError, OptionError
from bestk.lm import cache


def test_only_its_owner_writes_to_the_cache(tmp_path: Path) -> None:
    made = cache._own(tmp_path / "a" / "cache")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o777)
    with pytest.raises(ModelError, match="anybody can write to"):
        cache._own(made)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("other")])
def test_a_save_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    result = bestk.search(bestk.LanguageModel(random_toy(1, 6)), [1], budget=6, max_new_tokens=3)

    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises((OptionError, RuntimeError), match=r"No space left|other"):
        result.save(tmp_path / "result.json")
    assert list(tmp_path.iterdir()) == []
