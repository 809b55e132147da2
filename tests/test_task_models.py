"""Adapters on a base model, the token that ends their prompts, and the models that come along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import bestk
from bestk import task_models
from bestk.errors import ModelError, SchemaError
from bestk.task_models import Card

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
    expected = peft.PeftModel.from_pretrained(base.backend.checkpoint.model, str(adapter))
    with torch.no_grad():
        plain = tiny.fresh("llama")(ids).logits
        given, wanted = lm.backend.checkpoint.model(ids).logits, expected(ids).logits
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


def test_a_prompt_can_only_end_with_a_special_token() -> None:
    with pytest.raises(ModelError, match="'dog' is no special token"):
        task_models.end_prompts(tokenizer(), "dog")


def test_a_misspelt_task_model_is_told_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_models, "names", lambda: ["smollm2-commongen"])
    with pytest.raises(ModelError, match="did you mean 'smollm2-commongen'"):
        bestk.load("smollm2-comongen")
