"""The paper's Tables 1 and 3, from runs of a toy model; and κ by both forms of the decay."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluation_toy import run_toy

from bestk.errors import OptionError
from bestk_eval.methods import parse_all
from bestk_eval.paper import lay_out
from bestk_eval.plots import completion_by_decay
from bestk_eval.report import make_report


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short budgets, of which some searches find nothing."""
    folder = tmp_path_factory.mktemp("paper")
    run_toy(folder / "table1", methods=("table1",), max_new_tokens=5)
    methods = ("BKS:length_alpha=0,decay_weight=0", "BKS:length_alpha=0,decay_weight=0.2")
    logs = ("BKS_last:decay=log,decay_weight=0.05", "BKS_last:decay=log,decay_weight=0.2")
    more = ("BKS_last", "BKS_last:decay_weight=0.2", "BS", "DBS:beam_size=5", "BNcls0.8")
    run_toy(folder / "table3", methods=(*methods, *more, *logs), max_new_tokens=5)
    return folder


def test_table_1(runs: Path) -> None:
    made = make_report([runs / "table1"], layouts=["table1"], metrics=["counts", "cost"])
    (table, *_) = made.tables
    assert table.headings == ["", "BFS 1", "BFS 2", "BFS 5", "BFS 10", "BS"]
    (name, *rates), (seconds, *_times) = table.rows
    assert (name[0], seconds[0]) == ("incompletion, %", "seconds")
    board = made.boards[0]
    rows = [f"BFS:beam_size={size}" for size in (1, 2, 5, 10)]
    shown = [float(text.partition("±")[0]) for text, _ in rates]
    assert shown[:4] == pytest.approx([100 - board.value(row, "Done") for row in rows], abs=0.06)
    assert shown[0] >= shown[3], "ten times the budget finds less"
    assert "BFS 10" in table.markdown()
    assert "BFS 10" in table.latex()


def test_table_3(runs: Path) -> None:
    made = make_report([runs / "table3"], layouts=["table3"], metrics=["counts"])
    (table, *_) = made.tables
    board = made.boards[0]
    found = {row[0][0]: row for row in table.rows}
    assert list(found) == ["α=0", "last", "beam", "diverse beam", "beam sample"]
    lowest = min(100 - board.value(row, "Done") for row in board.rows if row.startswith("BKS_last"))
    assert float(found["last"][1][0].partition("±")[0]) == pytest.approx(lowest, abs=0.06)
    assert found["beam"][2][0] == "BS"
    with pytest.raises(OptionError, match="table3 needs the counts"):
        make_report([runs / "table3"], layouts=["table3"], metrics=["cost"])
    with pytest.raises(OptionError, match="table1 needs best-first search"):
        lay_out(board, "table1")


def test_kappa_by_both_forms_of_the_decay(runs: Path) -> None:
    board = make_report([runs / "table3"], layouts=["table3"], metrics=["counts"]).boards[0]
    (axes,) = completion_by_decay(board).axes
    _, labels = axes.get_legend_handles_labels()
    assert set(labels) == {"α=0", "last", "last, log"}
    kappa = [method.config(30, 10) for method in parse_all(["kappa"])]
    assert {config.decay for config in kappa} == {"power", "log"}
