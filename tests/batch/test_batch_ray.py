"""Batch jobs on a real Ray cluster of this machine: the same output, whoever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_jobs import rows_of, write_rows
from serving import until

from bestk.batch import Job, JobConfig, ModelName, RaySettings, follow_batch, run_batch
from bestk.config import SearchConfig
from bestk.errors import OptionError

ray: Any = pytest.importorskip("ray", reason="needs Ray: pip install 'bestk[ray]'")
psutil: Any = pytest.importorskip("psutil", reason="needs psutil, to find Ray's workers")

# Ray warns of its own coming changes; its pipes to dead workers stay open for a while.
pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster, not one for every worker
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SMALL: dict[str, Any] = {"beam_size": 3, "max_new_tokens": 6}
SIZES: dict[str, Any] = {"batch_size": 2, "window": 4}
ON_RAY = RaySettings(workers=2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster that all tests share; workers find the package where the tests found it."""
    import bestk

    root = str(Path(bestk.__file__).parent.parent)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *([before] if before else [])])
    os.environ["OMP_NUM_THREADS"] = "1"
    ray.init(
        "local",  # without it, Ray joins a cluster that a killed run has left behind
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=200_000_000,
    )
    yield
    ray.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job without Ray."""
    folder = tmp_path_factory.mktemp("unbroken")
    source = write_rows(folder / "in.jsonl", [*rows_of(40), "bad", *rows_of(40, seed=1)])
    done = run_batch("toy", source, folder / "out.jsonl", **SIZES, **SMALL)
    assert (done.num_rows, done.num_bad) == (80, 1)
    return folder


def workers() -> list[Any]:
    """Find the actors that search, among the processes that this one has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "MapWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.usefixtures("cluster")
def test_killed_workers_rows_are_done_again(unbroken: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    job = Job(
        model=ModelName("toy"),
        input=unbroken / "in.jsonl",
        output=output,
        wanted=JobConfig(config=SearchConfig(**SMALL)),
        ray=ON_RAY,
        **SIZES,
    )
    killed: set[int] = set()
    for number, step in enumerate(follow_batch(job)):
        if number in (2, 6) and not step.is_done:
            until(workers, seconds=120)  # those that replace the killed take a while to start
            alive = workers()
            for process in alive if number == 2 else alive[:1]:
                os.kill(process.pid, signal.SIGKILL)
                killed.add(process.pid)
    assert len(killed) >= 2
    assert output.read_bytes() == (unbroken / "out.jsonl").read_bytes()
    errors = "out.jsonl.errors.jsonl"
    assert (tmp_path / errors).read_bytes() == (unbroken / errors).read_bytes()


@pytest.mark.usefixtures("cluster")
def test_a_job_begun_on_ray_goes_on_without_it(unbroken: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    job = Job(
        model=ModelName("toy"),
        input=unbroken / "in.jsonl",
        output=output,
        wanted=JobConfig(config=SearchConfig(**SMALL)),
        ray=ON_RAY,
        **SIZES,
    )
    steps = follow_batch(job)
    for _ in range(4):
        next(steps)
    steps.close()
    done = run_batch("toy", unbroken / "in.jsonl", output, **SIZES, **SMALL)
    assert 0 < done.num_read < 81, "what Ray did is not done again"
    assert output.read_bytes() == (unbroken / "out.jsonl").read_bytes()


@pytest.mark.usefixtures("cluster")
def test_what_the_model_cannot_take_is_one_clear_error(unbroken: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="stop_ids go from 0 to 31, got 99"):
        run_batch("toy", unbroken / "in.jsonl", tmp_path / "o.jsonl", ray=ON_RAY, stop_ids=(99,))
    assert not list(tmp_path.iterdir())


def test_settings_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="start the job on a machine of the cluster"):
        RaySettings(address="ray://head:10001")
    with pytest.raises(OptionError, match="workers must be at least 1"):
        RaySettings(workers=0)


def test_a_loaded_model_cannot_travel(tmp_path: Path) -> None:
    from bestk.lm.toy_language import toy_language

    with pytest.raises(OptionError, match="every worker loads the model: give its name"):
        run_batch(toy_language(), tmp_path / "in.jsonl", tmp_path / "o.jsonl", ray=ON_RAY)


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from bestk.batch.on_ray import OnRay

    def init(address: str, **options: Any) -> None:
        raise ConnectionError(f"Could not find any running Ray instance at {address}.\nMore.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    engine = OnRay(RaySettings(address="head:6379"), ModelName("toy"))
    with pytest.raises(OptionError, match="no Ray cluster at head:6379: Could not find any"):
        engine.prepare(JobConfig(), (), None)
