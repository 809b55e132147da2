"""Sampling without replacement: the sampler against all texts of a toy, and its laws."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st

import bestk
from bestk.api import Outcomes
from bestk.backends.toy import ToyBackend
from bestk.config import SearchConfig
from bestk.core.noise import gumbel, of_prefixes
from bestk.engine.batch import _key
from bestk.engine.request import requests_of
from bestk.engine.scheduler import Scheduler
from bestk.errors import OptionError

Text = tuple[int, ...]

# After any prompt: 7 texts of at most two tokens, three of them cut.
ROWS = {(): (0.4, 0.35, 0.25), (1,): (0.5, 0.3, 0.2), (2,): (0.1, 0.9, 0.0)}
LAW = {(0,): 0.4, (1, 0): 0.175, (1, 1): 0.105, (1, 2): 0.07, (2, 0): 0.025, (2, 1): 0.225}
BITS = 14  # of a prompt: 10,000 different ones


def keyed(model: ToyBackend, prompt: Text, config: SearchConfig, key: int) -> dict[Text, Any]:
    """Enumerate every text, cut ones too, with its log-probability and its key."""
    ends, seed = {*model.eos_ids, *config.stop_ids}, torch.tensor([key])

    def noise(prefix: Text, tokens: list[int]) -> list[float]:
        place = torch.tensor([[[*prefix, *[-1] * (config.max_new_tokens - len(prefix))]]])
        values: list[float] = gumbel(of_prefixes(seed, place), torch.tensor([[tokens]]))[0, 0]
        return values.tolist()  # type: ignore[attr-defined, no-any-return]

    texts: dict[Text, Any] = {}
    todo = [((), 0.0, noise((), [-1])[0])]
    while todo:
        prefix, total, top = todo.pop()
        row = dict(enumerate(model.log_probs(prompt + prefix)))
        if len(prefix) + 1 < config.min_new_tokens:
            row = {token: last for token, last in row.items() if token not in ends}
        row = {token: last for token, last in row.items() if last > -math.inf}
        if not row:
            continue
        rest = math.log(sum(map(math.exp, row.values())))
        own = noise(prefix, list(row))
        free = {t: total + row[t] - rest + g for t, g in zip(row, own, strict=True)}
        for token, value in free.items():
            # The truncated Gumbel of Kool et al., without the care that floats need.
            inside = math.exp(-top) - math.exp(-max(free.values())) + math.exp(-value)
            child = (*prefix, token), total + row[token] - rest, -math.log(inside)
            if token in ends or len(child[0]) == config.max_new_tokens:
                texts[child[0]] = child[1:]
            else:
                todo.append(child)
    return texts


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    n=st.integers(1, 8),
    k=st.integers(1, 4),
    length=st.integers(1, 4),
    least=st.integers(0, 2),
    vocab=st.integers(2, 5),
    seed=st.integers(0, 10**6),
)
def test_sample_is_the_highest_keys(
    n: int, k: int, length: int, least: int, vocab: int, seed: int
) -> None:
    model, prompts = random_toy(seed, vocab), [(1,), (1, 1), (0, 1)]
    told = SearchConfig(
        num_texts=n,
        k=min(k, n * length),
        max_new_tokens=length,
        min_new_tokens=min(least, length),
        sample="texts",
        seed=seed,
    )
    lm = bestk.LanguageModel(model)
    requests = requests_of(lm, prompts, told)
    for request, result in zip(requests, bestk.search(lm, prompts, told), strict=True):
        texts = keyed(model, request.prompt, told, _key(request))
        order = sorted(texts, key=lambda text: -texts[text][1])
        kappa = texts[order[n]][1] if len(order) > n else -math.inf
        found = {one.token_ids: one for one in result.raw}
        assert list(found) == order[:n], result.stop_reason
        for text, one in found.items():
            assert one.drawn is not None
            assert one.log_prob == pytest.approx(texts[text][0], abs=1e-9)
            assert one.drawn.key == pytest.approx(texts[text][1], abs=1e-6)
            inclusion = -math.expm1(-math.exp(min(one.log_prob - kappa, 700)))
            assert one.drawn.inclusion == pytest.approx(inclusion, rel=1e-6)
        assert result.cost.expanded <= n * length, "n · T expansions always do"
        assert abs(result.mass.total - 1) < 1e-9
        assert result.bound is not None
        unfound = [text for text in order if text[-1] in model.eos_ids and text not in found]
        likeliest = max((texts[text][0] for text in unfound), default=-math.inf)
        assert likeliest <= result.bound + 1e-9, "the bound is too low"


def law_toy(**options: Any) -> tuple[bestk.LanguageModel, list[Text], SearchConfig]:
    """A toy of which all texts are known, whatever the prompt, and prompts to ask it with."""

    def distribution(prefix: Text) -> tuple[float, ...]:
        return ROWS[prefix[BITS:]]

    lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=3))
    config = SearchConfig(max_new_tokens=2, sample="texts", **options)
    return lm, list(itertools.product((0, 1), repeat=BITS))[:10_000], config


@pytest.fixture(scope="module")
def samples() -> list[bestk.SearchResult]:
    """2,000 samples of 2 of the 6 texts."""
    lm, prompts, config = law_toy(num_texts=2, seed=1)
    found: list[bestk.SearchResult] = bestk.search(
        lm, prompts[:2000], config, batch_size=500, keep_tree=False
    )
    return found


def is_sample(result: bestk.SearchResult) -> bool:
    return len({one.token_ids for one in result.raw}) == 2 and result.stop_reason == "drawn"


@pytest.mark.slow  # 10,000 searches
def test_no_duplicates() -> None:
    lm, prompts, config = law_toy(num_texts=2, seed=7)
    assert len(prompts) == 10_000
    assert all(map(is_sample, bestk.search(lm, prompts, config, batch_size=500, keep_tree=False)))


def test_law_of_ordered_samples(samples: list[bestk.SearchResult]) -> None:
    """Chi-square of first and second draws: p(i) · p(j) / (1 − p(i))."""
    assert all(map(is_sample, samples))
    counts = Counter(tuple(one.token_ids for one in result.raw) for result in samples)
    expected = {
        (i, j): len(samples) * LAW[i] * LAW[j] / (1 - LAW[i])
        for i, j in itertools.permutations(LAW, 2)
    }
    assert counts.keys() <= expected.keys()
    chi2 = sum((counts[pair] - count) ** 2 / count for pair, count in expected.items())
    freedom = len(expected) - 1
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom), "not the law of drawing without replacement"


def test_estimates_are_unbiased(samples: list[bestk.SearchResult]) -> None:
    for name, f in {
        "one": lambda text: 1.0,
        "length": len,
        "rare": lambda text: float(text == (2, 0)),
        "common": lambda text: float(text == (0,)),
    }.items():
        estimates = torch.tensor(
            [sum(h.drawn.weight * f(h.token_ids) for h in result.raw) for result in samples],
            dtype=torch.float64,
        )
        truth = sum(p * f(text) for text, p in LAW.items())
        error = float(estimates.std()) / math.sqrt(len(samples))
        assert abs(float(estimates.mean()) - truth) < 3 * error, name


def test_shaped_probabilities_are_sampled() -> None:
    lm, prompts, config = law_toy(num_texts=1, seed=2, min_p=0.65, temperature=0.5)
    some = bestk.search(lm, prompts[:500], config, batch_size=100, keep_tree=False)
    # At half the temperature p is squared; of (0.4, 0.35, 0.25)² two pass min-p, then of
    # (0.5, 0.3, 0.2)² one.
    first = 0.16 / (0.16 + 0.1225)
    counts = Counter(result.raw[0].token_ids for result in some)
    assert counts.keys() == {(0,), (1, 0)}
    error = math.sqrt(first * (1 - first) / 500)
    assert abs(counts[(0,)] / 500 - first) < 4 * error


def test_alone_and_in_any_batch() -> None:
    lm, prompts, config = law_toy(num_texts=3)
    together = bestk.search(lm, prompts[:50], config)
    for prompt, result in zip(prompts[:50:7], together[::7], strict=True):
        alone = bestk.search(lm, prompt, config)
        assert alone.hypotheses == result.hypotheses
    requests = requests_of(lm, prompts[:50], config)
    outcomes = Outcomes(requests, Scheduler(4))  # searches that join others which run
    for update in outcomes.scheduler.run(requests):
        outcomes.note(update)
    assert [r.hypotheses for r in outcomes.results()] == [r.hypotheses for r in together]
    others = bestk.search(lm, prompts[:50], config, seed=1)
    assert [r.texts for r in others] != [r.texts for r in together], "the seed changes nothing"


def test_all_texts_where_there_are_fewer() -> None:
    lm, prompts, config = law_toy(num_texts=9)
    result = bestk.search(lm, prompts[0], config)
    assert {h.token_ids: h.drawn.weight for h in result.raw} == pytest.approx(LAW)
    assert {h.drawn.inclusion for h in result.raw} == {1.0}
    assert result.stop_reason == "exhausted"


def test_short_budget_leaves_out_what_is_not_certain() -> None:
    lm, prompts, config = law_toy(num_texts=3)
    whole = bestk.search(lm, prompts[:100], config)
    short = bestk.search(lm, prompts[:100], config, budget=2, k=1)
    for more, less in zip(whole, short, strict=True):
        assert [h.token_ids for h in less.raw] == [h.token_ids for h in more.raw][: len(less.raw)]
    assert any(len(result.raw) < 3 for result in short)


def test_merged_texts_add_their_weights() -> None:
    from toys import Words

    model = ToyBackend.table({}, (0.5, 0.3, 0.2))
    lm = bestk.LanguageModel(model, Words("same", "same"))
    result = bestk.search(lm, [1], num_texts=6, max_new_tokens=2, sample="texts")
    for text in result.hypotheses:
        weights = [one.drawn.weight for one in result.raw if one.text == text.text]
        assert text.drawn is not None
        assert text.drawn.weight == pytest.approx(sum(weights))
    assert bestk.SearchResult.from_json(result.dumps()).hypotheses == result.hypotheses


def test_by_name() -> None:
    lm, prompts, _ = law_toy(num_texts=2)
    result = bestk.run_method(lm, prompts[0], "SWOR", beam_size=3, max_new_tokens=2, seed=4)
    same = bestk.search(lm, prompts[0], num_texts=3, max_new_tokens=2, sample="texts", seed=4)
    assert result.hypotheses == same.hypotheses
    assert "numtexts:3|sample:texts|seed:4" in result.signature


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scoring": "last"}, "leave scoring='last' out"),
        ({"min_prob": 0.1}, "leave min_prob=0.1 out"),
        ({"policy": "diverse"}, "leave policy='diverse' out"),
        ({"max_frontier": 4}, "above num_texts"),
        ({"must_include": "word"}, "leave must_include"),
        ({"sample": "text"}, "texts"),
    ],
)
def test_settings_that_make_no_sample_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        SearchConfig(**{"num_texts": 4, "sample": "texts", **options})
