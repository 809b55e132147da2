"""`bestk.load(..., quantization=)`: in two words, or as a config of transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import bestk
from bestk.errors import MissingExtraError, OptionError
from bestk.lm import checkpoint


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What transformers is asked for, in place of reading weights."""
    given: dict[str, Any] = {}

    class Loader:
        @staticmethod
        def from_pretrained(source: str, **options: Any) -> Any:
            given.update(options)
            return tiny.model("llama")

    monkeypatch.setattr(checkpoint, "loader_of", lambda *_: Loader)
    config = copy.deepcopy(tiny.model("llama").config)
    config.dtype = torch.float32  # other tests move the model that they share
    monkeypatch.setattr(checkpoint, "config_of", lambda *_: config)
    monkeypatch.setattr(checkpoint, "_tokenizer", lambda *_: None)
    return given


def test_a_config_is_handed_on(asked: dict[str, Any], tmp_path: Path) -> None:
    config = object()
    bestk.load(tmp_path, quantization=config, dtype="bfloat16", device="cpu")
    assert asked["quantization_config"] is config
    assert asked["dtype"] is torch.bfloat16
    assert asked["device_map"] == {"": torch.device("cpu")}, "such weights are not moved later"
    asked.clear()
    bestk.load(tmp_path, device="cpu")
    assert asked == {"dtype": torch.float32, "trust_remote_code": False}


def test_a_word_is_enough(asked: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(checkpoint.importlib.util, "find_spec", lambda _: object())
    bestk.load(tmp_path, quantization="4bit")
    assert asked["quantization_config"].load_in_4bit
    assert asked["dtype"] is torch.bfloat16


def test_what_cannot_be(asked: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(OptionError, match="unknown quantization '4bits': did you mean '4bit'"):
        bestk.load(tmp_path, quantization="4bits")
    monkeypatch.setattr(checkpoint.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="pip install bitsandbytes"):
        bestk.load(tmp_path, quantization="4bit")
