"""Weights that are joined for one product: the model must not notice."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from bestk.backends.transformers.fused.decoder_only import _looks_right
from bestk.backends.transformers.fused.packed import can_join, joined


def inputs(layer: Any) -> list[nn.Linear]:
    return [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]


@pytest.fixture
def model() -> Any:
    return tiny.fresh("llama").bfloat16()


def join_all(model: Any) -> None:
    with torch.inference_mode():  # as a search would do it
        for layer in model.model.layers:
            joined(inputs(layer))
            joined([layer.mlp.gate_proj, layer.mlp.up_proj])


def test_nothing_changes_for_the_model(model: Any, tmp_path: Path) -> None:
    before = copy.deepcopy(model.state_dict())
    tokens = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        expected = model(tokens).logits
        join_all(model)
        assert torch.equal(model(tokens).logits, expected)
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert all(torch.equal(before[name], value) for name, value in loaded.state_dict().items())


def test_safetensors_sees_no_shared_memory(model: Any, tmp_path: Path) -> None:
    join_all(model)
    tensors = {name: value for name, value in model.state_dict().items() if "lm_head" not in name}
    save_file(tensors, tmp_path / "weights.safetensors")
    torch.save(model.model.layers[0].self_attn.k_proj.state_dict(), tmp_path / "one.pt")
    own = model.model.layers[0].self_attn.k_proj.weight.nbytes
    assert (tmp_path / "one.pt").stat().st_size < own + 4096, "a window was saved with its whole"


def test_training_and_loading_reach_the_joined_weights(model: Any) -> None:
    layers = inputs(model.model.layers[0])
    found = joined(layers)
    tokens = torch.tensor([[3, 4, 5]])
    model(tokens, labels=tokens).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert found.is_current(layers)
    assert torch.equal(found.weight, torch.cat([part.weight for part in layers]))
    model.load_state_dict(tiny.fresh("llama", seed=1).bfloat16().state_dict())
    assert joined(layers) is found
    assert torch.equal(found.weight, torch.cat([part.weight for part in layers]))


def test_replaced_weights_are_joined_again(model: Any) -> None:
    layers = inputs(model.model.layers[0])
    found = joined(layers)
    model.float()
    assert not found.is_current(layers)
    again = joined(layers)
    assert again is not found
    assert again.weight.dtype == torch.float32
    assert again.is_current(layers)


def test_only_plain_layers_are_joined(model: Any) -> None:
    layers = inputs(model.model.layers[0])
    assert can_join(layers)
    hook = layers[1].register_forward_hook(lambda *_: None)
    assert not can_join(layers)
    hook.remove()
    assert can_join(layers)
    layers[2].weight = nn.Parameter(torch.zeros(16, 64, dtype=torch.bfloat16)[:, :32])
    assert not can_join(layers), "a part of something larger"
    assert not can_join([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)])
    assert not can_join([nn.Linear(4, 4), nn.Identity()])


@pytest.mark.parametrize(
    ("family", "number"),
    [("llama", 3), ("qwen3", 3), ("mistral", 3), ("gemma2", 0), ("gpt2", 0), ("mixtral", 0),
     ("cohere", 0), ("phi", 0), ("stablelm", 0), ("gpt_neox", 0)],
)  # fmt: skip
def test_which_layers_look_right(family: str, number: int) -> None:
    assert sum(map(_looks_right, tiny.fresh(family).modules())) == number
