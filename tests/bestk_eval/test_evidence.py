"""What README and docs quote is what the runs in results/ give, and what tasks ask is right."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bestk
from bestk_eval.examples import Example
from bestk_eval.loading import load_runs

ROOT = Path(bestk.__file__).parent.parent
RECIPES = ROOT / "recipes"
NAMES = ("evidence", "ten", "chat", "covered", "expressions", "regexes", "queries")

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="recipes come with a checkout alone")


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(RECIPES))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_pages_have_the_tables_of_their_commands(recipes: dict[str, Any]) -> None:
    ten = recipes["ten"]
    text = page("docs/results.md")
    assert "    python recipes/ten.py --summary" in text
    assert ten.seconds("commongen") in page("docs/results-ten.md")
    assert ten.summary(list(ten.TASKS)) in text
    tables = page("docs/results-ten.md")
    for task, title in (ten.TASKS | ten.UNTUNED).items():
        assert f"    python recipes/ten.py {task}\n" in tables
        assert ten.tables(ten.found_in(task), title) in tables


@pytest.mark.slow  # chooses ten of hundreds of texts, some 800 times
@pytest.mark.parametrize("length", [32, 64, 128, 256])
def test_the_tables_of_chat_are_those_of_the_runs(recipes: dict[str, Any], length: int) -> None:
    chat, folder = recipes["chat"], ROOT / "results" / f"chat-{length}"
    text = page("docs/results-ten.md")
    assert f"    python recipes/chat.py results/chat-{length}\n" in text
    found, told = chat.tens(folder), chat.judged(folder)
    assert chat.table(found, {}) in text
    for judge, methods in told.items():
        asked = {method: found[method] for method in methods}
        assert chat.table(asked, {judge: methods}) in text


@pytest.mark.slow  # runs every query and expression that was found, 150,000 of them
@pytest.mark.parametrize("task", ["expressions", "regexes", "queries"])
def test_the_tables_of_coverage_are_those_of_the_runs(recipes: dict[str, Any], task: str) -> None:
    folder = ROOT / "results" / task
    pools = {row: list(own) for row, own in load_runs([folder]).pools.items()}
    text = page("docs/results-ten.md")
    assert f"    python recipes/{task}.py results/{task}\n" in text
    assert recipes["covered"].table(pools, recipes[task].is_right) in text


def test_the_chat_texts_are_those_of_the_run(recipes: dict[str, Any]) -> None:
    chat = recipes["chat"]
    methods = ["BKS_diverse", "Minp0.1:walk=distinct"]
    listed = chat.listing(chat.tens(ROOT / "results" / "chat-64", methods), 10)
    assert listed in page("docs/chat-texts.md")


def test_what_is_tried_is_as_much_for_all(recipes: dict[str, Any], tmp_path: Path) -> None:
    evidence = recipes["evidence"]
    for task in evidence.WIDTHS:
        tried = evidence.families(task)
        assert {len(names) for names in tried.values()} == {6}
        place = tmp_path / "runs" / f"{task}-tuning"
        for number, name in enumerate(tried["min-p distinct"]):
            (folder := place / evidence.slug((f"{task}-tuning", name))).mkdir(parents=True)
            # The last are better, and too alike.
            told = {"method": name, "score": number, "D": 60 - 4 * number}
            (folder / "score.json").write_text(json.dumps(told))
        listed = evidence.methods_of(f"{task}-tuned", tmp_path)
        assert "Minp0.1:walk=distinct,seed=0" in listed, "the best is held out"
        assert "Minp0.1:walk=distinct,seed=2" in evidence.methods_of(f"{task}-seeds", tmp_path)
        assert not any("Ncls" in name for name in listed), "what was not tuned is not run"


def test_programs_say_what_is_right(recipes: dict[str, Any]) -> None:
    regexes, queries = recipes["regexes"], recipes["queries"]
    first = regexes.examples()[0]
    matching, others = regexes.lists(0)
    assert first.input == f"{', '.join(matching)} ; {', '.join(others)}"
    assert regexes.is_right(first, " \\d{3}\n")
    for text in (r"\d+", "(", "", "x" * 100):
        assert not regexes.is_right(first, text)
    for example in queries.examples():
        right = queries.asked(int(example.id))[1]
        assert queries.is_right(example, f" {right}\n")
        for text in ("SELECT 1", "DELETE FROM people", "", "SELECT name FROM nobody"):
            assert not queries.is_right(example, text)
    endless = "SELECT COUNT(*) FROM people a, people b, people c, people d, people e, people f"
    assert queries.answers(f"{endless}, people g, people h") is None, "it takes too long"


def test_coverage_counts_different_right_texts(recipes: dict[str, Any]) -> None:
    covered, example = recipes["covered"], Example(id="1", input="7", references=())

    def is_right(_: Example, text: str) -> bool:
        return text.strip().startswith("7")

    texts = ["8", "7 a", "7  a", "7 b"]
    found = covered.coverage(example, texts, is_right, shown=(1, 2, 3, 4))
    assert found == [(False, 0), (True, 1), (True, 1), (True, 2)]


def test_quoted_differences_are_those_of_the_summary(recipes: dict[str, Any]) -> None:
    """`name: mean / best text` in README and docs, of a task, is what the summary has."""
    ten = recipes["ten"]
    rows = {}
    for line in ten.summary(list(ten.TASKS)).splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = dict(zip(ten.TASKS.values(), cells, strict=True))
    for name in ("README.md", "docs/choosing.md"):
        quoted = re.findall(r"(\w+) ([-+−]\d\.\d\*? / [-+−]\d\.\d\*?)", page(name))
        assert quoted, f"{name} quotes the summary"
        for task, value in quoted:
            said = rows["min-p, without replacement"][task].replace("-", "−")
            assert said.startswith(value.replace("-", "−")), (name, task)


def test_quoted_likelihoods_and_distinctness_are_those_of_the_runs(
    recipes: dict[str, Any],
) -> None:
    """The table of `novelty` in docs/choosing.md: D and log p a token."""
    chat = recipes["chat"]
    novelties = {
        "similar": "BKS_diverse:novelty=0.5",
        "different": "BKS_diverse",
        "very different": "BKS_diverse:novelty=2",
        "without n": "BKS_mean",
        "beam search": "BS",
    }
    found = chat.tens(ROOT / "results" / "chat-64", list(novelties.values()))
    table = chat.table(found, {})
    text = page("docs/choosing.md")
    for name, method in novelties.items():
        cells = next(row for row in table.splitlines() if row.startswith(f"| {method} |"))
        _, _, _, distinct, likely, _ = (cell.strip() for cell in cells.strip("|").split("|"))
        told = f"| {distinct.split('±')[0]} | {likely.split('±')[0].replace('-', '−')} |"
        rows = [row for row in text.splitlines() if row.startswith("|") and name in row]
        assert any(row.endswith(told) for row in rows), (rows, told)
