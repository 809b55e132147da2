"""The CPU benchmark measures what it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import bestk

PATH = Path(bestk.__file__).parent.parent / "benchmarks" / "cpu_beam.py"


@pytest.fixture
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("cpu_beam", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.model
def test_report(
    benchmark: Any,
    smollm2: bestk.LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(benchmark, "BEAM_SIZE", 2)
    monkeypatch.setattr(benchmark, "MAX_NEW_TOKENS", 6)
    monkeypatch.setattr(bestk, "load", lambda *_, **__: smollm2)
    arguments = ["cpu_beam.py", "--json", "--repeats", "1", "--prompt-tokens", "12"]
    monkeypatch.setattr(sys, "argv", arguments)
    benchmark.main()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["prompt_tokens"] == 12
    assert row["expanded"] == {"k10": 12, "k5": 12}, "best-k search must spend its whole budget"
    assert row["ratio"]["k5"] == pytest.approx(row["seconds"]["k5"] / row["seconds"]["beam"])
    assert all(0 < share < 1 for share in row["outside_forward"].values())


@pytest.mark.model
def test_beam_search_runs_its_full_length(
    benchmark: Any, smollm2: bestk.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "BEAM_SIZE", 2)
    model = smollm2.backend.network
    prompt = smollm2.encode("Say yes.")
    with benchmark.forward_timer(model) as inside:
        benchmark.beam_search(model, prompt)
    assert len(inside) == 2 * benchmark.MAX_NEW_TOKENS, "body and output layer, once a token"
    assert not model.base_model._forward_hooks, "the timer must leave the model as it was"


@pytest.mark.model
def test_prompts_are_long_enough(benchmark: Any, smollm2: bestk.LanguageModel) -> None:
    assert len(smollm2.encode(benchmark.TEXT.replace("\n", " ").strip())) >= 500
