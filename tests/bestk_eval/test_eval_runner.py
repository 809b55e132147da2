"""The runner: resuming after kills, refusing to mix runs, names of methods."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from evaluation_toy import run_toy, toy_lm, toy_task

from bestk.baselines import Nucleus, Sampling
from bestk.errors import BestKError, OptionError, SchemaError
from bestk_eval import runner
from bestk_eval.loading import load_runs
from bestk_eval.methods import ABLATIONS, groups, parse, parse_all, split
from bestk_eval.runner import Settings, evaluate, make_plan
from bestk_eval.store import Store

NUM_KILLS = 20


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    run_toy(folder)
    return folder


def test_a_run_writes_every_pair_once_in_the_order_of_the_plan(unbroken: Path) -> None:
    lines = [json.loads(line) for line in (unbroken / "results.jsonl").read_text().splitlines()]
    pairs = [(line["example"], line["method"]) for line in lines]
    methods = json.loads((unbroken / "settings.json").read_text())["methods"]
    assert methods == ["BS", "Ncls0.8", "BKS_mean", "BKS_last:k=3"]
    assert len(pairs) == len(set(pairs)) == 12 * 4
    assert [pair for pair in pairs if pair[1] == "BS"] == [(f"e{i}", "BS") for i in range(12)]
    for line in lines:
        assert len(line["texts"]) == len(set(line["texts"])) == len(line["counts"])
        assert line["expanded"] <= 18


def test_twenty_random_kills_and_resumes_change_no_byte(unbroken: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments; a forked process each time, so that starting one is cheap."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["evaluation_toy", "bestk_eval.runner"])
    source = random.Random(3)
    folder, wanted = tmp_path / "killed", (unbroken / "results.jsonl").read_bytes()
    kills = 0
    while kills < NUM_KILLS:
        process = context.Process(target=run_toy, args=(str(folder),))
        process.start()
        results = folder / "results.jsonl"
        before = results.stat().st_size if results.exists() else 0
        # From the moment it has begun to write: as far as it gets in a random while.
        deadline = time.monotonic() + 60
        while process.is_alive() and time.monotonic() < deadline:
            if results.exists() and results.stat().st_size > before:
                break
            time.sleep(0.001)
        time.sleep(source.uniform(0, 0.02))
        process.kill()
        process.join()
        kills += process.exitcode != 0
        if process.exitcode == 0:  # it was done before the kill came: begin again
            assert results.read_bytes() == wanted
            for path in folder.iterdir():
                path.unlink()
    run_toy(folder)
    assert (folder / "results.jsonl").read_bytes() == wanted
    assert (folder / "examples.jsonl").read_bytes() == (unbroken / "examples.jsonl").read_bytes()
    assert (folder / "settings.json").read_bytes() == (unbroken / "settings.json").read_bytes()
    assert len(load_runs([folder]).pools["BS"]) == 12


def test_a_result_file_torn_at_any_byte_is_mended(unbroken: Path, tmp_path: Path) -> None:
    wanted = (unbroken / "results.jsonl").read_bytes()
    source = random.Random(0)
    for place in [0, 1, len(wanted) - 1, *source.sample(range(len(wanted)), 12)]:
        folder = tmp_path / str(place)
        folder.mkdir()
        for name in ("settings.json", "examples.jsonl", "times.jsonl"):
            (folder / name).write_bytes((unbroken / name).read_bytes())
        (folder / "results.jsonl").write_bytes(wanted[:place])
        times = (unbroken / "times.jsonl").read_bytes()
        (folder / "times.jsonl").write_bytes(times[: min(place, len(times))])
        run_toy(folder)
        assert (folder / "results.jsonl").read_bytes() == wanted, f"torn at byte {place}"
        load_runs([folder])


def test_leaving_off_and_going_on(unbroken: Path, tmp_path: Path) -> None:
    settings = Settings(
        task=toy_task(),
        methods=("BS", "Ncls0.8", "BKS_mean", "BKS_last:k=3"),
        beam_size=3,
        batch_size=5,
    )
    steps = evaluate(toy_lm(), settings, tmp_path)
    assert next(steps).done == 0
    assert next(steps).done == 5
    steps.close()
    left = list(evaluate(toy_lm(), settings, tmp_path))
    assert [step.done for step in left] == [5, 10, 15, 20, 25, 30, 35, 40, 42, 44, 46, 48]
    assert (tmp_path / "results.jsonl").read_bytes() == (unbroken / "results.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"beam_size": 4}, "beam_size=3, now it is 4"),
        ({"methods": ("BS",)}, "methods=BS,Ncls0.8"),
        ({"num_examples": 5}, "examples=12, now it is 5"),
        ({"seed": 1}, "seed=0, now it is 1"),
        ({"batch_size": 2}, "batch_size=5, now it is 2"),
        ({"task": toy_task(13)}, "examples=12, now it is 13"),
    ],
)
def test_runs_of_different_settings_do_not_mix(
    unbroken: Path, change: dict[str, object], named: str
) -> None:
    before = (unbroken / "results.jsonl").read_bytes()
    with pytest.raises(OptionError, match="do not mix") as error:
        run_toy(unbroken, **change)
    assert named in str(error.value)
    assert (unbroken / "results.jsonl").read_bytes() == before


def test_runs_of_another_arithmetic_do_not_mix(tmp_path: Path) -> None:
    def told(dtype: str) -> dict[str, Any]:
        return {"dtype": dtype, "device": "cpu"}

    settings = Settings(task=toy_task(2), methods=("BS",), beam_size=2, max_new_tokens=2)
    lm = toy_lm()
    for dtype in ("float32", "float32"):
        lm.backend.facts = lambda dtype=dtype: told(dtype)  # type: ignore[method-assign]
        list(evaluate(lm, settings, tmp_path))
    lm.backend.facts = lambda: told("bfloat16")  # type: ignore[method-assign]
    with pytest.raises(OptionError, match="dtype=float32, now it is bfloat16"):
        list(evaluate(lm, settings, tmp_path))


def test_searches_that_complete_nothing_are_counted_not_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="bestk")
    run_toy(tmp_path, methods=("BKS_mean:min_prob=0.9",), max_new_tokens=1)
    assert not any(line["texts"] for line in _lines(tmp_path)), "else nothing is shown"
    assert not caplog.records


def test_the_model_is_tried_out_before_a_method_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    requests_for = runner.requests_for
    monkeypatch.setattr(runner, "_warm_up", lambda lm, prompt: calls.append("warm up"))

    def counted(*given: Any, **named: Any) -> Any:
        calls.append("run")
        return requests_for(*given, **named)

    monkeypatch.setattr(runner, "requests_for", counted)
    run_toy(tmp_path, methods=("BS", "BKS_mean"), task=toy_task(2))
    assert calls == ["warm up", "run", "run"]
    run_toy(tmp_path, methods=("BS", "BKS_mean"), task=toy_task(2))
    assert len(calls) == 3, "a finished run must not touch the model"


def test_a_changed_result_file_is_refused(unbroken: Path, tmp_path: Path) -> None:
    for path in unbroken.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = (tmp_path / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines[1:]))
    with pytest.raises(SchemaError, match="was changed"):
        run_toy(tmp_path)


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(OptionError, match="another evaluation"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_results_do_not_depend_on_the_batch(unbroken: Path, tmp_path: Path) -> None:
    run_toy(tmp_path, batch_size=1)
    one = {(r["example"], r["method"]): r for r in _lines(tmp_path)}
    five = {(r["example"], r["method"]): r for r in _lines(unbroken)}
    assert one == five


def test_examples_with_equally_long_answers_go_together() -> None:
    from dataclasses import replace

    task = replace(toy_task(), source_factor=1.5)
    lm = toy_lm()
    examples = list(task.examples())  # type: ignore[misc]
    examples[3] = replace(examples[3], input="a dog")
    plan = make_plan(lm, task, examples, [parse("BS")], Settings(task=task, batch_size=4))
    assert sorted({batch.max_new_tokens for batch in plan}) == [3, 6]
    assert sorted(e.id for b in plan for e in b.examples) == sorted(e.id for e in examples)


def test_names_of_methods() -> None:
    method = parse("bks_LAST: k=10, decay_weight=0.1")
    assert method.name == "BKS_last:decay_weight=0.1,k=10"
    config = method.config(max_new_tokens=20, beam_size=10)
    assert (config.k, config.decay_weight, config.total_budget) == (10, 0.1, 200)
    assert parse("BFS:beam_size=2").config(20, 10).total_budget == 40
    assert parse("BKS_mean:beam_size=1").config(3, 10).k == 3, "a short answer has a small budget"
    assert parse("Ncls0.8:num_draws=10").method == Sampling(filter=Nucleus(0.8), num_draws=10)
    assert parse("Typ0.33").base == "Typ0.33"
    assert [m.name for m in parse_all(["ours", "BKS_mean"])] == ["BKS_mean", "BKS_last"]
    assert split("BS, BKS:k=3,decay=log,DBS+") == ["BS", "BKS:k=3,decay=log", "DBS+"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BKS_lst", "did you mean 'BKS_last'"),
        ("BKS_last:kk=3", "did you mean 'k'"),
        ("BKS_last:k", "key=value"),
        ("BKS_last:k=0", "k must be at least 1"),
        ("BKS_mean:scoring=sum", "use BKS"),
        ("BS:num_draws=4", "for samplers"),
        ("BS:max_new_tokens=4", "the task sets"),
        ("Ncls7", "7"),
        ("Ncls0.8:num_draws=0", "num_draws must be at least 1"),
    ],
)
def test_a_bad_name_says_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(name)
    assert message in str(error.value)


def test_methods_are_checked_against_the_settings_before_any_runs(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="method 'DBS': beam_size=3 must be a multiple of"):
        run_toy(tmp_path / "run", methods=("BS", "DBS"))
    assert not (tmp_path / "run").exists()
    run_toy(tmp_path / "run", methods=("BS", "DBS:beam_size=5"), task=toy_task(1))


def test_every_recipe_can_be_run() -> None:
    for name in (*groups(), *ABLATIONS):
        for method in parse_all([name]):
            method.config(max_new_tokens=20, beam_size=10)
    kappas = {m.config(20, 10).decay_weight for m in parse_all(["kappa"])}
    assert kappas == {0, 0.01, 0.05, 0.1, 0.2}
    assert len(parse_all(["kappa"])) == 27  # 15 by the power of age, 12 by its logarithm
    assert len(parse_all(["scoring"])) == 20


@pytest.mark.parametrize("name", ["num_examples", "beam_size", "max_new_tokens", "batch_size"])
def test_settings_below_one_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} must be at least 1"):
        Settings(**{"task": "commongen", name: 0})


def _lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


# Slow: a run of the evaluation for every write that fails.
@pytest.mark.slow
def test_a_disk_that_is_full_at_any_write_costs_nothing(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, num_full = os.fsync, 0
    names = ("results.jsonl", "examples.jsonl", "settings.json")
    for place in (*range(12), *range(12, 400, 60)):
        folder = tmp_path / str(place)
        left = iter(range(place))

        def failing(number: int) -> None:
            if next(left, None) is None:  # noqa: B023
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(number)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            try:
                run_toy(folder)
                break  # it was done before the disk was full
            except (OSError, BestKError) as error:
                num_full += 1
                assert "No space left on device" in str(error)  # noqa: PT017
        run_toy(folder)
        for name in names:
            assert (folder / name).read_bytes() == (unbroken / name).read_bytes(), place
    assert num_full >= 10
