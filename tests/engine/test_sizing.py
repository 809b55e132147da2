"""Sizes that are derived, against what a session allocates and a search does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import bestk
from bestk.backends.transformers import model as transformers_model
from bestk.core.policy import spec_of
from bestk.engine.prefetch import with_room
from bestk.errors import BestKError, ModelError, OptionError
from bestk.lm.toy_language import toy_language
from bestk.sizing import size_of

PROMPT = [5, 7, 9, 11, 13, 15, 17]
# Every child is opened, so that a search never runs out of nodes and spends its whole budget.
FULL: dict[str, Any] = {"min_prob": 0.0, "max_children": 20}


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "gemma3"])
def test_the_cache_is_what_a_session_allocates(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bestk.backends.transformers.kv_cache import TreeLayer

    lm = bestk.from_transformers(tiny.model(family))
    options: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 6, "k": 3}
    bestk.search(lm, PROMPT, **options)  # tries the model out first
    allocated: list[int] = []
    allocate = TreeLayer.lazy_initialization

    def counted(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
        allocate(layer, keys, values)
        allocated.append(layer.keys.nbytes + layer.values.nbytes)

    monkeypatch.setattr(TreeLayer, "lazy_initialization", counted)
    result = bestk.search(lm, PROMPT, prefetch=0, **options, **FULL)
    size = size_of(lm, prompt_tokens=len(PROMPT), **options)
    assert sum(allocated) == size.cache_bytes, "P + C slots, one for every expanded node"
    assert size.slots == 7 + 24
    assert result.cost.expanded == size.requests == 24
    assert result.cost.model_calls == size.model_calls == 1 + 8
    wanted = spec_of(bestk.SearchConfig(**options), lm.backend.vocab_size)
    for rows, spec in ((0, wanted), (None, with_room(wanted, 16))):
        lm.prefetch = rows  # with and without places for nodes evaluated ahead of time
        memory = lm.backend.memory(spec, 7)
        assert memory is not None
        size = size_of(lm, prompt_tokens=len(PROMPT), **options)
        assert size.search_bytes == memory.per_search
    assert size.search_bytes > size.cache_bytes


def test_a_name_is_sized_up_as_the_model_is_when_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.model("llama").save_pretrained(tmp_path)
    loaded = size_of(bestk.from_transformers(tiny.model("llama")), prompt_tokens=20)
    named = size_of(str(tmp_path), prompt_tokens=20, dtype="float32")
    assert named.parameters == loaded.parameters == tiny.model("llama").num_parameters()
    assert named.weight_bytes == loaded.weight_bytes
    assert named.search_bytes < loaded.search_bytes, "a card gains nothing ahead of a small model"
    monkeypatch.setattr(transformers_model, "_HEAVY", 0)
    heavy = size_of(str(tmp_path), prompt_tokens=20, dtype="float32")
    assert heavy.search_bytes > loaded.search_bytes, "a card evaluates more ahead"
    halved = size_of(str(tmp_path), prompt_tokens=20, dtype="bfloat16")
    assert halved.token_bytes * 2 == named.token_bytes


def test_rows_are_those_of_auto_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from bestk.backends.base import Memory
    from bestk.engine.memory import rows_for
    from bestk.engine.request import requests_of

    lm = bestk.from_transformers(tiny.model("llama"))
    size = size_of(lm, prompt_tokens=7)
    for fitting in (1, 3, 40, 1000):
        free = int(size.search_bytes * fitting / 0.8) + 10
        memory = Memory(free=free, per_search=size.search_bytes)
        monkeypatch.setattr(lm.backend, "memory", lambda *_, memory=memory: memory)
        chosen = rows_for(requests_of(lm, [PROMPT], bestk.SearchConfig()))
        assert size.rows_in_memory(free + size.weight_bytes) == min(fitting, 64), "on a GPU"
        assert chosen == min(fitting, 8), "on a CPU more than eight are no faster"
    assert size.rows_in_memory(size.weight_bytes + 10) == 0, (
        "the weights alone do not make a search"
    )


def test_a_server_computes_what_is_left_of_a_block() -> None:
    size = size_of(bestk.from_transformers(tiny.model("llama")), prompt_tokens=32, budget=101)
    # The mean over all lengths of what whole blocks of 16 leave, the last token always computed.
    left = sum(length - (length - 1) // 16 * 16 for length in range(33, 33 + 1600)) / 1600
    assert size.computed_tokens == 32 + 100 * left


def test_the_command_line(cli: Any, tmp_path: Path) -> None:
    tiny.model("llama").save_pretrained(tmp_path)
    name = ("size", "--model", str(tmp_path), "--prompt-tokens", "300", "--dtype", "float32")
    code, out, _ = cli(*name, "--prompts", "1000000000", "--memory", "1", "--json")
    assert code == 0
    told = json.loads(out)
    # 3 layers, keys and values, 2 heads of 8 numbers of 4 bytes.
    assert told["token_bytes"] == 3 * 2 * 2 * 8 * 4
    assert (told["slots"], told["model_calls"], told["requests"]) == (600, 61, 300)
    assert told["total"]["tokens"] == 599 * 10**9
    assert told["lanes"] == 64
    code, out, _ = cli(*name)
    assert code == 0
    assert "230 kB in 600 slots (beam search: 1.27 MB)" in out
    assert "61 per search" in out


def test_what_cannot_be_sized_up(cli: Any) -> None:
    with pytest.raises(ModelError, match="toy has no weights here"):
        size_of(toy_language(), prompt_tokens=3)
    with pytest.raises(OptionError, match="prompt_tokens must be at least 1"):
        size_of(toy_language(), prompt_tokens=0)
    with pytest.raises(ModelError, match="toy has no weights: name one that has"):
        size_of("toy", prompt_tokens=3)
    with pytest.raises(BestKError, match="unknown model 'smolm2': did you mean 'smollm2'"):
        size_of("smolm2", prompt_tokens=3)
    code, _, err = cli("size", "--dtype", "int3")
    assert code == 2
    assert "dtype must be one of float32, bfloat16, float16, got 'int3'" in err
