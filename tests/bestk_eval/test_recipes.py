"""The recipes of task models: killed they go on where they were, and what they write loads."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import bestk
from bestk_eval.store import read_lines

ROOT = Path(bestk.__file__).parent.parent
RECIPES = ROOT / "recipes"

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="recipes come with a checkout alone")


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(RECIPES))
    yield importlib.import_module("training")
    for name in (
        "training",
        "adapter",
        "validation",
        "cola",
        "squad_held_out",
        "question",
        "page",
        "results",
        "evidence",
        "ten",
        "chat",
        "covered",
        "expressions",
        "regexes",
        "queries",
    ):
        sys.modules.pop(name, None)


_BESIDE = {f"{name}.json" for name in ("scores", "measured", "tuning", "judged", "seconds")}


def write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(RECIPES / script), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_training_goes_on_to_the_same_weights(training: Any, tmp_path: Path) -> None:
    pairs = [([1.0 + n, -n], 2.0 * n) for n in range(7)]
    options = argparse.Namespace(micro_batch=2, save_every=2, num_validation=2)
    schedule = training.Schedule(num_pairs=24, batch_size=4, learning_rate=0.1)

    def trainer(folder: str, dies_after: int | None = None) -> Any:
        torch.manual_seed(0)
        model, steps = torch.nn.Linear(2, 1), 0

        def loss(part: Sequence[Any]) -> tuple[torch.Tensor, int]:
            nonlocal steps
            steps += model.training
            if dies_after is not None and steps > dies_after:
                raise KeyboardInterrupt
            given = torch.tensor([row for row, _ in part])
            wanted = torch.tensor([value for _, value in part])
            return (model(given)[:, 0] - wanted).square().sum(), len(part)

        return training.Trainer(model, loss, schedule, tmp_path / folder)

    whole = trainer("whole")
    whole.train(pairs, pairs, options)
    with pytest.raises(KeyboardInterrupt):
        trainer("killed", dies_after=7).train(pairs, pairs, options)
    resumed = trainer("killed")
    resumed.train(pairs, pairs, options)
    assert resumed.step == whole.step == 6
    assert len(resumed.losses) == 4, "it began at its last checkpoint"
    for given, expected in zip(resumed.weights, whole.weights, strict=True):
        assert torch.equal(given, expected)
    other = training.Schedule(num_pairs=40, batch_size=4, learning_rate=0.1)
    resumed.schedule = other
    resumed._save()
    with pytest.raises(SystemExit, match="is of 10 steps, these settings make 6"):
        trainer("killed").train(pairs, pairs, options)


def test_no_article_is_both_trained_on_and_held_out(training: Any, tmp_path: Path) -> None:
    from bestk_eval.tasks import task_of
    from bestk_eval.tasks.reading import read_examples

    titles = [f"Article {n}" for n in range(40)]
    records = [
        {"id": t, "title": t, "context": f"About {t}.", "question": f"{t}?", "answers": ["It"]}
        for t in titles
    ]
    write(tmp_path / "squad" / "dev.jsonl", records)
    question: Any = importlib.import_module("question")
    trained = {pair.target[:-1] for pair in question.all_pairs(tmp_path)}
    held_out = read_examples(task_of(str(RECIPES / "squad_held_out.py")), tmp_path)
    validating = read_examples(task_of(str(RECIPES / "squad_held_out.py")), tmp_path, "validation")
    parts = [trained] + [{e.fields["title"] for e in part} for part in (held_out, validating)]
    assert sorted(title for part in parts for title in part) == sorted(titles), (
        "no part has another's"
    )
    assert min(map(len, parts)) > 1


def test_a_translation_model_from_scratch(tmp_path: Path) -> None:
    pairs = [{"en": f"a dog {n}", "de": f"ein Hund {n}", "fr": f"un chien {n}"} for n in range(16)]
    for split in ("train", "val"):
        write(tmp_path / "multi30k" / f"{split}.jsonl", pairs)
    out = tmp_path / "model"
    told = run(
        "translation.py", "--data-dir", str(tmp_path), "--target", "fr", "-o", str(out),
        "--num-pairs", "512", "--micro-batch", "128", "--num-validation", "4", "--num-scored", "2",
    )  # fmt: skip
    assert "step 2/2" in told
    lm = bestk.load(out)
    assert isinstance(lm, bestk.EncoderDecoderModel)
    assert lm.encode("a dog 3")[-1] == lm.backend.eos_ids[0]
    assert lm.decode([lm.spell("un chien 3")]) == ["un chien 3"]
    assert bestk.search(lm, "a dog 3", beam_size=2, max_new_tokens=4).cost.expanded > 1


def test_a_translation_model_is_put_where_its_language_says() -> None:
    for target in (["--target=fr"], ["--target", "fr"]):
        assert "Train multi30k-en-fr." in run("translation.py", *target, "--help")


@pytest.mark.model
def test_an_adapter_for_smollm2(smollm2: bestk.LanguageModel, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="adapters need peft: pip install 'bestk[adapters]'")
    records = [{"concepts": ["dog", "park"], "references": ["a dog plays in the park ."]}] * 2
    for split in ("train", "test"):
        write(tmp_path / "commongen" / f"{split}.jsonl", records)
    out = tmp_path / "adapter"
    run(
        "commongen.py", "--data-dir", str(tmp_path), "-o", str(out),
        "--num-pairs", "48", "--batch-size", "16", "--num-validation", "2", "--num-scored", "2",
    )  # fmt: skip
    assert (out / "adapter_model.safetensors").stat().st_size < 12_000_000
    assert str(Path.home()) not in (out / "adapter_config.json").read_text()
    lm = bestk.load(out)
    assert lm.tokenizer.decode(lm.encode("dog park")) == "dog park<|im_start|>"
    wanted = [*lm.spell("A dog plays in the park."), *lm.backend.eos_ids]
    assert lm.tokenizer.decode(lm.backend.eos_ids) == "<|im_start|>"
    assert _log_prob(lm, wanted) > _log_prob(smollm2, wanted) + 1, "nothing was learnt"


def test_a_model_that_judges_sentences(
    training: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("peft", reason="adapters need peft: pip install 'bestk[adapters]'")
    from test_task_models import tokenizer

    base, out = tmp_path / "base", tmp_path / "judge"
    tiny.fresh("llama").save_pretrained(base)
    tokenizer().save_pretrained(base)
    words = ("dog", "cat", "a", "ball", "park")
    said = [{"sentence": f"a {word} runs", "label": 1} for word in words]
    said += [{"sentence": f"runs {word} a", "label": 0} for word in words]
    for part in ("in_domain_train", "in_domain_dev", "out_of_domain_dev"):
        write(tmp_path / "cola" / f"{part}.jsonl", said)
    cola: Any = importlib.import_module("cola")
    monkeypatch.setattr(cola, "END", "<go>")
    monkeypatch.setattr(cola, "source_of", lambda name: str(base))
    card = cola.Card
    monkeypatch.setattr(cola, "Card", lambda **told: card(**{**told, "base": str(base)}))
    told = ["--data-dir", str(tmp_path), "-o", str(out), "--num-pairs", "240", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["cola.py", *told, "--batch-size", "8", "--device", "cpu"])
    out.mkdir()
    (out / "README.md").write_text("by hand")
    cola.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [
        f"{part}_domain_dev, 10 sentences: Matthews correlation 100.0, accuracy 100.0"
        for part in ("in", "out_of")
    ]
    assert {path.name for path in out.iterdir()} == {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "bestk.json"
    }  # fmt: skip
    assert (out / "README.md").read_text() == "by hand"
    assert cola.matthews([True, True, False], [True, False, False]) == pytest.approx(0.5)
    assert cola.matthews([True, False], [True, True]) == 0


def _log_prob(lm: Any, target: list[int]) -> float:
    prompt = lm.encode("dog park")
    with torch.no_grad():
        logits = lm.backend.network(torch.tensor([prompt + target])).logits[0]
    log_probs = logits.log_softmax(dim=-1)[len(prompt) - 1 : -1]
    return float(log_probs.gather(1, torch.tensor(target)[:, None]).sum())


def test_the_commands_of_the_results_page_are_real() -> None:
    from bestk_eval.methods import parse_all, split
    from bestk_eval.tasks import task_of

    lines = run("results.py", "--list").splitlines()
    assert len(lines) >= 8
    for line in lines:
        words = line.split()
        assert words[:2] == ["bestk", "eval"]
        task_of(str(ROOT / words[2]) if words[2].endswith(".py") else words[2])
        assert parse_all(split(words[words.index("--methods") + 1]))


@pytest.mark.model
def test_runs_in_processes_of_their_own_fail_alone(tmp_path: Path) -> None:
    write(
        tmp_path / "commongen/dev.jsonl", [{"concepts": ["dog", "park"], "references": ["A dog."]}]
    )
    told = ["--data-dir", str(tmp_path), "-o", str(tmp_path / "out"), "--jobs", "2"]
    told += ["commongen", "drop", "--", "-n", "1", "--methods", "BS:beam_size=1"]
    command = [sys.executable, str(RECIPES / "results.py"), *told]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "failed: drop")
    lines = (tmp_path / "out/commongen/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["BS:beam_size=1"]


def test_the_tables_of_the_results_page_have_runs_and_places(training: Any) -> None:
    page: Any = importlib.import_module("page")
    results: Any = importlib.import_module("results")
    text = (ROOT / "docs" / "results-full.md").read_text(encoding="utf-8")
    for name, block in page.BLOCKS.items():
        assert set(block.runs) <= set(results.RUNS), f"{name} is made of no run of results.py"
        assert f"<!-- {name}: begin -->" in text
        assert block.command() in text, f"{name}: python recipes/page.py writes it anew"


def test_runs_that_are_put_away_hold_no_data(training: Any) -> None:
    results: Any = importlib.import_module("results")
    evidence: Any = importlib.import_module("evidence")
    for folder in (ROOT / "results").iterdir():
        name = folder.name.removeprefix("ten-")
        known = evidence.RUNS | {
            task.removesuffix("-tuned"): run for task, run in evidence.RUNS.items() if run.tuned
        }
        run = results.RUNS.get(folder.name) or known[name]
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        assert (settings["source"], settings["split"]) == (run.task, run.split)
        assert (settings["model"], settings["examples"]) == (run.model, run.num_examples)
        kept = {"settings.json", "results.jsonl"}
        if settings["batch_size"] == 1:  # times of a batch say nothing of a prompt
            kept.add("times.jsonl")
        found = {path.name.removesuffix(".gz").removesuffix(".xz") for path in folder.iterdir()}
        assert found - _BESIDE == kept


def test_a_packed_run_has_the_lines_that_it_had(training: Any, tmp_path: Path) -> None:
    results: Any = importlib.import_module("results")
    (tmp_path / "settings.json").write_text('{"batch_size": 100}')
    for name in ("results", "examples", "times"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"of": "{name}"}}\n')
    results.pack(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"settings.json", "results.jsonl.xz"}
    assert [record for _, record in read_lines(tmp_path / "results.jsonl")] == [{"of": "results"}]


def test_what_was_measured_is_of_the_run_beside_it(training: Any) -> None:
    ten: Any = importlib.import_module("ten")
    for task in ten.TASKS:
        measured = ten.load(task)
        for _, record in read_lines(ten.place(task).parent / "results.jsonl"):
            told = measured[record["method"]][record["example"]]
            assert (told["texts"], told["expanded"]) == (len(record["texts"]), record["expanded"])


def test_curves_are_read_at_an_equal_distinctness(training: Any) -> None:
    ten: Any = importlib.import_module("ten")

    def rows(shift: float) -> dict[str, Any]:
        curve = [[10.0 * n, 50.0 - n + shift, 60.0 - n, 61.0] for n in range(5)]
        return {
            name: {"curve": curve, "texts": 12, "expanded": 9, "calls": 3} for name in ("a", "b")
        }

    found = ten.methods({ten.OURS: rows(1.0), "S:seed=0": rows(0.0), "S:seed=1": rows(2.0)})
    assert list(found) == [ten.OURS, "S"], "seeds are one method"
    assert found[ten.OURS].at(25.0).mean(axis=0).tolist() == [25.0, 48.5, 57.5, 61.0]
    (row,) = ten.against(found[ten.OURS], [found["S"]], at_equal=True)
    assert (row["at"], row["D"].difference, row["R"].difference) == (20.0, 0.0, 0.0)


def test_a_user_is_shown_complete_texts_first(training: Any) -> None:
    chat: Any = importlib.import_module("chat")
    record = {
        "example": "tagline-1", "expanded": 3, "texts": ["A cat sat."], "log_probs": [-4.0],
        "lengths": [4], "cut": ["Dogs run and"], "cut_log_probs": [-3.0], "cut_lengths": [3],
    }  # fmt: skip
    ten = chat.Ten.of(record)
    assert (ten.texts, ten.is_complete) == (("A cat sat.", "Dogs run and"), (True, False))
    assert ten.numbers == pytest.approx([2, 1, 100 * (1 + 4 / 6 + 2 / 6) / 3, -1.0])
    assert "| BS | 2.0" in chat.table({"BS": [ten]}, {})
    listed = chat.listing({"BS": [ten]}, 1)
    assert listed.endswith("1. `A cat sat.`\n2. `Dogs run and` ✂")
