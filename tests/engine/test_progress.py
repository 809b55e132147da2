"""The bar of a search: where somebody watches, for what takes a while, and nowhere else."""

from __future__ import annotations

import pytest
from conftest import random_toy

import bestk
from bestk import progress

LM = bestk.LanguageModel(random_toy(5, vocab_size=6))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DELAY", 0)


@pytest.mark.usefixtures("at_once")
def test_no_bar_in_logs(capsys: pytest.CaptureFixture[str]) -> None:
    bestk.search(LM, [[1], [2]], max_new_tokens=3)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("at_once")
def test_prompts_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    results = bestk.search(LM, [[1], [2], [3]], max_new_tokens=3, progress=True)
    told = capsys.readouterr().err
    assert "searching" in told
    assert "/3 " in told
    assert results == bestk.search(LM, [[1], [2], [3]], max_new_tokens=3)


@pytest.mark.usefixtures("at_once")
def test_of_one_prompt_expansions_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    result = bestk.search(LM, [1], max_new_tokens=3)
    assert "/30 " in capsys.readouterr().err
    assert result == bestk.search(LM, [1], max_new_tokens=3, progress=False)
    assert capsys.readouterr().err == ""


def test_what_is_quick_shows_none(capsys: pytest.CaptureFixture[str]) -> None:
    bestk.search(LM, [[1], [2], [3]], max_new_tokens=2, progress=True)
    assert "searching" not in capsys.readouterr().err
