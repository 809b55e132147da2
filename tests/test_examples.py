"""The examples run as they are written."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import bestk

EXAMPLES = sorted((Path(bestk.__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.model
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    path: Path,
    smollm2: bestk.LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bestk, "load", lambda _: smollm2)
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 2
