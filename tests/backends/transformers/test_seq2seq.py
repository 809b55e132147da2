"""Encoder-decoders: every expanded node has the probabilities of a plain, uncached forward pass."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tiny_seq2seq import FALLBACK, SOURCES, TREE, VOCAB, source_options, sources_for, tiny
from torch.utils._python_dispatch import TorchDispatchMode

import bestk
from bestk.backends.transformers import positions as adapters
from bestk.backends.transformers.encoder_decoder import EncoderDecoderBackend
from bestk.backends.transformers.kv_cache import CacheLayout
from bestk.backends.transformers.probe import probe_nodes
from bestk.backends.transformers.recompute_decoder import RecomputeDecoderSession
from bestk.backends.transformers.sources import Encoded
from bestk.errors import ModelError, OptionError, PromptError
from bestk.nodes import BatchSpec, NodeBatch

OPTIONS: dict[str, Any] = {
    "k": 4,
    "budget": 45,
    "max_new_tokens": 14,
    "min_prob": 0.02,
    "min_new_tokens": 3,
}


def search(model: Any, sources: list[Any], **options: Any) -> list[bestk.SearchResult]:
    lm = bestk.from_transformers(model)
    prompts = [bestk.Features(s) if isinstance(s, torch.Tensor) else s for s in sources]
    return bestk.search(lm, prompts, **{**OPTIONS, **options})


@torch.no_grad()
def plain_log_probs(model: Any, source: Any, prefixes: list[list[int]]) -> Any:
    """Run the whole model over a source and prefixes of one length, nothing cached or padded."""
    options = {
        name: value.expand(len(prefixes), *value.shape[1:])
        for name, value in source_options(source).items()
    }
    output = model(**options, decoder_input_ids=torch.tensor(prefixes), use_cache=False)
    logits = output.logits[:, -1]
    for word in getattr(model.generation_config, "bad_words_ids", None) or []:
        logits[:, word[0]] = -torch.inf
    return logits.log_softmax(-1).double()


def tokens_to(tree: Any, slot: int) -> list[int]:
    """Follow the parents of a slot to the root."""
    tokens: list[int] = []
    while slot > 0:
        tokens.insert(0, int(tree.token[slot]))
        slot = int(tree.parent[slot])
    return tokens


def worst_difference(model: Any, source: Any, result: bestk.SearchResult) -> float:
    """Compare every child of every expanded node with the plain forward pass of its prefix."""
    prompt = list(bestk.from_transformers(model).backend.decoder_prompt)
    tree = result.tree
    assert tree is not None
    worst = 0.0
    for depth in range(int(tree.depth.max()) + 1):
        slots = (tree.depth == depth).nonzero()[:, 0].tolist()
        expected = plain_log_probs(model, source, [prompt + tokens_to(tree, s) for s in slots])
        for slot, log_probs in zip(slots, expected, strict=True):
            mine = tree.child_parent == slot
            difference = tree.child_log_prob[mine] - log_probs[tree.child_token[mine].long()]
            worst = max(worst, float(difference.abs().max()))
    return worst


@pytest.mark.parametrize("family", TREE + FALLBACK)
def test_every_expanded_node_equals_a_plain_forward(family: str, caplog: Any) -> None:
    model, sources = tiny(family), sources_for(family)
    with caplog.at_level(logging.WARNING, "bestk"):
        results = search(model, sources)
    for source, result in zip(sources, results, strict=True):
        assert result.cost.expanded >= 30, "too narrow to tell branches apart"
        assert int(result.tree.depth.max()) >= 4, "too shallow to tell positions apart"
        assert worst_difference(model, source, result) < 1e-4
        assert abs(result.mass.total - 1) < 1e-6
    is_recomputed = "recomputing prefixes" in caplog.text
    assert is_recomputed == (family in FALLBACK), caplog.text


@pytest.mark.parametrize("family", ["t5", "umt5", "bart", "m2m100", "led"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_node_a_step_and_eager_attention(
    family: str, attention: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny(family, attention)
    for source, result in zip(SOURCES, search(model, SOURCES, k=1, budget=20), strict=True):
        assert worst_difference(model, source, result) < 1e-4
    assert "recomputing prefixes" not in caplog.text, "the fallback hides a mask that is wrong"


@pytest.mark.parametrize("family", ["t5", "mbart50", "m2m100", "marian", "whisper"])
def test_a_batch_equals_one_by_one(family: str) -> None:
    model, sources = tiny(family), sources_for(family)
    together = search(model, sources)
    for source, batched in zip(sources, together, strict=True):
        alone = search(model, [source])[0]
        assert [h.token_ids for h in alone.hypotheses] == [h.token_ids for h in batched.hypotheses]
        assert alone.tree.token.tolist() == batched.tree.token.tolist()


@pytest.mark.parametrize("family", ["t5", "umt5", "bart", "marian", "pegasus", "m2m100", "whisper"])
def test_prefixes_recomputed_give_the_same_search(family: str, monkeypatch: Any) -> None:
    """The fallback must have right positions too, for families that never need it."""
    model, sources = tiny(family), sources_for(family)
    cached = search(model, sources)
    monkeypatch.setattr(EncoderDecoderBackend, "obstacle", lambda *_: "since the test says so")
    for source, one, other in zip(sources, cached, search(model, sources), strict=True):
        assert worst_difference(model, source, other) < 1e-4
        assert [h.token_ids for h in one.hypotheses] == [h.token_ids for h in other.hypotheses]


@pytest.mark.parametrize("family", TREE)
def test_the_probe_finds_wrong_positions(family: str, monkeypatch: Any, caplog: Any) -> None:
    """Without its adapter every family must be seen to go wrong, and be searched rightly still."""

    @contextmanager
    def nothing(*_: Any) -> Iterator[dict[str, Any]]:
        yield {}

    monkeypatch.setattr(adapters, "replaced", nothing)
    monkeypatch.setattr(adapters.AskedPositions, "given", nothing)
    model, sources = tiny(family), sources_for(family)[:2]
    with caplog.at_level(logging.WARNING, "bestk"):
        results = search(model, sources, budget=12)
    assert caplog.text.count("recomputing prefixes") == 1, caplog.text
    assert worst_difference(model, sources[0], results[0]) < 1e-4


def test_a_padding_token_inside_a_text_has_the_position_that_the_model_gives_it() -> None:
    model = tiny("m2m100")
    common = int(torch.cat([r.tree.token[1:] for r in search(model, SOURCES)]).mode().values)
    with torch.no_grad():  # what the model likes best, it now likes padding as much
        model.lm_head.weight[model.config.pad_token_id] = model.lm_head.weight[common]
    results = search(model, SOURCES)
    has_padding = [(r.tree.token == model.config.pad_token_id).any() for r in results]
    assert any(has_padding), "the test must meet a padding token"
    for source, result in zip(SOURCES, results, strict=True):
        assert worst_difference(model, source, result) < 1e-4


@pytest.mark.parametrize("family", TREE + FALLBACK)
def test_the_model_is_left_as_it_was(family: str) -> None:
    model, sources = tiny(family), sources_for(family)
    before = copy.deepcopy(model.state_dict())
    attributes = {name: set(vars(m)) for name, m in model.named_modules()}
    probe = {**source_options(sources[0]), "decoder_input_ids": torch.tensor([[3, 4, 5]])}
    with torch.no_grad():
        expected = copy.deepcopy(model)(**probe).logits
    search(model, sources, budget=12)
    for name, module in model.named_modules():
        assert set(vars(module)) == attributes[name], f"{name} has other attributes than before"
        assert not module._forward_hooks, name
        assert not module._forward_pre_hooks, name
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(**probe).logits, expected)


@pytest.mark.parametrize("family", ["t5", "bart", "m2m100"])
def test_the_model_is_left_as_it_was_when_a_forward_fails(family: str) -> None:
    model = tiny(family)
    lm = bestk.from_transformers(model)
    session = lm.backend.start(SOURCES, BatchSpec(width=2, slots=9, depth=4, num_children=3))
    attributes = {name: set(vars(m)) for name, m in model.named_modules()}
    group = probe_nodes([[1], [2]], [0, VOCAB + 5, 1], len(SOURCES), torch.device("cpu"))
    session.prefill(
        probe_nodes([[]], [0], len(SOURCES), torch.device("cpu")),
        dict(enumerate(SOURCES)),
        whole=True,
    )
    with pytest.raises(IndexError):  # a token that no embedding has
        session.evaluate(group)
    assert attributes == {name: set(vars(m)) for name, m in model.named_modules()}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("switch", {"expert_capacity": 3}),  # experts are full after a few tokens of a text
        ("t5gemma", {"sliding_window": 4}),
        ("t5gemma", {"sliding_window": 64}),
        # Sources of 60 tokens are read in blocks, those of a few are not.
        ("bigbird", {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 80}),
    ],
)
def test_lengths_past_a_limit(family: str, changes: dict[str, Any]) -> None:
    model, sources = tiny(family, **changes), [[(7 * i) % 40 + 3 for i in range(60)], *SOURCES]
    untouched = copy.deepcopy(model)
    for source, result in zip(sources, search(model, sources), strict=True):
        assert worst_difference(copy.deepcopy(untouched), source, result) < 1e-4
    encoders = [type(m) for m in model.modules()], [type(m) for m in untouched.modules()]
    assert encoders[0] == encoders[1], "a short source has changed the model"


@pytest.mark.parametrize("family", ["t5", "umt5", "bart", "t5gemma", "m2m100"])
def test_slots_are_as_exact_as_the_numbers_that_they_hold(family: str) -> None:
    """In double precision nothing is left of what rounding makes of large weights in float32."""
    model = tiny(family).double()
    for source, result in zip(SOURCES, search(model, SOURCES), strict=True):
        assert worst_difference(model, source, result) < 1e-9


class Waiting(TorchDispatchMode):
    """Counts what would make the host wait for a GPU: reading a value, or a shape from values."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(bad in name for bad in ("_local_scalar_dense", "nonzero", "masked_select")):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


# Switch's experts ask which tokens are theirs: its steps are not captured.
@pytest.mark.parametrize("family", [f for f in TREE if f not in ("led", "switch")])
def test_expanding_never_waits_for_the_device(family: str, monkeypatch: Any) -> None:
    """Else a step could not be captured as a CUDA graph."""

    def advance(layout: CacheLayout, nodes: NodeBatch) -> None:
        """Keep all in view; a CPU looks at how far the slots go, which costs it nothing."""
        layout.write, layout.used = layout.place(nodes.slot), layout.size

    monkeypatch.setattr(CacheLayout, "advance", advance)
    lm = bestk.from_transformers(tiny(family))
    sources = sources_for(family)
    session = lm.backend.start(sources, BatchSpec(width=2, slots=9, depth=4, num_children=3))
    cpu = torch.device("cpu")
    session.prefill(probe_nodes([[]], [0], len(sources), cpu), dict(enumerate(sources)), whole=True)
    group = probe_nodes([[1], [2]], [0, 8, 9], len(sources), cpu)
    with torch.inference_mode(), Waiting() as waiting:
        session.logits(group)
    assert not waiting.seen


@pytest.mark.parametrize("family", ["t5", "bart", "m2m100", "whisper", "bert2bert", "prophetnet"])
def test_a_search_can_take_the_place_of_another(family: str) -> None:
    model, sources = tiny(family), sources_for(family)
    backend = bestk.from_transformers(model).backend
    prompt, cpu, batch = list(backend.decoder_prompt), torch.device("cpu"), len(sources)
    session = backend.start(sources, BatchSpec(width=2, slots=9, depth=4, num_children=3))
    session.prefill(probe_nodes([[]], [0], batch, cpu), dict(enumerate(sources)), whole=True)
    tokens = [0, 8, 9, 10]
    session.evaluate(probe_nodes([[1], [2]], tokens, batch, cpu))
    fresh = sources[0].flip(-1) if family == "whisper" else [12, 30, 2]
    root = session.prefill(probe_nodes([[]], [0], batch, cpu), {1: fresh}, whole=True)
    expected = plain_log_probs(model, fresh, [prompt])[0]
    found = root[1, 0].log_softmax(-1).double()
    finite = expected.isfinite()
    assert torch.allclose(found[finite], expected[finite], atol=1e-4)
    with torch.inference_mode():
        logits = session.logits(probe_nodes([[1], [1, 3]], tokens, batch, cpu))
    for row, source in ((0, sources[0]), (1, fresh), (2, sources[2])):
        for place, path in enumerate(([8], [8, 10])):
            mine = logits[row, place].log_softmax(-1).double()
            plain = plain_log_probs(model, source, [prompt + path])[0]
            finite = plain.isfinite()
            assert torch.allclose(mine[finite], plain[finite], atol=1e-4)


@pytest.mark.parametrize("family", ["t5", "bart", "m2m100", "whisper", "bert2bert"])
@torch.inference_mode()
def test_sources_may_be_encoded_already(family: str) -> None:
    """As they are for whoever is called from inside `generate`."""
    model, sources = tiny(family), sources_for(family)
    prompts, cpu = [[3, 9, 10], [3, 9, 30], [3, 12, 8]], torch.device("cpu")
    parts = []
    for source, prompt in zip(sources, prompts, strict=True):
        output = model.get_encoder()(**source_options(source))
        parts.append(Encoded(output.last_hidden_state, None, [prompt], type(output)))
    backend = EncoderDecoderBackend(model, decoder_prompt=prompts[0])
    session = backend.start(parts, BatchSpec(width=2, slots=9, depth=4, num_children=3))
    session.prefill(probe_nodes([[]], [0], len(sources), cpu), dict(enumerate(parts)), whole=True)
    logits = session.logits(probe_nodes([[1], [2]], [0, 8, 9], len(sources), cpu))
    for row, source in enumerate(sources):
        plain = plain_log_probs(model, source, [prompts[row] + [8], prompts[row] + [9]])
        assert torch.allclose(logits[row].log_softmax(-1).double(), plain, atol=1e-4)


def fed_by_generate(model: Any, source: Any) -> list[int]:
    """Return the decoder tokens that `generate` feeds, or forces, before its first free choice."""
    kwargs = source_options(source)
    output = model.generate(**kwargs, max_new_tokens=3, min_new_tokens=3, num_beams=1)
    return [int(token) for token in output[0]]


@pytest.mark.parametrize("family", [f for f in TREE + FALLBACK if f != "whisper"])
def test_texts_start_as_those_of_generate(family: str) -> None:
    model, source = tiny(family), SOURCES[0]
    lm = bestk.from_transformers(model)
    prompt = list(lm.backend.decoder_prompt)
    tokens = fed_by_generate(model, source)
    assert tokens[: len(prompt)] == prompt
    result = bestk.search(lm, source, k=1, budget=1, min_new_tokens=3, max_new_tokens=5)
    first = result.tree.child_token[(result.tree.child_state != 1)][0]
    assert int(first) == tokens[len(prompt)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [3]),
        ({"forced_decoder_ids": [[1, 40], [2, 44]]}, [3, 40, 44]),
        ({"lang_to_id": {"<|en|>": 40, "<|fr|>": 41}, "task_to_id": {"transcribe": 44}}, None),
        (
            {
                "language": "fr",
                "lang_to_id": {"<|en|>": 40, "<|fr|>": 41},
                "task_to_id": {"transcribe": 44, "translate": 43},
                "no_timestamps_token_id": 46,
            },
            [3, 41, 44, 46],
        ),
        (
            {
                "language": "en",
                "task": "translate",
                "lang_to_id": {"<|en|>": 40, "<|fr|>": 41},
                "task_to_id": {"transcribe": 44, "translate": 43},
                "no_timestamps_token_id": 46,
            },
            [3, 40, 43, 46],
        ),
    ],
)
def test_whisper_starts_as_generate_does(settings: dict[str, Any], expected: Any) -> None:
    model, sound = tiny("whisper"), sources_for("whisper")[0]
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    seen: list[list[int]] = []

    def record(_: Any, __: Any, kwargs: Any) -> None:
        if kwargs.get("decoder_input_ids") is not None:
            seen.append(kwargs["decoder_input_ids"][0].tolist())

    hook = model.register_forward_pre_hook(record, with_kwargs=True)
    config = copy.deepcopy(model.generation_config)
    model.generate(sound[None], generation_config=config, max_new_tokens=2)
    hook.remove()
    fed = seen[-2] if len(seen) > 2 else seen[0]  # before it may come the detection of a language
    backend = bestk.from_transformers(model).backend
    prompt = backend.model.encode([sound]).prompts[0]
    assert prompt == fed
    if expected is not None:
        assert prompt == expected


def test_suppressed_tokens_are_never_opened() -> None:
    model, sounds = tiny("whisper"), sources_for("whisper")
    free = search(model, sounds)[0]
    first = int(free.tree.child_token[0])
    later = int(free.tree.token[free.tree.depth == 2][0])
    model.generation_config.begin_suppress_tokens = [first]
    model.generation_config.suppress_tokens = [later]
    result = search(model, sounds)[0]
    assert first not in result.tree.child_token[result.tree.child_parent == 0].tolist()
    assert later not in result.tree.child_token.tolist()
    assert abs(result.mass.total - 1) < 1e-6


def test_features_are_checked() -> None:
    lm = bestk.from_transformers(tiny("whisper"))
    sound = sources_for("whisper")[0]
    result = bestk.search(lm, bestk.Features(sound), budget=5, max_new_tokens=3)
    assert result.to_json()["prompt"] == {"features": list(sound.shape)}
    with pytest.raises(PromptError, match="reads input_features, not text"):
        bestk.search(lm, [1, 2, 3])
    with pytest.raises(bestk.BestKError, match="two axes, mel bins and frames"):
        bestk.search(lm, bestk.Features(sound[None]))
    with pytest.raises(PromptError, match="reads text, not features"):
        bestk.search(bestk.from_transformers(tiny("t5")), bestk.Features(sound))


def test_both_length_limits_are_kept() -> None:
    lm = bestk.from_transformers(tiny("mbart50"))
    with pytest.raises(PromptError, match="the source has 41 tokens, at most 40 fit"):
        bestk.search(lm, [5] * 41, max_new_tokens=3)
    with pytest.raises(OptionError, match="max_new_tokens must be at most 38 for"):
        bestk.search(lm, [5] * 3, max_new_tokens=39)
    # Source and text do not share the limit, and the longest text has a place for its every token.
    deep = bestk.search(lm, [5] * 40, max_new_tokens=38, k=1, budget=60, scoring="last")
    assert deep.cost.expanded == 60
    t5 = bestk.from_transformers(tiny("t5"))
    assert bestk.search(t5, [5] * 100, max_new_tokens=90, budget=5).cost.expanded == 5


def test_a_decoder_prompt_can_be_given() -> None:
    model = tiny("bart")
    lm = bestk.from_transformers(model, decoder_prompt=[2, 9, 30])
    result = bestk.search(lm, SOURCES[0], **OPTIONS)
    expected = plain_log_probs(model, SOURCES[0], [[2, 9, 30]])[0]
    mine = result.tree.child_parent == 0
    tokens = result.tree.child_token[mine].long()
    assert torch.allclose(result.tree.child_log_prob[mine], expected[tokens], atol=1e-4)
    with pytest.raises(OptionError, match="decoder_prompt must be a list of token ids"):
        bestk.from_transformers(model, decoder_prompt=[])


def test_a_model_that_depends_on_its_batch_is_refused() -> None:
    model = tiny("bart")
    calls = {"count": 0}

    def drift(_: Any, __: Any, output: Any) -> Any:
        calls["count"] += 1
        return output + torch.randn(VOCAB, generator=torch.Generator().manual_seed(calls["count"]))

    model.lm_head.register_forward_hook(drift)
    with pytest.raises(bestk.BestKError, match="cannot be searched: its log-prob") as caught:
        bestk.search(bestk.from_transformers(model), SOURCES[0])
    assert isinstance(caught.value, ModelError)


def test_a_fallback_session_encodes_its_sources_once() -> None:
    model = tiny("bert2bert")
    lm = bestk.from_transformers(model)
    backend = lm.backend
    session = backend.start(SOURCES, BatchSpec(width=2, slots=9, depth=4, num_children=3))
    assert isinstance(session, RecomputeDecoderSession)
    calls = []
    hook = model.encoder.register_forward_hook(lambda *_: calls.append(1))
    bestk.search(lm, [list(source) for source in SOURCES], **OPTIONS)
    hook.remove()
    assert len(calls) == 1
