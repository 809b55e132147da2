"""Batch jobs killed at random moments: what comes out in the end is what an unbroken run writes."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import time
from pathlib import Path

import pytest
from batch_jobs import OPTIONS, rows_of, run_cli, write_rows

NUM_KILLS = 20
SIZES = ("--batch-size", "2", "--window", "4")


def context() -> multiprocessing.context.ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["batch_jobs", "bestk.batch", "bestk.cli.batch"])
    return made


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    rows = [*rows_of(60), "bad", *rows_of(60, seed=1), '{"prompt": ""}', *rows_of(30, seed=2)]
    source = write_rows(folder / "in.jsonl", rows)
    for name in ("out.jsonl", "out.parquet"):
        process = context().Process(
            target=run_cli, args=(str(source), "-o", str(folder / name), *OPTIONS, *SIZES)
        )
        process.start()
        process.join()
        assert process.exitcode == 1, "two rows are bad"
    return folder


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_twenty_random_kills_and_resumes_change_no_byte(
    unbroken: Path, tmp_path: Path, name: str
) -> None:
    """SIGKILL at random moments; a forked process each time, so that starting one is cheap."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    source = random.Random(name)
    output = tmp_path / name
    arguments = (str(unbroken / "in.jsonl"), "-o", str(output), *OPTIONS, *SIZES)
    folder = tmp_path / (name + ".job")
    state = folder / "state.json"
    kills = writes = 0
    while kills < NUM_KILLS:
        before = state.read_bytes() if state.exists() else b""
        process = context().Process(target=run_cli, args=arguments)
        process.start()
        # Most kills come a random while after it has written something, some before.
        is_early = source.random() < 0.15
        while process.is_alive() and not is_early:
            if state.exists() and state.read_bytes() != before:
                break
            time.sleep(0.0005)
        time.sleep(source.uniform(0, 0.03))
        process.kill()
        process.join()
        writes += state.exists() and state.read_bytes() != before
        assert process.exitcode in (-9, 1), "a job that was killed cannot go on"
        kills += process.exitcode == -9
        if process.exitcode == 1:  # it was done before the kill came: begin again
            assert output.read_bytes() == (unbroken / name).read_bytes()
            shutil.rmtree(folder)
            output.unlink()
    assert writes > NUM_KILLS // 2, "too many processes were killed before they did anything"
    process = context().Process(target=run_cli, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 1
    assert output.read_bytes() == (unbroken / name).read_bytes()
    errors = name + ".errors.jsonl"
    assert (tmp_path / errors).read_bytes() == (unbroken / errors).read_bytes()
    left = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    assert left == ["settings.json", "state.json"]


def test_a_window_torn_at_any_byte_is_done_again(tmp_path: Path) -> None:
    from bestk.batch import Job, follow_batch, run_batch
    from bestk.lm.toy_language import toy_language

    lm = toy_language()
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(6), "bad", *rows_of(4), "bad"])
    sizes = {"batch_size": 2, "window": 4}
    run_batch(lm, source, tmp_path / "whole.jsonl", **sizes)
    wanted = (tmp_path / "whole.jsonl").read_bytes()
    errors = (tmp_path / "whole.jsonl.errors.jsonl").read_bytes()
    output = tmp_path / "out.jsonl"
    folder = tmp_path / "out.jsonl.job"
    for torn in (1, 50, 700):
        steps = follow_batch(Job(model=lm, input=source, output=output, **sizes))
        next(steps), next(steps)
        done = (folder / "results.jsonl").stat().st_size
        with (folder / "results.jsonl").open("ab") as file:
            file.write(wanted[done : done + torn])  # written, but not in the state
        with (folder / "errors.jsonl").open("ab") as file:
            file.write(errors[:torn])
        steps.close()
        run_batch(lm, source, output, **sizes)
        assert output.read_bytes() == wanted, f"torn after {torn} bytes"
        assert (tmp_path / "out.jsonl.errors.jsonl").read_bytes() == errors
        shutil.rmtree(folder)
        output.unlink()


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_kill_between_any_two_steps(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some steps are too quick for random kills: break off before and after each of them."""
    import os

    from bestk import durable
    from bestk.batch import run_batch
    from bestk.lm.toy_language import toy_language

    class Killed(BaseException):
        pass

    lm = toy_language()
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(8), "bad"])
    run_batch(lm, source, tmp_path / f"whole-{name}", max_new_tokens=6)
    wanted = (tmp_path / f"whole-{name}").read_bytes()
    replace, put = os.replace, durable.replace
    broken = 0
    for place in range(40):
        folder = tmp_path / str(place)
        folder.mkdir()
        steps = iter(range(place))

        def tick() -> None:
            if next(steps, None) is None:  # noqa: B023
                raise Killed

        def rename(*paths: object) -> None:
            tick()
            replace(*paths)  # type: ignore[arg-type]
            tick()

        def write(path: Path, text: str) -> None:
            tick()
            put(path, text)
            tick()

        with monkeypatch.context() as patch:
            patch.setattr("bestk.batch.store.os.replace", rename)
            patch.setattr(durable, "replace", write)
            try:
                run_batch(lm, source, folder / name, max_new_tokens=6)
                break  # it was done before the step came
            except Killed:
                broken += 1
        done = run_batch(lm, source, folder / name, max_new_tokens=6)
        assert (done.num_rows, done.num_bad, done.is_done) == (8, 1, True)
        assert (folder / name).read_bytes() == wanted, f"broken off at step {place}"
        assert done.errors.read_text().startswith('{"line":9')
    assert 10 < broken < 39, "every step was broken off once, and the last run went through"
