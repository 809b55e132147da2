"""Tasks: records of local files and of the hub, prompts, room, choosing, and a user's own task."""

from __future__ import annotations

import gzip
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from evaluation_toy import toy_lm

from bestk.backends.base import Capabilities
from bestk.errors import MissingDataError, MissingExtraError, OptionError, SchemaError
from bestk_eval.examples import Example, Pool
from bestk_eval.tasks import TASKS, Task, task_of
from bestk_eval.tasks.base import style_of
from bestk_eval.tasks.reading import choose, read_examples

# What a record of each task's local file and of its dataset on the hub looks like.
QUESTION = {"id": "q1", "context": "Anna paints.", "question": "Who paints?", "answers": ["Anna"]}
RECORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "squad": ("squad/dev_v1.1.jsonl.gz", QUESTION),
    "quoref": ("quoref/dev.jsonl", QUESTION),
    "drop": ("drop/contrast_set_test.jsonl.gz", QUESTION),
    "commongen": (
        "commongen/test.jsonl",
        {"concepts": ["dog", "run"], "references": ["A dog runs.", "Dogs run."]},
    ),
    "xsum": ("xsum/test1000.jsonl", {"id": 7, "document": "Long text.", "summaries": ["Text."]}),
    "scitldr": (
        "scitldr/test.jsonl.gz",
        {"id": "p", "document": "A study.", "summaries": ["S", "T"]},
    ),
    "wmt14-en-de": (
        "wmt14_multiref/en-de.jsonl",
        {"id": 3, "src": "a dog", "ref": "ein Hund", "extra_refs": ["der Hund"]},
    ),
    "wmt14-en-fr": ("wmt14_multiref/en-fr.jsonl", {"id": 3, "src": "a dog", "ref": "un chien"}),
    "multi30k-en-de": (
        "multi30k/test_2016_flickr.jsonl",
        {"en": "a dog", "de": "ein Hund", "fr": "un chien"},
    ),
    "multi30k-en-fr": (
        "multi30k/test_2016_flickr.jsonl",
        {"en": "a dog", "de": "ein Hund", "fr": "un chien"},
    ),
}
HUB_RECORDS: dict[str, dict[str, Any]] = {
    "squad": {**QUESTION, "answers": {"text": ["Anna"], "answer_start": [0]}},
    "quoref": {**QUESTION, "answers": {"text": ["Anna"], "answer_start": [0]}},
    "drop": {
        "query_id": "q1",
        "passage": "Anna paints.",
        "question": "Who paints?",
        "answers_spans": {"spans": ["Anna"], "types": ["span"]},
    },
    "xsum": {"id": "7", "document": "Long text.", "summary": "Text."},
    "scitldr": {"paper_id": "p", "source": ["A study."], "target": ["S", "T"]},
    "wmt14-en-de": {"translation": {"en": "a dog", "de": "ein Hund"}},
    "wmt14-en-fr": {"translation": {"en": "a dog", "fr": "un chien"}},
    "multi30k-en-de": {"en": "a dog", "de": "ein Hund"},
}


def write(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def fake_hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> list[Any]:
    calls: list[Any] = []
    module = types.ModuleType("datasets")

    def load_dataset(path: str, name: str | None, *, split: str, revision: str | None) -> Any:
        calls.append((path, name, split, revision))
        return rows

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


@pytest.mark.parametrize("name", TASKS)
def test_local_files(name: str, tmp_path: Path) -> None:
    file, record = RECORDS[name]
    write(tmp_path / file, [record, record])
    examples = read_examples(TASKS[name], tmp_path)
    assert all(example.references for example in examples)
    assert len({example.id for example in examples}) == len(examples)
    for style in ("plain", "chat"):
        assert TASKS[name].prompt(examples[0], style)


@pytest.mark.parametrize("name", HUB_RECORDS)
def test_the_hub_gives_what_a_local_file_gives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_hub(monkeypatch, [HUB_RECORDS[name]])
    from_hub = read_examples(TASKS[name])[0]
    file, record = RECORDS[name]
    from_file = read_examples(TASKS[name], write(tmp_path / file, [record]).parents[1])[0]
    assert from_hub.input == from_file.input
    assert from_hub.references[0] == from_file.references[0]
    assert from_hub.fields == from_file.fields
    hub = TASKS[name].hub
    assert hub is not None
    assert calls == [(hub.path, hub.name, hub.split, hub.revision)]


def test_commongen_of_the_hub_is_joined_by_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"concept_set_idx": 0, "concepts": ["dog", "run"], "target": "A dog runs."},
        {"concept_set_idx": 0, "concepts": ["dog", "run"], "target": "Dogs run."},
        {"concept_set_idx": 1, "concepts": ["cat"], "target": "A cat."},
    ]
    fake_hub(monkeypatch, rows)
    examples = read_examples(TASKS["commongen"])
    assert [example.references for example in examples] == [
        ("A dog runs.", "Dogs run."),
        ("A cat.",),
    ]
    assert TASKS["commongen"].prompt(examples[0], "plain") == "dog run"


def test_the_papers_settings() -> None:
    lengths = {name: task.max_new_tokens for name, task in TASKS.items() if not task.source_factor}
    assert lengths == {
        "squad": 25, "quoref": 25, "drop": 20, "commongen": 20, "xsum": 30, "scitldr": 40
    }  # fmt: skip
    assert all(TASKS[f"wmt14-en-{to}"].source_factor == 1.5 for to in ("de", "fr"))
    question = Example(id="1", input="c", references=("q",), fields={"answer": "A", "context": "C"})
    assert TASKS["squad"].prompt(question, "plain") == r"A \n C"
    message = TASKS["squad"].prompt(question, "chat")[0]
    assert message["role"] == "user"  # type: ignore[index,call-overload]


def test_room_is_one_and_a_half_times_the_source() -> None:
    example = Example(id="1", input="a dog runs fast here", references=("x",))
    assert TASKS["wmt14-en-de"].room(example, toy_lm()) == 8
    assert TASKS["commongen"].room(example, toy_lm()) == 20


def test_a_long_document_is_cut_to_fit() -> None:
    lm = toy_lm()
    lm.backend.capabilities = Capabilities(max_length=16)
    text = " ".join(f"w{i}" for i in range(100))
    example = Example(id="1", input=text, references=("x",), fields={"document": text})
    prompt = TASKS["xsum"].prompt_that_fits(example, "plain", lm, 6)
    assert prompt == " ".join(f"w{i}" for i in range(10))
    assert TASKS["xsum"].prompt_that_fits(example, "plain", toy_lm(), 6) == text


def test_choosing_is_without_replacement_and_seeded() -> None:
    examples = [Example(id=str(i), input="x", references=()) for i in range(50)]
    few = choose(examples, 10, seed=1)
    ids = [int(example.id) for example in few]
    assert ids == sorted(set(ids))
    assert len(ids) == 10
    assert few == choose(examples, 10, seed=1)
    assert few != choose(examples, 10, seed=2)
    assert choose(examples, 500, seed=1) == choose(examples, None, seed=1) == examples


def test_a_jsonl_of_ones_own(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl.gz",
        [
            {"input": "a dog", "references": "runs"},
            {"id": "two", "input": "a cat", "references": []},
        ],
    )
    task = task_of(str(path))
    examples = read_examples(task)
    assert (task.name, [e.id for e in examples]) == ("mine", ["mine.jsonl.gz:1", "two"])
    assert examples[0].references == ("runs",)
    assert task.prompt(examples[1], "plain") == "a cat"


def test_a_python_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "rhymes.py"
    path.write_text(
        "from bestk_eval.examples import Example\n"
        "from bestk_eval.tasks import Task\n"
        "TASK = Task(name='rhymes', plain='{word} rhymes with', chat='What rhymes with {word}?',\n"
        "    max_new_tokens=4, examples=lambda: [Example(id='1', input='cat',\n"
        "    references=('hat',), fields={'word': 'cat'})])\n"
    )
    task = task_of(str(path))
    assert task.prompt(read_examples(task)[0], "plain") == "cat rhymes with"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"references": ["x"]}\n', "needs id, input and references"),
        ("a.jsonl", '{"input": " ", "references": []}\n', "has no input"),
        ("a.jsonl", '{"input": "x", "references": [1]}\n', "list of texts"),
        ("a.jsonl", "[1]\n", "must be a JSON object"),
        ("a.jsonl", "{\n", "is not JSON"),
        ("a.jsonl", "", "no examples"),
        ("a.py", "x = 1\n", "must set TASK"),
        ("a.py", "1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_a_bad_file_says_what_is_wrong(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((SchemaError, MissingDataError), match=message):
        read_examples(task_of(str(tmp_path / name)))


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'commongen'"):
        task_of("comongen")
    with pytest.raises(MissingDataError, match="no file"):
        task_of("nowhere.jsonl")
    with pytest.raises(MissingDataError, match="no data folder"):
        read_examples(TASKS["xsum"], tmp_path / "nowhere")
    with pytest.raises(MissingDataError, match="looks for xsum/test"):
        read_examples(TASKS["xsum"], tmp_path)
    with pytest.raises(OptionError, match="unknown style"):
        style_of("chatty", toy_lm())


def test_the_hub_without_its_package_or_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="hub-data"):
        read_examples(TASKS["squad"])
    fake_hub(monkeypatch, [])
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", lambda *a, **k: 1 / 0)
    with pytest.raises(MissingDataError, match="cannot be had from the hub"):
        read_examples(TASKS["squad"])
    with pytest.raises(MissingDataError, match="not on the hub"):
        read_examples(TASKS["multi30k-en-fr"])


def test_a_record_of_another_task_is_named(tmp_path: Path) -> None:
    write(tmp_path / "squad/dev.jsonl", [QUESTION, {"concepts": ["dog"]}])
    with pytest.raises(SchemaError, match=r"dev\.jsonl:2 is not a record of squad"):
        read_examples(TASKS["squad"], tmp_path)


def test_a_prompt_that_asks_for_a_missing_field_is_named() -> None:
    task = Task(name="t", plain="{nothing}", chat="", examples=list)
    with pytest.raises(SchemaError, match="'nothing'"):
        task.prompt(Example(id="1", input="x", references=()), "plain")


def test_views_of_a_pool() -> None:
    pool = Pool(
        example=Example(id="1", input="x", references=()),
        texts=("a", "b", "c"),
        counts=(1, 3, 1),
        scores=(-1.0, -1.1, -1.2),
    )
    assert pool.chosen("all", 2) == ["a", "b", "b", "b", "c"]
    assert pool.chosen("unique", 2) == ["a", "b", "c"]
    assert pool.chosen("top", 2) == ["a", "b"]
    assert pool.reordered([0.1, 0.9, 0.1]).texts == ("b", "a", "c")
    assert pool.reordered([0.1, 0.9, 0.1]).counts == (3, 1, 1)
    assert pool.reordered([0.1, 0.9, 0.1]).scores == (0.9, 0.1, 0.1)
    with pytest.raises(SchemaError, match="did you mean 'top'"):
        pool.chosen("topp", 2)
    with pytest.raises(SchemaError, match="as many scores"):
        pool.reordered([1.0])


def test_the_diverse_view_is_what_selection_chooses() -> None:
    texts = ("a dog runs here", "a dog runs there", "two cats sleep", "a dog ran here")
    pool = Pool(
        example=Example(id="1", input="x", references=()),
        texts=texts,
        counts=(2, 1, 1, 1),
        scores=(-0.1, -0.2, -0.5, -0.6),
    )
    assert pool.chosen("top", 2) == [texts[0], texts[1]]
    assert pool.chosen("diverse", 2) == [texts[0], texts[2]], "each once, however often it came"
    assert pool.chosen("diverse", 9) == list(texts)


def test_the_diverse_view_goes_by_probability_or_a_reranker() -> None:
    texts = ("the cat sleeps", "a dog runs home", "a dog runs away")
    pool = Pool(
        example=Example(id="1", input="x", references=()),
        texts=texts,
        counts=(1, 1, 1),
        scores=(-0.1, -0.2, -0.3),
        log_probs=(-9.0, -1.0, -1.5),
    )
    assert pool.chosen("diverse", 1) == [texts[1]], "what likely texts agree with, not the ranking"
    reranked = pool.reordered([0.0, 0.1, 5.0])
    assert reranked.log_probs == (-1.5, -1.0, -9.0)
    assert reranked.chosen("diverse", 1) == [texts[2]]


def test_another_split_of_a_task(tmp_path: Path) -> None:
    folder = tmp_path / "commongen"
    folder.mkdir()
    for split in ("test", "dev"):
        record = {"concepts": [split, "dog"], "references": ["A dog."]}
        (folder / f"{split}.jsonl").write_text(json.dumps(record))
    assert read_examples(TASKS["commongen"], tmp_path)[0].input == "test dog"
    assert read_examples(TASKS["commongen"], tmp_path, "dev")[0].input == "dev dog"
    with pytest.raises(MissingDataError, match=r"looks for commongen/valid\*"):
        read_examples(TASKS["commongen"], tmp_path, "valid")
    assert TASKS["squad"].of_split("train").hub.split == "train"
    own = Task(name="own", plain="", chat="", examples=list)
    with pytest.raises(OptionError, match="task own has no splits: leave split out"):
        read_examples(own, None, "dev")
