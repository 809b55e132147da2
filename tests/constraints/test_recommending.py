"""The example that recommends films, on a wheel of a few that were made up."""

from __future__ import annotations

import importlib.util
import io
import random
import sys
import zipfile
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "recommend.py"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rng = random.Random(0)
    ratings = [(user, film) for user in range(1, 20) for film in rng.sample(range(1, 61), 15)]
    users, films = zip(*ratings, strict=True)
    every = range(1, 61)
    items = {"movie_id": every, "movie_title": [f"Film {film}" for film in every]}
    items |= {name: ["-"] * 60 for name in ("release_date", "video_release_date", "IMDb_URL")}
    items |= {"unknown": [0] * 60, "Action": [film % 2 for film in every]}
    seen = {"user_id": users, "movie_id": films, "rating": [4] * len(users)}
    seen["timestamp"] = range(len(users))
    path = tmp_path / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for part, columns in (("data", seen), ("items", items)):
            buffer = io.BytesIO()
            lists = {name: list(column) for name, column in columns.items()}
            parquet.write_table(pyarrow.table(lists), buffer)
            archive.writestr(f"data/MovieLens100k_{part}.parquet.brotli", buffer.getvalue())
    return path


def test_ten_films_are_proven_and_none_was_seen(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("recommend", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    recommend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recommend)
    monkeypatch.setattr(sys, "argv", ["", str(wheel), "--seconds", "0.2", "--users", "3"])
    recommend.main()
    *lines, last = capsys.readouterr().out.splitlines()
    _, _, watched = recommend.load(str(wheel))
    assert len(lines) == 3
    for line, films in zip(lines, watched, strict=False):
        told, best = line.split(" proven: ")
        assert int(told) >= 10
        seen = {f"Film {film + 1}" for film in films[:-1]}
        assert not {*best.split("; ")} & seen
    assert last.endswith("users in 3")
