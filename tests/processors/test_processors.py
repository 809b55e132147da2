"""Processors and stopping criteria, node by node, against transformers' own objects.

Every text that a search returns is walked step by step: transformers' processor, given the exact
prefix and the model's log-probabilities, must allow each token with the log-probability found.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import random_toy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import logits_process as lp
from transformers.generation import stopping_criteria as sc

import bestk
from bestk.config import SearchConfig
from bestk.errors import OptionError
from bestk.lm.language_model import LanguageModel
from bestk.lm.toy_language import Words
from bestk.nodes import NodeBatch
from bestk.processors import builtin as steps
from bestk.processors.base import ContextTable, NodeContext

VOCAB, EOS = 24, 0
PROMPTS = [[3, 4, 5, 3, 4], [7], [9, 2, 9, 2, 9, 2, 11], [5, 6, 3]]
OPTIONS: dict[str, Any] = {
    "k": 3,
    "beam_size": 8,
    "max_new_tokens": 7,
    "min_prob": 0.02,
    "decay_weight": 0.3,
}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=EOS,
        pad_token_id=1,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # uneven enough that branches compete and texts end
        model.lm_head.weight.mul_(18)
        model.lm_head.weight[EOS] *= 1.5
    return model


@pytest.fixture(scope="module")
def lm(model: LlamaForCausalLM) -> LanguageModel:
    return bestk.from_transformers(model)


def walk(
    model: Any, prompt: list[int], text: tuple[int, ...], processors: list[Any]
) -> list[float]:
    """Score a text token by token as transformers' beam search would under the processors."""
    found = []
    whole = torch.tensor([[*prompt, *text]])
    with torch.no_grad():
        log_probs = model(input_ids=whole).logits.log_softmax(-1)
    for end, token in enumerate(text):
        ids = whole[:, : len(prompt) + end]
        scores = log_probs[:, len(prompt) + end - 1].clone()
        for processor in processors:
            scores = processor(ids, scores)
        found.append(float(scores.log_softmax(-1)[0, token]))
    return found


def assert_parity(
    model: Any, results: list[Any], make: Callable[[list[int]], list[Any]], least: int = 8
) -> None:
    total = 0
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.mass.total == pytest.approx(1, abs=1e-6)
        for hypothesis in result.hypotheses:
            plain = walk(model, prompt, hypothesis.token_ids, make(prompt))
            assert min(plain) > -math.inf, f"{hypothesis.token_ids} holds a forbidden token"
            assert hypothesis.log_probs == pytest.approx(plain, abs=1e-4)
            total += 1
    assert total >= least, "too few texts to show anything"


class Occurrences:
    """OpenAI's penalties, as its documentation words them: of the text alone, not of the prompt."""

    def __init__(self, prompt: list[int], presence: float, frequency: float) -> None:
        self.start, self.presence, self.frequency = len(prompt), presence, frequency

    def __call__(self, ids: Any, scores: Any) -> Any:
        for row, text in enumerate(ids[:, self.start :].tolist()):
            for token in set(text):
                scores[row, token] -= self.presence + self.frequency * text.count(token)
        return scores


SETTINGS: dict[str, tuple[dict[str, Any], Callable[[list[int]], list[Any]]]] = {
    "temperature": ({"temperature": 1.7}, lambda p: [lp.TemperatureLogitsWarper(1.7)]),
    "top_k": ({"top_k": 3}, lambda p: [lp.TopKLogitsWarper(3)]),
    "top_p": ({"top_p": 0.6}, lambda p: [lp.TopPLogitsWarper(0.6)]),
    "min_p": ({"min_p": 0.4}, lambda p: [lp.MinPLogitsWarper(0.4)]),
    "typical_p": ({"typical_p": 0.6}, lambda p: [lp.TypicalLogitsWarper(0.6)]),
    "repetition_penalty": (
        {"repetition_penalty": 1.6},
        lambda p: [lp.RepetitionPenaltyLogitsProcessor(1.6)],
    ),
    "presence_penalty": ({"presence_penalty": 0.9}, lambda p: [Occurrences(p, 0.9, 0)]),
    "frequency_penalty": (
        {"presence_penalty": -0.4, "frequency_penalty": 0.7},
        lambda p: [Occurrences(p, -0.4, 0.7)],
    ),
    "no_repeat_1gram": (
        {"no_repeat_ngram_size": 1},
        lambda p: [lp.NoRepeatNGramLogitsProcessor(1)],
    ),
    "no_repeat_2gram": (
        {"no_repeat_ngram_size": 2},
        lambda p: [lp.NoRepeatNGramLogitsProcessor(2)],
    ),
    "no_repeat_4gram": (
        {"no_repeat_ngram_size": 4},
        lambda p: [lp.NoRepeatNGramLogitsProcessor(4)],
    ),
    "encoder_repetition_penalty": (
        {"encoder_repetition_penalty": 1.5},
        lambda p: [lp.EncoderRepetitionPenaltyLogitsProcessor(1.5, torch.tensor([p]))],
    ),
    "encoder_no_repeat_ngram_size": (
        {"encoder_no_repeat_ngram_size": 2},
        lambda p: [lp.EncoderNoRepeatNGramLogitsProcessor(2, torch.tensor([p]))],
    ),
    "bad_words_ids": (
        {"bad_words_ids": [[3], [9, 2], [4, 5, 6]]},
        lambda p: [lp.NoBadWordsLogitsProcessor([[3], [9, 2], [4, 5, 6]], EOS)],
    ),
    "suppress_tokens": (
        {"suppress_tokens": [2, 9]},
        lambda p: [lp.SuppressTokensLogitsProcessor([2, 9])],
    ),
    "begin_suppress_tokens": (
        {"begin_suppress_tokens": [EOS, 5, 9]},
        lambda p: [lp.SuppressTokensAtBeginLogitsProcessor([EOS, 5, 9], len(p))],
    ),
    "forced_eos_token_id": (
        {"forced_eos_token_id": EOS},
        lambda p: [lp.ForcedEOSTokenLogitsProcessor(len(p) + 7, EOS)],
    ),
    "three together": (
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "top_p": 0.8, "temperature": 1.4},
        lambda p: [
            lp.RepetitionPenaltyLogitsProcessor(1.3),
            lp.NoRepeatNGramLogitsProcessor(2),
            lp.TemperatureLogitsWarper(1.4),
            lp.TopPLogitsWarper(0.8),
        ],
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_equal_transformers(model: Any, lm: LanguageModel, name: str) -> None:
    options, make = SETTINGS[name]
    results = bestk.search(lm, PROMPTS, **OPTIONS, **options)
    assert_parity(model, results, make)
    plain = bestk.search(lm, PROMPTS, **OPTIONS)
    before = [(h.token_ids, h.log_probs) for result in plain for h in result.hypotheses]
    after = [(h.token_ids, h.log_probs) for result in results for h in result.hypotheses]
    assert before != after, f"{name} changed nothing, so the test shows nothing"


OBJECTS: dict[str, Callable[[list[int]], list[Any]]] = {
    "temperature": lambda p: [lp.TemperatureLogitsWarper(0.6)],
    "top_k": lambda p: [lp.TopKLogitsWarper(4, min_tokens_to_keep=2)],
    "top_p": lambda p: [lp.TopPLogitsWarper(0.5, min_tokens_to_keep=2)],
    "min_p": lambda p: [lp.MinPLogitsWarper(0.9, min_tokens_to_keep=3)],
    "top_h": lambda p: [lp.TopHLogitsWarper(0.5)],
    "typical_p": lambda p: [lp.TypicalLogitsWarper(0.7)],
    "epsilon_cutoff": lambda p: [lp.EpsilonLogitsWarper(0.1)],
    "eta_cutoff": lambda p: [lp.EtaLogitsWarper(0.1)],
    "repetition_penalty": lambda p: [lp.RepetitionPenaltyLogitsProcessor(0.7)],
    "no_repeat_ngram": lambda p: [lp.NoRepeatNGramLogitsProcessor(3)],
    "sequence_bias": lambda p: [lp.SequenceBiasLogitsProcessor([[[3], -2.0], [[9, 2], 3.0]])],
    "bad_words": lambda p: [lp.NoBadWordsLogitsProcessor([[4], [2, 9]], EOS)],
    "min_length": lambda p: [lp.MinLengthLogitsProcessor(6, EOS)],
    "suppress": lambda p: [lp.SuppressTokensLogitsProcessor([5])],
    "begin suppress": lambda p: [lp.SuppressTokensAtBeginLogitsProcessor([5, EOS], 5)],
    "forced bos": lambda p: [lp.ForcedBOSTokenLogitsProcessor(9)],
    "forced eos": lambda p: [lp.ForcedEOSTokenLogitsProcessor(6, EOS)],
    "exponential decay": lambda p: [lp.ExponentialDecayLengthPenalty((2, 1.2), EOS, 3)],
    "normalisation": lambda p: [lp.TopKLogitsWarper(5), lp.LogitNormalization()],
    "inf and nan": lambda p: [lp.InfNanRemoveLogitsProcessor()],
    "watermark": lambda p: [lp.WatermarkLogitsProcessor(VOCAB, "cpu", greenlist_ratio=0.3)],
    "ignored prompt": lambda p: [lp.RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=1)],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_equal_transformers(model: Any, lm: LanguageModel, name: str) -> None:
    results = bestk.search(lm, PROMPTS, **OPTIONS, logits_processor=OBJECTS[name]([]))
    assert_parity(model, results, OBJECTS[name], least=5)


def test_min_new_tokens_object(model: Any, lm: LanguageModel) -> None:
    processor = lp.MinNewTokensLengthLogitsProcessor(len(PROMPTS[0]), 3, EOS)
    result = bestk.search(lm, PROMPTS[0], **OPTIONS, logits_processor=[processor])
    assert result.hypotheses
    for hypothesis in result.hypotheses:
        assert hypothesis.num_tokens > 3
        plain = walk(model, PROMPTS[0], hypothesis.token_ids, [processor])
        assert hypothesis.log_probs == pytest.approx(plain, abs=1e-4)


class OwnIds(lp.LogitsProcessor):
    """A user's processor that depends on every id and on the length, and records what it saw."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen += input_ids.tolist()
        weight = torch.arange(1, input_ids.shape[1] + 1)
        key = (input_ids * weight).sum(dim=1) % VOCAB
        return scores + 2.0 * (torch.arange(VOCAB) == key[:, None])


def test_users_processor_sees_exact_ids(model: Any, lm: LanguageModel) -> None:
    processor = OwnIds()
    results = bestk.search(lm, PROMPTS, **OPTIONS, logits_processor=[processor])
    expected = {
        (*prompt, *result.tree.tokens_to(slot))
        for prompt, result in zip(PROMPTS, results, strict=True)
        for slot in range(len(result.tree))
    }
    assert {tuple(ids) for ids in processor.seen} == expected
    assert_parity(model, results, lambda p: [OwnIds()])


def test_a_subclass_is_called_not_translated(lm: LanguageModel) -> None:
    class Louder(lp.TemperatureLogitsWarper):
        calls = 0

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            Louder.calls += 1
            return super().__call__(input_ids, scores)

    bestk.search(lm, PROMPTS[0], **OPTIONS, logits_processor=[Louder(0.5)])
    assert Louder.calls > 1


def test_prefix_allowed_tokens_fn(model: Any, lm: LanguageModel) -> None:
    def allowed(batch_id: int, ids: torch.Tensor) -> list[int]:
        assert ids[: len(PROMPTS[batch_id])].tolist() == PROMPTS[batch_id], "not this batch id"
        return [EOS, *range((int(ids[-1]) + len(ids)) % 5 + 2, VOCAB, 3)]

    results = bestk.search(lm, PROMPTS, **OPTIONS, batch_size=3, prefix_allowed_tokens_fn=allowed)
    assert_parity(
        model,
        results,
        lambda p: [
            lp.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(PROMPTS.index(p), ids), 1)
        ],
    )


def test_nothing_allowed_is_a_dead_end(lm: LanguageModel) -> None:
    result = bestk.search(
        lm,
        PROMPTS[0],
        **OPTIONS,
        prefix_allowed_tokens_fn=lambda _, ids: [5] if len(ids) < 7 else [],
    )
    assert not result.hypotheses
    assert result.stop_reason == "exhausted"
    assert result.mass.total == pytest.approx(1, abs=1e-6)


def test_batch_equals_one_by_one(lm: LanguageModel) -> None:
    options = {**OPTIONS, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "top_p": 0.7}
    together = bestk.search(lm, PROMPTS, **options, logits_processor=[OwnIds()])
    for prompt, result in zip(PROMPTS, together, strict=True):
        alone = bestk.search(lm, prompt, **options, logits_processor=[OwnIds()])
        assert [h.token_ids for h in alone.hypotheses] == [h.token_ids for h in result.hypotheses]


def test_forced_first_token(lm: LanguageModel) -> None:
    results = bestk.search(lm, PROMPTS, **OPTIONS, forced_bos_token_id=9)
    assert sum(len(result.hypotheses) for result in results) > 5
    for result in results:
        for hypothesis in result.hypotheses:
            assert hypothesis.token_ids[0] == 9
            assert hypothesis.log_probs[0] == 0


def nodes_of(prefixes: list[list[list[int]]], depth: int) -> NodeBatch:
    """Make a batch by hand: nodes of any depths, in any order."""
    prefix = torch.tensor([[p + [-1] * (depth - len(p)) for p in row] for row in prefixes])
    shape = prefix.shape[:2]
    return NodeBatch(
        token=torch.zeros(shape, dtype=torch.int64),
        slot=torch.zeros(shape, dtype=torch.int64),
        depth=(prefix >= 0).sum(-1),
        path=prefix,
        prefix=prefix,
        is_valid=torch.ones(shape, dtype=torch.bool),
    )


def table_of(prompts: list[list[int]], counted: int | None = None) -> ContextTable:
    table = ContextTable(len(prompts), torch.device("cpu"))
    for row, prompt in enumerate(prompts):
        table.fill(row, prompt, prompt, counted)
    return table


@pytest.mark.parametrize("name", OBJECTS)
def test_mixed_depths_in_any_order(name: str) -> None:
    """One call with nodes of many depths equals transformers' processor on each prefix alone."""
    from bestk.processors.translate import Target, translate

    generator = torch.Generator().manual_seed(len(name))
    depths = [[2, 0, 5], [1, 6, 3], [0, 4, 4], [6, 1, 2]]

    def some(count: int) -> list[int]:
        return torch.randint(2, 12, (count,), generator=generator).tolist()

    prefixes = [[some(depth) for depth in row] for row in depths]
    context = NodeContext(table_of(PROMPTS), nodes_of(prefixes, depth=7))
    scores = (torch.randn(4, 3, VOCAB, generator=generator) * 2).log_softmax(-1)
    target, got = Target(torch.device("cpu"), VOCAB), scores.clone()
    for processor in OBJECTS[name]([]):
        got = translate(processor, target)(context, got)
    for row, prompt in enumerate(PROMPTS):
        for place, prefix in enumerate(prefixes[row]):
            ids = torch.tensor([prompt + prefix])
            expected = scores[row, place][None]
            for processor in OBJECTS[name](prompt):
                expected = processor(ids, expected)
            torch.testing.assert_close(got[row, place], expected[0], atol=1e-5, rtol=1e-5)


def test_top_p_looks_further_when_the_likeliest_are_not_enough() -> None:
    scores = torch.randn(1, 2, 6000, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    context = NodeContext(table_of([[1]]), nodes_of([[[2], [3, 4]]], depth=2))
    for top_p in (0.05, 0.5, 0.95, 1.0):
        got = steps.TopP(top_p)(context, scores.clone())
        expected = lp.TopPLogitsWarper(top_p)(None, scores[0])
        assert torch.equal(got[0] == -math.inf, expected == -math.inf), f"top_p={top_p}"


def test_prefixes_by_hand() -> None:
    table = table_of([[7, 8], [1, 2, 3]], counted=4)
    prefixes = NodeContext(table, nodes_of([[[5, 6], []], [[4], [9, 9]]], depth=3))
    assert prefixes.ids[0].tolist() == [[-1, 7, 8, 5, 6, -1], [-1, 7, 8, -1, -1, -1]]
    assert prefixes.tail(4)[0].tolist() == [[7, 8, 5, 6], [-1, -1, 7, 8]]
    assert prefixes.seen[0].tolist() == [[8, 7, 8, 5, 6, 8], [8, 7, 8, 8, 8, 8]]
    assert prefixes.length.tolist() == [[6, 4], [5, 6]]
    lengths = {ids.shape[1]: ids.tolist() for _, _, ids in prefixes.by_length(torch.ones(2, 2) > 0)}
    assert lengths == {2: [[7, 8]], 4: [[7, 8, 5, 6], [1, 2, 3, 4]], 5: [[1, 2, 3, 9, 9]]}


def test_mass_is_conserved_with_toy_models() -> None:
    for seed in range(20):
        lm = LanguageModel(random_toy(seed, 9))
        result = bestk.search(
            lm,
            [1, 2],
            k=2,
            max_new_tokens=5,
            repetition_penalty=1.5,
            no_repeat_ngram_size=2,
            temperature=0.8,
            suppress_tokens=[3],
        )
        assert result.mass.total == pytest.approx(1, abs=1e-6)


class EndsIn(sc.StoppingCriteria):
    """Stops after an even token that follows a token above 10; records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.asked += input_ids.tolist()
        return (input_ids[:, -1] % 2 == 0) & (input_ids[:, -2] > 10)


def test_stopping_criteria_complete_a_text(lm: LanguageModel) -> None:
    criterion = EndsIn()
    results = bestk.search(lm, PROMPTS, **OPTIONS, stopping_criteria=[criterion])
    ended = 0
    for prompt, result in zip(PROMPTS, results, strict=True):
        for hypothesis in result.hypotheses:
            ids = torch.tensor([[*prompt, *hypothesis.token_ids]])
            by_rule = bool(EndsIn()(ids, None))
            assert by_rule or hypothesis.token_ids[-1] == EOS
            ended += by_rule and hypothesis.token_ids[-1] != EOS
            for end in range(1, hypothesis.num_tokens):
                inside = ids[:, : len(prompt) + end]
                assert not EndsIn()(inside, None), "the search went on after the criterion"
    assert ended > 3
    assert all(ids[: len(p)] == p for ids in criterion.asked for p in PROMPTS if p[0] == ids[0])


def test_stopping_criteria_wait_for_min_new_tokens(lm: LanguageModel) -> None:
    result = bestk.search(lm, PROMPTS[0], **OPTIONS, stopping_criteria=[EndsIn()], min_new_tokens=3)
    by_rule = [h for h in result.hypotheses if h.token_ids[-1] != EOS]
    assert by_rule
    assert min(h.num_tokens for h in result.hypotheses) >= 3


def test_transformers_criteria_become_settings(lm: LanguageModel) -> None:
    criteria = [
        sc.MaxLengthCriteria(len(PROMPTS[0]) + 4),
        sc.MaxTimeCriteria(60.0),
        sc.EosTokenCriteria([EOS, 9]),
    ]
    result = bestk.search(lm, PROMPTS[0], **OPTIONS, stopping_criteria=criteria)
    assert result.config.max_new_tokens == 4
    assert 0 < result.config.timeout <= 60
    assert result.config.stop_ids == (EOS, 9)
    assert {h.token_ids[-1] for h in result.hypotheses} <= {EOS, 9}
    with pytest.raises(OptionError, match="from 1 to 7 tokens"):
        bestk.search(lm, PROMPTS, **OPTIONS, stopping_criteria=criteria[:1])
    with pytest.raises(OptionError, match="leaves no room"):
        bestk.search(lm, PROMPTS[0], stopping_criteria=[sc.MaxLengthCriteria(5)])


def test_stream_takes_the_same_objects(lm: LanguageModel) -> None:
    texts = list(bestk.stream(lm, PROMPTS[0], **OPTIONS, logits_processor=[OwnIds()]))
    result = bestk.search(lm, PROMPTS[0], **OPTIONS, logits_processor=[OwnIds()])
    assert {h.token_ids for h in texts} == {h.token_ids for h in result.hypotheses}
    assert "|hooks:OwnIds|" in result.signature


class Counting(lp.LogitsProcessor):
    calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores * self.calls


class NeedsBeams(lp.LogitsProcessor):
    def __call__(  # type: ignore[override]
        self, input_ids: torch.Tensor, scores: torch.Tensor, beam_indices: torch.Tensor
    ) -> torch.Tensor:
        return scores


def test_what_cannot_work_is_refused(model: Any, lm: LanguageModel) -> None:
    guidance = lp.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, model)
    source = lp.EncoderNoRepeatNGramLogitsProcessor(2, torch.tensor([[1, 2]]))
    cases: list[tuple[Any, str]] = [
        (guidance, "keeps state"),
        (source, "encoder_no_repeat_ngram_size"),
        (NeedsBeams(), "beam_indices"),
        (3, "callable"),
        (lambda ids, scores: scores[:, :3], "shape"),
    ]
    for processor, message in cases:
        with pytest.raises(bestk.BestKError, match=message):
            bestk.search(lm, PROMPTS[0], **OPTIONS, logits_processor=[processor])
    with pytest.raises(bestk.BestKError, match="two answers"):
        bestk.search(lm, PROMPTS[0], **OPTIONS, logits_processor=[Counting()])
    with pytest.raises(OptionError, match="list"):
        bestk.search(lm, PROMPTS[0], logits_processor=lp.TopKLogitsWarper(3))
    with pytest.raises(OptionError, match="callable"):
        bestk.search(lm, PROMPTS[0], prefix_allowed_tokens_fn=3)
    with pytest.raises(OptionError, match="callable"):
        bestk.search(lm, PROMPTS[0], stopping_criteria=[3])
    with pytest.raises(bestk.BestKError, match="answer for each"):
        bestk.search(lm, PROMPTS[0], stopping_criteria=[lambda ids, _: torch.ones(1, 7)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature goes from 0.0001 to 10000, got 0"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"min_p": -0.1}, "min_p must be"),
        ({"repetition_penalty": -1}, "repetition_penalty goes from 0.0001 to 10000, got -1"),
        ({"no_repeat_ngram_size": 0}, "no_repeat_ngram_size must be at least 1"),
        ({"bad_words_ids": [3]}, "list of lists"),
        ({"bad_words_ids": [[]]}, "none empty"),
        ({"bad_words": [""]}, "empty string"),
        ({"suppress_tokens": ["x"]}, "list of int"),
        ({"forced_bos_token_id": -1}, "at least 0"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SearchConfig(**options)


def test_ids_are_checked_against_the_vocabulary(lm: LanguageModel) -> None:
    for options in ({"suppress_tokens": [VOCAB]}, {"bad_words_ids": [[1, VOCAB]]}):
        with pytest.raises(OptionError, match=f"from 0 to {VOCAB - 1}, got {VOCAB}"):
            bestk.search(lm, PROMPTS[0], **options)
    with pytest.raises(OptionError, match="needs a tokenizer"):
        bestk.search(lm, PROMPTS[0], bad_words=["dog"])


def test_settings_are_part_of_signature_and_json(lm: LanguageModel) -> None:
    result = bestk.search(lm, PROMPTS[0], **OPTIONS, temperature=0.5, bad_words_ids=[[1, 2], [3]])
    assert "|temperature:0.5|" in result.signature
    again = bestk.SearchResult.from_json(result.dumps())
    assert again.config == result.config
    assert dataclasses.replace(again.config, temperature=1.0, bad_words_ids=()).temperature == 1


def test_bad_words_go_with_any_tokenizer() -> None:
    toy = bestk.load("toy")
    options: dict[str, Any] = {"beam_size": 3, "max_new_tokens": 6}
    assert any("sings" in text for text in bestk.search(toy, "the dog", **options).texts)
    without = bestk.search(toy, "the dog", **options, bad_words=["sings"])
    assert without.texts
    assert not any("sings" in text for text in without.texts)


def test_words_that_no_text_can_hold_forbid_nothing() -> None:
    class Speller(Words):
        unk_token_id = 5

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [5] if "é" in text else [10**6]}

    toy = bestk.load("toy")
    speller = LanguageModel(toy.backend, Speller())
    plain = bestk.search(toy, [1, 2], max_new_tokens=5)
    assert (
        bestk.search(speller, [1, 2], max_new_tokens=5, bad_words=["é", "x"]).texts == plain.texts
    )


@pytest.mark.model
def test_bad_words_and_stop_strings_as_text(smollm2: LanguageModel) -> None:
    prompt, options = "The capital of France is", {"k": 4, "beam_size": 4, "max_new_tokens": 8}
    with_paris = bestk.search(smollm2, prompt, raw=True, **options, stop=["."])
    assert any("Paris" in text for text in with_paris.texts)
    criterion = sc.StopStringCriteria(smollm2.tokenizer, ["."])
    without = bestk.search(
        smollm2, prompt, raw=True, **options, bad_words=["Paris"], stopping_criteria=[criterion]
    )
    assert without.texts
    assert not any("Paris" in text for text in without.texts)
    assert without.config.stop == (".",)
