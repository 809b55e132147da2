"""A real vLLM server, started here: the same trees as from transformers, and its limits told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import vllm_server
from tree_parity import TIE, compare

import bestk
from bestk.errors import OptionError
from bestk.lm.loading import source_of

# One worker runs them all: each would start a server of its own.
pytestmark = [pytest.mark.model, pytest.mark.xdist_group("vllm-server")]

SETTINGS: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 10, "k": 5, "stop": "."}
PROMPTS = [
    "The best thing about dogs is",
    "When I grow up I want to be",
    "The capital of France is",
    "Once upon a time there was",
    "The weather today is",
    "My favourite food is",
    "In the year 2050 people will",
    "The first rule of cooking is",
    "She opened the door and saw",
    "Water boils at",
    "The quick brown fox",
    "To be or not to be, that is",
    "Scientists have discovered that",
    "The train to London leaves",
    "He could not believe",
    "def add(a, b):",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "The opposite of hot is",
    "A good book should",
]


@pytest.fixture(scope="module")
def url(smollm2: bestk.LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = source_of("smollm2")
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with vllm_server.running(folder, log, "--max-logprobs", "20") as address:
        yield address


@pytest.fixture(scope="module")
def served(url: str) -> Iterator[bestk.LanguageModel]:
    lm = bestk.load(url)
    yield lm
    lm.backend.close()


def test_it_is_known_for_what_it_is(
    served: bestk.LanguageModel, smollm2: bestk.LanguageModel
) -> None:
    backend = served.backend
    assert type(backend.dialect).__name__ == "VllmDialect"
    can = backend.capabilities
    assert (served.name, can.max_length, can.max_listed) == ("smollm2", 512, 20)
    assert backend.vocab_size == smollm2.backend.vocab_size
    assert backend.eos_ids == smollm2.backend.eos_ids
    assert served.is_chat


def test_the_same_trees_as_from_transformers(
    served: bestk.LanguageModel, smollm2: bestk.LanguageModel
) -> None:
    given = bestk.search(served, PROMPTS, **SETTINGS)
    expected = bestk.search(smollm2, PROMPTS, **SETTINGS)
    found = [compare(one, other) for one, other in zip(given, expected, strict=True)]
    print(f"{sum(p.is_same for p in found)} of {len(found)} trees node for node")
    print(f"largest difference of a log-probability: {max(p.gap for p in found):.1e}")
    assert all(parity.gap < TIE for parity in found)
    assert sum(parity.num_nodes for parity in found) > 400
    # A tie that went the other way is no fault, but if many did something else would be.
    assert sum(parity.is_same for parity in found) >= 15
    for parity, one, other in zip(found, given, expected, strict=True):
        if parity.is_same:
            assert one.texts == other.texts


def test_chat_prompts_and_texts_that_end_by_themselves(
    served: bestk.LanguageModel, smollm2: bestk.LanguageModel
) -> None:
    prompt = [{"role": "user", "content": "Say yes or no, in one word."}]
    settings = {"beam_size": 3, "max_new_tokens": 8, "k": 5}
    given, expected = (bestk.search(lm, prompt, **settings) for lm in (served, smollm2))
    assert compare(given, expected).gap < TIE
    assert given.texts == expected.texts
    assert any(h.is_complete for h in given.hypotheses)


def test_its_limit_is_told_before_anything_is_asked(served: bestk.LanguageModel) -> None:
    with pytest.raises(OptionError, match=r"at most 20 tokens.*100 per node.*--max-logprobs -1"):
        bestk.search(served, "Hello", min_prob=0.01, max_new_tokens=3)
    with pytest.raises(OptionError, match=r"at most 20 of its 49152 tokens"):
        bestk.search(served, "Hello", temperature=0.5, max_new_tokens=3)


def test_a_prompt_that_is_too_long_is_told(served: bestk.LanguageModel) -> None:
    with pytest.raises(bestk.BestKError, match="at most 509 fit"):
        bestk.search(served, [1] * 600, max_new_tokens=3)
