"""Results: JSON that loads back, signatures, and what spoils either."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import Any

import pytest
import torch
from conftest import random_toy
from toys import search_ids, table_lm

import bestk
from bestk.core.record import TreeRecord
from bestk.core.tree import State, Tree
from bestk.errors import MissingExtraError, SchemaError

LM = bestk.LanguageModel(random_toy(8, vocab_size=6), name="a-model")
RESULT = bestk.search(LM, [1, 2], max_new_tokens=5, scoring="sum", stop_ids=(3,), timeout=100.0)


def test_keys_are_as_documented() -> None:
    data = RESULT.to_json()
    assert {"prompt", "hypotheses", "mass", "cost", "signature"} <= set(data)
    assert {"text", "score", "log_prob", "num_tokens", "token_ids", "step"} <= set(
        data["hypotheses"][0]
    )
    assert list(data["mass"]) == ["completed", "frontier", "pruned", "truncated"]
    assert list(data["cost"]) == ["expanded", "steps", "model_calls", "evaluated", "seconds"]
    assert sum(data["mass"].values()) == pytest.approx(1, abs=1e-6)
    assert data["hypotheses"][0]["num_tokens"] == len(data["hypotheses"][0]["token_ids"])


@pytest.mark.parametrize("tree", [False, True])
def test_round_trip(tree: bool) -> None:
    text = RESULT.dumps(tree=tree)
    back = bestk.SearchResult.from_json(text)
    assert back.hypotheses == RESULT.hypotheses
    assert back.config == RESULT.config
    assert back.mass == RESULT.mass
    assert back.cost == RESULT.cost
    assert back.dumps(tree=tree) == text
    assert (back.tree is None) is not tree


def test_round_trip_of_the_tree() -> None:
    tree = bestk.SearchResult.from_json(RESULT.to_json(tree=True)).tree
    assert tree is not None
    assert RESULT.tree is not None
    for name in TreeRecord.__dataclass_fields__:
        one, other = getattr(tree, name), getattr(RESULT.tree, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


def test_json_is_strict_and_readable() -> None:
    lm = table_lm({}, [0.5, 0.25, 0.25], "größe", "大きさ")
    text = bestk.search(lm, "größe", max_new_tokens=3).dumps()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert "größe" in text
    assert "大きさ" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "reads version 1 of bestk.result, got 2: save the result again"),
        ({"version": None}, "got None"),
        ({"format": "other"}, "must have format 'bestk.result'"),
        ({"mass": {}}, "lacks or spoils a field"),
        ({"mass": None}, "lacks or spoils a field"),
        ({"hypotheses": [{"text": "x"}]}, "lacks or spoils a field"),
        ({"hypotheses": ["x"]}, "lacks or spoils a field"),
        ({"cost": {"expanded": 1}}, "lacks or spoils a field"),
        ({"config": {"k": 0}}, "k must be at least 1"),
        ({"config": {"beams": 3}}, "unknown option 'beams'"),
        ({"config": None}, "lacks or spoils a field"),
        ({"tree": {"token": [1]}}, "a saved tree lacks or spoils a column"),
        ({"tree": {"token": ["x"]}}, "a saved tree lacks or spoils a column"),
    ],
)
def test_spoiled_data(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        bestk.SearchResult.from_json(RESULT.to_json(tree=True) | change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hypotheses", "signature", "certified", "pruned_by", "config"])
def test_missing_fields(name: str) -> None:
    data = RESULT.to_json()
    del data[name]
    with pytest.raises(SchemaError, match=name):
        bestk.SearchResult.from_json(data)


def test_scores_must_be_numbers() -> None:
    data = RESULT.to_json()
    data["hypotheses"][0]["score"] = math.nan
    with pytest.raises(SchemaError, match="score nan"):
        bestk.SearchResult.from_json(data)


@pytest.mark.parametrize("text", ["", "{", "[1, 2", "null", "[]", '"text"'])
def test_broken_json(text: str) -> None:
    with pytest.raises(SchemaError, match="a saved result must"):
        bestk.SearchResult.from_json(text)


# For every setting a value that is not its default.
CHANGED: dict[str, Any] = {
    "num_texts": 3, "fill": False, "novelty": 2.0, "on_cut": "trim", "end_prob": 0.5,
    "policy": "another", "sample": "texts", "seed": 7, "prune_margin": 0.5, "depth_bonus": 0.1,
    "typical_p": 0.9,
    "k": 4, "beam_size": 9, "max_new_tokens": 29, "min_new_tokens": 1, "budget": 299,
    "scoring": "sum", "length_alpha": 0.5, "decay": "log", "decay_weight": 0.06,
    "decay_power": 0.6, "min_prob": 0.06, "min_children": 2, "max_children": 3,
    "max_frontier": 499, "max_completions": 3, "timeout": 1.0, "certify": 1, "rank_by": "sum",
    "stop_ids": (1,), "stop": ("x",), "must_include": ("x",), "include_bonus": 0.6, "regex": "x",
    "json_schema": {"type": "string"}, "grammar": 'root ::= "x"', "temperature": 0.5, "top_k": 5,
    "top_p": 0.5, "min_p": 0.5, "repetition_penalty": 1.5, "no_repeat_ngram_size": 3,
    "encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 3, "bad_words": ("x",),
    "bad_words_ids": ((1, 2),), "suppress_tokens": (1,), "begin_suppress_tokens": (1,),
    "forced_bos_token_id": 1, "forced_eos_token_id": (1,), "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
}  # fmt: skip


# Without these they would change nothing.
NEEDED: dict[str, dict[str, Any]] = {"novelty": {"num_texts": 3}, "seed": {"sample": "texts"}}


class TestSignature:
    def test_whole(self) -> None:
        result = search_ids(table_lm({}, [0.5, 0.5]))
        assert result.signature == (
            "bestk|model:toy|k:5|b:10|T:30|C:300|score:mean|decay:power,0.05,0.5|minprob:0.05|"
            f"heap:500|rank:mean|v:{bestk.__version__}"
        )

    def test_names_what_was_changed(self) -> None:
        assert RESULT.signature.startswith("bestk|model:a-model|k:5|b:10|T:5|C:50|score:sum|")
        assert "|timeout:100.0|stopids:3|" in RESULT.signature

    @pytest.mark.parametrize("name", bestk.SearchConfig.__dataclass_fields__)
    def test_differs_with_every_setting(self, name: str) -> None:
        assert name in CHANGED, "say here how the new setting can be changed"
        needed = NEEDED.get(name, {})
        changed = bestk.SearchConfig(**{**needed, name: CHANGED[name]})
        assert changed.describe() != bestk.SearchConfig(**needed).describe()

    def test_differs_with_the_schema(self) -> None:
        one, other = ({"type": kind} for kind in ("string", "number"))
        described = {bestk.SearchConfig(json_schema=s).describe() for s in (one, other)}  # type: ignore[arg-type]
        assert len(described) == 2


class TestIsASequence:
    def test_of_its_texts(self) -> None:
        assert len(RESULT) == len(RESULT.hypotheses) > 3
        assert list(RESULT) == list(RESULT.hypotheses)
        assert (RESULT[0], RESULT[-1]) == (RESULT.hypotheses[0], RESULT.hypotheses[-1])
        assert RESULT[1:3] == RESULT.hypotheses[1:3]
        assert RESULT[0] in RESULT
        assert RESULT.index(RESULT[2]) == 2
        assert str(RESULT[0]) == RESULT[0].text == RESULT.texts[0]
        with pytest.raises(IndexError):
            RESULT[len(RESULT)]

    def test_an_empty_one_is_not_lost(self) -> None:
        (nothing,) = bestk.search(LM, [[1, 2]], max_new_tokens=1, min_new_tokens=1, budget=1, k=1,
                                  suppress_tokens=(0,))  # fmt: skip
        assert (list(nothing), nothing.stop_reason) == ([], "budget")
        assert "no text was completed" in str(nothing)

    def test_its_repr_is_short(self) -> None:
        assert repr(RESULT).startswith(f"<SearchResult: {len(RESULT)} texts, '{RESULT[0]}', ")
        assert len(repr(RESULT)) < 200
        assert repr(RESULT[0]).startswith(f"Hypothesis(text='{RESULT[0]}', score=")
        assert len(repr(RESULT[0])) < 250

    def test_it_prints_as_the_command_does(self) -> None:
        first, *_ = str(RESULT).splitlines()
        assert first.split() == ["1", f"{RESULT[0].score:.3f}", *RESULT[0].text.split()]
        assert "model calls" in str(RESULT)
        several = bestk.search(LM, [1, 2], num_texts=3, max_new_tokens=5)
        assert str(several).splitlines()[0].endswith(several.texts[0])
        assert f"3 texts; {several.cost.expanded} tokens read in " in str(several)

    def test_long_texts_are_shown_as_they_were_written(self) -> None:
        letter = dataclasses.replace(RESULT[0], text="Dear all,\n\nyes.", is_complete=False)
        told = str(dataclasses.replace(RESULT, hypotheses=(letter, RESULT[1]))).splitlines()
        assert told[:5] == [f"1  {letter.score:.3f}", "Dear all,", "", "yes. …", ""]

    def test_equal_ones_are_equal(self) -> None:
        options: dict[str, Any] = {"max_new_tokens": 5, "scoring": "sum", "stop_ids": (3,)}
        again = bestk.search(LM, [1, 2], timeout=100.0, **options)
        assert again == RESULT
        assert bestk.search(LM, [1, 2], timeout=99.0, **options) != RESULT
        assert bestk.SearchResult.from_json(RESULT.dumps()) == RESULT
        assert bestk.SearchResult.from_json(RESULT.dumps(tree=True)) == RESULT
        assert list(RESULT) != RESULT

    def test_as_a_dict(self) -> None:
        data = RESULT.to_dict()
        assert json.loads(json.dumps(data)) == data
        assert [entry["text"] for entry in data["hypotheses"]] == RESULT.texts
        assert next(iter(data["hypotheses"][0])) == "text"

    def test_as_a_data_frame(self) -> None:
        pytest.importorskip("pandas")
        frame = RESULT.to_pandas()
        assert list(frame["text"]) == RESULT.texts
        assert list(frame.columns[:3]) == ["text", "score", "log_prob"]
        assert "rerank_score" not in frame.columns
        empty = dataclasses.replace(RESULT, hypotheses=()).to_pandas()
        assert list(empty.columns) == list(frame.columns)

    def test_without_pandas(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(MissingExtraError, match="pip install pandas"):
            RESULT.to_pandas()


def test_a_result_without_its_tree() -> None:
    lean = bestk.search(LM, [1, 2], keep_tree=False, max_new_tokens=5)
    assert lean.tree is None
    assert "tree" not in lean.to_json(tree=True)


def test_records_hold_their_own_slots_and_memory_alone() -> None:
    tree = Tree(2, 4, 2, 3, torch.device("cpu"))
    tree.roots(torch.arange(2))
    tree.count[:] = torch.tensor([3, 1])
    tree.child_state[:] = int(State.OPEN)  # beyond a search's count that means nothing
    tree.child_token[:] = torch.arange(2 * 5 * 3).view(2, 5, 3)
    second, first = TreeRecord.of(tree, [1, 0])
    assert [len(first), len(second)] == [3, 1]
    assert first.child_token.tolist() == list(range(9))
    assert first.child_parent.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert first.child_index.tolist() == [0, 1, 2] * 3
    assert second.child_token.tolist() == [15, 16, 17]
    for name in TreeRecord.__dataclass_fields__:
        column = getattr(first, name)
        assert column.untyped_storage().nbytes() == column.nbytes, f"{name} holds on to others"
    assert TreeRecord.of(tree, []) == []
