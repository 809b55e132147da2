"""Reports of runs that are damaged, unfinished, or do not go together; what cannot be shown."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evaluation_toy import run_toy, toy_task

from bestk.errors import MissingDataError, OptionError, SchemaError
from bestk_eval.loading import load_runs
from bestk_eval.report import make_report

FAST = {"samples": 20, "intervals": False}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run_toy(folder, task=toy_task(4), methods=("BS", "BKS_mean", "BKS_last"))
    return folder


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("more")
    run_toy(folder, task=toy_task(4), methods=("BFS",))
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return _copy(whole, tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"beam_size": 5},
        {"max_new_tokens": 9},
        {"seed": 1},
        {"style": "chat"},
        {"bestk": "0.0.1"},
        {"stop": ["."]},
        {"prompt": "{input}?"},
        {"dtype": "bfloat16"},
        {"source_language": "de"},
        {"data": "0123"},
    ],
)
def test_runs_of_other_settings_do_not_go_together(
    whole: Path, more: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    ((name, value),) = change.items()
    before = _settings(whole)[name]
    other = _copy(more, tmp_path / "other")
    _settings(other, **change)
    with pytest.raises(OptionError, match="same examples and settings") as error:
        load_runs([whole, other])
    assert f"{other} has {name} {value}, {whole} has {before}:" in str(error.value)


def test_runs_may_differ_in_speed_and_in_the_model(whole: Path, more: Path, tmp_path: Path) -> None:
    other = _copy(more, tmp_path / "other")
    _settings(other, device="cuda", batch_size=1)
    assert list(load_runs([whole, other]).pools)[-1] == "BFS"
    _settings(other, model="larger", dtype="bfloat16")
    both = load_runs([whole, other])
    assert list(both.pools)[-1] == "BFS @larger"
    assert "model:toy+larger" in both.signature
    third = _copy(more, tmp_path / "third")
    _settings(third, model="larger", dtype="float16", methods=["BS"])
    with pytest.raises(OptionError, match=r"third has dtype float16, .*other has bfloat16"):
        load_runs([whole, other, third])


def _pack(run: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    path, pack = run / "results.jsonl", {"gz": gzip.compress, "xz": lzma.compress}[suffix]
    path.with_name(f"results.jsonl.{suffix}").write_bytes(damage(pack(path.read_bytes())))
    path.unlink()


def _flip(data: bytes) -> bytes:
    return data[:40] + bytes(255 - byte for byte in data[40:60]) + data[60:]


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-30], lambda data: b"texts" + data, _flip],
    ids=["truncated", "not packed", "flipped bytes"],
)
@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_a_damaged_packed_run_is_one_line(
    cli: Any, run: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    _pack(run, suffix, damage)
    code, out, err = cli("report", str(run))
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {run}/results.jsonl.{suffix} cannot be read (")
    assert err.count("\n") == 1
    assert "take a whole copy of the folder" in err


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("times.jsonl", {"seconds": None}, "times.jsonl:1 is no line of a run (TypeError"),
        ("times.jsonl", {"example": ...}, "times.jsonl:1 is no line of a run (KeyError('example'"),
        ("results.jsonl", {"texts": ["a"]}, "results.jsonl:1 is no line of a run (ValueError('1 "),
        ("results.jsonl", {"counts": []}, "results.jsonl:1 is no line of a run (ValueError("),
        ("results.jsonl", {"scores": [1.0] * 9}, "9 scores"),
        ("results.jsonl", {"log_probs": [1.0] * 9}, "9 log_probs"),
        ("results.jsonl", {"texts": "abc"}, "'abc' is no list of str"),
        ("results.jsonl", {"scores": ["1"]}, "is no list of int | float"),
        ("results.jsonl", {"example": "e99"}, "KeyError('e99')"),
        ("results.jsonl", {"expanded": ...}, "KeyError('expanded')"),
    ],
)
def test_a_spoilt_line_is_named(run: Path, name: str, change: dict[str, Any], message: str) -> None:
    path = run / name
    first, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    record = {**json.loads(first), **change}
    kept = {key: value for key, value in record.items() if value is not ...}
    path.write_text(json.dumps(kept) + "\n" + "".join(rest), encoding="utf-8")
    with pytest.raises(SchemaError) as error:
        load_runs([run])
    assert str(error.value).startswith(f"{run}/{name}:1 ")
    assert message in str(error.value)


def test_a_line_that_is_no_object_is_named(run: Path) -> None:
    (run / "times.jsonl").write_text("[1]\n", encoding="utf-8")
    with pytest.raises(
        SchemaError, match=r"times\.jsonl:1 is not a JSON object: take a whole copy"
    ):
        load_runs([run])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ...}, "has no model, it was changed"),
        ({"methods": ...}, "has no methods"),
        ({"methods": []}, "has methods that are no names"),
        ({"methods": [1]}, "has methods that are no names"),
        ({"beam_size": "three"}, "has beam_size 'three'"),
    ],
)
def test_settings_that_are_not_whole(run: Path, change: dict[str, Any], message: str) -> None:
    _settings(run, **change)
    with pytest.raises(SchemaError) as error:
        load_runs([run])
    assert str(error.value).startswith(f"{run}/settings.json {message}")


def test_settings_that_are_not_utf8(run: Path) -> None:
    path = run / "settings.json"
    path.write_bytes(path.read_bytes().replace(b'"toy"', b'"t\xf6y"'))
    with pytest.raises(SchemaError, match=r"settings.json is not JSON .*utf-8"):
        load_runs([run])


def test_methods_that_are_missing_are_named(run: Path) -> None:
    path = run / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "BKS_last" not in line), encoding="utf-8")
    with pytest.raises(OptionError, match=r"been through BKS_last yet: .*--methods BS,BKS_mean "):
        load_runs([run])
    assert load_runs([run], methods=["BS", "BKS_mean"]).num_examples == 4
    path.write_text("", encoding="utf-8")
    with pytest.raises(OptionError, match="no example has been through every method yet"):
        load_runs([run])


def test_figures_without_numbers_are_left_out_by_name(
    cli: Any, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = tmp_path / "saved"
    code, out, err = cli("report", str(whole), "--metric", "distinct", "-o", str(saved))
    assert code == 0, err
    assert {path.name for path in saved.rglob("*.*")} == {"tables.md", "tables.tex", "numbers.json"}
    assert "left out: figure incompletion_by_scoring: the report has no Done" in caplog.messages
    assert "left out: figure efficiency: the report has no Time and no |S|" in caplog.messages
    assert not [told for told in caplog.messages if "completion_by_decay" in told], (
        "no such methods"
    )
    assert "toy, condensed" in out
    assert "toy, search" not in out, "none of its columns is there"


def test_without_a_column_there_are_numbers_but_no_tables(
    cli: Any, whole: Path, tmp_path: Path
) -> None:
    asked = ("report", str(whole), "--metric", "sentence-bleu")
    code, out, _ = cli(*asked, "--format", "json")
    assert code == 0
    assert "sBLEU" in json.loads(out)["views"]["all"]["methods"]["BS"]
    code, out, err = cli(*asked, "-o", str(tmp_path / "saved"))
    assert (code, out) == (2, "")
    assert "no table has a column of the metrics asked for" in err
    assert (tmp_path / "saved" / "numbers.json").exists(), "what was computed is not lost"
    with pytest.raises(OptionError, match="mauve: MAUVE has no model"):
        make_report([whole], metrics=["mauve"], **FAST).text("markdown")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--figures", "gif"], "figures are saved as png, pdf, svg, got 'gif'"),
        (["--format", "jsn"], "unknown format 'jsn': did you mean 'json'?"),
        (["-o", "{file}"], "{file} is a file: give a folder"),
        (["-o", "{file}/report"], "{file} is a file: give a folder"),
        (["--baseline", "DBS+"], "unknown method 'DBS+'"),
    ],
)
def test_what_cannot_be_saved_is_said_before_anything_is_computed(
    cli: Any,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("bestk_eval.report.Scorer", None)
    file = tmp_path / "file"
    file.write_text("")
    code, out, err = cli("report", str(whole), *(word.format(file=file) for word in options))
    assert (code, out) == (2, "")
    assert message.format(file=file) in err
    assert err.count("\n") == 1


def test_json_has_the_differences_and_the_reranking(whole: Path) -> None:
    report = make_report(
        [whole], metrics=["counts"], baseline="BS", rerank="mbr-chrf", views=["all"], **FAST
    )
    numbers = json.loads(report.text("json"))
    compared = numbers["views"]["all"]["differences"]
    assert compared["baseline"] == "BS"
    assert compared["methods"].keys() == {"BKS_mean", "BKS_last"}
    cell = compared["methods"]["BKS_mean"]["|S|"]
    assert cell.keys() == {"difference", "low", "high", "p_value", "num_examples", "p_holm"}
    assert cell["p_value"] <= cell["p_holm"]
    shown = {row[0][0]: row[1][0] for row in report.tables[-2].rows}
    assert shown["BKS_mean"].endswith(f"(p={cell['p_holm']:.3f})")
    assert shown["BKS_mean"].startswith(f"{cell['difference']:+.1f}")

    reranked = numbers["rerank"]
    assert (reranked["reranker"], reranked["column"]) == ("mbr-chrf", "BLEU")
    assert reranked["signature"].endswith("|rerank:mbr-chrf")
    row = reranked["methods"]["BKS_mean"]
    assert row.keys() == {"|S|", "D", "before", "after", "change"}
    change = row["after"]["value"] - row["before"]["value"]
    assert row["change"]["difference"] == pytest.approx(change)
    assert 0 < row["change"]["p_value"] <= 1

    plain = json.loads(make_report([whole], metrics=["counts"], **FAST).text("json"))
    assert plain["rerank"] is None
    assert plain["views"]["all"]["differences"] is None


def test_reranking_without_references_is_one_line(tmp_path: Path) -> None:
    data = tmp_path / "bare.jsonl"
    data.write_text(json.dumps({"input": "the dog", "references": []}) + "\n", encoding="utf-8")
    run_toy(tmp_path / "run", task=str(data), methods=("BS",))
    with pytest.raises(MissingDataError, match="judged by BLEU: no example has references"):
        make_report([tmp_path / "run"], metrics=["counts"], rerank="mbr-chrf:uniform", **FAST)


def _copy(run: Path, folder: Path) -> Path:
    shutil.copytree(run, folder)
    return folder


def _settings(run: Path, **changes: Any) -> dict[str, Any]:
    """Read the settings of a run and write them back changed; `...` drops one."""
    path = run / "settings.json"
    settings = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    settings = {name: value for name, value in settings.items() if value is not ...}
    path.write_text(json.dumps(settings), encoding="utf-8")
    return settings
