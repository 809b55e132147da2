"""Methods side by side: the library's rows, their table, and the command."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from conftest import random_toy

import bestk
from bestk.baselines import comparison
from bestk.baselines.comparison import COMPARED, ComparedRow, compare
from bestk.config import SearchConfig
from bestk.errors import OptionError
from bestk.rerank.select import narrow
from bestk.viz.comparison import ComparisonView
from bestk.viz.terminal import plain, shown


@pytest.fixture(scope="module")
def rows() -> list[ComparedRow]:
    lm = bestk.LanguageModel(random_toy(3, 8))
    config = SearchConfig(max_new_tokens=4, beam_size=5)
    return list(compare(lm, [1], ["BS", "Ncls0.9", "BKS_mean"], config, seed=1, num_texts=5))


def test_rows_tell_what_each_method_found(rows: list[ComparedRow]) -> None:
    beam, nucleus, best_k = (row.to_json() for row in rows)
    assert beam["found"] == beam["unique"] == 5
    assert nucleus["found"] >= nucleus["unique"] > 1
    assert sum(h.count for h in rows[1].result.hypotheses) == nucleus["found"]
    assert best_k["unique"] >= 5
    for row in (beam, nucleus, best_k):
        assert row["expanded"] <= 20
        assert len(row["texts"]) <= 5
        assert 0 < row["distinct"] <= 100
    assert "method:sample,Ncls0.9|draws:budget|seed:1" in nucleus["signature"]


def test_the_screen_shows_texts_and_then_what_was_spent(rows: list[ComparedRow]) -> None:
    lines = plain(ComparisonView(rows, 2), 100).splitlines()
    names = ["Beam search", "Sampling (top-p 0.9)", "bestk (BKS_mean)"]
    for row, name in zip(rows, names, strict=True):
        place = lines.index(name)
        assert lines[place + 1 : place + 3] == [
            f"{number}  {shown(one)}" for number, one in enumerate(row.chosen[:2], start=1)
        ]
    heading = next(number for number, line in enumerate(lines) if line.split()[:1] == ["finished"])
    assert lines[heading].split() == ["finished", "likely", "different", "tokens", "time"]
    prices = zip(lines[heading + 1 :], names, strict=False)
    assert [line[: len(name)] for line, name in prices] == names
    assert f" {rows[0].result.cost.expanded} " in lines[heading + 1]
    assert max(map(len, lines)) <= 100


def test_methods_stand_beside_one_another_where_there_is_room(rows: list[ComparedRow]) -> None:
    first, *_ = plain(ComparisonView(rows, 2), 150).splitlines()
    assert first.split("    ")[0] == "Beam search"
    assert first.endswith("bestk (BKS_mean)")


def test_what_all_texts_begin_with_is_told_once(rows: list[ComparedRow]) -> None:
    texts = [f"In the heart of the city there is {end}" for end in ("a dog.", "one cat")]
    cut = [
        dataclasses.replace(rows[0].chosen[0], text=text, is_complete="." in text) for text in texts
    ]
    result = dataclasses.replace(rows[0].result, hypotheses=tuple(cut))
    row = ComparedRow(method="BS", result=result, select="best")
    assert plain(ComparisonView([row], 5), 100).splitlines()[:4] == [
        "Beam search",
        "all begin: In the heart of the city there is …",
        "1  … a dog.",
        "2  … one cat …",
    ]


def test_diverse_texts_on_request() -> None:
    lm = bestk.LanguageModel(random_toy(3, 8))
    config = SearchConfig(max_new_tokens=4, beam_size=10)
    best, diverse = (
        next(compare(lm, [1], ["BKS_mean"], config, num_texts=5, select=select))
        for select in ("best", "diverse")
    )
    assert best.result.texts == diverse.result.texts
    assert diverse.distinct > best.distinct
    told = {"num_texts": 5, "select": "diverse", "diversity": 1.0}
    most = next(compare(lm, [1], ["BKS_mean"], config, **told))
    assert most.texts == narrow(best.result, 5, "diverse", diversity=1.0).texts != diverse.texts
    with pytest.raises(OptionError, match="unknown select 'divers': did you mean 'diverse'"):
        next(compare(lm, [1], ["BKS_mean"], config, select="divers"))


def test_a_misspelt_method_is_found_before_anything_runs() -> None:
    lm = bestk.LanguageModel(random_toy(3, 8))
    with pytest.raises(OptionError, match="did you mean 'DBS"):
        next(compare(lm, [1], ["BS", "DBSS"]))


def test_settings_that_a_method_does_not_heed_are_refused_before_anything_runs() -> None:
    lm = bestk.LanguageModel(random_toy(3, 8))
    told = SearchConfig(temperature=2, must_include=("a",))
    with pytest.raises(OptionError, match="sampling takes no temperature and no must_include: "):
        next(compare(lm, [1], ["BKS_mean", "Ncls0.8"], told))
    with pytest.raises(OptionError, match="beam_size=3 must be a multiple of num_groups=5"):
        next(compare(lm, [1], ["BKS_mean", "DBS"], SearchConfig(beam_size=3)))


def test_methods_that_nobody_named_are_left_out_where_they_cannot_run(cli: Any) -> None:
    short = ["--model", "toy", "the dog", "--max-new-tokens", "4"]
    code, out, err = cli("compare", *short, "--beam-size", "3", "--json")
    assert code == 0
    found = [row["method"] for row in json.loads(out)]
    assert found == [name for name in COMPARED if name != "DBS"]
    assert "without DBS: beam_size=3 must be a multiple of num_groups=5" in err
    code, out, err = cli("compare", *short, "--must-include", "dog", "--json")
    assert [row["method"] for row in json.loads(out)] == ["BKS_mean", "BKS_last"]
    assert "without BS, DBS, BNcls0.8: beam search takes no must_include" in err


@pytest.mark.parametrize("end", [OptionError("no more"), KeyboardInterrupt()])
def test_what_was_found_before_an_end_is_shown(
    cli: Any, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    def run_one(lm: Any, prompt: Any, name: str, *given: Any, **told: Any) -> Any:
        if name == "Ncls0.8":
            raise end
        return bestk.run_method(lm, prompt, name, *given, **told)

    monkeypatch.setattr(comparison, "run_method", run_one)
    told = ["--methods", "BS, Ncls0.8", "--max-new-tokens", "4", "--json"]
    code, out, err = cli("compare", "--model", "toy", "the dog", *told)
    assert code == (2 if isinstance(end, OptionError) else 130)
    assert [row["method"] for row in json.loads(out)] == ["BS"]
    assert "Traceback" not in err


@pytest.mark.model
def test_command(cli: Any, smollm2: bestk.LanguageModel) -> None:
    options = ["--methods", "BS,BKS_mean", "--max-new-tokens", "4", "--beam-size", "2"]
    code, out, err = cli("compare", "--raw", "The sky is", *options, "--json")
    assert code == 0, err
    assert [row["method"] for row in json.loads(out)] == ["BS", "BKS_mean"]
    code, _, err = cli("compare", "--raw", "The sky is", "--methods", "BSK")
    assert code == 2
    assert "unknown method 'BSK'" in err
