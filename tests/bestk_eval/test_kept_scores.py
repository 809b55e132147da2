"""Scores kept with their run: the same numbers without models, and never those of other texts."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_toy import run_toy, toy_task

from bestk.errors import MissingDataError, OptionError, SchemaError
from bestk_eval.board import Scorer
from bestk_eval.examples import Example, Pool
from bestk_eval.kept import FILE, KeptScores, Label
from bestk_eval.loading import load_runs
from bestk_eval.metrics import grammar, mauve, registry, wordnet
from bestk_eval.metrics.base import Column, TextMetric
from bestk_eval.metrics.registry import MetricModels, MetricSet
from bestk_eval.report import Report, make_report

SLOW = ("grammar", "mauve")
MODELS = MetricModels(grammar="cola", mauve="features")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run_toy(folder, methods=("BS", "BKS_mean"))
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for the models of the metrics; the list has what was loaded."""
    loaded: list[str] = []

    class Scores(grammar.Grammar):
        def _classify(self, texts: list[str]) -> list[float]:
            assert self._loaded
            return [1 / (3 + len(text)) for text in texts]

    def cola(name: str) -> tuple[str, str]:
        loaded.append(name)
        return name, name

    def states(lm: str, texts: list[str]) -> list[Any]:
        return [np.random.default_rng([len(lm), *text.encode()]).normal(size=4) for text in texts]

    def features(model: str) -> str:
        loaded.append(model)
        return model

    monkeypatch.setattr(grammar, "load_cola", cola)
    monkeypatch.setattr(mauve, "_loaded", features)
    monkeypatch.setattr(mauve, "_last_states", states)
    monkeypatch.setitem(registry.FAMILIES, "grammar", lambda models: Scores(models.grammar))
    return loaded


def report(run: Path | list[Path], metrics: tuple[str, ...] = SLOW, **options: Any) -> Report:
    folders = [run] if isinstance(run, Path) else run
    options = {"models": MODELS, "views": ["all", "top"], "samples": 50, **options}
    return make_report(folders, metrics=["counts", *metrics], **options)


def test_kept_numbers_are_those_computed_and_no_model_is_loaded(
    run: Path, models: list[str]
) -> None:
    plain = report(run, baseline="BS").text("json")
    assert not (run / FILE).exists(), "nobody asked to keep them"
    told = json.loads(plain)["views"]["all"]["methods"]["BKS_mean"]
    assert told["GRM"]["low"] < told["GRM"]["value"] < told["GRM"]["high"]
    assert told["MV"]["value"] > 0
    assert report(run, keep_scores=True, baseline="BS").text("json") == plain
    models.clear()
    assert report(run, baseline="BS").text("json") == plain
    assert report(run, methods=["BKS_mean"]).boards[0].rows == ["BKS_mean"]
    assert not models, "all is kept"


def test_meteor_is_kept_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoSynonyms:
        get_version = staticmethod(lambda: "none")
        synsets = staticmethod(lambda word: [])

    monkeypatch.setattr(wordnet, "wordnet", NoSynonyms)
    kept = report(run, ("meteor",), keep_scores=True).text("json")
    assert '"OMTR"' in kept
    monkeypatch.setattr(wordnet.Meteor, "score", None)
    assert report(run, ("meteor",)).text("json") == kept
    with pytest.raises(TypeError, match="not callable"):
        report(run, ("meteor",), views=["diverse"])


@pytest.mark.parametrize("name", ["results.jsonl", "examples.jsonl"])
def test_scores_of_other_texts_or_references_are_not_used(
    run: Path, models: list[str], name: str
) -> None:
    report(run, keep_scores=True)
    kept = (run / FILE).read_bytes()
    path = run / name
    path.write_text(path.read_text(encoding="utf-8").replace("dog", "cow"), encoding="utf-8")
    models.clear()
    changed = report(run).text("json")
    assert models == ["cola", "features"]
    assert (run / FILE).read_bytes() == kept, "nobody asked to keep them"
    (run / FILE).unlink()
    assert report(run).text("json") == changed


def test_other_models_and_views_have_scores_of_their_own(run: Path, models: list[str]) -> None:
    report(run, keep_scores=True)
    models.clear()
    report(run, top=3, views=["all"])
    assert not models, "all texts are all texts"
    report(run, top=3, views=["top"])
    assert models == ["cola", "features"]
    models.clear()
    others = MetricModels(grammar="other", mauve="features")
    report(run, models=others, keep_scores=True)
    assert models == ["other"]
    models.clear()
    report(run, models=others)
    report(run)
    assert not models, "one does not drive out the other"


def test_each_folder_keeps_its_own(run: Path, tmp_path: Path, models: list[str]) -> None:
    other = tmp_path / "other"
    run_toy(other, methods=("BFS",))
    together = report([run, other], keep_scores=True).text("json")
    for folder, methods in ((run, {"BS", "BKS_mean"}), (other, {"BFS"})):
        assert {entry["method"] for entry in read(folder)["scores"]} == methods
    models.clear()
    assert report([run, other]).text("json") == together
    report(other)
    settings = json.loads((other / "settings.json").read_text())
    (other / "settings.json").write_text(json.dumps({**settings, "model": "larger"}))
    assert "BFS @larger" in report([run, other]).boards[0].rows
    assert not models


def test_a_model_that_is_missing_is_left_out_where_it_is_needed(
    run: Path, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report(run, keep_scores=True, views=["all"])
    asked = []

    def missing(name: str) -> Any:
        asked.append(name)
        raise MissingDataError(f"{name} is not there")

    monkeypatch.setattr(grammar, "load_cola", missing)
    found = report(run, views=["all", "top", "unique"])
    assert "GRM" in found.boards[0].columns
    for board in found.boards[1:]:
        assert "GRM" not in board.columns
        assert board.left_out == {"grammar": "cola is not there"}
    assert json.loads(found.text("json"))["left_out"] == {"grammar": "cola is not there"}
    assert asked == ["cola"], "once is enough"


def test_numbers_that_are_none_come_back(
    tmp_path: Path, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_toy(tmp_path, task=toy_task(4), methods=("BS",), beam_size=1)

    class Half(TextMetric):
        family, is_slow = "half", True
        columns = (Column(key="H", title="half", group="Quality"),)
        signature = "half"
        is_needed = staticmethod(lambda example: example.id != "e0")

        def score(self, texts: Any, example: Any) -> Any:
            return np.full((len(texts), 1), 100 / 3)

        def summarise(self, mean: Any, best: Any) -> Any:
            return [float(mean[0])]

    monkeypatch.setitem(registry.FAMILIES, "half", lambda models: Half())
    computed = report(tmp_path, ("mauve", "half"), keep_scores=True, views=["all"])
    assert not models, "too few texts for MAUVE"
    values = {tuple(entry["values"]): entry["values"] for entry in read(tmp_path)["scores"]}
    assert values == {("MV",): {"MV": None}, ("H",): {"H": [None, 0.0, 33.3333, 0.0]}}
    kept = report(tmp_path, ("mauve", "half"), views=["all"])
    assert kept.text("json") == computed.text("json")


def test_a_file_is_the_same_whenever_it_is_written(run: Path, models: list[str]) -> None:
    report(run, keep_scores=True)
    first = (run / FILE).read_bytes()
    report(run, keep_scores=True)
    assert (run / FILE).read_bytes() == first
    (run / FILE).unlink()
    report(run, keep_scores=True)
    assert (run / FILE).read_bytes() == first


def read(run: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(gzip.decompress((run / FILE).read_bytes()))
    return told


def edited(**changes: Any) -> Callable[[bytes], bytes]:
    """Change the first entry."""

    def edit(data: bytes) -> bytes:
        told = json.loads(gzip.decompress(data))
        told["scores"][0].update(changes)
        return gzip.compress(json.dumps(told).encode())

    return edit


def replaced(told: Any) -> Callable[[bytes], bytes]:
    return lambda data: gzip.compress(json.dumps(told).encode())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-30], " cannot be read ("),
        (lambda data: b"{}", " cannot be read ("),
        (lambda data: gzip.compress(b"{"), " cannot be read ("),
        (replaced([1]), " holds no scores, its format is not 'bestk.scores'"),
        (replaced({"format": "bestk.scores", "version": 2}), " is of version 2, this bestk reads"),
        (replaced({"format": "bestk.scores", "version": 1}), " has what is no score (KeyError"),
        (edited(method=1), " has what is no score (TypeError"),
        (edited(more=1), " has what is no score (TypeError"),
        (edited(values={"GRM": "abc"}), "'abc' is no number"),
        (edited(values=[]), " has what is no score ("),
        (edited(values={"GRM": [1.0]}), " has 1 scores for 12 examples"),
    ],
)
def test_a_damaged_file_is_one_line(
    cli: Any, run: Path, models: list[str], damage: Callable[[bytes], bytes], message: str
) -> None:
    report(run, keep_scores=True)
    path = run / FILE
    path.write_bytes(damage(path.read_bytes()))
    models.clear()
    code, out, err = cli("report", str(run), "--metric", "grammar", "--grammar-model", "cola")
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {path} ")
    assert message in err
    assert err.count("\n") == 1
    assert not models
    with pytest.raises(SchemaError):
        report(run)
    assert make_report([run], metrics=["counts"], samples=10).boards, "nobody looks at them"


def test_the_command_keeps_scores(cli: Any, run: Path, models: list[str]) -> None:
    told = ("report", str(run), "--texts", "all", "--metric", "grammar", "--grammar-model", "cola")
    code, computed, err = cli(*told, "--keep-scores", "--format", "json")
    assert code == 0, err
    assert [entry["method"] for entry in read(run)["scores"]] == ["BS", "BKS_mean"]
    models.clear()
    assert cli(*told, "--format", "json") == (0, computed, "")
    assert not models


def test_a_folder_that_cannot_be_written_to_is_refused_first(
    run: Path, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OptionError, match="may not be written to: scores cannot be kept there"):
        report(run, keep_scores=True)
    assert not models


def test_reports_that_keep_scores_at_once_lose_none(tmp_path: Path) -> None:
    def keep(number: int) -> None:
        kept = KeptScores()
        for entry in range(12):
            label = Label(metric="m", texts="all", method=f"{number} {entry}")
            kept.add(tmp_path, label, "digest", {"A": float(entry)})
            kept.save()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(keep, range(4)))
    told = json.loads(gzip.decompress((tmp_path / FILE).read_bytes()))
    assert len(told["scores"]) == 48
    assert [path.name for path in tmp_path.iterdir()] == [FILE], "nothing else is left there"


def test_only_texts_that_are_shown_are_scored(run: Path, models: list[str]) -> None:
    seen: list[str] = []

    class Counting(TextMetric):
        family, signature = "counting", "counting"
        columns = (Column(key="LEN", title="length", group="Quality"),)

        def score(self, texts: Sequence[str], example: Example) -> Any:
            seen.extend(texts)
            return np.array([[float(len(text))] for text in texts])

        def summarise(self, mean: Any, best: Any) -> Sequence[float]:
            return [float(mean[0])]

    evaluation = load_runs([run])
    scorer = Scorer(evaluation, MetricSet(built=(Counting(),)), top=2)
    pools = [pool for row in evaluation.pools.values() for pool in row]
    board = scorer.board("top")
    shown = {(pool.example.id, text) for pool in pools for text in pool.chosen("top", 2)}
    assert len(seen) == len(shown) < sum(len(pool.texts) for pool in pools)
    row, first = "BKS_mean", evaluation.pools["BKS_mean"][0]
    expected = np.mean([len(text) for text in first.chosen("top", 2)])
    assert board.values[row]["LEN"][0] == expected
    scorer.board("all")
    assert len(seen) == sum(len(set(texts)) for texts in _by_example(pools)), "each text once"


def _by_example(pools: Sequence[Pool]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for pool in pools:
        found.setdefault(pool.example.id, []).extend(pool.texts)
    return list(found.values())
