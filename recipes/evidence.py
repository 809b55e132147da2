"""Runs many methods on many tasks on one machine, in processes side by side, until a time is up.

    python recipes/evidence.py --data-dir data -o out --jobs 12 --seconds 480
    python recipes/evidence.py --data-dir data -o out/smoke --only chat-64 -n 4
    python recipes/evidence.py --pack -o out          # one file per task: texts, numbers, settings

Each method of each run has a folder of its own, what matters most comes first, and a process takes
the next that nobody has taken. A method that fails leaves its traceback in `logs/` and costs no
other's time; what the time does not suffice for is left out, and goes on where the same command is
given again. Packed runs hold what `bestk report` reads.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 20.0  # seconds that a process is given to stop by itself
SEEDS = (0, 1, 2)


def seeded(*names: str) -> list[str]:
    """Give each sampler every seed."""
    return [f"{name},seed={seed}" for seed in SEEDS for name in names]


# Ours: no ending rule on tasks, as the paper has none; and the default, which has it.
OURS = ["BKS_diverse:end_prob=1", "BKS_mean:decay_weight=0", "BKS_last:decay_weight=0.05"]
SAMPLERS = ["Minp0.1:walk=distinct", "Minp0.1:walk=shared", "Ncls0.5:walk=shared"]
BEAMS = ["BS", "DBS+:diversity_penalty=0.8", "BS:beam_size=15"]
WIDER = ["BS:beam_size=20", "DBS+:beam_size=15,diversity_penalty=0.8,num_groups=15"]
MORE = [
    "SWOR:min_p=0.1",
    "SWOR:temperature=0.5",
    "BKS_diverse:end_prob=1,novelty=0.5",
    "BKS_diverse:end_prob=1,novelty=2",
    "BKS_diverse",
    "BKS_diverse:end_prob=1,k=5,num_texts=10",
    "Ncls0.5:walk=arithmetic",
    "Minp0.1:walk=arithmetic",
    "Minp0.3:walk=distinct",
    "Ncls0.8:walk=shared",
    "DBS+:diversity_penalty=0.3",
    "DBS+:diversity_penalty=1.5",
]
OTHERS = [
    "Ncls0.7:walk=shared",
    "Ncls0.9:walk=shared",
    "Temp0.7:walk=shared",
    "Temp0.5:walk=distinct",
    "Nsig1:walk=shared",
    "Minp0.2:walk=distinct",
    "Ncls0.5:walk=distinct",
]
FIRST = [*OURS, *BEAMS, *seeded(*SAMPLERS)]
CHAT = [
    "BKS_diverse",
    "BKS_diverse:end_prob=1",
    "Minp0.1:walk=distinct",
    "Ncls0.8:walk=shared",
    "BS",
    "BKS_mean",
    "BKS_diverse:novelty=2",
    "BKS_diverse:novelty=0.5",
    "Ncls0.5:walk=shared",
    "Ncls0.9:walk=shared",
    "DBS+:diversity_penalty=0.8",
    "Temp0.7:walk=shared",
    "SWOR:min_p=0.1",
]
# A line ends the text.
LINES = [
    f"{name}{',' if ':' in name else ':'}stop_ids=198"
    for name in (
        "BKS_diverse:end_prob=1,k=25",
        "Minp0.1:walk=distinct",
        "Temp0.7:walk=distinct",
        "Temp1:walk=shared",
        "Minp0.1:walk=shared",
        "Ncls0.9:walk=shared",
        "BS",
        "BKS_mean:k=25",
        "BKS_diverse:end_prob=1,k=25,novelty=0.5",
        "Temp1:walk=distinct",
    )
]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Examples of one task, and the methods that go over them."""

    task: str
    model: str
    methods: Sequence[str]
    num_examples: int
    split: str | None = None
    max_new_tokens: int | None = None
    beam_size: int = 10
    batch_size: int = 64
    style: str = "auto"

    @property
    def packed_as(self) -> str:
        """Name the file that the run is packed into."""
        return "questions" if self.task in ("quoref", "drop") else Path(self.task).stem


_CHAT = {"task": "recipes/chat.py", "model": "smollm2", "num_examples": 40}
_COMMONGEN: dict[str, Any] = {"task": "commongen", "model": "smollm2-commongen"}
_SQUAD: dict[str, Any] = {"task": "recipes/squad_held_out.py", "model": "smollm2-question"}
_SCITLDR: dict[str, Any] = {"task": "scitldr", "model": "smollm2-tldr"}
_QUESTIONS: dict[str, Any] = {"model": "smollm2-question", "num_examples": 200}
_MULTI30K: dict[str, Any] = {"task": "multi30k-en-de", "model": "multi30k-en-de"}
RUNS: dict[str, Run] = {
    "commongen": Run(**_COMMONGEN, split="dev", num_examples=300, methods=FIRST),
    "chat-64": Run(**_CHAT, max_new_tokens=64, methods=CHAT),
    "squad": Run(**_SQUAD, num_examples=200, methods=FIRST),
    "scitldr": Run(**_SCITLDR, split="test", num_examples=200, methods=FIRST),
    "chat-32": Run(**_CHAT, max_new_tokens=32, methods=CHAT),
    "chat-128": Run(**_CHAT, max_new_tokens=128, methods=CHAT),
    "expressions": Run(
        task="recipes/expressions.py",
        model="smollm2",
        style="plain",
        num_examples=60,
        beam_size=100,
        batch_size=12,
        methods=LINES,
    ),
    "chat-256": Run(**_CHAT, max_new_tokens=256, methods=CHAT),
    "multi30k": Run(**_MULTI30K, num_examples=300, methods=[*OURS, *BEAMS, *SAMPLERS]),
    "commongen-more": Run(**_COMMONGEN, split="dev", num_examples=300, methods=[*MORE, *WIDER]),
    "squad-more": Run(**_SQUAD, num_examples=200, methods=[*MORE, *WIDER]),
    "scitldr-more": Run(**_SCITLDR, split="test", num_examples=200, methods=[*MORE, *WIDER]),
    "commongen-tuning": Run(
        **_COMMONGEN, split="test", num_examples=100, methods=[*OURS, *SAMPLERS, *MORE, *OTHERS]
    ),
    "squad-tuning": Run(
        **_SQUAD, split="validation", num_examples=100, methods=[*OURS, *SAMPLERS, *MORE, *OTHERS]
    ),
    "scitldr-tuning": Run(
        **_SCITLDR, split="dev", num_examples=60, methods=[*OURS, *SAMPLERS, *MORE, *OTHERS]
    ),
    "quoref": Run(task="quoref", **_QUESTIONS, methods=[*OURS, *BEAMS, *SAMPLERS]),
    "drop": Run(task="drop", **_QUESTIONS, methods=[*OURS, *BEAMS, *SAMPLERS]),
    "commongen-others": Run(**_COMMONGEN, split="dev", num_examples=300, methods=OTHERS),
    "squad-others": Run(**_SQUAD, num_examples=200, methods=OTHERS),
}

Job = tuple[str, str]  # run, method


def main() -> None:
    """Run, or pack, what the command line names."""
    parser = argparse.ArgumentParser(description="Run the evaluations that methods are judged by.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="*", default=list(RUNS), help="runs, all unless given")
    parser.add_argument("--methods", help="those whose names this regular expression finds")
    parser.add_argument("-n", "--num-examples", type=int, help="at most so many of each run")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after these")
    parser.add_argument("--pack", action="store_true", help="put into one file per run instead")
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)  # when to stop
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in RUNS]:
        parser.error(f"unknown runs {', '.join(unknown)}: known are {', '.join(RUNS)}")
    if options.pack:
        pack(options.output)
    elif options.worker is None:
        supervise(options)
    else:
        work(options)


def jobs(only: Sequence[str], pattern: str | None) -> list[Job]:
    """List what is to be done, in order of importance."""
    return [
        (name, method)
        for name in RUNS
        if name in only
        for method in RUNS[name].methods
        if pattern is None or re.search(pattern, method)
    ]


def supervise(options: argparse.Namespace) -> None:
    """Keep so many processes at work until all is done or the time is up."""
    ends = time.time() + options.seconds
    for claim in (options.output / "claims").glob("*"):
        claim.unlink()  # of a call that has ended
    command = [sys.executable, *sys.argv, "--worker", str(ends)]
    logs = options.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    running: dict[int, subprocess.Popen[bytes]] = {}
    tries = dict.fromkeys(range(options.jobs), 3)
    while any(tries.values()) and time.time() < ends + PATIENCE:
        for number in tries:
            process = running.get(number)
            if process is not None and process.poll() is None:
                continue
            if tries[number] == 0 or (process is not None and process.returncode == 0):
                tries[number] = 0
                continue
            tries[number] -= 1
            with (logs / f"worker-{number}.txt").open("ab") as log:
                running[number] = subprocess.Popen(command, stdout=log, stderr=log)
        time.sleep(0.5)
    for process in running.values():
        if process.poll() is None:
            process.kill()
    print(*(f"{name}: {told}" for name, told in standing(options).items()), sep="\n")


def standing(options: argparse.Namespace) -> dict[str, str]:
    """Tell how many methods of each run are done, and which have failed."""
    told = {}
    for name in options.only:
        listed = jobs([name], options.methods)
        done = sum((options.output / "done" / slug(job)).exists() for job in listed)
        failed = [job[1] for job in listed if (options.output / "logs" / slug(job)).exists()]
        told[name] = f"{done} of {len(listed)}" + (f", failed: {failed}" if failed else "")
    return told


def work(options: argparse.Namespace) -> None:
    """Do what nobody else does, until nothing is left or the time is up."""
    import bestk

    load = functools.cache(bestk.load)
    for folder in ("claims", "done", "logs"):
        (options.output / folder).mkdir(parents=True, exist_ok=True)
    for job in jobs(options.only, options.methods):
        if time.time() > options.worker:
            return
        if (options.output / "done" / slug(job)).exists():
            continue
        if not _claims(options.output / "claims" / slug(job)):
            continue
        started = time.time()
        try:
            is_done = run(job, load, options)
        except Exception:
            (options.output / "logs" / slug(job)).write_text(traceback.format_exc())
            print(f"{slug(job)}: failed", flush=True)
            continue
        print(f"{slug(job)}: {time.time() - started:.1f} s", flush=True)
        if is_done:
            (options.output / "done" / slug(job)).touch()


def run(job: Job, load: Any, options: argparse.Namespace) -> bool:
    """Run one method over the examples; return whether it went through all of them."""
    from bestk_eval.runner import Settings, evaluate

    name, method = job
    one = RUNS[name]
    settings = Settings(
        task=one.task,
        methods=(method,),
        split=one.split,
        num_examples=min(one.num_examples, options.num_examples or one.num_examples),
        beam_size=one.beam_size,
        max_new_tokens=one.max_new_tokens,
        style=one.style,
        batch_size=one.batch_size,
        data_dir=options.data_dir,
    )
    lm = load(one.model, dtype="float32")  # as the runs of a CPU are
    is_done = False
    for step in evaluate(lm, settings, options.output / "runs" / name / slug(job)):
        is_done = step.done == step.total
        if time.time() > options.worker:
            break
    return is_done


def slug(job: Job) -> str:
    """Name a job as a file.

    >>> slug(("squad", "Minp0.1:walk=distinct,seed=1"))
    'squad.Minp0.1_walk-distinct_seed-1'
    """
    run_name, method = job
    return f"{run_name}.{re.sub('[:,]', '_', method).replace('=', '-')}"


def _claims(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def pack(folder: Path) -> None:
    """Put the runs of every model, and the logs, into one file each."""
    (folder / "packed").mkdir(exist_ok=True)
    groups: dict[str, list[Path]] = {}
    for path in sorted((folder / "runs").iterdir()):
        groups.setdefault(RUNS[path.name].packed_as, []).append(path)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: _pack(folder / "packed", name, groups[name]), groups))
    texts = [path for path in (folder / "logs").iterdir() if path.stat().st_size]
    with tarfile.open(folder / "packed" / "logs.tar.xz", "w:xz") as out:
        for path in texts:
            out.add(path, path.name)


def _pack(packed: Path, name: str, runs: Sequence[Path]) -> None:
    """Write the finished methods of some runs, those of one run together, in a tar.xz."""
    with (
        lzma.open(packed / f"{name}.tar.xz", "wb", preset=4) as whole,
        tarfile.open(fileobj=whole, mode="w|") as out,
    ):
        for run in runs:
            finished = list(_finished(run))
            for file, data in _joined(finished).items() if finished else ():
                told = tarfile.TarInfo(f"{run.name}/{file}")
                told.size = len(data)
                out.addfile(told, io.BytesIO(data))


def _joined(finished: Sequence[tuple[dict[str, Any], Path]]) -> dict[str, bytes]:
    """Return the files of a run that has these methods."""
    settings = finished[0][0] | {"methods": [one["methods"][0] for one, _ in finished]}
    files = {
        "settings.json": json.dumps(settings, indent=2, ensure_ascii=False).encode(),
        "examples.jsonl": (finished[0][1] / "examples.jsonl").read_bytes(),
    }
    for name in ("results.jsonl", "times.jsonl"):
        files[name] = b"".join((place / name).read_bytes() for _, place in finished)
    return files


def _finished(run: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the settings and folders of methods that went through all examples, in their order."""
    for method in RUNS[run.name].methods:
        place = run / slug((run.name, method))
        if not (place / "results.jsonl").exists():
            continue
        settings = json.loads((place / "settings.json").read_bytes())
        lines = (place / "results.jsonl").read_bytes().count(b"\n")
        if lines == settings["examples"]:
            yield settings, place


if __name__ == "__main__":
    main()
