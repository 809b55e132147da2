"""Prompts with images: a text's numbers are those of a plain forward that reads images and text."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tiny_vision
import torch
from joining import joined_late
from tiny_vision import FAMILIES, chat, data_url, image, made

import bestk
from bestk.api import Run
from bestk.backends.transformers.decoder_only import DecoderOnlyBackend, TreeSession
from bestk.backends.transformers.model import ModelInfo
from bestk.backends.transformers.recompute import RecomputeSession
from bestk.batch import run_batch
from bestk.engine.request import requests_of
from bestk.errors import OptionError
from bestk.nodes import BatchSpec

OPTIONS: dict[str, Any] = {
    "k": 3, "budget": 16, "max_new_tokens": 6, "min_children": 3, "scoring": "last",
}  # fmt: skip
SPEC = BatchSpec(width=3, slots=16, depth=6, num_children=20)
PLACEHOLDER = tiny_vision.VOCAB["<image>"]
# Two images of unlike sizes, none, one; grids of Qwen's are 2x2 and 3x1 tokens and the like.
PROMPTS = [
    chat("what is this", image(1), "and", image(2, 12, 24), "tell me"),
    chat("what is a cat"),
    chat(image(3, 24, 24), "tell me"),
    chat("a dog", image(4, 40, 8), image(5, 8, 8)),
]


@torch.inference_mode()
def worst_error(
    family: str, prompts: list[Any], results: list[Any], *, is_barred: bool = False
) -> float:
    """Compare every child with an uncached forward of images, prompt and prefix, alone.

    Forwards cannot read a text that has a placeholder of its own: its children are passed over.
    """
    model, processor = made(family)
    model = copy.deepcopy(model)
    worst, compared = 0.0, 0
    for prompt, result in zip(prompts, results, strict=True):
        inputs = processor.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        for slot in range(len(result.tree)):
            prefix = result.tree.tokens_to(slot)
            if PLACEHOLDER in prefix:
                continue
            model.base_model.rope_deltas = None  # of the forward before
            logits = model(**_followed(inputs, prefix), use_cache=False).logits[0, -1].double()
            if is_barred:
                logits[PLACEHOLDER] = -torch.inf
            mine = result.tree.child_parent == slot
            expected = logits.log_softmax(-1)[result.tree.child_token[mine].long()]
            difference = result.tree.child_log_prob[mine] - expected
            worst, compared = max(worst, float(difference.abs().max())), compared + 1
    assert compared >= 10 * len(prompts), "too few nodes to tell"
    return worst


def _followed(inputs: Any, prefix: list[int]) -> dict[str, Any]:
    """The arguments of a forward that reads a prefix after the prompt."""
    longer = dict(inputs)
    tokens = torch.tensor([prefix], dtype=torch.int64)
    longer["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
    longer["attention_mask"] = torch.ones_like(longer["input_ids"])
    for name in [name for name in longer if name.endswith("token_type_ids")]:
        longer[name] = torch.cat([inputs[name], torch.zeros_like(tokens)], dim=1)
    return longer


def encoder_of(model: Any) -> Any:
    names = ("visual", "vision_tower", "vision_model")
    return next(module for n, module in model.base_model.named_children() if n in names)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_after_images_equal_a_plain_forward(
    family: str, caplog: pytest.LogCaptureFixture
) -> None:
    lm = bestk.from_transformers(*made(family))
    with caplog.at_level(logging.WARNING, "bestk"):
        results = bestk.search(lm, PROMPTS, **OPTIONS)
    assert worst_error(family, PROMPTS, results) < 1e-4
    assert all(int(result.tree.depth.max()) >= 3 for result in results), "too flat to tell"
    assert "recomputing" not in caplog.text
    prompts = [lm.encode(prompt) for prompt in PROMPTS]
    assert isinstance(lm.backend.start(prompts, SPEC), TreeSession)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "qwen3_vl", "idefics3", "gemma3"])
def test_prefixes_recomputed_give_the_same_numbers(family: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(DecoderOnlyBackend, "obstacle", lambda *_: "since the test says so")
    model, processor = made(family)
    lm = bestk.from_transformers(model, processor)
    assert isinstance(lm.backend.start([lm.encode(PROMPTS[0])], SPEC), RecomputeSession)
    encoded: list[Any] = []
    hook = encoder_of(model).register_forward_hook(lambda *_: encoded.append(None))
    try:
        results = bestk.search(lm, PROMPTS, bad_words_ids=[[PLACEHOLDER]], **OPTIONS)
    finally:
        hook.remove()
    assert len(encoded) == 3, "images are encoded once for a prompt, not for every node"
    assert worst_error(family, PROMPTS, results, is_barred=True) < 1e-4


def test_a_text_that_asks_for_an_image_is_told_of_where_it_cannot_be_read(monkeypatch: Any) -> None:
    monkeypatch.setattr(DecoderOnlyBackend, "obstacle", lambda *_: "since the test says so")
    lm = bestk.from_transformers(*made("llava"))
    with pytest.raises(bestk.BestKError, match=r"bad_words_ids=\[\[4\]\]") as error:
        bestk.search(lm, PROMPTS[0], k=40, beam_size=40, max_children=62, min_prob=0.0, budget=80)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3"])
def test_an_image_is_encoded_once(family: str) -> None:
    model, processor = made(family)
    lm = bestk.from_transformers(model, processor)
    bestk.search(lm, PROMPTS, **OPTIONS)  # the first tries the model out
    encoded: list[Any] = []
    hook = encoder_of(model).register_forward_hook(lambda *_: encoded.append(None))
    try:
        bestk.search(lm, PROMPTS, **OPTIONS)
    finally:
        hook.remove()
    assert len(encoded) == 3, "once for a prompt"


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_that_are_not_moved_are_found_out(
    family: str, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in a family's positions after images falls back to what is right."""
    read = ModelInfo.read

    def unmoved(*args: Any, **options: Any) -> Any:
        logits, shift = read(*args, **options)
        return logits, torch.zeros_like(shift)

    monkeypatch.setattr(ModelInfo, "read", unmoved)
    lm = bestk.from_transformers(*made(family))
    prompts = [lm.encode(PROMPTS[0])]
    with caplog.at_level(logging.WARNING, "bestk"):
        assert isinstance(lm.backend.start(prompts, SPEC), RecomputeSession)
    assert "recomputing prefixes, since a tree of masks changes its log-prob" in caplog.text
    assert isinstance(lm.backend.start([lm.encode(PROMPTS[1])], SPEC), TreeSession), "text is right"


def _state(model: Any) -> Any:
    plain = [
        {n: v for n, v in vars(module).items() if not n.startswith("_")}
        for module in model.modules()
    ]
    numbers = [
        {
            n: repr(v)
            for n, v in held.items()
            if v is None or isinstance(v, int | str | torch.Tensor)
        }
        for held in plain
    ]
    return model.config.to_dict(), numbers, [len(m._forward_pre_hooks) for m in model.modules()]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_left_as_it_was(family: str) -> None:
    model, processor = copy.deepcopy(made(family))
    inputs = processor.apply_chat_template(
        PROMPTS[0], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = model(**inputs).logits  # what Qwen's kind remembers of it stays, too
        before = _state(model)
        bestk.search(bestk.from_transformers(model, processor), PROMPTS[:2], **OPTIONS)
        assert _state(model) == before
        assert torch.equal(model(**inputs).logits, expected)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "gemma3 past its window"])
@pytest.mark.parametrize("driver", ["stream", "server", "batch job"])
def test_every_driver_gives_these_numbers(family: str, driver: str, tmp_path: Path) -> None:
    lm = bestk.from_transformers(*made(family))
    prompts = PROMPTS[1:] if driver == "server" else PROMPTS
    assert worst_error(family, prompts, _driven(driver, lm, prompts, tmp_path)) < 1e-4


def _driven(driver: str, lm: Any, prompts: list[Any], folder: Path) -> list[Any]:
    config = bestk.SearchConfig(**OPTIONS)
    if driver == "stream":
        with contextlib.closing(Run(lm, prompts, config)) as run:
            for _ in run:
                pass
            return run.results()
    if driver == "batch job":
        return _job(lm, prompts, folder)
    # Text first; who joins has a longer prompt, and images: the batch is made over twice.
    return joined_late(requests_of(lm, prompts, config), (0, 2, 3))


def _job(lm: Any, prompts: list[Any], folder: Path) -> list[Any]:
    rows = []
    for messages in prompts:
        parts = [
            {"type": "image_url", "image_url": {"url": data_url(part["image"])}}
            if part["type"] == "image"
            else part
            for part in messages[0]["content"]
        ]
        rows.append(json.dumps({"messages": [{"role": "user", "content": parts}]}))
    (folder / "in.jsonl").write_text("\n".join(rows) + "\n")
    run_batch(lm, folder / "in.jsonl", folder / "out.jsonl", full=True, tree=True, **OPTIONS)
    lines = (folder / "out.jsonl").read_text().splitlines()
    return [bestk.SearchResult.from_json(json.loads(line)["result"]) for line in lines]


def test_the_same_text_after_another_image_is_another_prompt() -> None:
    """Draws depend on the prompt; its images are a part of it."""
    lm = bestk.from_transformers(*made("llava"))
    one, same, other = (lm.encode(chat(image(seed), "a cat")) for seed in (1, 1, 2))
    assert repr(one) == repr(same)
    assert repr(one) != repr(other)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "gemma3"])
def test_generate_searches_texts_and_refuses_images(family: str) -> None:
    """The drop-in reads token ids; it says what reads images."""
    model, processor = copy.deepcopy(made(family))
    ids = processor.tokenizer("what is a cat", return_tensors="pt").input_ids
    options: dict[str, Any] = {"max_new_tokens": 4, "beam_size": 3, "k": 2, "num_texts": 2}
    found = model.generate(ids, custom_generate=bestk.generate, **options)
    direct = bestk.search(bestk.from_transformers(model), ids[0].tolist(), **options)
    first = direct.hypotheses[0].token_ids
    assert found[0, 4 : 4 + len(first)].tolist() == list(first)
    inputs = processor.apply_chat_template(
        PROMPTS[0], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    with pytest.raises(OptionError, match=r"bestk\.search takes images too"):
        model.generate(**inputs, custom_generate=bestk.generate, **options)
