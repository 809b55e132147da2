"""Prompts and texts around every limit of a config: numbers are those of the text read alone.

Draws a model, lengths around its limits, neighbours, who drives the search and when each joins.
`--hypothesis-profile=nightly` draws thousands.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joining import joined_late

import bestk
from bestk.api import Run
from bestk.backends.transformers.decoder_only import DecoderOnlyBackend, TreeSession
from bestk.backends.transformers.probe import trial_obstacle
from bestk.batch.rows import RawRow
from bestk.batch.window import JobConfig, search_window
from bestk.engine.request import requests_of

LIMIT = 12  # of whatever a model has
_LONG = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": LIMIT}
_LONG |= {"short_factor": [1.0, 1.2, 1.4, 1.6], "long_factor": [2.0, 3.0, 4.0, 5.0]}
_LONG |= {"factor": 4.0}
_ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": LIMIT},
    "llama3": {
        "factor": 4.0,
        "original_max_position_embeddings": LIMIT,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}
WINDOWED = ("mistral", "gemma3", "gemma2", "gpt_oss", "qwen2", "cohere2", "starcoder2", "gemma3n")
OTHERS = ("gpt2", "roberta", "bloom", "falcon_alibi", "gpt_neo", "mamba", "bert", "mixtral")

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {"sliding_window": LIMIT}) for family in WINDOWED},
    **{family: (family, {}) for family in OTHERS},
    **{
        f"llama {kind}": (
            "llama",
            {
                "rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **rope},
                "max_position_embeddings": LIMIT if kind == "dynamic" else 64,
            },
        )
        for kind, rope in _ROPES.items()
    },
    "llama longrope": ("llama", {"rope_parameters": _LONG}),
    "phi3": (
        "phi3",
        {"original_max_position_embeddings": LIMIT, "rope_parameters": _LONG, "sliding_window": 16},
    ),
    "gemma3 longrope": (
        "gemma3",
        {
            "sliding_window": 7,
            "rope_parameters": {
                "full_attention": _LONG,
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "llama4": ("llama4", {"attention_chunk_size": LIMIT, "floor_scale": LIMIT}),
}


@functools.cache
def pristine(name: str) -> Any:
    """A model that no search has seen."""
    family, changes = MODELS[name]
    return tiny.fresh(family, **copy.deepcopy(changes))


@torch.inference_mode()
def worst_error(name: str, results: list[bestk.SearchResult]) -> float:
    """Compare every child of every expanded node with a forward of a model that read nothing."""
    worst = 0.0
    for result in results:
        tree = result.tree
        assert tree is not None
        for slot in range(len(tree)):
            model = pristine(name)
            if "rope_parameters" in MODELS[name][1]:  # it remembers the lengths that it has read
                model = copy.deepcopy(model)
            prefix = torch.tensor([[*result.prompt, *tree.tokens_to(slot)]])
            plain = model(input_ids=prefix, use_cache=False).logits[0, -1]
            is_child = tree.child_parent == slot
            expected = plain.double().log_softmax(-1)[tree.child_token[is_child].long()]
            worst = max(worst, float((tree.child_log_prob[is_child] - expected).abs().max()))
    return worst


def state(model: Any) -> tuple[Any, ...]:
    """All of a model that a search could have changed, as values that compare."""
    modules = [
        {name: value for name, value in vars(module).items() if not name.startswith("_")}
        for module in model.modules()
    ]
    plain = [
        {name: value for name, value in held.items() if isinstance(value, int | float | str)}
        for held in modules
    ]
    tensors = {name: value.tolist() for name, value in model.named_buffers()}
    classes = [type(module) for module in model.modules()]
    return model.config.to_dict(), model.config._attn_implementation, plain, tensors, classes


@torch.inference_mode()
def output(model: Any, prompt: list[int]) -> torch.Tensor:
    """What a copy of the model says, bit by bit; to be asked changes some models."""
    logits: torch.Tensor = copy.deepcopy(model)(torch.tensor([prompt]), use_cache=False).logits
    return logits


def searched(
    lm: Any, prompts: list[list[int]], driver: str, joins: list[int], **options: Any
) -> Any:
    if driver == "search":
        return bestk.search(lm, prompts, batch_size=2, **options)
    if driver == "stream":
        results = []
        for prompt in prompts:
            with contextlib.closing(Run(lm, [prompt], bestk.SearchConfig(**options))) as run:
                for _ in run:
                    pass
                results += run.results()
        return results
    if driver == "batch job":
        wanted = JobConfig(config=bestk.SearchConfig(**options), full=True, tree=True)
        rows = [RawRow(line, {"token_ids": prompt}) for line, prompt in enumerate(prompts, 1)]
        lines = search_window(lm, wanted, 2, rows, False).results.splitlines()
        return [bestk.SearchResult.from_json(json.loads(line)["result"]) for line in lines]
    return joined_late(requests_of(lm, prompts, bestk.SearchConfig(**options)), joins)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 3))
    around = st.integers(-7, 5).map(lambda offset: LIMIT + offset)
    lengths = draw(st.lists(around | st.integers(1, 30), min_size=number, max_size=number))
    return {
        "name": draw(st.sampled_from(sorted(MODELS))),
        "lengths": lengths,
        "driver": draw(st.sampled_from(["search", "stream", "server", "batch job"])),
        "joins": draw(st.lists(st.integers(0, 5), min_size=number, max_size=number)),
        "depth": draw(st.integers(1, 6)),
        "k": draw(st.integers(1, 4)),
        "seed": draw(st.integers(0, 99)),
    }


def check(case: dict[str, Any]) -> None:
    name = case["name"]
    generator = torch.Generator().manual_seed(case["seed"])
    prompts = [
        torch.randint(tiny.VOCAB, (length,), generator=generator).tolist()
        for length in case["lengths"]
    ]
    options = {"k": case["k"], "max_new_tokens": case["depth"], "budget": 12, "min_children": 2}
    model = copy.deepcopy(pristine(name))
    before, said = state(model), output(model, prompts[0])
    lm = bestk.from_transformers(model)
    results = searched(lm, prompts, case["driver"], case["joins"], **options)
    assert worst_error(name, results) < 1e-4
    assert state(model) == before, "the search has changed the model"
    assert torch.equal(output(model, prompts[0]), said), "the search has changed what it says"


NIGHTLY = settings.get_current_profile_name() == "nightly"


# Tries out and searches a model for every case: about half a second each.
@pytest.mark.slow
@settings(deadline=None, derandomize=not NIGHTLY, max_examples=3000 if NIGHTLY else 80)
@given(cases())
def test_numbers_are_those_of_a_plain_forward(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.parametrize("name", ["gemma3", "phi3", "llama dynamic"])
def test_who_joins_past_a_limit_is_right(name: str) -> None:
    case = {"name": name, "lengths": [5, 20, 10], "driver": "server", "joins": [0, 2, 3]}
    check({**case, "depth": 4, "k": 2, "seed": 1})


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt_oss", "phi3", "llama longrope"])
def test_room_for_longer_prompts_changes_nothing(name: str) -> None:
    """A GPU's batches have room for more than any of their prompts takes, past every limit."""
    backend = DecoderOnlyBackend(copy.deepcopy(pristine(name)))
    assert backend.obstacle(6, 10) is None
    roomy = functools.partial(TreeSession, prompt_size=4 * LIMIT)
    assert trial_obstacle(backend.model, roomy) is None


def test_a_model_that_has_read_long_texts_gives_the_same_numbers() -> None:
    model = copy.deepcopy(pristine("llama dynamic"))
    model(torch.tensor([list(range(3, 43))]))  # positions stay as they are for 40 tokens
    before = state(model)
    results = bestk.search(bestk.from_transformers(model), [[5] * 14], max_new_tokens=4, budget=9)
    assert worst_error("llama dynamic", results) < 1e-4
    assert state(model) == before
