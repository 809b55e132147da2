"""The tables of docs/results-full.md, made from the runs in results/.

    python recipes/page.py --data-dir data             # all of them: some minutes
    python recipes/page.py --data-dir data commongen   # one
    python recipes/page.py --data-dir data --keep-scores   # and keep what took long in results/

Each table stands between two marks of the page, with the command that prints it; what is written
around them stays as it is.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from results import CHOSEN, TRANSLATING  # noqa: E402
from table import replaced  # noqa: E402

from bestk_eval.methods import split  # noqa: E402
from bestk_eval.metrics.registry import MetricModels  # noqa: E402
from bestk_eval.plots import diversity_quality  # noqa: E402
from bestk_eval.report import Report, make_report  # noqa: E402

PAGE = ROOT / "docs" / "results-full.md"
IMAGES = ROOT / "docs" / "images"
TEXTS = ("counts", "distinct", "rouge", "coverage")
# WordNet, and a model that reads every text: minutes each.
QUESTIONS = (*TEXTS[:3], "meteor", "mauve")
ALL = (*TEXTS, "meteor", "mauve")
MAUVE_MODEL = "smollm2"
GRAMMAR_MODEL = "smollm2-cola"


@dataclass(frozen=True, kw_only=True)
class Block:
    """One place of the page: what `bestk report` is told."""

    runs: tuple[str, ...]
    texts: str = "all"
    table: str = "condensed"
    metrics: tuple[str, ...] = TEXTS
    methods: str | None = None
    baseline: str | None = None
    rerank: str | None = None
    figure: bool = False

    def command(self) -> str:
        """Write the command that prints the tables."""
        told = ["bestk", "report", *(f"results/{run}" for run in self.runs), "--data-dir", "data"]
        told += ["--texts", self.texts, "--table", self.table]
        told += [word for metric in self.metrics for word in ("--metric", metric)]
        if "mauve" in self.metrics:
            told += ["--mauve-model", MAUVE_MODEL]
        if "grammar" in self.metrics:
            told += ["--grammar-model", GRAMMAR_MODEL]
        for name in ("methods", "baseline", "rerank"):
            if (value := getattr(self, name)) is not None:
                told += [f"--{name}", value]
        return shlex.join([*told, "--format", "markdown"])

    def report(self, folder: Path, data_dir: Path, *, keep_scores: bool = False) -> Report:
        """Do what the command does."""
        return make_report(
            [folder / run for run in self.runs],
            methods=None if self.methods is None else split(self.methods),
            data_dir=data_dir,
            metrics=self.metrics,
            models=MetricModels(mauve=MAUVE_MODEL, grammar=GRAMMAR_MODEL),
            views=[self.texts],
            layouts=[self.table],
            baseline=self.baseline,
            rerank=self.rerank,
            keep_scores=keep_scores,
        )


def _ten(task: str, others: str) -> Block:
    """Set the ten texts of best-k search, with the κ chosen on validation, against others'."""
    return Block(
        runs=(task, f"{task}-kappa"),
        texts="diverse",
        metrics=TEXTS[:3],
        methods=f"{others},{CHOSEN[task]}",
        baseline="BS",
    )


_KAPPA = Block(runs=("commongen-kappa",), metrics=TEXTS[:3])
_TRANSLATION = Block(
    runs=("multi30k-en-de",),
    table="translation",
    metrics=("counts", "distinct", "bleu"),
    methods=TRANSLATING,
    rerank="mbr-chrf",
)
BLOCKS: dict[str, Block] = {
    "commongen": Block(runs=("commongen",), metrics=ALL, figure=True),
    # A model judges every text: ten of each here, and of the other tasks none.
    "commongen-ten": replace(
        _ten("commongen", "BS,DBS,DBS+,Ncls0.8,Typ0.5"), metrics=(*TEXTS, "grammar")
    ),
    "commongen-validation": Block(
        runs=("commongen-validation",), texts="diverse", metrics=TEXTS[:3]
    ),
    "commongen-kappa": _KAPPA,
    "squad": Block(runs=("squad",), metrics=QUESTIONS),
    "squad-ten": replace(_ten("squad", "BS,DBS+,Ncls0.5,Ncls0.8"), figure=True),
    "squad-kappa": replace(_KAPPA, runs=("squad-kappa",)),
    "quoref": Block(runs=("quoref",), metrics=QUESTIONS, figure=True),
    "quoref-kappa": replace(_KAPPA, runs=("quoref-kappa",)),
    "drop": Block(runs=("drop",), metrics=QUESTIONS),
    "drop-kappa": replace(_KAPPA, runs=("drop-kappa",)),
    "scitldr": Block(runs=("scitldr",), metrics=QUESTIONS[:-1]),  # an hour and more without a GPU
    "scitldr-ten": _ten("scitldr", "BS,DBS,Ncls0.8"),
    "scitldr-kappa": replace(_KAPPA, runs=("scitldr-kappa",)),
    "multi30k-en-de": _TRANSLATION,
    "multi30k-en-fr": replace(_TRANSLATION, runs=("multi30k-en-fr",)),
    "ablation": Block(runs=("ablation",), metrics=TEXTS[:3]),
    "efficiency": Block(runs=("efficiency",), table="search", metrics=("counts", "cost")),
    "budget": Block(runs=("budget",), table="search", metrics=TEXTS[:3]),
}


def main() -> None:
    """Make the tables that the command line names."""
    parser = argparse.ArgumentParser(description="Fill in the tables of docs/results-full.md.")
    parser.add_argument("blocks", nargs="*", metavar="TABLE", help=", ".join(BLOCKS))
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--keep-scores", action="store_true", help="for later calls, in results/")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    for name in options.blocks or BLOCKS:
        if name not in BLOCKS:
            parser.error(f"unknown table {name!r}: known are {', '.join(BLOCKS)}")
        block = BLOCKS[name]
        report = block.report(options.results, options.data_dir, keep_scores=options.keep_scores)
        page = replaced(PAGE.read_text(encoding="utf-8"), {name: written(block, report)})
        PAGE.write_text(page, encoding="utf-8")
        if block.figure:
            figure = diversity_quality(report.boards[0])
            figure.savefig(IMAGES / f"{name}.png", dpi=100, metadata={"Software": None})
        print(name, flush=True)


def written(block: Block, report: Report) -> str:
    """Write the tables without the notes that the page itself gives, and their command."""
    tables: Sequence[str] = [table.markdown().partition("\n\n- ")[0] for table in report.tables]
    notes = [note for note in report.tables[0].notes if note.startswith(("unfinished", "left out"))]
    return "\n\n".join([*tables, *notes, f"    {block.command()}"])


if __name__ == "__main__":
    main()
