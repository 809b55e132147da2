"""Tree attention over many model families: cached log-probabilities equal recomputed ones."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import tiny
import torch
import transformers

import bestk
from bestk.backends.transformers.decoder_only import DecoderOnlyBackend, TreeSession
from bestk.backends.transformers.recompute import RecomputeSession
from bestk.errors import ModelError
from bestk.nodes import BatchSpec

SHARED = [
    "llama", "gpt2", "qwen3", "mistral", "gemma3", "gemma2", "opt", "gpt_neox", "gptj", "phi",
    "stablelm", "cohere", "mixtral", "falcon", "phi3", "gpt_oss", "qwen2", "cohere2", "starcoder2",
    "gemma3n", "bert",
]  # fmt: skip
FALLBACK = {
    "bloom": "its forward takes no position_ids",
    "mpt": "its forward takes no position_ids",
    "falcon_alibi": "a tree of masks",
    "gpt_neo": "its local attention counts slots",
    "mamba": "the model is recurrent",
}
PROMPTS = [[5, 9, 33, 60, 7, 12, 21], [44], [3, 3, 8]]
OPTIONS: dict[str, Any] = {
    "k": 3, "budget": 16, "max_new_tokens": 6, "min_children": 3, "scoring": "last",
}  # fmt: skip
SPEC = BatchSpec(width=3, slots=16, depth=6, num_children=20)


@torch.inference_mode()
def worst_error(model: Any, results: list[bestk.SearchResult]) -> float:
    """Compare every child of every expanded node with a plain forward of the node's prefix."""
    worst = 0.0
    for result in results:
        tree = result.tree
        assert tree is not None
        for slot in range(len(tree)):
            prefix = [*result.prompt, *tree.tokens_to(slot)]
            plain = model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1]
            is_child = tree.child_parent == slot
            recomputed = plain.double().log_softmax(-1)[tree.child_token[is_child].long()]
            worst = max(worst, float((tree.child_log_prob[is_child] - recomputed).abs().max()))
    return worst


def fallbacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, but for why a random model's search found no text."""
    messages = [record.getMessage() for record in caplog.records if record.name == "bestk"]
    return [message for message in messages if not message.startswith("no text was complete")]


@pytest.mark.parametrize("family", [*SHARED, *FALLBACK])
def test_cached_equals_recomputed(family: str, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny.model(family)
    with caplog.at_level(logging.WARNING, "bestk"):
        results = bestk.search(bestk.from_transformers(model), PROMPTS, **OPTIONS)
    for result in results:
        assert result.cost.expanded == 16
        assert result.tree is not None
        assert int(result.tree.depth.max()) >= 3, "the trees are too flat to show a mistake"
        assert len(set(result.tree.parent.tolist())) >= 5, "one branch alone shows no sharing"
    assert worst_error(model, results) < 1e-4
    notices = fallbacks(caplog)
    if family in FALLBACK:
        assert len(notices) == 1
        assert FALLBACK[family] in notices[0]
        assert "recomputing prefixes" in notices[0]
        assert "\n" not in notices[0]
    else:
        assert notices == []


@pytest.mark.parametrize("family", SHARED)
def test_shared_families_share(family: str) -> None:
    session = DecoderOnlyBackend(tiny.model(family)).start(PROMPTS, SPEC)
    assert isinstance(session, TreeSession)


WINDOWED = ["mistral", "gemma3", "gemma2", "gpt_oss"]


@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize("width", [1, 3, 6, 12])
def test_a_window_shorter_than_the_path(
    family: str, width: int, caplog: pytest.LogCaptureFixture
) -> None:
    # The longest prompt has 7 tokens, the deepest path 6 more.
    model = tiny.model(family, sliding_window=width)
    lm = bestk.from_transformers(model)
    assert isinstance(lm.backend.start(PROMPTS, SPEC), TreeSession)
    with caplog.at_level(logging.WARNING, "bestk"):
        results = bestk.search(lm, PROMPTS, **OPTIONS)
    assert fallbacks(caplog) == []
    assert worst_error(model, results) < 1e-4


def test_a_window_gives_the_same_trees_as_recomputing() -> None:
    for family in WINDOWED:
        lm = bestk.from_transformers(tiny.model(family, sliding_window=4))
        trees = [result.tree for result in bestk.search(lm, PROMPTS, **OPTIONS)]
        lm.backend._tried = dict.fromkeys(lm.backend._tried, "since the test says so")
        for tree, result in zip(trees, bestk.search(lm, PROMPTS, **OPTIONS), strict=True):
            assert isinstance(lm.backend.start([result.prompt], SPEC), RecomputeSession)
            assert torch.equal(tree.token, result.tree.token)
            assert torch.equal(tree.parent, result.tree.parent)


class WindowAtInit(torch.nn.Module):
    """Keeps the window that it had when it was made, so that no trial can narrow it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.width = model, model.config.sliding_window
        self.config, self.dtype = model.config, model.dtype

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: Any = None,
    ) -> Any:
        now, self.config.sliding_window = self.config.sliding_window, self.width
        try:
            return self.model(
                input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                use_cache=use_cache,
            )
        finally:
            self.config.sliding_window = now


def test_a_window_that_cannot_be_tried_out_is_not_trusted() -> None:
    model = WindowAtInit(tiny.fresh("mistral", sliding_window=10))
    lm = bestk.from_transformers(model)
    assert isinstance(lm.backend.start(PROMPTS[1:], SPEC), TreeSession), "within the window"
    assert isinstance(lm.backend.start(PROMPTS, SPEC), RecomputeSession)
    assert worst_error(model, bestk.search(lm, PROMPTS, **OPTIONS)) < 1e-4


@pytest.mark.parametrize("family", ["bert", "xlnet", "int8"])
def test_what_depends_on_its_neighbours_is_refused(family: str) -> None:
    model = _leaking(family)
    config, some = model.config.to_dict(), torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        expected = model(some).logits
    lm = bestk.from_transformers(model)
    with pytest.raises(ModelError, match="cannot be searched: what comes after a text") as error:
        bestk.search(lm, PROMPTS, **OPTIONS)
    assert "\n" not in str(error.value)
    assert model.config.to_dict() == config
    with torch.no_grad():
        assert torch.equal(model(some).logits, expected)


def _leaking(family: str) -> Any:
    if family == "bert":
        return tiny.fresh("bert", is_decoder=False)
    if family == "xlnet":
        shape = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "initializer_range": 0.3}
        config = transformers.XLNetConfig(vocab_size=tiny.VOCAB, **shape)
        return transformers.XLNetLMHeadModel(config).eval()
    kinds = {torch.nn.Linear}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch keeps its quantisation elsewhere now
        return torch.ao.quantization.quantize_dynamic(tiny.fresh("llama"), kinds, torch.qint8)


def test_steps_wider_than_the_beam_are_noticed_once(caplog: pytest.LogCaptureFixture) -> None:
    lm = bestk.from_transformers(tiny.model("llama"))
    with caplog.at_level(logging.WARNING, "bestk"):
        for _ in range(2):
            bestk.search(lm, PROMPTS[0], k=7, beam_size=3, max_new_tokens=3)
    assert [m for m in fallbacks(caplog) if "k=7" in m] == [
        "k=7 is above beam_size=3: the paper keeps it within the beam"
    ]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "falcon"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations(family: str, attention: str) -> None:
    model = tiny.model(family, attn_implementation=attention)
    assert model.config._attn_implementation == attention
    lm = bestk.from_transformers(model)
    assert isinstance(lm.backend.start(PROMPTS, SPEC), TreeSession)
    assert worst_error(model, bestk.search(lm, PROMPTS, **OPTIONS)) < 1e-4


@pytest.mark.parametrize("name", ["flash_attention_2", "paged|flash_attention_2", "flex_attention"])
def test_attention_that_takes_no_masks_falls_back(name: str) -> None:
    backend = DecoderOnlyBackend(tiny.fresh("llama"))
    assert backend.obstacle(1, 8) is None
    backend = DecoderOnlyBackend(tiny.fresh("llama"))
    backend.model.config._attn_implementation_internal = name
    assert backend.obstacle(1, 8) == f"since {name} takes no mask of its own for every token"


class IgnoresPositions(torch.nn.Module):
    """Counts positions by itself, whatever it is told."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config, self.dtype = model.config, model.dtype

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: Any = None,
    ) -> Any:
        if past_key_values is not None and position_ids is not None:
            start = past_key_values.get_seq_length()
            position_ids = torch.arange(start, start + input_ids.shape[1]).expand_as(input_ids)
        return self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )


class IgnoresMasks(IgnoresPositions):
    """Lets every token see the whole cache."""

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: Any = None,
    ) -> Any:
        if attention_mask is not None:
            attention_mask = torch.ones_like(attention_mask)
        return self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )


class Raises(IgnoresPositions):
    """Knows only masks of two axes."""

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: Any = None,
    ) -> Any:
        assert attention_mask is None, "a mask has two axes"
        return self.model(input_ids, past_key_values=past_key_values, use_cache=use_cache)


@pytest.mark.parametrize("broken", [IgnoresPositions, IgnoresMasks, Raises])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_does_not_obey_is_found_out(broken: Any, dtype: torch.dtype) -> None:
    model = broken(tiny.fresh("llama").to(dtype))
    backend = DecoderOnlyBackend(model)
    assert "a tree of masks" in str(backend.obstacle(1, 8))
    if dtype == torch.float32:
        lm = bestk.from_transformers(model)
        assert worst_error(model, bestk.search(lm, PROMPTS, **OPTIONS)) < 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "bloom", "mamba"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(family: str, dtype: torch.dtype) -> None:
    # Smaller weights: half precision cannot follow logits in the hundreds.
    model = tiny.fresh(family, initializer_range=0.1).to(dtype)
    lm = bestk.from_transformers(model)
    assert isinstance(
        lm.backend.start(PROMPTS, SPEC), RecomputeSession if family in FALLBACK else TreeSession
    )
    results = bestk.search(lm, PROMPTS, **OPTIONS)
    assert worst_error(model, results) < 0.1
    assert all(abs(result.mass.total - 1) < 1e-6 for result in results)


def test_models_with_a_device_map() -> None:
    from accelerate import dispatch_model

    model = tiny.fresh("llama")
    expected = bestk.search(bestk.from_transformers(model), PROMPTS, **OPTIONS)
    layers = {f"model.layers.{i}": "cpu" for i in range(3)}
    rest = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    spread = dispatch_model(model, {**rest, **layers}, force_hooks=True)
    assert hasattr(spread, "hf_device_map")
    results = bestk.search(bestk.from_transformers(spread), PROMPTS, **OPTIONS)
    assert [r.texts for r in results] == [r.texts for r in expected]


def test_weights_stay_as_they_were() -> None:
    model = tiny.fresh("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bestk.search(bestk.from_transformers(model), PROMPTS, **OPTIONS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.lm_head._forward_pre_hooks, "a hook was left on the model"
