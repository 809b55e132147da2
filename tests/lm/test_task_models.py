"""Adapters on a base model, the token that ends their prompts, and the models that come along."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import bestk
from bestk.errors import MissingDataError, MissingExtraError, ModelError, SchemaError
from bestk.lm import task_models
from bestk.lm.task_models import Card
from bestk.sizing import size_of
from bestk_eval.examples import Example
from bestk_eval.metrics.cola import load_cola, untrained
from bestk_eval.metrics.grammar import Grammar

peft = pytest.importorskip("peft", reason="adapters need peft: pip install 'bestk[adapters]'")

MODELS = Path(bestk.__file__).parent.parent / "models"
WORDS = ("a", "dog", "cat", "runs", "sits", "ball", "park")


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ("<pad>", "<s>", "</s>", "<unk>", "<go>")
    ids = {word: number for number, word in enumerate((*special, *WORDS))}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<go>"],
        chat_template="{{ messages[0].content }}",
    )


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter whose weights matter, beside its base."""
    folder = tmp_path_factory.mktemp("adapter")
    model = tiny.fresh("llama")
    model.save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    settings = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, settings)
    torch.manual_seed(1)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    adapted.save_pretrained(folder)
    Card(base=str(folder / "base"), prompt_end="<go>", task="commongen").write(folder)
    return folder


def test_an_adapter_is_added_to_its_base(adapter: Path) -> None:
    lm: Any = bestk.load(adapter)
    ids = torch.tensor([[5, 6, 7]])
    base: Any = bestk.load(adapter / "base")
    expected = peft.PeftModel.from_pretrained(base.backend.network, str(adapter))
    with torch.no_grad():
        plain = tiny.fresh("llama")(ids).logits
        given, wanted = lm.backend.network(ids).logits, expected(ids).logits
    assert torch.allclose(given, wanted, atol=1e-4)
    assert not torch.allclose(given, plain, atol=1e-2), "the adapter changed nothing"


def test_its_prompts_end_with_a_token_of_their_own(adapter: Path) -> None:
    lm = bestk.load(adapter)
    assert lm.encode("dog runs") == [6, 8, 4]
    assert lm.spell("dog runs") == [6, 8], "only prompts end so"
    assert not lm.is_chat
    assert (
        bestk.search(lm, "dog runs", beam_size=2, max_new_tokens=4, min_prob=0.0).cost.expanded > 1
    )


def test_its_texts_end_as_the_card_says(adapter: Path, tmp_path: Path) -> None:
    for path in adapter.glob("adapter_*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    base = str(adapter / "base")
    Card(base=base, prompt_end="<go>", text_end="<go>", task="x").write(tmp_path)
    lm = bestk.load(tmp_path)
    assert lm.backend.eos_ids == (4,)
    assert lm.tokenizer.eos_token == "<go>"
    assert bestk.load(adapter).backend.eos_ids != (4,), "without a word of it the base's own holds"
    Card(base=base, prompt_end="<go>", text_end="dog", task="x").write(tmp_path)
    with pytest.raises(ModelError, match="'dog' is no special token"):
        bestk.load(tmp_path)


def test_a_spoilt_card_is_named(adapter: Path, tmp_path: Path) -> None:
    settings = (adapter / "adapter_config.json").read_text()
    (tmp_path / "adapter_config.json").write_text(settings)
    for text in (
        "not json",
        "{}",
        json.dumps({"format": "bestk.model", "version": 1, "base": "x"}),
    ):
        (tmp_path / task_models.CARD).write_text(text)
        with pytest.raises(SchemaError, match=r"bestk\.json is no card of an adapter"):
            bestk.load(tmp_path)
    (tmp_path / task_models.CARD).write_text(json.dumps({"format": "bestk.model", "version": 2}))
    with pytest.raises(SchemaError, match=r"is not version 1 of bestk\.model"):
        bestk.load(tmp_path)


def test_weights_that_do_not_fit_are_one_line(adapter: Path, tmp_path: Path) -> None:
    tiny.fresh("llama", hidden_size=16).save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    other = tmp_path / "other"
    other.mkdir()
    for path in adapter.glob("adapter_*"):
        (other / path.name).write_bytes(path.read_bytes())
    Card(base=str(tmp_path / "base"), prompt_end="<go>", task="x").write(other)
    with pytest.raises(ModelError, match=f"adapter {other} does not fit its base"):
        bestk.load(other)


def copied(adapter: Path, folder: Path, base: Any) -> Path:
    """Put the adapter into another folder, with a card that names another base."""
    folder.mkdir(exist_ok=True)
    for path in adapter.glob("adapter_*"):
        (folder / path.name).write_bytes(path.read_bytes())
    Card(base=base, prompt_end="<go>", task="x").write(folder)
    return folder


def refused(folder: Path) -> str:
    """Load what cannot be loaded and return the message, which is one line."""
    with pytest.raises((ModelError, SchemaError)) as caught:
        bestk.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_base_is_a_whole_model(adapter: Path, tmp_path: Path) -> None:
    on_another = copied(adapter, tmp_path / "upper", str(adapter))
    assert "which is an adapter too: name a whole model" in refused(on_another)
    on_itself = copied(adapter, tmp_path / "self", str(tmp_path / "self"))
    assert "which is an adapter too" in refused(on_itself)
    assert "no base that can be had: model toy has no weights" in refused(
        copied(adapter, tmp_path / "toy", "toy")
    )
    assert "no base that can be had: unknown model 'smolm2'" in refused(
        copied(adapter, tmp_path / "misspelt", "smolm2")
    )
    assert "no card of an adapter: base must be text, got 5" in refused(
        copied(adapter, tmp_path / "number", 5)
    )


def test_files_that_are_missing_or_cut_are_named(adapter: Path, tmp_path: Path) -> None:
    folder = copied(adapter, tmp_path, str(adapter / "base"))
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert f"adapter {folder} cannot be read" in refused(folder)
    weights.unlink()
    assert f"adapter {folder} has no adapter_model.safetensors" in refused(folder)
    weights.write_bytes(whole)
    (folder / "adapter_config.json").write_text("{")
    assert f"adapter {folder} cannot be read" in refused(folder)
    (folder / task_models.CARD).unlink()
    message = refused(folder)
    assert f"{folder} holds an adapter and no bestk.json" in message
    assert "base, prompt_end and task (docs/python-api.md)" in message


def test_an_adapter_has_the_size_of_its_base(adapter: Path) -> None:
    names = (str(adapter), str(adapter / "base"))
    own, base = (size_of(name, prompt_tokens=9) for name in names)
    assert dataclasses.replace(own, model=base.model) == base


def test_a_prompt_can_only_end_with_a_special_token() -> None:
    with pytest.raises(ModelError, match="'dog' is no special token"):
        task_models.end_prompts(tokenizer(), "dog")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An adapter that gives labels, and the model that was saved."""
    folder = tmp_path_factory.mktemp("models") / "judge"
    tiny.fresh("llama").save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    _, model = untrained(str(folder / "base"), "<go>")
    settings = peft.LoraConfig(r=2, target_modules="all-linear", task_type="SEQ_CLS")
    adapted = peft.get_peft_model(model, settings)
    torch.manual_seed(1)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name or "score.modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.5)
    adapted.save_pretrained(folder)
    Card(base=str(folder / "base"), prompt_end="<go>", task="cola", gives="labels").write(folder)
    return folder, adapted.eval()


def column(rows: Sequence[Sequence[float]]) -> list[float]:
    return [number for (number,) in rows]


def test_an_adapter_that_judges_is_a_model_for_grammar(
    judge: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = judge
    texts = ["dog runs", "a dog sits a park", "cat"]
    wanted = []
    for text in texts:
        ids = [*tokenizer()(text, add_special_tokens=False)["input_ids"], 4]  # <go>
        with torch.no_grad():
            wanted.append(100 * float(model(torch.tensor([ids])).logits[0].softmax(-1)[1]))
    example = Example(id="1", input="x", references=())
    assert column(Grammar(str(folder)).score(texts, example)) == pytest.approx(wanted, abs=1e-3)
    assert len({round(value, 3) for value in wanted}) == 3, "it tells texts apart"
    monkeypatch.setattr(task_models, "_FOLDERS", (folder.parent,))
    by_name = Grammar("judge")
    assert column(by_name.score(texts, example)) == pytest.approx(wanted, abs=1e-3)
    assert by_name.signature == "grammar|model:judge|score:p-acceptable"


def test_an_adapter_that_judges_writes_no_text(
    judge: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = judge
    message = refused(folder)
    assert message.startswith("judge writes no text, it gives labels to texts: ")
    assert message.endswith("--grammar-model judge")
    monkeypatch.setattr(task_models, "_FOLDERS", (folder.parent,))
    assert task_models.find("judge") == folder
    assert task_models.names() == []
    with pytest.raises(ModelError, match="judge writes no text"):
        size_of("judge", prompt_tokens=9)


def test_what_is_no_judge_is_told_so(
    adapter: Path, judge: tuple[Path, Any], tmp_path: Path
) -> None:
    with pytest.raises(MissingDataError, match=r"is no CoLA model .* it gives texts, not labels"):
        load_cola(str(adapter))
    folder = copied(judge[0], tmp_path, str(judge[0] / "base"))
    with pytest.raises(MissingDataError, match="it gives texts, not labels"):
        load_cola(str(folder))
    told = {"base": "smolm2", "prompt_end": "<go>", "task": "x"}
    Card(**told, gives="labels").write(folder)
    with pytest.raises(MissingDataError, match="no base that can be had: unknown model 'smolm2'"):
        load_cola(str(folder))
    Card(**told, gives="songs").write(folder)
    with pytest.raises(MissingDataError, match="gives must be texts or labels, got 'songs'"):
        load_cola(str(folder))
    with pytest.raises(
        MissingDataError, match=r"CoLA model no-cola is not there: recipes/cola\.py"
    ):
        load_cola("no-cola")


def test_a_misspelt_task_model_is_told_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_models, "names", lambda: ["smollm2-commongen"])
    with pytest.raises(ModelError, match="did you mean 'smollm2-commongen'"):
        bestk.load("smollm2-comongen")


@pytest.mark.skipif(not MODELS.is_dir(), reason="models lie beside the package in a checkout alone")
def test_every_model_is_small_and_has_a_card() -> None:
    translating = ["multi30k-en-de", "multi30k-en-fr"]
    writing = ["smollm2-commongen", "smollm2-question", "smollm2-tldr"]
    assert task_models.names() == [*translating, *writing]
    for name in [*task_models.names(), "smollm2-cola"]:
        folder = MODELS / name
        assert sum(path.stat().st_size for path in folder.iterdir()) < 12_000_000
        card = (folder / "README.md").read_text(encoding="utf-8")
        for part in ("## Use", "## Training", "Data: ", "## Scores", "recipes/"):
            assert part in card, f"the card of {name} lacks {part}"


@pytest.mark.skipif(not MODELS.is_dir(), reason="models lie beside the package in a checkout alone")
def test_what_forbids_commercial_use_is_not_packed() -> None:
    project = tomllib.loads((MODELS / "pyproject.toml").read_text(encoding="utf-8"))
    targets = project["tool"]["hatch"]["build"]["targets"]
    packed = set(targets["wheel"]["force-include"])
    cards = {name: (MODELS / name / "README.md").read_text() for name in task_models.names()}
    free = {name for name, card in cards.items() if "Non-commercial" not in card}
    assert packed == free == set(task_models.PACKAGED)
    whole = tomllib.loads((MODELS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    sources = whole["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert not [path for path in sources if "models" in path]


def test_a_model_whose_package_is_missing_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(task_models, "_FOLDERS", (tmp_path,))
    with pytest.raises(MissingExtraError, match="another package: pip install bestk-models"):
        bestk.load("smollm2-commongen")
    with pytest.raises(ModelError, match="did you mean 'smollm2'"):
        bestk.load("smolm2")


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "prompt", "wanted"),
    [
        (
            "smollm2-commongen",
            "ball dog mouth run",
            "A dog running around with a ball in its mouth.",
        ),
        ("smollm2-question", r"1912 \n The Titanic sank in 1912.", "When did the Titanic sink?"),
    ],
)
def test_models_of_the_repository_do_their_task(name: str, prompt: str, wanted: str) -> None:
    result = bestk.search(bestk.load(name), prompt, scoring="last", max_new_tokens=20)
    assert wanted in result.texts
    assert len(result.texts) >= 10


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("multi30k-en-de", "Zwei Hunde spielen im Schnee."),
        ("multi30k-en-fr", "Deux chiens jouent dans la neige."),
    ],
)
def test_the_translation_models_translate(name: str, wanted: str) -> None:
    lm = bestk.load(name, dtype="float32")
    texts = bestk.search(lm, "Two dogs play in the snow.", max_new_tokens=15).texts
    assert texts[0] == wanted
