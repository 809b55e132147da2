"""`bestk eval` and `bestk report`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

OPTIONS = ["--methods", "BS,Ncls0.8:num_draws=2,BKS_mean", "--beam-size", "2"]
OPTIONS += ["--max-new-tokens", "3", "--stop", ".", "--style", "plain", "--batch-size", "2"]
OPTIONS += ["--dtype", "float32"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    lines = [
        {"input": "The sky is", "references": ["blue", "grey today"]},
        {"input": "One, two, three, four", "references": ["five"]},
        {"input": "Paris is the capital of", "references": "France"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.model
def test_eval_then_report(cli: Any, smollm2: object, data: Path, tmp_path: Path) -> None:
    out, saved = tmp_path / "out", tmp_path / "report"
    code, _, err = cli("eval", str(data), "-o", str(out), *OPTIONS)
    assert code == 0, err
    assert f"bestk report {out}" in err
    results = (out / "results.jsonl").read_bytes()
    assert len(results.splitlines()) == 9
    settings = json.loads((out / "settings.json").read_text())
    assert (settings["dtype"], settings["device"]) == ("float32", "cpu")

    code, _, err = cli("eval", str(data), "-o", str(out), *OPTIONS)
    assert code == 0, err
    assert (out / "results.jsonl").read_bytes() == results, "a finished run is not run again"
    code, _, err = cli("eval", str(data), "-o", str(out), *OPTIONS, "--seed", "1")
    assert code == 2
    assert "runs do not mix" in err
    code, _, err = cli("eval", str(data), "-o", str(out), *OPTIONS, "--dtype", "bfloat16")
    assert code == 2
    assert "dtype=float32, now it is bfloat16" in err

    code, shown, err = cli("report", str(out), "--baseline", "BS", "-o", str(saved))
    assert code == 0, err
    assert "difference to BS" in shown
    names = {path.name for path in saved.rglob("*")}
    assert {"tables.md", "tables.tex", "numbers.json", "diversity_quality.png"} <= names
    code, shown, _ = cli("report", str(out), "--format", "json", "--metric", "counts")
    assert json.loads(shown)["num_examples"] == 3


@pytest.mark.model
def test_languages_reach_the_model(cli: Any, smollm2: object, data: Path, tmp_path: Path) -> None:
    for command in (["eval", str(data), "-o", str(tmp_path / "out")], ["compare", "The sky is"]):
        code, _, err = cli(*command, "--tgt-lang", "de_DE")
        assert code == 2, "SmolLM2 has no languages to choose from"
        assert "tgt_lang" in err


def test_an_unknown_ablation_lists_those_there_are(cli: Any, data: Path, tmp_path: Path) -> None:
    for name in ("foo", "BS"):
        code, _, err = cli("eval", str(data), "-o", str(tmp_path / "out"), "--ablation", name)
        assert code == 2
        assert f"unknown ablation '{name}': known: budget, decay, efficiency, gamma" in err
    assert not (tmp_path / "out").exists()
