"""Saved results made to hurt: what is wrong is told, and work grows with bytes alone."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st

import bestk
from bestk.errors import BestKError, SchemaError
from bestk.result import SearchResult
from bestk.viz import replay
from bestk.viz.files import read_result, write_picture
from bestk.viz.html import to_html

SAVED = json.loads(
    bestk.search(
        bestk.LanguageModel(random_toy(3, 8)), [1], k=2, beam_size=3, max_new_tokens=4
    ).dumps(tree=True)
)
COLUMNS = sorted(SAVED["tree"])
HUGE = [2**31 - 1, 10**30, -1, -(2**31), 1e308, float("nan"), None, "1", [1], True]


@pytest.mark.parametrize("column", COLUMNS)
def test_no_number_in_a_tree_makes_work(column: str, tmp_path: Path, cli: Any) -> None:
    for value in HUGE:
        for place in (0, -1):
            saved = copy.deepcopy(SAVED)
            saved["tree"][column][place] = value
            path = tmp_path / "saved.json"
            path.write_text(json.dumps(saved))
            code, _, err = cli("show", str(path), "-o", str(tmp_path / "tree.html"))
            assert code in (0, 2)
            assert err.count("\n") == 1, "one line"


def test_numbers_that_lead_out_of_the_tree_or_in_circles_are_named() -> None:
    for column, value in [
        ("expanded_at", 2_000_000_000),
        ("child_parent", 99_999),
        ("parent", 5_000),
        ("child_state", 77),
        ("depth", -1),
    ]:
        saved = copy.deepcopy(SAVED)
        saved["tree"][column][-1] = value
        with pytest.raises(SchemaError, match=f"no such {column}"):
            SearchResult.from_json(saved)
    saved = copy.deepcopy(SAVED)
    saved["tree"]["parent"][1] = 1
    with pytest.raises(SchemaError, match="no such parent"):
        SearchResult.from_json(saved)


def test_settings_of_a_saved_result_make_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = copy.deepcopy(SAVED)
    saved["config"] |= {"k": 10**15, "budget": 10**15, "max_frontier": 10**15}
    assert "<html" in to_html(SearchResult.from_json(saved))
    monkeypatch.setattr(replay, "_MOST_ORDERED", 5)
    with pytest.raises(SchemaError, match="too large to draw"):
        to_html(SearchResult.from_json(saved))


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, '{"format":', "\x00", "NaN"])
def test_files_that_are_no_results(text: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_text(text)
    with pytest.raises(SchemaError):
        read_result(path)


PATHS = [
    (name, *below)
    for name in SAVED
    for below in ([(key,) for key in SAVED[name]] if isinstance(SAVED[name], dict) else [()])
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(PATHS), value=VALUES)
def test_a_result_with_anything_anywhere_is_drawn_or_refused(
    path: tuple[str, ...], value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    saved = copy.deepcopy(SAVED)
    inner = saved
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    folder = tmp_path_factory.getbasetemp()
    with contextlib.suppress(BestKError):
        result = SearchResult.from_json(json.loads(json.dumps(saved)))
        for kind in ("html", "dot", "json"):
            write_picture(result, folder / f"tree.{kind}")
