"""Rerankers against values computed by hand, and the protocol of the COMET worker."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st

import bestk
from bestk.errors import MissingExtraError, ModelError, OptionError, PromptError, SearchInterrupted
from bestk.rerank import MBR, ByFunction, CometQE, RewardModel, rerank, reranker_of
from bestk.rerank.base import Reranker
from bestk.rerank.chrf import chrf_of_pairs
from bestk.rerank.comet import PYTHON_VARIABLE, interpreter


def overlap(hypothesis: str, reference: str) -> float:
    """Count common letters."""
    return float(len(set(hypothesis) & set(reference)))


@pytest.fixture(scope="module")
def result() -> bestk.SearchResult:
    found = bestk.search(bestk.LanguageModel(random_toy(3, 8)), [1], max_new_tokens=5)
    assert len(found.hypotheses) > 3
    return dataclasses.replace(found, prompt="a prompt")


def test_mbr_by_hand() -> None:
    texts = ["ab", "abc", "xyz"]
    # Utilities: ab 2,2,0; abc 2,3,0; xyz 0,0,3.
    plain = MBR(overlap, weights="uniform")
    assert plain("", texts) == pytest.approx([4 / 3, 5 / 3, 1])
    log_probs = torch.tensor([0.1, 0.1, 0.2]).log().tolist()
    weighted = MBR(overlap)
    assert weighted("", texts, log_probs) == pytest.approx([(2 + 2) / 4, (2 + 3) / 4, 3 * 2 / 4])
    assert [plain.name, weighted.name] == ["mbr-overlap:uniform", "mbr-overlap"]
    with pytest.raises(OptionError, match="not known, take weights='uniform'"):
        weighted("", texts)
    assert weighted("", [], []) == plain("", []) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab ö\n", max_size=12), min_size=2, max_size=5))
def test_chrf_of_pairs_is_sacrebleus(texts: list[str]) -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="needs the eval extra")
    found = chrf_of_pairs(texts)
    for i, text in enumerate(texts):
        for j, other in enumerate(texts):
            assert found[i, j].item() == pytest.approx(sacrebleu.sentence_chrf(text, [other]).score)


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_mbr_equals_sacrebleu(name: str) -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="needs the eval extra")
    texts = ["the cat sat on the mat", "a cat sat on the mat", "dogs bark"]
    scores = MBR(name, weights="uniform")("", texts)
    for text, score in zip(texts, scores, strict=True):
        if name == "chrf":
            each = [sacrebleu.sentence_chrf(text, [other]).score for other in texts]
        else:
            each = [
                sacrebleu.sentence_bleu(text, [other], use_effective_order=True).score
                for other in texts
            ]
        assert score == pytest.approx(sum(each) / 3)
    assert scores[2] == min(scores), "the odd one out agrees with the fewest"


def test_rerank_keeps_both_orders(result: bestk.SearchResult) -> None:
    seen: list[str] = []

    def shortest(source: str, text: str) -> float:
        seen.append(source)
        return -len(text)

    after = rerank(result, shortest)
    assert set(seen) == {"a prompt"}
    lengths = [len(text) for text in after.texts]
    assert lengths == sorted(lengths)
    assert all(h.rerank_score == -len(h.text) for h in after.hypotheses)
    before = sorted(after.hypotheses, key=lambda h: -h.score)
    assert [h.text for h in before] == result.texts, "the old order is in the old scores"
    assert [h.text for h in after.hypotheses if len(h.text) == lengths[0]] == [
        text for text in result.texts if len(text) == lengths[0]
    ], "equal scores keep their order"
    assert after.signature == result.signature + "|rerank:shortest"
    assert bestk.SearchResult.from_json(after.dumps()).hypotheses == after.hypotheses


def test_search_reranks_then_chooses(result: bestk.SearchResult) -> None:
    lm = bestk.LanguageModel(random_toy(3, 8))
    by_length = ByFunction(lambda source, text: -len(text), name="length")
    by_length.needs_source = False
    options = {"max_new_tokens": 5, "num_texts": 2, "policy": "best-k", "k": 5, "beam_size": 10}
    found = bestk.search(lm, [1], rerank=by_length, **options)
    assert found.texts == rerank(result, by_length).texts[:2]
    assert "|rerank:length|select:best,2" in found.signature


def test_source_of_a_prompt(result: bestk.SearchResult) -> None:
    class Echo(Reranker):
        name = "echo"

        def __call__(
            self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
        ) -> list[float]:
            self.source = source
            return [0.0 for _ in texts]

    echo = Echo()
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "well"}]
    rerank(dataclasses.replace(result, prompt=chat), echo)
    assert echo.source == "hello"
    rerank(result, echo, source="the sentence")
    assert echo.source == "the sentence"
    with pytest.raises(PromptError, match="token ids cannot be judged"):
        rerank(dataclasses.replace(result, prompt=[1, 2]), echo)


class Words:
    """A tokenizer that numbers letters, for a model that needs one."""

    pad_token_id = 0
    model_max_length = 10**30

    def __call__(self, sources: list[str], texts: list[str], **options: Any) -> Any:
        from transformers import BatchEncoding

        assert options["max_length"] == 64
        rows = [
            [ord(c) % 50 + 1 for c in source + text]
            for source, text in zip(sources, texts, strict=True)
        ]
        width = max(map(len, rows))
        return BatchEncoding(
            {
                "input_ids": torch.tensor([row + [0] * (width - len(row)) for row in rows]),
                "attention_mask": torch.tensor(
                    [[1] * len(row) + [0] * (width - len(row)) for row in rows]
                ),
            }
        )


def judge(num_labels: int) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        num_labels=num_labels,
    )
    return BertForSequenceClassification(config).eval()


@pytest.mark.parametrize("num_labels", [1, 3])
def test_reward_model_scores_pairs(num_labels: int) -> None:
    model, texts = judge(num_labels), ["one", "two words", "three"]
    scores = RewardModel(model, Words(), batch_size=2)("the prompt ", texts)
    for text, score in zip(texts, scores, strict=True):
        encoded = Words()(["the prompt "], [text], max_length=64)
        with torch.inference_mode():
            logits = model(**encoded).logits[0]
        alone = logits[0] if num_labels == 1 else logits.log_softmax(0)[-1]
        assert score == pytest.approx(float(alone), abs=1e-5)


FAKE_COMET = '''
"""Stands in for unbabel-comet: a text's score is its length less its source's."""
import sys


class _Model:
    def predict(self, pairs, **options):
        print("a library that prints")
        if any(pair["mt"] == "crash" for pair in pairs):
            raise RuntimeError("no such luck")
        if any(pair["mt"] == "die" for pair in pairs):
            sys.exit(3)

        class Output:
            scores = [len(pair["mt"]) - len(pair["src"]) for pair in pairs]

        return Output()


def download_model(name):
    if name == "missing":
        raise KeyError(name)
    return name


def load_from_checkpoint(path):
    return _Model()
'''


@pytest.fixture
def fake_comet(tmp_path: Path) -> Path:
    """Make an interpreter for which `import comet` finds the stand-in."""
    (tmp_path / "comet.py").write_text(FAKE_COMET)
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    @staticmethod\n    def is_available():\n        return False\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_comet_worker(fake_comet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, str(fake_comet))
    comet = reranker_of("comet-qe")
    assert isinstance(comet, CometQE)
    assert comet("ein", ["one", "Straße…"]) == [0.0, 4.0]
    worker = comet._worker
    assert comet("zwei", ["two"]) == [-1.0]
    assert comet._worker is worker, "the model is loaded once"
    with pytest.raises(ModelError, match="no such luck"):
        comet("x", ["crash"])
    assert comet("x", ["yes"]) == [2.0], "a new worker takes over"
    with pytest.raises(ModelError, match="ended without a word"):
        comet("x", ["die"])
    comet.close()
    comet.close()


def test_comet_model_that_is_missing(fake_comet: Path) -> None:
    with pytest.raises(ModelError, match="COMET model missing failed: KeyError"):
        CometQE("missing", python=fake_comet)("x", ["y"])


def test_comet_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setenv("BESTK_CACHE", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"not installed: python -m bestk\.rerank\.comet"):
        reranker_of("comet-qe")
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(MissingExtraError, match="found none at"):
        interpreter()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mbr-chrff", "did you mean 'mbr-chrf'"),
        ("mbr-chrf:probs", "did you mean 'prob'"),
        ("reward:", "name or folder"),
        ("reward", "name or folder"),
    ],
)
def test_names_that_do_not_exist(name: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        reranker_of(name)
    assert message in str(error.value)


class Returning(Reranker):
    """Returns what it is told to, whatever the texts."""

    name = "mine"
    needs_source = False

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        found: list[float] = self.make(len(texts))
        return found


@pytest.mark.parametrize(
    ("reranker", "message"),
    [
        (
            lambda prompt, text: None,
            "reranker <lambda> must return a number for every text, got No",
        ),
        (lambda prompt, text: "a", "must return a number for every text, got 'a'"),
        (lambda prompt, text: torch.zeros(2), "must return a number for every text, got tensor"),
        (Returning(lambda count: None), "reranker mine must return a number for every text, got N"),
        (Returning(lambda count: [None] * count), "must return a number for every text, got None"),
        (Returning(lambda count: torch.zeros(count, 2)), "a number for every text, got tensor"),
        (Returning(lambda count: [1.0]), "must give a score per text, got 1 for"),
        (MBR(lambda text, other: None), "must return a number for every text, got None"),  # type: ignore[arg-type,return-value]
        (lambda prompt, text: [][0], "rerank or embed raised IndexError: list index out of range"),
    ],
)
def test_a_reranker_that_fails_loses_nothing(reranker: Any, message: str) -> None:
    lm = bestk.load("toy")
    prompts = ["the dog", "a bird"]
    plain = bestk.search(lm, prompts, max_new_tokens=5)
    with pytest.raises(SearchInterrupted) as caught:
        bestk.search(lm, prompts, max_new_tokens=5, rerank=reranker)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [r.hypotheses for r in caught.value.partial] == [r.hypotheses for r in plain]
    assert all(result.tree is not None for result in caught.value.partial)


def test_scores_may_come_as_an_array(result: bestk.SearchResult) -> None:
    expected = rerank(result, Returning(lambda count: list(range(count))))
    for make in (
        lambda count: numpy.arange(count, dtype=numpy.float32),
        lambda count: torch.arange(count),
        lambda count: [torch.tensor(float(i)) for i in range(count)],
    ):
        after = rerank(result, Returning(make))
        assert after.hypotheses == expected.hypotheses
        assert bestk.SearchResult.from_json(after.dumps()).hypotheses == after.hypotheses


def test_scores_must_be_finite_and_complete(result: bestk.SearchResult) -> None:
    with pytest.raises(OptionError, match="finite scores, got nan"):
        rerank(result, lambda source, text: float("nan"))
    with pytest.raises(ModelError, match="cannot be loaded"):
        reranker_of("reward:/no/such/folder")
