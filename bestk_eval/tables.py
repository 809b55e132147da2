"""Tables of a scoreboard: the paper's layouts, for the terminal, Markdown and LaTeX.

A number is followed by half the width of its 95% interval. Best, second and worst of a column are
marked: by colour; in Markdown **bold**, _italic_ and ▾.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.table import Table as RichTable
from rich.text import Text

from bestk_eval.board import Board, digits
from bestk_eval.metrics.base import Column

LAYOUTS: dict[str, tuple[str, ...]] = {
    "full": (
        *("S", "|S|", "D-1", "D-2", "D-3", "O", "OR1", "OR2", "ORL"),
        *("MV", "R1", "R2", "RL", "MTR", "GRM", "COV"),
    ),
    "condensed": ("|S|", "D", "O", "OR", "R", "MV", "GRM", "MTR", "COV"),
    "translation": ("|S|", "D", "BLEU", "chrF", "OsBLEU", "OsChrF"),
    "search": ("Done", "S", "|S|", "sfBLEU", "BLEU", "chrF", "Time", "Nodes", "Calls"),
}
VIEW_TITLES = {
    "all": "all texts, duplicates counted",
    "unique": "different texts",
    "top": "the first {top} texts by rank",
    "diverse": "the {top} texts that select=diverse chooses",
}

_STYLES = {"best": "bold blue", "second": "cyan", "worst": "red", "": ""}
_MARKDOWN = {"best": "**{}**", "second": "_{}_", "worst": "{} ▾", "": "{}"}
_LATEX = {
    "best": r"\cellcolor{{RoyalBlue!25}}{}",
    "second": r"\cellcolor{{RoyalBlue!10}}{}",
    "worst": r"\cellcolor{{BrickRed!15}}{}",
    "": "{}",
}
_LATEX_SPECIAL = str.maketrans({c: "\\" + c for c in "_%&#$"})


@dataclass(frozen=True, kw_only=True)
class Table:
    """Text in rows and columns, ready to be drawn."""

    title: str
    columns: Sequence[Column]  # beside the methods
    rows: list[list[tuple[str, str]]]  # text and mark; the first is the method
    notes: list[str]

    @property
    def headings(self) -> list[str]:
        """Name every column, the nameless one of the methods first."""
        return ["", *(column.key for column in self.columns)]

    @property
    def breaks(self) -> set[int]:
        """Return above which rows a rule separates families of methods."""
        families = [family(row[0][0]) for row in self.rows]
        return {i for i in range(1, len(families)) if families[i] != families[i - 1]}

    def rich(self, *, intervals: bool = True) -> RichTable:
        """Draw for the terminal; without intervals the table is narrower."""
        drawn = RichTable(title=self.title, title_justify="left", pad_edge=False)
        drawn.add_column(self.headings[0], no_wrap=True)
        for heading in self.headings[1:]:
            drawn.add_column(heading, justify="right", no_wrap=True)
        for place, row in enumerate(self.rows):
            if place in self.breaks:
                drawn.add_section()
            texts = [text if intervals else text.partition("±")[0] for text, _ in row]
            styles = [_STYLES[mark] for _, mark in row]
            drawn.add_row(*map(Text, texts, styles))
        return drawn

    def markdown(self) -> str:
        """Write as Markdown."""
        lines = [f"**{self.title}**", "", _row([_pipe(h) for h in self.headings])]
        lines.append(_row([":--"] + ["--:"] * len(self.columns)))
        for row in self.rows:
            lines.append(_row([_MARKDOWN[mark].format(_pipe(text)) for text, mark in row]))
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes), ""])

    def latex(self) -> str:
        """Write as LaTeX (booktabs; xcolor with table, dvipsnames), in the paper's look."""
        lines = [
            r"\begin{table}[t]",
            r"\centering\footnotesize",
            r"\begin{tabular}{@{}r|" + "c" * len(self.columns) + "@{}}",
            r"\toprule",
            *self._group_row(),
            " & ".join(["", *(column.heading for column in self.columns)]) + r" \\ \midrule",
        ]
        for place, row in enumerate(self.rows):
            if place in self.breaks:
                lines.append(r"\midrule")
            cells = [_LATEX[mark].format(_escape(text)) for text, mark in row]
            lines.append(" & ".join(cells) + r" \\")
        caption = _escape(self.title)
        lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}"]
        notes = [f"% {note}" for note in self.notes]
        return "\n".join([*notes, *lines, ""])

    def _group_row(self) -> list[str]:
        groups = ["", *(column.group for column in self.columns)]
        if not any(groups):
            return []
        spans = [(name, len(list(members))) for name, members in groupby(groups)]
        cells = [rf"\multicolumn{{{size}}}{{c}}{{{name}}}" for name, size in spans]
        return [" & ".join(cells) + r" \\"]


def layouts_of(kind: str) -> list[str]:
    """Name the tables that a kind of task is shown in."""
    return ["translation", "search"] if kind == "translation" else ["full", "condensed", "search"]


def score_table(board: Board, layout: str = "condensed", *, intervals: bool = True) -> Table:
    """Lay out a table of scores; metrics that were left out are named under it."""
    columns = [board.columns[key] for key in LAYOUTS[layout] if key in board.columns]
    rows = [
        [(row, ""), *(_cell(board, row, column, intervals) for column in columns)]
        for row in board.rows
    ]
    return Table(
        title=f"{board.evaluation.task}, {layout}: {view_title(board)}",
        columns=columns,
        rows=rows,
        notes=_notes(board, columns, intervals),
    )


def view_title(board: Board) -> str:
    """Name which texts a board looks at."""
    return VIEW_TITLES[board.view].format(top=board.top)


def family(row: str) -> str:
    """Tell the families of methods apart, as the paper's rules do.

    >>> [family(name) for name in ("DBS+", "BTyp0.5", "Ncls0.8:num_draws=10", "BKS_mean")]
    ['beam', 'beam sample', 'sample', 'best-first']
    """
    name = row.lower()
    if name.startswith(("bks", "bfs")):
        return "best-first"
    if name.startswith(("bncls", "btyp")):
        return "beam sample"
    return "sample" if name.startswith(("ncls", "typ", "minp", "nsig", "temp", "swor")) else "beam"


def number(value: float, low: float | None, high: float | None, places: int) -> str:
    """Write a number with half the width of its interval.

    >>> number(12.34, 11.0, 14.0, 1), number(float("nan"), None, None, 1)
    ('12.3±1.5', '-')
    """
    if math.isnan(value):
        return "-"
    width = "" if low is None or high is None else f"±{(high - low) / 2:.{places}f}"
    return f"{value:.{places}f}{width}"


def _cell(board: Board, row: str, column: Column, intervals: bool) -> tuple[str, str]:
    cell = board.cells[row][column.key]
    low, high = (cell.estimate.low, cell.estimate.high) if intervals else (None, None)
    return number(cell.estimate.value, low, high, digits(column)), cell.mark


def _notes(board: Board, columns: Sequence[Column], intervals: bool) -> list[str]:
    """Tell what the columns are, what their numbers depend on, and what is missing."""
    found = board.evaluation
    notes = []
    for signature in dict.fromkeys(board.signatures[column.key] for column in columns):
        told = [c for c in columns if board.signatures[c.key] == signature]
        listed = ", ".join(f"{column.key} ({column.title})" for column in told)
        notes.append(f"{listed}: {signature}")
    notes.append(f"all: {board.conditions}")
    if found.num_examples < found.num_planned:
        notes.append(f"unfinished: {found.num_examples} of {found.num_planned} examples")
    notes += [f"left out: {name}: {reason}" for name, reason in board.left_out.items()]
    old = [row for row, pools in found.pools.items() if any(p.log_probs is None for p in pools)]
    if board.view == "diverse" and old:
        notes.append(f"chosen by rank, since no probabilities were kept: {', '.join(old)}")
    if intervals:
        notes.append(f"±: half the 95% bootstrap interval over {found.num_examples} examples")
    return notes


def _escape(text: str) -> str:
    return re.sub(r"±(\S+)", r"{\\tiny$\\pm$\1}", text.translate(_LATEX_SPECIAL))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _pipe(text: str) -> str:
    return text.replace("|", r"\|")
