"""Catalogues in memory and in files, against nested dicts; and everything that is none."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tries import Ids, random_rows

from bestk import Trie
from bestk.errors import BestKError, OptionError, SchemaError


def nested(rows: Sequence[Ids], without: Sequence[int] = ()) -> dict[int, Any]:
    """Build the trie that people write: a dict of dicts, with the row under None."""
    root: dict[Any, Any] = {}
    for row, ids in enumerate(rows):
        if row not in without:
            node = root
            for token in ids:
                node = node.setdefault(token, {})
            node.setdefault(None, row)
    return root


def unpacked(trie: Trie, node: int = 0, barred: Sequence[int] = ()) -> dict[Any, Any]:
    """Write a trie as nested dicts, without what is barred."""
    dead, silent = {c // 2 for c in barred if c % 2}, {c // 2 for c in barred if c % 2 == 0}
    children = range(int(trie.first[node]), int(trie.first[node + 1]))
    found: dict[Any, Any] = {
        int(trie.token[c]): unpacked(trie, c, barred) for c in children if c not in dead
    }
    if trie.item[node] >= 0 and node not in silent:
        found[None] = int(trie.item[node])
    return found


@pytest.mark.parametrize("seed", range(200))
def test_it_holds_what_a_nested_dict_holds(seed: int) -> None:
    rows = random_rows(seed, vocab_size=6, is_fixed=seed % 3 == 0)
    rows += rows[: seed % 4]  # some come twice
    trie = Trie.from_sequences(rows)
    assert unpacked(trie) == nested(rows)
    assert len(trie) == len(set(rows))
    assert trie.num_duplicates == len(rows) - len(set(rows))
    assert trie.depth == max(map(len, rows))
    for row, ids in enumerate(rows):
        assert trie.item_at(trie.find(ids)) == rows.index(ids) <= row
    assert trie.find((*rows[0], 5, 5, 5, 5, 5)) == -1

    rng = random.Random(seed)
    without = rng.sample(range(len(rows)), rng.randint(0, len(rows)))
    barred = trie.barred(without)
    assert (np.diff(barred) > 0).all()
    kept = [row for row in without if rows.index(rows[row]) == row]  # a repeated row is no item
    assert unpacked(trie, barred=barred.tolist()) == nested(list(dict.fromkeys(rows)), kept)


@pytest.mark.parametrize("seed", range(40))
def test_other_items_make_the_trie_that_would_have_been_built(seed: int) -> None:
    rows = random_rows(seed, vocab_size=6)
    half = (len(rows) + 1) // 2
    gone = random.Random(seed).sample(range(half), half // 2)
    first = Trie.from_sequences(rows[:half])
    before = unpacked(first)
    trie = first.with_items(add=rows[half:] or None, remove=gone)
    assert unpacked(trie) == nested(rows, gone)
    assert unpacked(first) == before
    assert (trie.num_rows, len(trie)) == (len(rows), len(rows) - len(gone))


def test_rows_come_in_many_forms() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rows = [(5, 6), (5,), (7, 70_000, 1)]
    padded = np.array([[5, 6, -1], [5, -1, -1], [7, 70_000, 1]])
    forms = [
        rows,
        [list(row) for row in rows],
        [np.array(row) for row in rows],
        padded,
        torch.from_numpy(padded),
        pyarrow.array([list(row) for row in rows]),
        pyarrow.chunked_array([[[5, 6]], [[5], [7, 70_000, 1]]]),
    ]
    for form in forms:
        assert unpacked(Trie.from_sequences(form)) == nested(rows)


def test_items_are_rows_or_what_those_are_named() -> None:
    rows = [(1, 2), (3,), (4, 4)]
    trie = Trie.from_sequences(rows, items=["Rhein", "Rhône", "Rhein"])  # an alias
    assert [trie.item_at(trie.find(ids)) for ids in rows] == ["Rhein", "Rhône", "Rhein"]
    assert trie.rows_of(["Rhein"]).tolist() == [0, 2]
    more = trie.with_items(add=[(3, 3)], items=["Po"], remove=["Rhein"])
    assert [more.item_at(more.find(ids)) for ids in [(3,), (3, 3)]] == ["Rhône", "Po"]
    assert more.find((1,)) == -1
    numbers = Trie.from_sequences(rows, items=np.array([70, 80, 90]))
    assert numbers.item_at(numbers.find((3,))) == 80
    for bad in (lambda: trie.rows_of(["Rhin"]), lambda: trie.with_items(add=[(9,)])):
        with pytest.raises(OptionError):
            bad()
    with pytest.raises(OptionError, match="did you mean 'Rhône'"):
        trie.rows_of(["Rhone"])


BAD: dict[str, tuple[Any, str]] = {
    "none": ([], "at least one"),
    "empty row": ([[1], []], "row 1 is empty"),
    "empty row of an array": (np.array([[1, 2], [-1, -1]]), "row 1 is empty"),
    "padding before the end": (np.array([[1, 2], [-1, 2]]), "row 1 has −1 before its end"),
    "negative": ([[1, 2], [3, -2]], "got -2 in row 1"),
    "too large": ([[1], [2**31]], f"got {2**31} in row 1"),
    "floats": ([[1, 2.0]], "whole numbers, got float64"),
    "an array of floats": (np.ones((2, 2)), "whole numbers, got float64"),
    "truth": ([[True]], "whole numbers, got bool"),
    "text": (["a"], "whole numbers"),
    "one sequence": ([1, 2, 3], "lists, or an array of two axes"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_catalogue_is_refused_in_one_line(name: str) -> None:
    ids, message = BAD[name]
    with pytest.raises(OptionError, match=message) as caught:
        Trie.from_sequences(ids)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("items", [["a"], ["a", 1], [1.5, 2.5], [True, False], [None, None]])
def test_what_names_no_rows_is_refused(items: Any) -> None:
    with pytest.raises(OptionError, match="items must"):
        Trie.from_sequences([[1], [2]], items=items)


@pytest.mark.parametrize("items", [[2], [-1], ["a"], [0.0], [True]])
def test_an_unknown_item_cannot_be_left_out(items: Any) -> None:
    with pytest.raises(OptionError, match="rows from 0 to 1"):
        Trie.from_sequences([[1], [2]]).barred(items)


def test_a_million_ids_are_small() -> None:
    ids = np.random.default_rng(0).integers(0, 1024, (100_000, 4))
    tracemalloc.start()
    trie = Trie.from_sequences(ids)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert trie.nbytes <= 35 * len(ids)  # prefixes are shared less among a tenth of a million
    assert most <= 200 * len(ids), "building takes memory for what nobody keeps"


class TestFiles:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        rows = random_rows(3, vocab_size=50, most=3000)
        path = tmp_path / "c.trie"
        Trie.from_sequences(rows, items=[f"ä{row}" for row in range(len(rows))]).save(path)
        return path

    @pytest.mark.parametrize("mmap", [False, True])
    def test_what_is_read_is_what_was_saved(self, saved: Path, mmap: bool) -> None:
        trie = Trie.load(saved, mmap=mmap)
        rows = random_rows(3, vocab_size=50, most=3000)
        assert unpacked(trie) == nested(rows)
        assert trie.item_at(trie.find(rows[7])) == "ä7"
        assert trie.digest == Trie.load(saved).digest
        again = saved.with_name("again.trie")
        trie.save(again)
        assert again.read_bytes() == saved.read_bytes()
        assert len(trie.with_items(remove=["ä7"])) == len(rows) - 1

    @pytest.mark.parametrize("mmap", [False, True])
    def test_a_file_that_is_cut_off_anywhere_is_refused(self, saved: Path, mmap: bool) -> None:
        whole = saved.read_bytes()
        assert len(whole) > 20_000
        for size in [*range(0, len(whole), 1024), len(whole) - 1]:
            saved.write_bytes(whole[:size])
            with pytest.raises((SchemaError, OptionError), match=r"c\.trie") as caught:
                Trie.load(saved, mmap=mmap)
            assert "\n" not in str(caught.value)

    def test_one_wrong_byte_is_seen(self, saved: Path) -> None:
        whole = saved.read_bytes()
        rng = random.Random(0)
        begins = whole.index(b"\n")
        expected = nested(random_rows(3, vocab_size=50, most=3000))
        for place in [*range(0, 400), *rng.sample(range(begins, len(whole)), 300)]:
            spoilt = bytearray(whole)
            spoilt[place] ^= 1 << rng.randrange(8)
            saved.write_bytes(spoilt)
            with contextlib.suppress(BestKError):  # else it is white space between the parts
                assert unpacked(Trie.load(saved)) == expected

    @pytest.mark.parametrize(
        "content", [b"", b"PK\3\4", b"{}", b"[1]\n", b"\xff\n" * 9, b"{" * 900]
    )
    def test_foreign_files_are_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "foreign"
        path.write_bytes(content)
        with pytest.raises((SchemaError, OptionError), match="foreign"):
            Trie.load(path)

    def test_what_cannot_be_read_or_written(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match="cannot read"):
            Trie.load(tmp_path / "none")
        with pytest.raises(OptionError, match="cannot write"):
            Trie.from_sequences([[1]]).save(tmp_path / "none" / "c.trie")

    def test_another_version_is_named(self, saved: Path) -> None:
        saved.write_bytes(saved.read_bytes().replace(b'"version": 1', b'"version": 2'))
        with pytest.raises(SchemaError, match="version 2"):
            Trie.load(saved)
