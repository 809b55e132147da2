"""Beams against transformers, samplers against exact probabilities, budgets, batches, names."""

from __future__ import annotations

import collections
import dataclasses
import math
import random
from typing import Any

import pytest
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st

import bestk
from bestk.backends.toy import ToyBackend
from bestk.baselines import (
    METHODS,
    Beam,
    Nucleus,
    Sampling,
    Scored,
    Typical,
    method_of,
    run_method,
)
from bestk.baselines.filters import listed
from bestk.core.noise import gumbel, invert, of_beams
from bestk.errors import BestKError, ModelError, OptionError

LENGTH = 10


def tiny(eos: int | list[int] = 2) -> Any:
    """Make a random Llama whose texts end at very different lengths."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=eos,
        pad_token_id=0,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


def some_prompts(count: int) -> list[list[int]]:
    source = random.Random(5)
    return [[source.randrange(5, 60) for _ in range(source.randint(2, 9))] for _ in range(count)]


def generated(model: Any, prompt: list[int], eos: set[int], **options: Any) -> list[Any]:
    """Return ids (cut after the first EOS) and scores of `generate`."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    texts = []
    for ids, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        ids = ids[len(prompt) :]
        ends = [place for place, token in enumerate(ids) if token in eos]
        texts.append((tuple(ids[: ends[0] + 1] if ends else ids), score))
    return texts


def assert_same(result: bestk.SearchResult, expected: list[Any]) -> None:
    assert [h.token_ids for h in result.raw] == [ids for ids, _ in expected]
    for hypothesis, (_, score) in zip(result.raw, expected, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=1e-4)
        assert hypothesis.log_prob == pytest.approx(sum(hypothesis.log_probs))


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("eos", [2, [2, 7, 9]])
def test_beam_returns_what_generate_returns(early_stopping: bool | str, eos: Any) -> None:
    model = tiny(eos)
    ends = set(eos) if isinstance(eos, list) else {eos}
    prompts = some_prompts(50)
    method = Beam(early_stopping=early_stopping)
    lm = bestk.from_transformers(model)
    results = run_method(lm, prompts, method, max_new_tokens=LENGTH, batch_size=16)
    completed = 0
    for prompt, result in zip(prompts, results, strict=True):
        expected = generated(
            model,
            prompt,
            ends,
            num_beams=10,
            num_return_sequences=10,
            max_new_tokens=LENGTH,
            early_stopping=early_stopping,
        )
        assert_same(result, expected)
        for hypothesis in result.raw:
            assert hypothesis.is_complete == (hypothesis.token_ids[-1] in ends)
            completed += hypothesis.is_complete
        assert result.cost.expanded <= 10 * LENGTH
    assert 0 < completed < 500, "the model must give both complete and cut off texts"


def test_beam_length_penalty_and_width() -> None:
    model = tiny()
    lm = bestk.from_transformers(model)
    for prompt in some_prompts(10):
        result = run_method(lm, prompt, Beam(length_penalty=-0.5), max_new_tokens=6, beam_size=3)
        expected = generated(
            model,
            prompt,
            {2},
            num_beams=3,
            num_return_sequences=3,
            max_new_tokens=6,
            length_penalty=-0.5,
        )
        assert_same(result, expected)


@pytest.mark.model
def test_beam_returns_what_generate_returns_on_smollm2(smollm2: bestk.LanguageModel) -> None:
    model = smollm2.backend.model.module  # type: ignore[attr-defined]
    prompts = ["The best thing about dogs is", "Paris is"]
    results = run_method(smollm2, prompts, "BS", raw=True, max_new_tokens=8)
    for prompt, result in zip(prompts, results, strict=True):
        expected = generated(
            model,
            smollm2.encode(prompt),
            set(smollm2.backend.eos_ids),
            num_beams=10,
            num_return_sequences=10,
            max_new_tokens=8,
        )
        assert_same(result, expected)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), vocab=st.integers(2, 8), beams=st.integers(1, 4))
def test_diverse_beam_with_one_group_is_beam(seed: int, vocab: int, beams: int) -> None:
    lm = bestk.LanguageModel(random_toy(seed, vocab))
    options = {"beam_size": beams, "max_new_tokens": 5}
    plain = run_method(lm, [[1], [0, 1]], Beam(), **options)
    diverse = run_method(lm, [[1], [0, 1]], Beam(num_groups=1, diversity_penalty=9.0), **options)
    assert [r.raw for r in plain] == [r.raw for r in diverse]


def test_diverse_beam_without_penalty_repeats_the_first_group() -> None:
    lm = bestk.from_transformers(tiny())
    result = run_method(lm, [5, 6], Beam(num_groups=5, diversity_penalty=0.0), max_new_tokens=6)
    counts = collections.Counter(h.token_ids for h in result.raw)
    assert set(counts.values()) == {5}, "groups that do not see each other find the same texts"


def test_diverse_beam_pays_for_tokens_of_earlier_groups() -> None:
    # Two groups of one beam: the second takes "2" once log 3 (its distance to "1") is below λ.
    model = ToyBackend(
        lambda prefix: (0.0, 0.75, 0.25) if len(prefix) == 1 else (1.0, 0.0, 0.0), vocab_size=3
    )
    lm = bestk.LanguageModel(model)
    for penalty, second in ((math.log(3) - 0.01, (1, 0)), (math.log(3) + 0.01, (2, 0))):
        method = Beam(num_groups=2, diversity_penalty=penalty)
        result = run_method(lm, [1], method, beam_size=2, max_new_tokens=3)
        assert {h.token_ids for h in result.raw} == {(1, 0), second}
        likeliest = result.raw[0]
        assert likeliest.log_prob == pytest.approx(math.log(0.75)), "scores carry no penalty"


def test_more_groups_give_more_different_texts() -> None:
    lm = bestk.from_transformers(tiny())
    firsts = {}
    for name in ("BS", "DBS", "DBS+"):
        results = run_method(lm, some_prompts(10), name, max_new_tokens=8)
        firsts[name] = sum(len({h.token_ids[0] for h in r.raw}) for r in results)
    assert firsts["BS"] < firsts["DBS"] < firsts["DBS+"]


def chi_square(observed: collections.Counter[Any], probs: dict[Any, float], total: int) -> float:
    assert set(observed) <= set(probs), "a text of probability 0 was drawn"
    return sum((observed[x] - p * total) ** 2 / (p * total) for x, p in probs.items())


FLAT = (0.05, 0.4, 0.3, 0.15, 0.1)
# The nucleus of 0.8 is {1, 2, 3}; the entropy is 1.39 nats, so token 2 (surprise 1.20) is the most
# typical, then token 1 (0.92), then token 3 (1.90).
SETS = [
    (None, {0, 1, 2, 3, 4}),
    (Nucleus(0.8), {1, 2, 3}),
    (Nucleus(0.35), {1}),
    (Typical(0.2), {2}),
    (Typical(0.8), {1, 2, 3}),
]


@pytest.mark.parametrize(("rule", "kept"), SETS)
def test_draws_follow_the_filtered_distribution(rule: Any, kept: set[int]) -> None:
    """Sequences of two tokens: 5 filtered tokens, then those or the end, against exact products."""
    lm = bestk.LanguageModel(ToyBackend.table({}, default=FLAT, eos_ids=(0,)))
    total = 3000
    result = run_method(
        lm, [1], Sampling(filter=rule), num_draws=total, max_new_tokens=2, beam_size=50
    )
    mass = sum(FLAT[token] for token in kept)
    one = {token: FLAT[token] / mass for token in kept}
    probs: dict[Any, float] = {}
    for first, p in one.items():
        if first == 0:
            probs[(0,)] = p
        else:
            probs |= {(first, second): p * q for second, q in one.items()}
    observed = collections.Counter(h.token_ids for h in result.raw)
    freedom = len(probs) - 1
    # Mean + 5 standard deviations of the chi-square distribution: the seed is fixed, so it holds.
    assert chi_square(observed, probs, total) <= freedom + 5 * math.sqrt(2 * freedom)
    for hypothesis in result.raw:
        expected = [math.log(FLAT[token]) for token in hypothesis.token_ids]
        assert hypothesis.log_probs == pytest.approx(expected), "log-probs are the model's own"


@pytest.mark.parametrize(("rule", "kept"), SETS[1:3])
def test_beam_sampling_draws_by_filtered_probability(rule: Any, kept: set[int]) -> None:
    """With one beam and one step the first candidate drawn is the text."""
    lm = bestk.LanguageModel(ToyBackend.table({}, default=FLAT, eos_ids=(0,)))
    kept = kept if len(kept) > 1 else {1, 2}  # a beam keeps one token more than there are EOS ids
    total = 3000
    observed: collections.Counter[int] = collections.Counter()
    for seed in range(total // 100):
        prompts = [[1] * (1 + i) for i in range(100)]
        results = run_method(
            lm,
            prompts,
            Beam(filter=rule),
            seed=seed,
            k=1,
            beam_size=1,
            max_new_tokens=1,
            batch_size=100,
        )
        observed.update(r.raw[0].token_ids[0] for r in results)
    mass = sum(FLAT[token] for token in kept)
    probs = {token: FLAT[token] / mass for token in kept}
    freedom = len(probs) - 1
    assert chi_square(observed, probs, total) <= freedom + 5 * math.sqrt(2 * freedom)


def test_inverting_never_picks_weight_zero() -> None:
    weights = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0], dtype=torch.float64)
    uniforms = torch.tensor([0.0, 0.4999, 0.5, 0.9999, 1.0], dtype=torch.float64)
    assert invert(weights, uniforms).tolist() == [1, 1, 3, 3, 3]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), p=st.floats(0.05, 1.0), draws=st.integers(1, 9))
def test_drawing_from_the_kept_tokens_is_drawing_from_all(seed: int, p: float, draws: int) -> None:
    source = torch.Generator().manual_seed(seed)
    log_probs = (3 * torch.randn(2, 3, 40, generator=source)).log_softmax(dim=-1)
    uniforms = torch.rand(2, 3, draws, generator=source, dtype=torch.float64)
    for rule in (Nucleus(p), Typical(p)):
        keeps = rule.keeps(log_probs)
        kept, is_filled = listed(keeps)
        few = kept.gather(
            -1, invert(log_probs.gather(-1, kept).double().exp() * is_filled, uniforms)
        )
        assert torch.equal(few, invert(log_probs.double().exp() * keeps, uniforms))
        assert keeps.gather(-1, few).all(), "a token outside the set was drawn"


def best_drawn(law: list[float], beams: int) -> float:
    """Enumerate 4.23's first step: the chance that 2·b draws from b equal beams miss token 0."""

    def misses(left: list[float], draws: int) -> float:
        if not draws or not any(left):
            return 1.0
        whole = sum(left)
        chances = [
            p / whole * misses([*left[:i], 0.0, *left[i + 1 :]], draws - 1)
            for i, p in enumerate(left)
            if i >= beams and p
        ]
        return sum(chances)

    return misses([p / beams for p in law for _ in range(beams)], 2 * beams)


@pytest.mark.parametrize("beams", [1, 2])
def test_runs_of_beam_sampling_as_the_paper_ran_it(beams: int) -> None:
    law = (0.2, 0.5, 0.3)  # nothing ends but at T = 1
    lm = bestk.LanguageModel(ToyBackend.table({}, (0.0, *law), eos_ids=(0,)))
    method = Beam(filter=Nucleus(1.0), num_runs=200)
    first = [0.5, 0.3, 0.2]
    texts = [
        text.token_ids
        for seed in range(3)
        for text in bestk.run_method(
            lm, [1], method, k=1, beam_size=beams, max_new_tokens=1, seed=seed
        ).raw
    ]
    assert len(texts) == 600, "the best of each run"
    share = best_drawn(first, beams)
    error = math.sqrt(share * (1 - share) / 600)
    missed = sum(text != (2,) for text in texts) / 600
    assert abs(missed - share) < 4 * error


def test_runs_cost_what_they_cost() -> None:
    lm = bestk.LanguageModel(random_toy(4, 12))
    options: dict[str, Any] = {"beam_size": 4, "max_new_tokens": 6, "seed": 1}
    filter_ = Nucleus(0.8)
    once = bestk.run_method(lm, [1], Beam(filter=filter_), **options)
    runs = [
        bestk.run_method(lm, [1], Beam(filter=filter_, num_runs=n), **options) for n in (1, 2, 10)
    ]
    assert [len(result.raw) for result in runs] == [1, 2, 10]
    assert runs[0].raw[0] in runs[1].raw, "the first run is the same whatever comes after it"
    assert {text.token_ids for text in runs[1].raw} <= {text.token_ids for text in runs[2].raw}
    assert runs[2].cost.expanded > 5 * runs[0].cost.expanded
    assert once.cost.expanded <= 4 * 6
    assert "runs:10|seed:1" in runs[2].signature
    with pytest.raises(OptionError, match="num_runs is a whole number"):
        Beam(num_runs=3)


@pytest.mark.parametrize("name", ["DBS+", "Ncls0.8", "Ncls0.8:10", "BNcls0.8"])
def test_no_model_call_has_a_column_without_a_text(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bestk.backends.transformers.decoder_only import TreeSession

    widths: list[int] = []
    evaluate = TreeSession.evaluate

    def watched(self: Any, nodes: Any, **options: Any) -> Any:
        assert nodes.is_valid.any(dim=0).all(), "nodes were computed that nobody asked for"
        widths.append(nodes.is_valid.shape[1])
        return evaluate(self, nodes, **options)

    lm = bestk.from_transformers(tiny([2, 7, 9, 11]))
    monkeypatch.setattr(TreeSession, "evaluate", watched)
    method, _, draws = name.partition(":")
    run_method(
        lm, some_prompts(3), method, max_new_tokens=LENGTH, num_draws=int(draws) if draws else None
    )
    if name != "BNcls0.8":
        assert min(widths) < max(widths), "all texts ended together, so nothing is shown"


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    lanes=st.integers(1, 6),
    budget=st.integers(4, 40),
    length=st.integers(1, 6),
)
def test_a_sampler_spends_its_budget_in_draw_order(
    seed: int, lanes: int, budget: int, length: int
) -> None:
    lm = bestk.LanguageModel(random_toy(seed, 6))
    options = {"max_new_tokens": length, "seed": seed, "k": 1}
    wide = run_method(lm, [1], "Ncls0.9", num_draws=60, beam_size=3, **options)
    result = run_method(lm, [1], "Ncls0.9", beam_size=lanes, budget=budget, **options)
    draws = [h.token_ids for h in result.raw]
    assert draws == [h.token_ids for h in wide.raw][: len(draws)], "draws depend on the budget"
    spent = sum(map(len, draws))
    assert result.cost.expanded == spent <= budget
    following = wide.raw[len(draws)].token_ids
    assert spent + len(following) > budget, "a draw that fits was left out"
    assert sum(h.count for h in result.hypotheses) == len(result.raw)


@pytest.mark.parametrize("name", ["BS", "DBS", "Ncls0.8", "Typ0.5", "BNcls0.8", "BTyp0.95"])
def test_a_prompt_gives_the_same_in_any_batch(name: str) -> None:
    lm = bestk.from_transformers(tiny())
    prompts = some_prompts(5)
    together = run_method(lm, prompts, name, max_new_tokens=6, seed=4)
    backwards = run_method(lm, prompts[::-1], name, max_new_tokens=6, seed=4, batch_size=2)[::-1]
    for prompt, one, other in zip(prompts, together, backwards, strict=True):
        alone = run_method(lm, prompt, name, max_new_tokens=6, seed=4)
        ids = [h.token_ids for h in alone.raw]
        assert ids == [h.token_ids for h in one.raw] == [h.token_ids for h in other.raw]


def test_seeds_matter_to_samplers_only() -> None:
    lm = bestk.from_transformers(tiny())
    for name, matters in (("Ncls0.9", True), ("BNcls0.9", True), ("BS", False)):
        one, other = (
            run_method(lm, [5, 6, 7], name, max_new_tokens=6, seed=seed) for seed in (1, 2)
        )
        differs = [h.token_ids for h in one.raw] != [h.token_ids for h in other.raw]
        assert differs == matters, name


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_keeps_the_contract(name: str) -> None:
    lm = bestk.LanguageModel(random_toy(11, 12))
    results = run_method(lm, [[1], [1, 2]], name, max_new_tokens=6)
    for result in results:
        assert result.cost.expanded <= result.config.total_budget
        assert result.hypotheses
        assert len(set(result.texts)) == len(result.texts)
        assert sum(h.count for h in result.hypotheses) == len(result.raw)
        assert result.mass.total == pytest.approx(1)
        scores = [h.score for h in result.hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in result.raw:
            assert hypothesis.is_complete == (hypothesis.token_ids[-1] == 0)
            assert len(hypothesis.token_ids) <= 6
            prefix: tuple[int, ...] = tuple(result.prompt)
            for token, log_prob in zip(hypothesis.token_ids, hypothesis.log_probs, strict=True):
                assert log_prob == pytest.approx(lm.backend.log_probs(prefix)[token])  # type: ignore[attr-defined]
                prefix = (*prefix, token)
        again = bestk.SearchResult.from_json(result.dumps())
        assert again.hypotheses == result.hypotheses


def test_signatures_tell_methods_apart() -> None:
    lm = bestk.LanguageModel(random_toy(11, 12))
    signatures = {run_method(lm, [1], name, max_new_tokens=2).signature for name in METHODS}
    assert len(signatures) == len(METHODS)


@pytest.mark.parametrize("name", ["BS", "DBS", "Ncls0.9", "BNcls0.9"])
def test_lengths_and_stop_ids_are_honoured(name: str) -> None:
    lm = bestk.LanguageModel(random_toy(5, 9))
    result = run_method(
        lm, [1], name, max_new_tokens=6, min_new_tokens=3, stop_ids=(4,), beam_size=5
    )
    assert result.raw
    for hypothesis in result.raw:
        assert not {0, 4} & set(hypothesis.token_ids[:-1])
        assert hypothesis.is_complete == (hypothesis.token_ids[-1] in (0, 4))
        if hypothesis.is_complete:
            assert len(hypothesis.token_ids) >= 3


@pytest.mark.model
def test_stop_strings_end_texts(smollm2: bestk.LanguageModel) -> None:
    for name in ("BS", "Ncls0.9"):
        result = run_method(
            smollm2, "One, two, three", name, raw=True, stop=(",",), max_new_tokens=5, beam_size=3
        )
        stopped = [h for h in result.raw if h.is_complete]
        assert stopped, name
        assert all("," not in h.text for h in result.hypotheses)
        later = run_method(
            smollm2,
            "One, two, three",
            name,
            raw=True,
            stop=(",",),
            min_new_tokens=3,
            max_new_tokens=5,
            beam_size=3,
        )
        assert any("," in h.text for h in later.hypotheses), "what ended no text was cut out"


def test_beam_tree_holds_what_was_expanded() -> None:
    result = run_method(bestk.from_transformers(tiny()), [5, 6, 7], "BS", max_new_tokens=6)
    assert result.tree is not None
    assert len(result.tree) == result.cost.expanded
    paths = {tuple(result.tree.tokens_to(slot)) for slot in range(len(result.tree))}
    assert len(paths) == len(result.tree), "a beam was expanded twice"
    assert all(h.token_ids[:-1] in paths for h in result.raw)


def test_names_are_found_in_any_case_with_any_number() -> None:
    assert method_of("bs") == METHODS["BS"]
    assert method_of("BTyp0.7") == Beam(filter=Typical(0.7))
    assert method_of("Ncls_0.9") == METHODS["Ncls0.9"]
    assert method_of("BKS") == Scored()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lm: run_method(lm, [1], "BKS_men"), "did you mean 'BKS_mean'"),
        (lambda lm: run_method(lm, [1], "Ncls1.5"), "at most 1, got 1.5"),
        (lambda lm: run_method(lm, [1], "Ncls0..5"), "a number such as 0.5"),
        (lambda lm: run_method(lm, [1], "DBS", beam_size=7), "multiple of num_groups=5"),
        (lambda lm: run_method(lm, [1], "BS", num_draws=3), "num_draws is for samplers"),
        (lambda lm: run_method(lm, [1], "BS", top_k=1), "beam search takes no top_k"),
        (lambda lm: run_method(lm, [1], "Typ0.5", regex="a"), "sampling takes no regex"),
        (lambda lm: run_method(lm, [1], "BS", stop_ids=(99,)), "stop_ids go from 0 to 4"),
        (lambda lm: Beam(early_stopping="yes"), "'never', got 'yes'"),
        (lambda lm: Beam(num_groups=2, filter=Nucleus(0.5)), "one group"),
        (lambda lm: Sampling(num_draws=0), "at least 1, got 0"),
    ],
)
def test_errors_name_the_way_out(call: Any, message: str) -> None:
    lm = bestk.LanguageModel(ToyBackend.table({}, default=FLAT))
    with pytest.raises(OptionError) as error:
        call(lm)
    assert message in str(error.value)
    assert isinstance(error.value, BestKError)


@pytest.mark.parametrize("name", ["BS", "Ncls0.9", "BTyp0.5"])
def test_a_broken_model_is_named(name: str) -> None:
    broken = ToyBackend(
        lambda prefix: FLAT if len(prefix) < 3 else (math.nan,) * 5, vocab_size=5, eos_ids=(0,)
    )
    with pytest.raises(ModelError, match="NaN at step"):
        run_method(bestk.LanguageModel(broken), [1], name)


def test_methods_are_values() -> None:
    assert dataclasses.replace(METHODS["DBS"], num_groups=10) == METHODS["DBS+"]  # type: ignore[type-var]


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_sorting_a_few_tokens_keeps_the_same_set(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = torch.Generator().manual_seed(0)
    # Rounded, so that many tokens are equal and the ties must fall the same way.
    logits = (spread * torch.randn(6, 3000, generator=source)).round(decimals=1)
    log_probs = logits.log_softmax(dim=-1)
    for one in (Nucleus(0.5), Nucleus(0.9), Typical(0.2), Typical(0.95)):
        fast = one.keeps(log_probs, 2)
        with monkeypatch.context() as patch:
            patch.setattr("bestk.baselines.filters._COUNTS", ())
            assert torch.equal(fast, one.keeps(log_probs, 2))


def test_noise_depends_on_its_address_alone() -> None:
    keys, token = torch.tensor([3, 2**55 + 1]), torch.arange(5000).expand(2, 4, -1)

    def drawn(rows: slice, step: int, token: torch.Tensor) -> torch.Tensor:
        return gumbel(of_beams(keys[rows], step, torch.arange(4)), token)

    noise = drawn(slice(None), 7, token)
    assert torch.equal(noise[1:, :, 40:50], drawn(slice(1, None), 7, token[1:, :, 40:50]))
    assert not torch.equal(noise, drawn(slice(None), 8, token))
    assert len(noise.unique()) == noise.numel(), "rows, beams or tokens share their noise"
    # Mean and variance of Gumbel noise; of 40,000 draws neither is off by a twentieth.
    assert abs(float(noise.mean()) - 0.5772) < 0.05
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.08
