"""Reports of a toy run, of ablations, and of a real miniature: SmolLM2, every method."""

from __future__ import annotations

import gzip
import json
import lzma
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluation_toy import run_toy, toy_task
from wordnet import has_wordnet

import bestk
from bestk.errors import OptionError
from bestk.rerank import ByFunction
from bestk_eval.board import Scorer
from bestk_eval.differences import comparison_table, differences
from bestk_eval.loading import load_runs
from bestk_eval.metrics.registry import build
from bestk_eval.plots import FIGURES, completion_by_decay, write_names
from bestk_eval.report import make_report
from bestk_eval.tables import score_table

SAMPLES = 100
FAST = ("counts", "distinct", "rouge", "bleu", "cost")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    run_toy(folder)
    return folder


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablation")
    methods = ("BKS_mean:decay_weight=0", "BKS_mean:decay_weight=0.2", "BKS:length_alpha=0.5",
               "BFS:beam_size=1", "BFS:beam_size=3", "BS")  # fmt: skip
    run_toy(folder, methods=methods, task=toy_task(4))
    return folder


def test_numbers_marks_and_views_by_hand(toy: Path) -> None:
    scorer = Scorer(load_runs([toy]), build(["counts", "distinct"]), samples=SAMPLES)
    board = scorer.board("all")
    lines = [json.loads(line) for line in (toy / "results.jsonl").read_text().splitlines()]
    for row in board.rows:
        own = [line for line in lines if line["method"] == row]
        assert board.value(row, "S") == pytest.approx(sum(sum(r["counts"]) for r in own) / 12)
        assert board.value(row, "|S|") == pytest.approx(sum(len(r["texts"]) for r in own) / 12)
        assert board.value(row, "Done") == pytest.approx(
            100 * sum(bool(r["texts"]) for r in own) / 12
        )
        cell = board.cells[row]["|S|"].estimate
        assert cell.low is not None
        assert cell.high is not None
        assert cell.low <= cell.value <= cell.high
    by_value = sorted(board.rows, key=lambda row: board.value(row, "D-1"))
    assert board.cells[by_value[-1]]["D-1"].mark == "best"
    assert board.cells[by_value[-2]]["D-1"].mark == "second"
    assert board.cells[by_value[0]]["D-1"].mark == "worst"
    assert all(not board.cells[row]["S"].mark for row in board.rows)
    top = Scorer(load_runs([toy]), build(["distinct"]), top=1, samples=SAMPLES).board("top")
    assert top.value("BKS_mean", "D-1") >= board.value("BKS_mean", "D-1")


def test_an_example_without_texts_counts_as_nothing(toy: Path) -> None:
    evaluation = load_runs([toy])
    board = Scorer(evaluation, build(["rouge"]), samples=SAMPLES).board("all")
    values: Any = board.values["BS"]["R1"]
    empty = [i for i, pool in enumerate(evaluation.pools["BS"]) if not pool.texts]
    assert empty
    assert all(values[i] == 0 for i in empty)
    assert not any(math.isnan(value) for value in values)


def test_tables_in_every_format(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = make_report([toy], metrics=FAST, baseline="BS", samples=SAMPLES)
    report.print()
    shown = capsys.readouterr().out
    markdown, latex = report.text("markdown"), report.text("latex")
    numbers = json.loads(report.text("json"))
    value = numbers["views"]["all"]["methods"]["BKS_mean"]["R1"]["value"]
    for text in (shown, markdown, latex.replace(r"\_", "_")):
        assert "BKS_mean" in text
        assert f"{value:.1f}" in text
        assert "rouge|stem:porter" in text
        assert "difference to BS" in text
    assert r"\cellcolor{RoyalBlue!25}" in latex
    assert r"\cellcolor{BrickRed!15}" in latex
    assert r"\multicolumn{4}{c}{Oracle}" in latex
    assert latex.count(r"\begin{tabular}") == len(report.tables)
    for table in report.tables:
        widths = {len(row) for row in table.rows} | {len(table.headings)}
        assert len(widths) == 1
    assert "**" in markdown
    assert "model:toy" in numbers["views"]["all"]["signatures"]["R1"]


def test_the_whole_of_a_small_table(toy: Path) -> None:
    scorer = Scorer(load_runs([toy]), build(["counts"]), samples=SAMPLES)
    table = score_table(scorer.board("all"), "condensed", intervals=False)
    assert table.markdown().splitlines()[:8] == [
        "**toy, condensed: all texts, duplicates counted**",
        "",
        r"|  | \|S\| |",
        "| :-- | --: |",
        "| BS | 1.2 ▾ |",
        "| Ncls0.8 | _1.9_ |",
        "| BKS_mean | **17.1** |",
        "| BKS_last:k=3 | **17.1** |",
    ]
    assert table.breaks == {1, 2}


def test_figures_and_files(toy: Path, ablation: Path, tmp_path: Path) -> None:
    saved = make_report([toy], metrics=FAST, samples=SAMPLES).save(tmp_path / "a")
    names = {path.stem for path in saved}
    assert names == {
        "tables",
        "numbers",
        "diversity_quality",
        "diversity_quality_top",
        "diversity_quality_diverse",
        "incompletion_by_scoring",
        "efficiency",
    }
    saved = make_report([ablation], metrics=FAST, samples=SAMPLES).save(tmp_path / "b", "svg")
    assert {path.stem for path in saved} == {
        "tables",
        "numbers",
        "diversity_quality_top",
        "diversity_quality_diverse",
        *FIGURES,
    }
    assert all(path.stat().st_size > 100 for path in saved)


def test_a_line_of_a_figure_varies_one_setting(tmp_path: Path) -> None:
    """Rows with another k must not be points of the line that shows the decay's weight."""
    methods = ("BKS_mean:decay_weight=0", "BKS_mean", "BKS_mean:k=2", "BKS_mean:decay=log")
    run_toy(tmp_path, methods=methods, task=toy_task(3))
    board = Scorer(load_runs([tmp_path]), build(["counts"]), samples=SAMPLES).board()
    (axes,) = completion_by_decay(board).axes
    (line,) = axes.containers
    assert list(line.lines[0].get_xdata()) == [0, 0.05]


def test_names_in_figures_do_not_cover_one_another() -> None:
    from itertools import combinations

    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    axes = Figure(figsize=(7.5, 5), layout="constrained").add_subplot()
    source = random.Random(2)
    points = [(f"Ncls{i} ×10", source.gauss(0, 1), source.gauss(0, 1), "black") for i in range(20)]
    axes.plot([x for _, x, _, _ in points], [y for _, _, y, _ in points], "o")
    write_names(axes, points)
    boxes = [name.get_window_extent() for name in axes.texts]
    shared = (Bbox.intersection(*pair) for pair in combinations(boxes, 2))
    covered = sum(box.width * box.height for box in shared if box is not None)
    assert covered < 0.02 * sum(box.width * box.height for box in boxes)
    assert {text.get_text() for text in axes.texts} == {name for name, *_ in points}


def test_translations_are_tested_by_their_own_scores(toy: Path) -> None:
    evaluation = load_runs([toy])
    told = replace(evaluation, settings=({**evaluation.settings[0], "kind": "translation"},))
    metrics = build(["counts", "distinct", "bleu", "sentence-bleu"])
    table = comparison_table(differences(Scorer(told, metrics, samples=SAMPLES).board(), "BS"))
    assert table.headings == ["", "|S|", "D", "BLEU", "chrF", "OsBLEU", "OsChrF"]


def test_metrics_left_out_are_named_under_the_tables(toy: Path) -> None:
    report = make_report([toy], metrics=["counts", "mauve"], samples=SAMPLES)
    assert "left out: mauve: MAUVE has no model" in report.text("markdown")
    assert "| MV |" not in report.text("markdown")
    assert json.loads(report.text("json"))["left_out"].keys() == {"mauve"}


def test_reranking_before_after_and_change(toy: Path) -> None:
    evaluation = load_runs([toy])
    references = {p.example.input: p.example.references for p in evaluation.pools["BS"]}
    board = Scorer(evaluation, build(["bleu"]), samples=SAMPLES).board()

    def overlap(source: str, text: str) -> float:
        words = set(text.split())
        return max(len(words & set(r.split())) - len(words) / 10 for r in references[source])

    report = make_report([toy], metrics=["counts"], rerank=ByFunction(overlap), samples=SAMPLES)
    table = report.tables[-1]
    assert table.headings == ["", "|S|", "D", "before", "after", "Δ"]
    row = next(row for row in table.rows if row[0][0] == "BKS_mean")
    assert row[3][0].startswith(f"{board.value('BKS_mean', 'BLEU'):.1f}±")
    assert float(row[5][0].rstrip("*")) > 0, "choosing by the references must help"


def test_runs_go_together_only_with_the_same_examples(toy: Path, tmp_path: Path) -> None:
    run_toy(tmp_path / "more", methods=("DBS:beam_size=5",))
    both = load_runs([toy, tmp_path / "more"])
    assert list(both.pools)[-1] == "DBS:beam_size=5"
    assert both.num_examples == 12
    run_toy(tmp_path / "other", methods=("BKS",), task=toy_task(5))
    with pytest.raises(OptionError, match="same examples"):
        load_runs([toy, tmp_path / "other"])
    with pytest.raises(OptionError, match="again"):
        load_runs([toy, toy])


def test_an_unfinished_run_is_reported_as_such(toy: Path, tmp_path: Path) -> None:
    for path in toy.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = (toy / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines[:22]) + b'{"half')
    report = make_report([tmp_path], metrics=["counts"], samples=SAMPLES)
    assert report.evaluation.num_examples == 5
    assert "unfinished: 5 of 12 examples" in report.text("markdown")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": ["al"]}, "did you mean 'all'"),
        ({"layouts": ["ful"]}, "did you mean 'full'"),
        ({"baseline": "BKS_men"}, "did you mean 'BKS_mean'"),
        ({"top": 0}, "at least 1"),
        ({"metrics": ["rogue"]}, "did you mean 'rouge'"),
    ],
)
def test_bad_options(toy: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_report([toy], **{"metrics": ["counts"], "samples": SAMPLES, **options})


def test_a_folder_without_a_run_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="bestk eval TASK -o"):
        make_report([tmp_path])


def test_comparisons_say_who_is_better(toy: Path) -> None:
    board = Scorer(load_runs([toy]), build(["counts"]), samples=SAMPLES).board()
    table = comparison_table(differences(board, "BS"))
    cells = {row[0][0]: row[1] for row in table.rows}
    assert cells["BKS_mean"] == ("+15.9* (p=0.001)", "best")
    assert "BS" not in cells


@pytest.mark.model
def test_a_real_miniature(smollm2: Any, tmp_path: Path) -> None:
    """Every method on SmolLM2 and four examples, with the whole report at the end."""
    from bestk.baselines import METHODS
    from bestk_eval.runner import Settings, evaluate
    from bestk_eval.tasks import TASKS
    from bestk_eval.tasks.catalog import concepts
    from bestk_eval.tasks.reading import read_jsonl

    data = Path(bestk.__file__).parent.parent / "tests" / "data" / "concepts.jsonl"
    task = replace(
        TASKS["commongen"],
        name="concepts",
        plain="A sentence with {concepts}: The",
        examples=lambda: [concepts(record) for _, record in read_jsonl(data)],
    )
    # Diverse beams need a multiple of their groups; all else gets the smallest budget that works.
    wider = {"DBS": "DBS:beam_size=5", "DBS+": "DBS+:beam_size=10"}
    settings = Settings(
        task=task,
        methods=tuple(wider.get(name, name) for name in METHODS),
        beam_size=2,
        max_new_tokens=7,
        stop=(".", ","),
        style="plain",
        batch_size=2,
        num_examples=4,
    )
    steps = list(evaluate(smollm2, settings, tmp_path / "run"))
    assert steps[-1].done == steps[-1].total == 4 * len(METHODS)
    report = make_report([tmp_path / "run"], baseline="BS", rerank="mbr-chrf", samples=SAMPLES)
    saved = report.save(tmp_path / "report")
    assert {"tables.md", "tables.tex", "diversity_quality.png"} <= {path.name for path in saved}
    board = report.boards[0]
    assert set(board.rows) == {wider.get(name, name) for name in METHODS}
    assert {"D", "R", "OR", "BLEU"} <= set(board.columns)
    assert ({"MTR", "COV"} <= set(board.columns)) == has_wordnet()
    for row in ("BKS_mean", "BKS_last"):
        assert board.value(row, "Done") > 0
    for line in (tmp_path / "run" / "results.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert len(set(record["texts"])) == len(record["texts"])
        assert sum(record["counts"]) >= len(record["texts"])


@pytest.mark.parametrize(
    ("suffix", "pack", "unpack"),
    [("gz", gzip.compress, "gunzip"), ("xz", lzma.compress, "unxz")],
    ids=["gzip", "xz"],
)
def test_a_packed_run_reports_the_same_and_is_not_written_to(
    toy: Path, tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], unpack: str
) -> None:
    for path in toy.glob("*.json*"):
        if path.suffix == ".jsonl":
            (tmp_path / f"{path.name}.{suffix}").write_bytes(pack(path.read_bytes()))
        else:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert load_runs([tmp_path]).pools == load_runs([toy]).pools
    with pytest.raises(OptionError, match=f"has a packed run: {unpack} its files to go on with it"):
        run_toy(tmp_path)


def test_some_rows_in_the_order_asked_for(toy: Path) -> None:
    every = list(load_runs([toy]).pools)
    wanted = [every[2], every[0]]
    assert list(load_runs([toy], methods=wanted).pools) == wanted
    with pytest.raises(OptionError, match="unknown method 'DBS\\+'"):
        load_runs([toy], methods=["DBS+"])


def test_a_run_without_its_examples_reads_them_from_the_data_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data = tmp_path / "data" / "animals.jsonl"
    records = [{"input": f"the {w}", "references": [f"a {w} runs"]} for w in ("dog", "cat", "a")]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    run_toy(tmp_path / "run", task=str(data), num_examples=2)
    whole = load_runs([tmp_path / "run"])
    (tmp_path / "run" / "examples.jsonl").unlink()
    assert load_runs([tmp_path / "run"]).pools == whole.pools
    data.write_text(data.read_text().replace("runs", "sits"))
    with pytest.raises(OptionError, match="was run on other examples") as error:
        load_runs([tmp_path / "run"])
    assert f"than {data} gives" in str(error.value)
    assert "hub" not in str(error.value)
    assert "--data-dir" not in str(error.value)


def test_a_text_that_several_methods_found_is_scored_once(toy: Path) -> None:
    metrics = build(["rouge"])
    (rouge,) = metrics.built
    seen: list[tuple[str, str]] = []
    score = rouge.score

    def counted(texts: Any, example: Any) -> Any:
        seen.extend((example.id, text) for text in texts)
        return score(texts, example)

    rouge.score = counted  # type: ignore[method-assign]
    found = load_runs([toy])
    scorer = Scorer(found, metrics, samples=SAMPLES)
    for view in ("all", "top"):
        scorer.board(view)
    assert len(seen) == len(set(seen))
    pools = [pool for row in found.pools.values() for pool in row]
    assert len(seen) < sum(len(pool.texts) for pool in pools), "the methods share no text"


def test_runs_of_before_probabilities_were_kept_are_named(toy: Path, tmp_path: Path) -> None:
    for path in toy.glob("*.json*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    results = tmp_path / "results.jsonl"
    records = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert all(len(record["log_probs"]) == len(record["texts"]) for record in records)
    for record in records:
        if record["method"] == "BS":
            del record["log_probs"]
    results.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    settings = {"metrics": ["counts"], "samples": SAMPLES, "layouts": ["condensed"]}
    old = make_report([tmp_path], views=["diverse"], **settings)
    told = [note for note in old.tables[0].notes if "no probabilities were kept" in note]
    assert told == ["chosen by rank, since no probabilities were kept: BS"]
    new = make_report([toy], views=["diverse"], **settings)
    assert not [note for note in new.tables[0].notes if "no probabilities" in note]
    with pytest.raises(OptionError, match="weights='uniform'"):
        make_report([tmp_path], rerank="mbr-chrf", **settings)
