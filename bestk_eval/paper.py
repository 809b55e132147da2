"""The paper's Tables 1 and 3: how often searches end without a text, by budget and by score.

Numbers are those of a scoreboard; `bestk eval TASK --ablation table1` runs what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bestk.config import SearchConfig
from bestk.errors import OptionError, unknown
from bestk_eval.board import Board
from bestk_eval.methods import NamedMethod
from bestk_eval.metrics.base import Column
from bestk_eval.tables import LAYOUTS, Table, family, number, score_table

SCORING_NAMES = {0.0: "α=0", 0.5: "α=0.5", 1.0: "α=1 (mean)", None: "last"}


def lay_out(board: Board, layout: str, *, intervals: bool = True) -> Table:
    """Lay out a table by its name."""
    if layout in PAPER_TABLES:
        if "Done" not in board.columns:
            raise OptionError(f"{layout} needs the counts: name them with --metric too, or none")
        return PAPER_TABLES[layout](board, intervals)
    if layout not in LAYOUTS:
        raise OptionError(unknown("table", layout, {**LAYOUTS, **PAPER_TABLES}))
    return score_table(board, layout, intervals=intervals)


def by_budget(board: Board, intervals: bool) -> Table:
    """Table 1: vanilla best-first search by beam size, with beam search beside it."""
    points = best_first_rows(board)
    if not points:
        raise OptionError("table1 needs best-first search: bestk eval TASK --ablation table1")
    names = {f"BFS {size:g}": row for size, row in points}
    names |= {row: row for row in board.rows if row.partition(":")[0] == "BS"}
    rows = [
        [("incompletion, %", ""), *((_rate(board, row, intervals), "") for row in names.values())]
    ]
    if "Time" in board.columns:
        times = [(number(board.value(row, "Time"), None, None, 3), "") for row in names.values()]
        rows.append([("seconds", ""), *times])
    columns = [Column(key=name, title="beam size", group="", better=0) for name in names]
    return _table(board, "best-first search by equivalent beam size", columns, rows)


def by_scoring(board: Board, intervals: bool) -> Table:
    """Table 3: the lowest incompletion rate of a score over its decays; other families' means."""
    lowest = lowest_by_scoring(board)
    if not lowest:
        raise OptionError("table3 needs best-k search: bestk eval TASK --ablation table3")
    rows = [
        [(name, ""), (_rate(board, row, intervals), ""), (row, "")] for name, row in lowest.items()
    ]
    for name, members in other_families(board).items():
        rate = sum(100 - board.value(row, "Done") for row in members) / len(members)
        rows.append([(name, ""), (number(rate, None, None, 1), ""), (", ".join(members), "")])
    columns = [
        Column(key="incompletion, %", title="lowest over its decays", group="", better=0),
        Column(key="of", title="the method; of several the mean", group="", better=0),
    ]
    return _table(board, "incompletion by score", columns, rows)


PAPER_TABLES: dict[str, Callable[[Board, bool], Table]] = {
    "table1": by_budget,
    "table3": by_scoring,
}


def best_first_rows(board: Board) -> list[tuple[float, str]]:
    """Return the rows of best-first search with their beam sizes, smallest first."""
    methods = board.evaluation.methods.items()
    found = [(row, method) for row, method in methods if method.base == "BFS"]
    return sorted((float(config_of(board, method).beam_size), row) for row, method in found)


def rows_by_scoring(board: Board) -> dict[str, list[str]]:
    """Group the rows of best-k search by their scores."""
    by_name: dict[str, list[str]] = {}
    for row, config in best_k_rows(board).items():
        by_name.setdefault(SCORING_NAMES.get(config.alpha, f"α={config.alpha}"), []).append(row)
    return by_name


def lowest_by_scoring(board: Board) -> dict[str, str]:
    """Return, of each score of best-k search, the row that ends without a text least often."""
    return {
        name: min(rows, key=lambda row: 100 - board.value(row, "Done"))
        for name, rows in rows_by_scoring(board).items()
    }


def other_families(board: Board) -> dict[str, list[str]]:
    """Group the rows that are no best-first search as the paper's reference rates are."""
    found: dict[str, list[str]] = {}
    for row in board.rows:
        kind = family(row)
        if kind == "beam":
            kind = "diverse beam" if row.upper().startswith("DBS") else "beam"
        if kind != "best-first":
            found.setdefault(kind, []).append(row)
    return found


def best_k_rows(board: Board) -> Mapping[str, SearchConfig]:
    """Return the settings of the rows that are best-k search."""
    found = {}
    for row, method in board.evaluation.methods.items():
        if method.base.startswith("BKS"):
            config = config_of(board, method)
            scoring = method.base.removeprefix("BKS").removeprefix("_")
            if scoring not in ("", "mean", "last"):
                continue
            found[row] = SearchConfig.of({"scoring": scoring}, config) if scoring else config
    return found


def config_of(board: Board, method: NamedMethod) -> SearchConfig:
    """Return the settings of a method in a run."""
    beam_size = int(board.evaluation.settings[0]["beam_size"])
    return method.config(SearchConfig.max_new_tokens, beam_size)


def _rate(board: Board, row: str, intervals: bool) -> str:
    done = board.cells[row]["Done"].estimate
    if not intervals or done.low is None or done.high is None:
        return number(100 - done.value, None, None, 1)
    return number(100 - done.value, 100 - done.high, 100 - done.low, 1)


def _table(
    board: Board, title: str, columns: list[Column], rows: list[list[tuple[str, str]]]
) -> Table:
    return Table(
        title=f"{board.evaluation.task}: {title}",
        columns=columns,
        rows=rows,
        notes=[f"incompletion: examples without a complete text: {board.conditions}"],
    )
