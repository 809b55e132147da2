"""The same result alone, in a batch of any size, and at any place in it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tiny
from conftest import random_toy

import bestk


def facts(result: bestk.SearchResult) -> dict[str, Any]:
    """Everything that a result says, but for time."""
    data = result.to_json(tree=True)
    del data["cost"]["seconds"]
    return data


@pytest.mark.parametrize("options", [{}, {"scoring": "last", "max_frontier": 6, "budget": 31}])
def test_toy_alone_in_sixteen_and_shuffled(options: dict[str, Any]) -> None:
    lm = bestk.LanguageModel(random_toy(11, vocab_size=8))
    source = random.Random(0)
    prompts = [[source.randrange(1, 8) for _ in range(n % 5 + 1)] for n in range(16)]
    alone = [bestk.search(lm, prompt, max_new_tokens=7, **options) for prompt in prompts]
    assert len({str(facts(result)["hypotheses"]) for result in alone}) > 10, "prompts too alike"
    together = bestk.search(lm, prompts, batch_size=16, max_new_tokens=7, **options)
    assert [facts(result) for result in together] == [facts(result) for result in alone]
    order = source.sample(range(16), 16)
    shuffled = bestk.search(
        lm, [prompts[i] for i in order], batch_size=5, max_new_tokens=7, **options
    )
    assert [facts(result) for result in shuffled] == [facts(alone[i]) for i in order]


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_transformers_alone_in_sixteen_and_shuffled(family: str) -> None:
    lm = bestk.from_transformers(tiny.model(family))
    source = random.Random(1)
    prompts = [[source.randrange(tiny.VOCAB) for _ in range(n * 3 % 11 + 1)] for n in range(16)]
    options: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 5, "k": 3}
    alone = [bestk.search(lm, prompt, **options) for prompt in prompts]
    assert sum(len(result.hypotheses) for result in alone) > 16, "too little found to compare"
    together = bestk.search(lm, prompts, batch_size=16, **options)
    order = source.sample(range(16), 16)
    shuffled = bestk.search(lm, [prompts[i] for i in order], batch_size=7, **options)
    for other, one in zip(together, alone, strict=True):
        assert_same(other, one)
    for other, place in zip(shuffled, order, strict=True):
        assert_same(other, alone[place])


def refilled(
    lm: bestk.LanguageModel, prompts: list[Any], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[bestk.SearchResult]:
    """Search prompts of one length, four at a time; rows are filled while other searches run."""
    filled: list[int] = []
    start = lm.backend.start

    def watched(*given: Any) -> Any:
        session = start(*given)
        prefill = session.prefill

        def counted(nodes: Any, some: Any, **kind: Any) -> Any:
            filled.append(len(some))
            return prefill(nodes, some, **kind)

        session.prefill = counted
        return session

    monkeypatch.setattr(lm.backend, "start", watched)
    found: list[bestk.SearchResult] = bestk.search(lm, prompts, batch_size=4, **options)
    monkeypatch.undo()
    assert sum(filled) == len(prompts), "something was read twice, or searched anew"
    assert max(filled) == 4
    assert len(filled) > len(prompts) // 4 + 2, "rows waited until all others had ended"
    return found


def test_32_prompts_with_three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = bestk.from_transformers(tiny.model("llama"))
    source = random.Random(4)
    prompts = [[source.randrange(tiny.VOCAB) for _ in range(6)] for _ in range(32)]
    options: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 6, "k": 3, "max_completions": 4}
    options |= {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "top_p": 0.8}
    alone = [bestk.search(lm, prompt, **options) for prompt in prompts]
    assert len({result.cost.steps for result in alone}) > 1, "all end at once: nothing to refill"
    for other, one in zip(refilled(lm, prompts, monkeypatch, **options), alone, strict=True):
        assert_same(other, one)


def assert_same(other: bestk.SearchResult, one: bestk.SearchResult) -> None:
    assert other.tree is not None
    assert one.tree is not None
    assert other.tree.token.tolist() == one.tree.token.tolist(), "other nodes were expanded"
    assert other.tree.parent.tolist() == one.tree.parent.tolist()
    assert [h.token_ids for h in other.hypotheses] == [h.token_ids for h in one.hypotheses]
    # A batch may add in another order, which rounds differently.
    assert [h.log_prob for h in other.hypotheses] == pytest.approx(
        [h.log_prob for h in one.hypotheses], abs=1e-5
    )
