"""What editors and type checkers know: options by name and kind, results as what they are."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

import bestk
from bestk.config import SELECTIONS, SearchConfig
from bestk.settings import DIFFERENCES, SearchOptions

ROOT = Path(bestk.__file__).parent.parent
KINDS = typing.get_type_hints(SearchConfig)
OPTIONS = typing.get_type_hints(SearchOptions)
# Where more is taken than is kept: lists in place of tuples, one without the brackets, words.
WIDER: dict[str, Any] = {
    "novelty": float | Literal[tuple(DIFFERENCES)],  # type: ignore[valid-type]
    "json_schema": str | dict[str, Any] | None,
    "bad_words_ids": Sequence[Sequence[int]],
}
LISTS: dict[Any, Any] = {
    tuple[int, ...]: int | Sequence[int],
    tuple[str, ...]: str | Sequence[str],
}


def test_every_setting_is_an_option() -> None:
    assert list(OPTIONS) == [field.name for field in dataclasses.fields(SearchConfig)]


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_of_the_kind_of_their_setting(name: str) -> None:
    assert OPTIONS[name] == WIDER.get(name, LISTS.get(KINDS[name], KINDS[name]))


def test_search_names_all_its_keywords() -> None:
    import inspect

    from bestk.api import SearchKeywords, search

    own = [
        p.name for p in inspect.signature(search).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    assert {*own, *OPTIONS} == {*SearchKeywords.__annotations__}
    assert SELECTIONS == ("best", "diverse"), "these are written in SearchKeywords too"


USER = """
import bestk

lm = bestk.load("toy", dtype="float32", device="cpu")
one = bestk.search(lm, "hello", num_texts=10, stop=".", scoring="mean", select="diverse")
reveal_type(one)
reveal_type(bestk.search(lm, ["hello", "you"], progress=False))
reveal_type(bestk.search(lm, [1, 2, 3]))
reveal_type(bestk.search(lm, [{"role": "user", "content": "hello"}], raw=True))
best: str = one[0].text
few: list[float] = [text.log_prob for text in one[:3]]
for text in bestk.stream(lm, "hello", json_schema={"type": "string"}, novelty="different"):
    print(len(one), text.text, text in one)
bestk.search(lm, "hello", beam_sise=10)
bestk.search(lm, "hello", scoring="meen")
bestk.stream(lm, "hello", num_text=3)
bestk.load("toy", device=3)
"""


@pytest.mark.slow  # mypy reads bestk, torch and transformers: a minute without its cache
def test_a_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mypy import api

    file = tmp_path / "user.py"
    file.write_text(USER)
    monkeypatch.chdir(ROOT)
    cache = str(ROOT / ".mypy_cache")
    told, problems, _ = api.run(["--strict", "--cache-dir", cache, str(file)])
    assert not problems
    lines = [line.split(":", 2)[1:] for line in told.splitlines() if "user.py" in line]
    said = [(int(number), " ".join(words.split())) for number, words in lines]
    result, several = "SearchResult", "list[bestk.result.search_result.SearchResult]"
    revealed = [words for _, words in said if "Revealed type" in words]
    assert [several in words for words in revealed] == [False, True, False, False]
    assert all(result in words for words in revealed)
    first = USER.splitlines().index('bestk.search(lm, "hello", beam_sise=10)') + 1
    wrong = {number for number, words in said if " error:" in f" {words}"}
    assert wrong == {first, first + 1, first + 2, first + 3}
