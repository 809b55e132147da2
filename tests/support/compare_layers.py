"""Compares fused decoder layers with a model's own, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import interpreted
import tiny
import torch
import transformers

import bestk
from bestk.backends.transformers.fused.parts import Residual
from bestk.backends.transformers.kernels import elementwise as kernels

PROMPTS = [[5, 9, 3, 17, 8, 40, 2], [7, 7, 1]]
OPTIONS: dict[str, Any] = {
    "k": 3,
    "beam_size": 2,
    "max_new_tokens": 3,
    "min_prob": 0.01,
    "max_children": 8,
}


def made(family: str) -> Any:
    if family == "qwen2":
        config = transformers.Qwen2Config(**tiny.GROUPED)
        torch.manual_seed(0)
        model = transformers.Qwen2ForCausalLM(config).eval()
        for layer in model.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                part.bias.data.normal_()
        return model
    if family == "granite":  # looks like Llama, but scales its residuals
        config = transformers.GraniteConfig(**tiny.GROUPED, residual_multiplier=0.5)
        torch.manual_seed(0)
        return transformers.GraniteForCausalLM(config).eval()
    return tiny.fresh(family)


def tree(result: Any) -> list[tuple[int, int]]:
    return list(zip(result.tree.parent.tolist(), result.tree.token.tolist(), strict=True))


def compare(family: str, number_fused: int) -> None:
    """Search with fused layers and with masks: the trees must be the same."""
    model = made(family)
    plain = bestk.from_transformers(model)
    plain.backend.__dict__["_with_kernel"] = False
    expected = bestk.search(plain, PROMPTS, **OPTIONS)
    lm = bestk.from_transformers(model)
    assert lm.backend._with_kernel, "the kernel was not taken"
    fusion = lm.backend.model.fusion
    assert len(fusion.layers) == number_fused, f"{family}: {len(fusion.layers)} layers were fused"
    runs, puts = counted(kernels, "place"), counted(Residual, "put")
    found = bestk.search(lm, PROMPTS, **OPTIONS)
    assert bool(runs) == bool(puts) == bool(number_fused)
    for one, other in zip(expected, found, strict=True):
        assert tree(one) == tree(other), f"{family}: the trees differ"
        torch.testing.assert_close(one.tree.log_prob, other.tree.log_prob, rtol=1e-4, atol=1e-4)
    for module in model.modules():
        assert "forward" not in module.__dict__, "the model was not left as it was"


def counted(owner: Any, name: str) -> list[int]:
    calls: list[int] = []
    original = getattr(owner, name)

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return original(*args, **options)

    setattr(owner, name, counting)
    return calls


def moved_weights() -> None:
    """A model whose weights or parts were replaced is fused anew, without what is watched."""
    model = made("llama")
    lm = bestk.from_transformers(model)
    first = bestk.search(lm, PROMPTS[0], **OPTIONS)
    one, two, three = model.model.layers

    def moved() -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data * 1.1

    def replaced() -> None:
        one.input_layernorm.weight = torch.nn.Parameter(one.input_layernorm.weight * 1.2)
        two.mlp.down_proj = torch.nn.Linear(48, 32, bias=False)

    def watched() -> None:
        three.mlp.gate_proj.register_forward_hook(lambda _, __, output: output * 1.5)

    for change, number_fused in ((moved, 3), (replaced, 3), (watched, 2)):
        change()
        again = bestk.search(lm, PROMPTS[0], **OPTIONS)
        plain = bestk.from_transformers(model)
        plain.backend.__dict__["_with_kernel"] = False
        expected = bestk.search(plain, PROMPTS[0], **OPTIONS)
        assert tree(again) == tree(expected), change.__name__
        assert not torch.equal(first.tree.log_prob, again.tree.log_prob)
        torch.testing.assert_close(
            again.tree.log_prob, expected.tree.log_prob, rtol=1e-4, atol=1e-4
        )
        assert len(lm.backend.model.fusion.layers) == number_fused
        first = again


def refused() -> None:
    """Where fused layers fail in a tree, the model's own run, and the tree kernel with them."""

    def fails(*_: Any) -> None:
        raise ValueError("a layer is called in another way")

    lm = bestk.from_transformers(made("llama"))
    fusion = lm.backend.model.fusion
    assert len(fusion.layers) == 3
    place, kernels.place = kernels.place, fails
    try:
        assert lm.backend._with_kernel, "the kernel was not taken"
    finally:
        kernels.place = place
    assert not fusion.has_layers


def families() -> None:
    for family, number_fused in {"llama": 3, "qwen2": 3, "granite": 0}.items():
        compare(family, number_fused)
    for family in ("qwen3", "mistral"):  # the probe compares their numbers
        backend = bestk.from_transformers(made(family)).backend
        runs = counted(kernels, "place")
        assert backend._with_kernel, f"{family}: the kernel was not taken"
        assert runs, f"{family}: no fused layer ran"
        assert len(backend.model.fusion.layers) == 3


if __name__ == "__main__":
    interpreted.main(globals())
