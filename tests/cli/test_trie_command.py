"""`bestk trie`, and what the other commands do with what it builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_jobs import read_rows, write_rows

import bestk

TITLES = ["every dog sings", "my cat waits", "a house", "a house falls"]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_titles_of_any_format(cli: Any, tmp_path: Path, kind: str) -> None:
    source, target = tmp_path / f"titles.{kind}", tmp_path / "titles.trie"
    if kind == "txt":
        source.write_text("\n".join(TITLES))
    elif kind == "jsonl":
        write_rows(source, [{"text": title, "item": title.upper()} for title in TITLES])
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": TITLES, "item": [7, 8, 9, 10]}), source)
    code, out, err = cli("trie", "build", str(source), "-o", str(target), "--model", "toy")
    assert (code, err) == (0, "")
    assert out.startswith("4 items in ")
    assert cli("trie", "info", str(target)) == (0, out, "")
    result = bestk.search(bestk.load("toy"), "the dog", allowed=bestk.Trie.load(target), certify=4)
    names = {"txt": {0, 1, 2, 3}, "jsonl": {t.upper() for t in TITLES}, "parquet": {7, 8, 9, 10}}
    assert {h.item for h in result.hypotheses} <= names[kind]


@pytest.mark.parametrize("kind", ["npy", "jsonl", "parquet"])
def test_ids_of_any_format(cli: Any, tmp_path: Path, kind: str) -> None:
    source, target = tmp_path / f"ids.{kind}", tmp_path / "ids.trie"
    rows = [[1, 5, 9], [1, 5, 8], [2, 3, 4]]
    if kind == "npy":
        np.save(source, np.array(rows))
    elif kind == "jsonl":
        write_rows(source, rows)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"ids": rows}), source)
    assert cli("trie", "build", str(source), "-o", str(target))[0] == 0
    trie = bestk.Trie.load(target)
    assert [trie.item_at(trie.find(ids)) for ids in rows] == [0, 1, 2]


BAD = {
    "x.csv": ("1,2", "must be one of .npy"),
    "x.npy": ("no array", "cannot read"),
    "gone.jsonl": (None, "cannot read"),
    "x.jsonl": ("[1]\n{", "line 2"),
    "y.jsonl": ('{"name": [1]}', "line 1"),
    "z.jsonl": ('{"ids": [1], "item": 2}\n{"ids": [2]}', "line 2"),
    "x.parquet": ("no table", "cannot read"),
    "empty.txt": ("", "at least one"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_catalogue(cli: Any, tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    if content is not None:
        (tmp_path / name).write_text(content)
    code, out, err = cli("trie", "build", str(tmp_path / name), "-o", str(tmp_path / "c.trie"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "c.trie").exists()


def test_an_output_is_needed(cli: Any, tmp_path: Path) -> None:
    code, _, err = cli("trie", "build", str(tmp_path / "x.npy"))
    assert code == 2
    assert "--output" in err


def test_a_job_writes_items(cli: Any, tmp_path: Path) -> None:
    lm = bestk.load("toy")
    trie = bestk.Trie.from_texts(TITLES, lm.tokenizer, end="", items=["A", "B", "C", "D"])
    trie.save(tmp_path / "t.trie")
    rows = [{"prompt": "the dog runs and", "exclude": ["A"]}, {"prompt": "my old cat runs near"}]
    rows += [{"prompt": "a tree falls and", "exclude": ["Z"]}, {"prompt": "a", "items": 1}]
    source, target = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    arguments = ["batch", str(source), "-o", str(target), "--model", "toy", "--certify", "2"]
    code, _, _ = cli(*arguments, "--allowed", str(tmp_path / "t.trie"), "--raw")
    assert code == 1  # some rows were bad
    found = read_rows(target)
    for row, record in zip(rows, found, strict=False):
        alone = bestk.search(lm, row["prompt"], allowed=trie, certify=2, exclude=row.get("exclude"))
        assert record["items"] == [h.item for h in alone.hypotheses]
        assert record["items"]
    assert "A" not in found[0]["items"]
    errors = read_rows(tmp_path / "out.jsonl.errors.jsonl")
    assert [row["line"] for row in errors] == [3, 4]
    assert "unknown item 'Z'" in errors[0]["error"]
    trie.with_items(remove=["A"]).save(tmp_path / "t.trie")
    code, _, err = cli(*arguments, "--allowed", str(tmp_path / "t.trie"), "--raw")
    assert code == 2
    assert "was begun with allowed=" in err, "a job goes on with another trie"
