"""Fused layers, and weights packed for one product: the model must not notice."""

from __future__ import annotations

import copy
import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Any

import interpreted
import pytest
import tiny
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from bestk.backends.transformers.fused.packed import can_pack, packed

LAYERS = ("families", "moved_weights", "refused")

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the package triton"
)


def inputs(layer: Any) -> list[nn.Linear]:
    return [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]


@pytest.fixture
def model() -> Any:
    return tiny.fresh("llama").bfloat16()


def pack_all(model: Any) -> None:
    with torch.inference_mode():  # as a search would do it
        for layer in model.model.layers:
            packed(inputs(layer))
            packed([layer.mlp.gate_proj, layer.mlp.up_proj])


def test_nothing_changes_for_the_model(model: Any, tmp_path: Path) -> None:
    before = copy.deepcopy(model.state_dict())
    tokens = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        expected = model(tokens).logits
        pack_all(model)
        assert torch.equal(model(tokens).logits, expected)
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert all(torch.equal(before[name], value) for name, value in loaded.state_dict().items())


def test_safetensors_sees_no_shared_memory(model: Any, tmp_path: Path) -> None:
    pack_all(model)
    tensors = {name: value for name, value in model.state_dict().items() if "lm_head" not in name}
    save_file(tensors, tmp_path / "weights.safetensors")
    torch.save(model.model.layers[0].self_attn.k_proj.state_dict(), tmp_path / "one.pt")
    own = model.model.layers[0].self_attn.k_proj.weight.nbytes
    assert (tmp_path / "one.pt").stat().st_size < own + 4096, "a window was saved with its whole"


def test_training_and_loading_reach_the_packed_weights(model: Any) -> None:
    layers = inputs(model.model.layers[0])
    found = packed(layers)
    tokens = torch.tensor([[3, 4, 5]])
    model(tokens, labels=tokens).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert found.is_current(layers)
    assert torch.equal(found.weight, torch.cat([part.weight for part in layers]))
    model.load_state_dict(tiny.fresh("llama", seed=1).bfloat16().state_dict())
    assert packed(layers) is found
    assert torch.equal(found.weight, torch.cat([part.weight for part in layers]))


def test_replaced_weights_are_packed_again(model: Any) -> None:
    layers = inputs(model.model.layers[0])
    found = packed(layers)
    model.float()
    assert not found.is_current(layers)
    again = packed(layers)
    assert again is not found
    assert again.weight.dtype == torch.float32
    assert again.is_current(layers)


def test_only_plain_layers_are_packed(model: Any) -> None:
    layers = inputs(model.model.layers[0])
    assert can_pack(layers)
    hook = layers[1].register_forward_hook(lambda *_: None)
    assert not can_pack(layers)
    hook.remove()
    assert can_pack(layers)
    layers[2].weight = nn.Parameter(torch.zeros(16, 64, dtype=torch.bfloat16)[:, :32])
    assert not can_pack(layers), "a part of something larger"
    assert not can_pack([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)])
    assert not can_pack([nn.Linear(4, 4), nn.Identity()])


@needs_triton
@pytest.mark.parametrize(
    ("family", "number"),
    [("llama", 3), ("qwen3", 3), ("mistral", 3), ("gemma2", 0), ("gpt2", 0), ("mixtral", 0),
     ("cohere", 0), ("phi", 0), ("stablelm", 0), ("gpt_neox", 0)],
)  # fmt: skip
def test_which_layers_are_known(family: str, number: int) -> None:
    from bestk.backends.transformers.fused.decoder_only import FusedLayer
    from bestk.backends.transformers.fused.parts import UnknownError

    found = 0
    for module in tiny.fresh(family).modules():
        with suppress(AttributeError, UnknownError):
            found += bool(FusedLayer(module))
    assert found == number


@needs_triton
@pytest.mark.xdist_group("layers")  # one worker's process makes them all
@pytest.mark.parametrize("comparison", LAYERS)
def test_fused_layers(comparison: str) -> None:
    interpreted.check("compare_layers.py", LAYERS, comparison)
