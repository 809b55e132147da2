"""Columns that are kept, files that lie elsewhere, and Parquet as others read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import bestk
from bestk.batch.files import RemoteFile
from bestk.errors import BestKError, MissingExtraError, OptionError

ROWS = [
    {"prompt": "the dog", "id": 7, "topic": "dogs"},
    {"prompt": "the cat", "topic": "cats", "exclude": ["x"]},
    {"prompt": "", "id": 9},
]
SHORT: dict[str, Any] = {"num_texts": 2, "max_new_tokens": 4, "batch_size": 2}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_columns_that_are_kept(rows: Path, cli: Any) -> None:
    bestk.run_batch("toy", rows, "all.jsonl", **SHORT)
    told = lines(Path("all.jsonl").read_text())
    assert [list(row)[:3] for row in told] == [
        ["line", "id", "topic"],
        ["line", "topic", "exclude"],
    ]
    options = ["--model", "toy", "-n", "2", "--max-new-tokens", "4", "--batch-size", "2"]
    code, _, _ = cli("batch", str(rows), "-o", "kept.jsonl", *options, "--keep", "prompt")
    assert code == 1, "there is a bad row"
    kept = lines(Path("kept.jsonl").read_text())
    assert [list(row)[:3] for row in kept] == [["line", "prompt", "texts"]] * 2
    assert [row["prompt"] for row in kept] == ["the dog", "the cat"]
    assert [row["texts"] for row in kept] == [row["texts"] for row in told]
    with pytest.raises(OptionError, match="keep"):
        bestk.run_batch("toy", rows, "kept.jsonl", keep=["id"], **SHORT)


def test_kept_columns_from_parquet_to_parquet(rows: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"topic": ["dogs", "cats"], "prompt": ["the dog", "the cat"], "n": [1, 2]})
    parquet.write_table(table, "in.parquet")
    bestk.run_batch("toy", "in.parquet", "out.parquet", keep=["n", "prompt"], **SHORT)
    found = parquet.read_table("out.parquet")
    assert found.column_names[:4] == ["line", "prompt", "n", "texts"]
    assert found.column("prompt").to_pylist() == ["the dog", "the cat"]


def test_files_that_lie_elsewhere(rows: Path, memory: Any) -> None:
    bestk.run_batch("toy", rows, "here.jsonl", **SHORT)
    memory.pipe("/bucket/in.jsonl", rows.read_bytes())
    source, target = "memory://bucket/in.jsonl", "memory://bucket/out.jsonl"
    done = bestk.run_batch("toy", source, target, **SHORT)
    assert str(done.output) == target
    assert (done.num_rows, done.num_bad) == (2, 1)
    assert memory.cat("/bucket/out.jsonl") == Path("here.jsonl").read_bytes()
    errors = memory.cat("/bucket/out.jsonl.errors.jsonl")
    assert errors == Path("here.jsonl.errors.jsonl").read_bytes()
    assert bestk.run_batch("toy", source, target, **SHORT).num_read == 0, "it was done"
    memory.rm("/bucket/out.jsonl")
    bestk.run_batch("toy", source, target, **SHORT)
    assert memory.exists("/bucket/out.jsonl"), "what did not arrive is sent again"


def test_nothing_elsewhere_is_overwritten(rows: Path, memory: Any) -> None:
    memory.pipe("/bucket/out.jsonl", b"mine")
    with pytest.raises(OptionError, match="is there already, and not from a job"):
        bestk.run_batch("toy", rows, "memory://bucket/out.jsonl", **SHORT)
    assert memory.cat("/bucket/out.jsonl") == b"mine"
    assert not Path("out.jsonl.job").exists()


def test_parquet_and_gzip_elsewhere(rows: Path, memory: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    bestk.run_batch("toy", rows, "memory://bucket/out.parquet", **SHORT)
    with memory.open("/bucket/out.parquet") as file:
        assert parquet.read_table(file).num_rows == 2
    bestk.run_batch("toy", rows, "memory://bucket/out.jsonl.gz", **SHORT)
    bestk.run_batch("toy", rows, "again.jsonl", **SHORT)
    again = bestk.run_batch("toy", "memory://bucket/out.parquet", "bad.jsonl", **SHORT)
    assert again.num_bad == 2, "its rows have no prompt"


def test_what_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BestKError, match=r"nowhere://x\.jsonl cannot be reached: "):
        RemoteFile("nowhere://x.jsonl").is_file()

    def lacking(url: str) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", lacking)
    with pytest.raises(MissingExtraError, match="Install s3fs to access S3"):
        RemoteFile("s3://bucket/x.jsonl").is_file()


def test_parquet_has_nested_texts(rows: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    bestk.run_batch("toy", rows, "out.parquet", full=True, **SHORT)
    frame = pandas.read_parquet("out.parquet")
    whole = bestk.SearchResult.from_json(frame["result"][0])
    nested = frame["hypotheses"][0]
    assert [one["text"] for one in nested] == whole.texts == list(frame["texts"][0])
    assert list(nested[0]["token_ids"]) == list(whole[0].token_ids)
    assert nested[0]["is_complete"] == whole[0].is_complete


@pytest.mark.parametrize("reader", ["polars", "datasets"])
def test_others_read_the_nested_texts(rows: Path, reader: str) -> None:
    library = pytest.importorskip(reader)
    bestk.run_batch("toy", rows, "out.parquet", full=True, **SHORT)
    if reader == "polars":
        found = library.read_parquet("out.parquet").to_dicts()
    else:
        found = list(library.Dataset.from_parquet("out.parquet", cache_dir="cache"))
    assert [one["text"] for one in found[0]["hypotheses"]] == found[0]["texts"]
