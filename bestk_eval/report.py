"""The report of one or several runs: tables in every format, figures, and all numbers as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bestk.errors import OptionError, unknown
from bestk.rerank import Reranker, reranker_of
from bestk_eval.board import DEFAULT_TOP, Board, Scorer, views_of
from bestk_eval.differences import Differences, comparison_table, differences
from bestk_eval.examples import VIEWS
from bestk_eval.kept import check_folders
from bestk_eval.loading import Evaluated, load_runs
from bestk_eval.metrics.registry import MetricModels, build
from bestk_eval.paper import lay_out
from bestk_eval.plots import check_suffix, save_figures
from bestk_eval.reranking import Reranking, rerank_table, reranking
from bestk_eval.statistics import NUM_SAMPLES
from bestk_eval.tables import Table, layouts_of

FORMATS = ("terminal", "markdown", "latex", "json")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Tables and what they were made of."""

    evaluation: Evaluated
    boards: list[Board]
    differences: list[Differences]  # of each board, where there is a baseline
    reranking: Reranking | None
    tables: list[Table]  # those that have a column

    @property
    def left_out(self) -> dict[str, str]:
        """Return why metrics are missing, from one view or from all."""
        return {name: why for board in self.boards for name, why in board.left_out.items()}

    def print(self, form: str = "terminal", console: Console | None = None) -> None:
        """Print all tables."""
        console = console or _console()
        if form == "terminal":
            self._check_tables()
            for table in self.tables:
                whole = table.rich()
                fits = console.measure(whole).maximum <= console.width
                console.print(whole if fits else table.rich(intervals=False))
            for note in dict.fromkeys(note for table in self.tables for note in table.notes):
                console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(self.text(form), markup=False, highlight=False, soft_wrap=True, end="")

    def text(self, form: str) -> str:
        """Return all tables as Markdown or LaTeX, or all numbers as JSON."""
        if form in ("markdown", "latex"):
            self._check_tables()
        if form == "markdown":
            return "\n".join(table.markdown() for table in self.tables)
        if form == "latex":
            return "\n".join(table.latex() for table in self.tables)
        if form == "json":
            return json.dumps(self.to_json(), ensure_ascii=False, indent=2) + "\n"
        raise OptionError(unknown("format", form, FORMATS))

    def save(self, folder: Path, suffix: str = "png") -> list[Path]:
        """Write tables.md, tables.tex, numbers.json and the figures into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {"numbers.json": "json"}
        if self.tables:
            files |= {"tables.md": "markdown", "tables.tex": "latex"}
        saved = []
        for name, form in files.items():
            (folder / name).write_text(self.text(form), encoding="utf-8")
            saved.append(folder / name)
        return saved + save_figures(self.boards, folder / "figures", suffix)

    def to_json(self) -> dict[str, Any]:
        """Return every number with its interval and its signature."""
        compared = {found.board.view: found.to_json() for found in self.differences}
        return {
            "signature": self.evaluation.signature,
            "num_examples": self.evaluation.num_examples,
            "left_out": self.left_out,
            "views": {
                board.view: {**_numbers(board), "differences": compared.get(board.view)}
                for board in self.boards
            },
            "rerank": None if self.reranking is None else self.reranking.to_json(),
        }

    def _check_tables(self) -> None:
        if not self.tables:
            reasons = [f"{name}: {reason}" for name, reason in self.left_out.items()]
            told = "; ".join(reasons) or "--format json has the numbers, --table another layout"
            raise OptionError(f"no table has a column of the metrics asked for: {told}")


def check_output(form: str, folder: Path | None, suffix: str) -> None:
    """Raise if a report could not be printed or saved so, before it is made."""
    if form not in FORMATS:
        raise OptionError(unknown("format", form, FORMATS))
    check_suffix(suffix)
    if folder is not None:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            why = "may not be written to" if there.is_dir() else "is a file"
            raise OptionError(f"{there} {why}: give a folder to save the report in")


def make_report(
    folders: Sequence[Path],
    *,
    methods: Sequence[str] | None = None,
    data_dir: Path | None = None,
    metrics: Sequence[str] | None = None,
    models: MetricModels | None = None,
    views: Sequence[str] | None = None,
    top: int = DEFAULT_TOP,
    layouts: Sequence[str] | None = None,
    baseline: str | None = None,
    rerank: str | Reranker | None = None,
    intervals: bool = True,
    samples: int = NUM_SAMPLES,
    keep_scores: bool = False,
) -> Report:
    """Score runs and lay out their tables; without `views` every view that differs is shown.

    `methods` are the rows to show, all unless given; `data_dir` has the examples of runs that were
    put away without them. `keep_scores` writes the scores of slow metrics into the runs' folders,
    where later reports find them.
    """
    for view in views or ():
        if view not in VIEWS:
            raise OptionError(unknown("view", view, VIEWS))
    evaluation = load_runs(folders, methods=methods, data_dir=data_dir)
    if baseline is not None and baseline not in evaluation.pools:
        raise OptionError(unknown("method", baseline, evaluation.pools))
    if keep_scores:
        check_folders(folders)
    scorer = Scorer(
        evaluation, build(metrics, models), top=top, samples=samples, keep_scores=keep_scores
    )
    boards = [scorer.board(view) for view in views or views_of(evaluation)]
    tables = [
        lay_out(board, layout, intervals=intervals)
        for board in boards
        for layout in _layouts(layouts, evaluation.kind, is_first=board is boards[0])
    ]
    compared = [] if baseline is None else [differences(board, baseline) for board in boards]
    tables += map(comparison_table, compared)
    reranked = None
    if rerank is not None:
        reranked = reranking(evaluation, reranker_of(rerank), samples)
        tables.append(rerank_table(reranked))
    return Report(
        evaluation=evaluation,
        boards=boards,
        differences=compared,
        reranking=reranked,
        tables=[table for table in tables if table.columns],
    )


def _console() -> Console:
    """Return a console for stdout; a pipe or a file is as wide as it takes."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=1000)


def _layouts(asked: Sequence[str] | None, kind: str, *, is_first: bool) -> list[str]:
    layouts = list(asked or layouts_of(kind))
    # Its numbers do not depend on the view but for one.
    return layouts if is_first or asked else [name for name in layouts if name != "search"]


def _numbers(board: Board) -> dict[str, Any]:
    return {
        "signatures": {key: board.signature(key) for key in board.columns},
        "methods": {
            row: {
                key: {**cell.estimate.to_json(), "mark": cell.mark} for key, cell in cells.items()
            }
            for row, cells in board.cells.items()
        },
    }
