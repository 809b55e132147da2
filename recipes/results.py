"""Every evaluation of the task models, one after the other. Killed, it goes on where it was.

    python recipes/results.py --data-dir data                 # all of them, into results/
    python recipes/results.py --data-dir data commongen drop  # some
    python recipes/results.py --list                          # the commands, one a line

The decay weight κ is chosen on runs over other examples than those reported: `…-validation`.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path

from bestk.cli import main as bestk

SWEEP = "paper,kappa"  # every method of the paper, and best-k search with κ from 0 to 0.2


@dataclass(frozen=True, kw_only=True)
class Run:
    """One evaluation: what `bestk eval` is told."""

    task: str
    model: str
    split: str | None = None
    methods: str = SWEEP
    num_examples: int = 200

    def command(self, folder: Path, more: list[str]) -> list[str]:
        """Return the command line, without the program's name."""
        told = ["eval", self.task, "--model", self.model, "-n", str(self.num_examples)]
        told += ["--methods", self.methods, *more, "-o", str(folder)]
        return told if self.split is None else [*told, "--split", self.split]


_HELD_OUT = "recipes/squad_held_out.py"
RUNS: dict[str, Run] = {
    "commongen": Run(task="commongen", model="smollm2-commongen", split="dev"),
    "squad": Run(task=_HELD_OUT, model="smollm2-question"),
    "quoref": Run(task="quoref", model="smollm2-question"),
    "drop": Run(task="drop", model="smollm2-question"),
    "scitldr": Run(task="scitldr", model="smollm2-tldr", split="test"),
    "multi30k-en-de": Run(task="multi30k-en-de", model="multi30k-en-de", num_examples=1000),
    "commongen-validation": Run(
        task="commongen", model="smollm2-commongen", split="test", methods="kappa"
    ),
    "scitldr-validation": Run(task="scitldr", model="smollm2-tldr", split="dev", methods="kappa"),
    "multi30k-en-de-validation": Run(
        task="multi30k-en-de", model="multi30k-en-de", split="val", methods="kappa"
    ),
    "ablation-gamma": Run(
        task="commongen", model="smollm2-commongen", split="dev", methods="gamma,heap,decay,k"
    ),
    "ablation-budget": Run(
        task="commongen", model="smollm2-commongen", split="dev", methods="budget,scoring"
    ),
}


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description="Run the evaluations of the task models.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("-o", "--output", type=Path, default=Path("results"))
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    options, more = parser.parse_known_args()
    for name in options.runs or RUNS:
        if name not in RUNS:
            parser.error(f"unknown run {name!r}: known are {', '.join(RUNS)}")
        told = RUNS[name].command(options.output / name, ["--data-dir", options.data_dir, *more])
        print("bestk", shlex.join(told), flush=True)
        if not options.list and (code := bestk(told)):
            raise SystemExit(code)


if __name__ == "__main__":
    main()
