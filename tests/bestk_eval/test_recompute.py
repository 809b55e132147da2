"""The script that imports nothing of bestk gives the numbers of the report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bestk_eval.report import make_report

ROOT = Path(__file__).parents[2]
RECOMPUTE = ROOT / "recipes" / "recompute.py"


def test_it_is_short_and_imports_nothing_of_bestk() -> None:
    text = RECOMPUTE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert not re.search(r"^\s*(import|from) bestk", text, re.MULTILINE)


def test_it_agrees_with_the_report(tmp_path: Path) -> None:
    pytest.importorskip("rouge_score")
    method = "Ncls0.5"
    settings = {
        **{"format": "bestk.evaluation", "version": 1, "task": "t", "kind": "concepts"},
        **{"model": "m", "data": "d", "style": "plain", "bestk": "0", "source": None},
        **{"split": None, "examples": 2, "beam_size": 10, "seed": 0, "max_new_tokens": 20},
        "methods": [method],
    }
    examples = [
        {"id": "1", "input": "dog", "references": ["A dog runs.", "The dog's running fast."]},
        {"id": "2", "input": "cat", "references": ["Two cats sleep on a well-known sofa."]},
    ]
    found = [["A dog runs fast.", "The cat.", "A dog is running."], ["Cats sleep."]]
    results = [
        {
            "example": example["id"],
            "method": method,
            "texts": texts,
            "counts": [2] + [1] * (len(texts) - 1),
            "scores": [-float(place) for place in range(len(texts))],
            "log_probs": [-float(place) for place in range(len(texts))],
            "expanded": 9,
            "model_calls": 3,
        }
        for example, texts in zip(examples, found, strict=True)
    ]
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    for name, rows in (("examples", examples), ("results", results)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = make_report([tmp_path], metrics=["counts", "distinct", "rouge"], samples=10)
    for board in report.boards:
        if board.view == "diverse":
            continue
        command = [sys.executable, str(RECOMPUTE), str(tmp_path), "--texts", board.view]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        numbers = [float(word) for word in done.stdout.splitlines()[-1].split()[1:]]
        expected = [board.value(method, key) for key in ("S", "|S|", "D", "R", "OR", "O")]
        assert numbers == pytest.approx(expected, abs=0.01), board.view
