"""Every evaluation of the task models, one after the other. Killed, it goes on where it was.

    python recipes/results.py --data-dir data                 # all of them, into results/
    python recipes/results.py --data-dir data commongen drop  # some
    python recipes/results.py --data-dir data --jobs 6        # six at a time, where a GPU is idle
    python recipes/results.py drop -- --batch-size 100        # behind --: more for `bestk eval`
    python recipes/results.py --list                          # the commands, one a line
    python recipes/results.py --pack commongen drop           # put finished runs away

The decay weight κ is chosen on runs over other examples than those reported: `…-validation`. A run
that is put away is compressed and has no examples: reports take them from the data again.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bestk.cli import main as bestk

SAMPLERS = ("Ncls0.5", "Ncls0.8", "Ncls0.9", "Typ0.2", "Typ0.5", "Typ0.95")
BASELINES = ",".join(["BS", "DBS", "DBS+", "BNcls0.8", "BTyp0.5", *SAMPLERS])
DRAWS = ",".join(f"{name}:num_draws=10" for name in SAMPLERS)
METHODS = f"{BASELINES},BFS,ours,{DRAWS}"
TRANSLATING = "BS,DBS,BTyp0.5,BNcls0.8,Ncls0.8:num_draws=10,BKS_mean,BKS_last"
# On the validation runs, by the best text: of the diverse ten on CommonGen, else of all.
CHOSEN = {
    "commongen": "BKS_mean:decay_weight=0,BKS_last:decay_weight=0.05",
    "squad": "BKS_mean:decay_weight=0,BKS_last:decay_weight=0",
    "scitldr": "BKS_mean:decay_weight=0,BKS_last:decay_weight=0.1",
}
_VALIDATION: dict[str, Any] = {"methods": "BS:beam_size=1,BS,kappa", "num_examples": 200}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One evaluation: what `bestk eval` is told."""

    task: str
    model: str
    split: str | None = None
    methods: str = METHODS
    num_examples: int = 300
    batch_size: int | None = None

    def command(self, folder: Path, more: list[str]) -> list[str]:
        """Return the command line, without the program's name."""
        told = ["eval", self.task, "--model", self.model, "-n", str(self.num_examples)]
        told += ["--dtype", "float32", "--methods", self.methods, *more, "-o", str(folder)]
        if self.split is not None:
            told += ["--split", self.split]
        return told if self.batch_size is None else [*told, "--batch-size", str(self.batch_size)]


_COMMONGEN = Run(task="commongen", model="smollm2-commongen", split="dev")
_SQUAD = Run(task="recipes/squad_held_out.py", model="smollm2-question", num_examples=200)
_QUOREF = Run(task="quoref", model="smollm2-question", num_examples=200)
_DROP = Run(task="drop", model="smollm2-question", num_examples=200)
_SCITLDR = Run(task="scitldr", model="smollm2-tldr", split="test", num_examples=200)
_MULTI30K = Run(task="multi30k-en-de", model="multi30k-en-de")
RUNS: dict[str, Run] = {
    "commongen": _COMMONGEN,
    "squad": _SQUAD,
    "quoref": _QUOREF,
    "drop": _DROP,
    "scitldr": _SCITLDR,
    "commongen-kappa": replace(_COMMONGEN, methods="kappa"),
    "squad-kappa": replace(_SQUAD, methods="kappa"),
    "quoref-kappa": replace(_QUOREF, methods="kappa"),
    "drop-kappa": replace(_DROP, methods="kappa"),
    "scitldr-kappa": replace(_SCITLDR, methods="kappa"),
    "multi30k-en-de": replace(_MULTI30K, methods="paper,kappa"),
    "multi30k-en-fr": Run(task="multi30k-en-fr", model="multi30k-en-fr", methods=TRANSLATING),
    "commongen-validation": replace(_COMMONGEN, split="test", **_VALIDATION),
    "squad-validation": replace(_SQUAD, split="validation", **_VALIDATION),
    "scitldr-validation": replace(_SCITLDR, split="dev", **_VALIDATION),
    "multi30k-en-de-validation": replace(_MULTI30K, split="val", **_VALIDATION),
    "ablation": replace(_COMMONGEN, methods="gamma,heap,decay,k", num_examples=200),
    "budget": replace(_COMMONGEN, methods="budget,scoring", num_examples=200),
    "efficiency": replace(_COMMONGEN, methods="efficiency", num_examples=20, batch_size=1),
}


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description="Run the evaluations of the task models.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("-o", "--output", type=Path, default=Path("results"))
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--pack", action="store_true", help="put runs away instead")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, in processes")
    words = [*sys.argv[1:], "--"]
    ours, more = words[: words.index("--")], words[words.index("--") + 1 : -1]
    options = parser.parse_args(ours)
    names = options.runs or list(RUNS)
    for name in names:
        if name not in RUNS:
            parser.error(f"unknown run {name!r}: known are {', '.join(RUNS)}")
    if options.jobs > 1 and not (options.list or options.pack):
        shared = ["--data-dir", options.data_dir, "-o", str(options.output), "--", *more]
        # What is timed runs alone, when the others are done.
        timed = [name for name in names if RUNS[name].batch_size == 1]
        others = [name for name in names if name not in timed]
        failed = at_once(others, options.jobs, shared) + at_once(timed, 1, shared)
        raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)
    for name in names:
        if options.pack:
            pack(options.output / name)
            continue
        told = RUNS[name].command(options.output / name, ["--data-dir", options.data_dir, *more])
        print("bestk", shlex.join(told), flush=True)
        if not options.list and (code := bestk(told)):
            raise SystemExit(code)


def at_once(names: Sequence[str], jobs: int, shared: list[str]) -> list[str]:
    """Give each run a process of its own, some at a time; return those that failed."""

    def one(name: str) -> bool:
        done = subprocess.run([sys.executable, __file__, name, *shared], check=False)
        print(name, "done" if done.returncode == 0 else "failed", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(jobs) as pool:
        went_well = dict(zip(names, pool.map(one, names), strict=True))
    return [name for name in names if not went_well[name]]


def pack(folder: Path) -> None:
    """Compress the results of a run, and drop what the data give again.

    Times are kept where prompts ran alone; those of a batch are its mean.
    """
    kept = ["results.jsonl"]
    if json.loads((folder / "settings.json").read_bytes())["batch_size"] == 1:
        kept.append("times.jsonl")
    for name in kept:
        # Texts of one example come again from many methods, farther apart than gzip looks back.
        packed = lzma.compress((folder / name).read_bytes())
        (folder / f"{name}.xz").write_bytes(packed)
    for name in ("results.jsonl", "examples.jsonl", "times.jsonl"):
        (folder / name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
