"""`bestk bench`: what it measures, by hand where that can be said, and the command."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import random_toy
from rich.console import Console
from tiny import fresh
from tiny_seq2seq import tiny

import bestk
from bestk.errors import ModelError, OptionError, PromptError
from bestk_eval.benchmark import BEAM, BenchReport, BenchSettings, bench, table
from bestk_eval.benchmark.instruments import (
    cache_bytes,
    copy_bandwidth,
    forward_timer,
    weight_bytes,
)
from bestk_eval.benchmark.prompts import make_prompts
from bestk_eval.benchmark.runner import beam_search

ROOT = Path(bestk.__file__).parent.parent
SMALL = BenchSettings(ks=(2, 4), beam_size=3, max_new_tokens=6, batch=2, prompt_tokens=8, repeats=1)
BUDGET = 3 * 6 * 2


@pytest.fixture(scope="module")
def lm() -> bestk.LanguageModel:
    return bestk.from_transformers(fresh("llama"))


@pytest.fixture(scope="module")
def report(lm: bestk.LanguageModel) -> BenchReport:
    return bench(lm, SMALL)


def row(report: BenchReport, name: str) -> Any:
    return next(row for row in report.rows if row.method == name)


def test_every_method_does_the_whole_work(report: BenchReport) -> None:
    names = ["best-k, k=2", "best-k, k=4", BEAM, "our beam search", "nucleus 0.8"]
    assert [row.method for row in report.rows] == names
    assert [row.k for row in report.rows] == [2, 4, None, None, None]
    for name in ("best-k, k=2", "best-k, k=4", BEAM, "nucleus 0.8"):
        assert row(report, name).expanded == BUDGET, f"{name} must spend its budget"
    # Our beam search reads the prompt once, not once a beam.
    assert row(report, "our beam search").expanded == (1 + 5 * 3) * 2
    # The prompt's call, then 17 nodes by two or by four, or fewer passes where nodes are evaluated
    # ahead of time; no text is read in fewer passes than it has tokens.
    calls = [row.model_calls for row in report.rows]
    assert calls[2:] == [6, 6, 6]
    assert 6 <= calls[0] <= 1 + 9
    assert 6 <= calls[1] <= 1 + 5


def test_what_follows_from_the_measurements(report: BenchReport) -> None:
    beam = row(report, BEAM)
    assert beam.ratio == 1
    assert beam.unique_texts == 6, "beams differ from one another"
    for found in report.rows:
        assert found.beam_seconds == beam.seconds
        assert found.outside is not None
        assert 0 < found.outside < 1
        assert found.texts_per_second == pytest.approx(found.unique_texts / found.seconds)
        floor = report.weight_bytes * found.model_calls / report.bandwidth
        assert found.floor_seconds == pytest.approx(floor)
        assert found.over_floor == pytest.approx(found.seconds / floor)


def test_memory_is_a_slot_per_node_against_a_row_per_beam(report: BenchReport) -> None:
    place = 3 * 2 * 2 * 8 * 4  # layers, keys and values, heads, size, float32
    for k in SMALL.ks:
        held = row(report, f"best-k, k={k}").memory_bytes
        assert held == 2 * place * (8 + 2 * 18), "prompt, nodes, as many ahead of time, scratch"
    assert row(report, BEAM).memory_bytes == 6 * place * (8 + 5), "the last token is never read"


def test_weights_read_by_hand() -> None:
    embedding, head = 61 * 32, 61 * 32
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    body = 3 * layer + 32
    assert weight_bytes(fresh("llama")) == (4 * (body + head), 0), "rows are looked up, not read"
    tied = fresh("llama", tie_word_embeddings=True)
    assert weight_bytes(tied) == (4 * (body + embedding), 0)
    model = tiny("bart")
    step, once = weight_bytes(model)
    every = sum(p.numel() * 4 for p in model.parameters())
    assert step + once == every, "encoder once, decoder every step, the shared embedding as output"
    assert 0 < once < step


def test_cache_bytes_of_both_kinds(lm: bestk.LanguageModel) -> None:
    model = lm.backend.network
    ids = torch.ones(2, 5, dtype=torch.int64)
    assert cache_bytes(model(ids, use_cache=True).past_key_values) == 2 * 5 * 3 * 2 * 16 * 4
    pair = tiny("bart")(input_ids=ids, decoder_input_ids=ids[:, :3], use_cache=True)
    assert cache_bytes(pair.past_key_values) == 2 * (5 + 3) * 2 * 2 * 16 * 4
    assert cache_bytes(None) == 0


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_encoder_decoders(family: str) -> None:
    pair = bestk.from_transformers(tiny(family))
    found = bench(pair, dataclasses.replace(SMALL, ks=(4,), batch=1))
    assert row(found, "best-k, k=4").expanded == row(found, BEAM).expanded == 18
    assert found.encoder_bytes > 0
    for one in found.rows:
        assert 0 < one.outside < 1
        read = found.weight_bytes * one.model_calls + found.encoder_bytes
        assert one.floor_seconds == pytest.approx(read / found.bandwidth)


def test_forward_timer_counts_nested_parts_once() -> None:
    model = tiny("t5")  # its base model is the model itself, with the output layer inside
    with forward_timer(model) as inside:
        beam_search(model, [[7, 8, 2]], dataclasses.replace(SMALL, batch=1))
    assert len(inside) == 1 + 6, "the encoder, then six steps"
    assert not model._forward_hooks


def test_without_full_methods_may_stop_short(lm: bestk.LanguageModel) -> None:
    found = bench(lm, dataclasses.replace(SMALL, ks=(2,), batch=1, full=False))
    assert row(found, BEAM).expanded <= 18
    config = dataclasses.replace(SMALL, full=False).best_k(2)
    assert config == bestk.SearchConfig(k=2, beam_size=3, max_new_tokens=6)


def test_the_model_is_left_as_it_was(lm: bestk.LanguageModel, report: BenchReport) -> None:
    model = lm.backend.network
    for part in model.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks


def test_json_has_every_number(report: BenchReport) -> None:
    data = json.loads(json.dumps(report.to_json()))
    assert data["format"] == "bestk.bench"
    assert data["settings"] == {**dataclasses.asdict(SMALL), "ks": [2, 4]}
    assert dataclasses.asdict(report.rows[0]).items() <= data["rows"][0].items()
    assert data["rows"][0]["ratio"] == report.rows[0].ratio
    assert data["memory"] == "key/value cache"
    assert [*data] == ["format", *(field.name for field in dataclasses.fields(report))]


def test_table(report: BenchReport) -> None:
    narrow = Console(file=io.StringIO(), width=80)
    narrow.print(table(report))
    lines = narrow.file.getvalue().splitlines()  # type: ignore[attr-defined]
    start = next(n for n, line in enumerate(lines) if line.startswith("method"))
    assert len(lines) == start + 1 + 5, "one line per method in 80 columns"
    beam = next(line for line in lines[start:] if line.startswith(BEAM))
    assert beam.split()[3:5] == ["1.00", "6"]
    one = dataclasses.replace(report.rows[0], outside=None)
    plain = Console(file=io.StringIO(), width=80)
    plain.print(table(dataclasses.replace(report, rows=(one,))))
    assert "n/a" in plain.file.getvalue()  # type: ignore[attr-defined]


def test_prompts_have_the_length_asked_and_differ(lm: bestk.LanguageModel) -> None:
    prompts = make_prompts(lm, dataclasses.replace(SMALL, batch=3, prompt_tokens=20))
    assert [len(prompt) for prompt in prompts] == [20, 20, 20]
    assert len(set(map(tuple, prompts))) == 3


@pytest.mark.model
def test_prompts_are_windows_of_a_text(smollm2: bestk.LanguageModel) -> None:
    first, second = make_prompts(smollm2, dataclasses.replace(SMALL, prompt_tokens=30))
    assert smollm2.decode([first])[0].endswith("said nothing, because there")
    assert first[:13] == second[17:], "seventeen tokens earlier"
    long = make_prompts(smollm2, dataclasses.replace(SMALL, batch=1, prompt_tokens=1000))
    assert len(long[0]) == 1000, "the text goes round"
    given = dataclasses.replace(SMALL, prompt="A cat sat on")
    assert make_prompts(smollm2, given) == [smollm2.encode("A cat sat on")] * 2


def test_bandwidth_is_one() -> None:
    assert 1e7 < copy_bandwidth(torch.device("cpu"), repeats=1) < 1e13


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 0}, "repeats must be a whole number of at least 1, got 0"),
        ({"batch": True}, "batch must be a whole number of at least 1, got True"),
        ({"ks": ()}, "ks must hold at least one k"),
        ({"ks": (400,)}, "k must be at most the budget of 18, got 400"),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dataclasses.replace(SMALL, **changes)


def test_models_that_cannot_be_measured(lm: bestk.LanguageModel) -> None:
    with pytest.raises(ModelError, match="bench needs a model of transformers, got"):
        bench(bestk.LanguageModel(random_toy(3, 8)), SMALL)
    with pytest.raises(PromptError, match="the prompt has 60 tokens, at most 58 fit"):
        bench(lm, dataclasses.replace(SMALL, prompt_tokens=60))


def test_command(
    cli: Any, lm: bestk.LanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(bestk, "load", lambda *_, **options: asked.append(options) or lm)
    sizes = ("--beam-size", "3", "--max-new-tokens", "6", "--prompt-tokens", "8", "--repeats", "1")
    code, out, err = cli("bench", "--k", "4", *sizes, "--json", "--dtype", "float32")
    assert (code, err) == (0, "")
    wanted = dataclasses.asdict(dataclasses.replace(SMALL, ks=(4,), batch=1))
    assert json.loads(out)["settings"] == {**wanted, "ks": [4]}
    assert asked == [{"dtype": "float32"}]
    code, out, _ = cli("bench", *sizes)
    assert code == 0
    assert [line.split("  ")[0] for line in out.splitlines()[-5:]][:2] == [
        "best-k, k=5",
        "best-k, k=10",
    ]
    code, out, err = cli("bench", "--repeats", "0")
    assert (code, out) == (2, "")
    assert err == "Error: repeats must be a whole number of at least 1, got 0\n"


@pytest.fixture
def page() -> Any:
    path = ROOT / "benchmarks" / "table.py"
    spec = importlib.util.spec_from_file_location("benchmark_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_results_that_are_kept(page: Any) -> None:
    logs = list((ROOT / "benchmarks" / "results").glob("h200-*"))
    made = page.sections(logs)
    assert set(made) == {"tables", "trees"}
    written = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert written == page.replaced(written, made), "run: see the end of benchmarks/README.md"


def test_tables_judge_by_the_target(page: Any, tmp_path: Path) -> None:
    common = {"batch": 1, "beam_s": 1.0, "first_call_s": 2.0}
    common |= {"over_floor": 3.0, "beam_peak_mb": 40.0, "bestk_peak_mb": 5.0}
    old, new, missed = (
        common | {"shape": "llama-1b", "k": k, "ratio": ratio, "bestk_s": ratio}
        for k, ratio in ((10, 0.5), (10, 0.1349), (5, 0.36))
    )
    log = tmp_path / "log"
    lines = ["no json", json.dumps({"gpu": "G1"}), *map(json.dumps, (old, new, missed))]
    log.write_text("\n".join(lines), encoding="utf-8")
    made = page.sections([log])["tables"].splitlines()
    assert made[0] == "Machine: gpu G1."
    assert made[2] == "Targets met: 1 of 2."
    assert made[-2] == "| 10 | 1 | 0.13 | 0.13 | met | 1.000 | 0.135 | 2.00 | 40 | 5 | 3.0 |"
    assert "| 0.24 | 0.36 | 1.5× target |" in made[-1]
    with pytest.raises(SystemExit, match="must hold the marks"):
        page.replaced("no marks", {"tables": "x"})


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.name)
def test_every_script_has_its_command(path: Path) -> None:
    commands = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert f"python benchmarks/{path.name}" in commands
