"""Each decision that the paper leaves open, on a table that a pencil can check.

Texts after the prompt (1,); id 0 ends a text. `found` lists completions as tuples of ids.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import random_toy
from toys import best_first, every_text, search_ids, table_lm

import bestk
from bestk.backends.toy import ToyBackend
from bestk.core.tree import State
from bestk.result import SearchResult

PLAIN: dict[str, Any] = {"decay": "none", "min_prob": 0.0, "scoring": "sum"}


def found(result: SearchResult) -> dict[tuple[int, ...], float]:
    return {h.token_ids: h.log_prob for h in result.hypotheses}


def expanded(result: SearchResult) -> list[tuple[int, ...]]:
    assert result.tree is not None
    return [tuple(result.tree.tokens_to(slot)) for slot in range(1, len(result.tree))]


def priorities(result: SearchResult) -> list[float]:
    assert result.tree is not None
    return result.tree.priority.tolist()[1:]


class TestAge:
    # After the prompt: 1 is sure. Then it goes on for ever, so ages can be read off priorities.
    LINE = table_lm({}, [0.0, 1.0, 0.0])
    # Two children of the root, 1 and 2; below 1 there are likelier nodes than 2.
    FORK = table_lm({(): [0.0, 0.6, 0.4], (2,): [1.0, 0, 0]}, [0.1, 0.9, 0.0])

    def test_is_one_at_the_first_chance(self) -> None:
        result = search_ids(self.LINE, k=1, budget=4, max_new_tokens=9, decay_weight=0.3)
        assert priorities(result) == pytest.approx([-0.3, -0.3, -0.3])

    def test_grows_by_one_each_step(self) -> None:
        options = {"k": 1, "scoring": "last", "max_new_tokens": 9, "decay_weight": 0.5}
        result = search_ids(self.FORK, budget=4, decay_power=1.0, **options)
        # (1,): ln 0.6 − 0.5; (1, 1): ln 0.9 − 0.5 beats (2,): ln 0.4 − 0.5·2, also a step later.
        assert expanded(result) == [(1,), (1, 1), (1, 1, 1)]
        late = search_ids(
            self.FORK,
            budget=5,
            decay_power=1.0,
            max_new_tokens=4,
            **{name: options[name] for name in ("k", "scoring", "decay_weight")},
        )
        assert expanded(late)[-1] == (2,)
        assert priorities(late)[-1] == pytest.approx(math.log(0.4) - 0.5 * 4)

    @pytest.mark.parametrize(
        ("options", "decay"),
        [
            ({"decay": "power", "decay_power": 0.5}, 0.5 * math.sqrt(4)),
            ({"decay": "power", "decay_power": 2.0}, 0.5 * 16),
            ({"decay": "log"}, 0.5 * math.log(1 + 4)),
            ({"decay": "none"}, 0.0),
        ],
    )
    def test_decay_forms(self, options: dict[str, Any], decay: float) -> None:
        result = search_ids(
            self.FORK, k=1, scoring="last", budget=5, max_new_tokens=4, decay_weight=0.5, **options
        )
        assert expanded(result)[-1] == (2,)
        assert priorities(result)[-1] == pytest.approx(math.log(0.4) - decay)


class TestScoring:
    @pytest.mark.parametrize(
        ("options", "third"),
        [
            ({"scoring": "sum"}, math.log(0.5) + math.log(0.8)),
            ({"scoring": "mean"}, (math.log(0.5) + math.log(0.8)) / 3),
            ({"scoring": "last"}, math.log(0.8)),
            ({"length_alpha": 0.5}, (math.log(0.5) + math.log(0.8)) / math.sqrt(3)),
            ({"length_alpha": 2}, (math.log(0.5) + math.log(0.8)) / 9),
        ],
    )
    def test_of_the_third_token(self, options: dict[str, Any], third: float) -> None:
        lm = table_lm({(): [0.0, 1.0, 0.0], (1,): [0.0, 0.5, 0.5]}, [0.2, 0.8, 0.0])
        result = search_ids(lm, k=1, budget=9, max_new_tokens=9, decay="none", **options)
        by_path = dict(zip(expanded(result), priorities(result), strict=True))
        assert by_path[(1, 1, 1)] == pytest.approx(third)


class TestMinProb:
    def test_is_of_the_true_probability(self) -> None:
        # 0.05 of the whole, but a ninth of what the two likeliest tokens have.
        lm = table_lm({(): [0.0, 0.40, 0.05, 0.04, *[0.03] * 17]}, [1.0, *[0.0] * 20])
        result = search_ids(lm, k=1, max_new_tokens=2)
        assert set(found(result)) == {(1, 0), (2, 0)}
        assert result.mass.pruned_prob == pytest.approx(0.04 + 17 * 0.03)

    def test_a_child_of_exactly_that_probability_opens(self) -> None:
        lm = table_lm({(): [0.0, 0.75, 0.25]}, [1.0, 0.0, 0.0])
        assert (2, 0) in found(search_ids(lm, min_prob=0.25))
        assert (2, 0) not in found(search_ids(lm, min_prob=0.26))

    def test_as_many_children_pass_as_can(self) -> None:
        lm = table_lm({(): [0.0, *[0.05] * 20]}, [1.0, *[0.0] * 20])
        result = search_ids(lm, min_prob=0.05)
        assert set(found(result)) == {(token, 0) for token in range(1, 21)}

    def test_filters_the_end_like_any_child(self) -> None:
        lm = table_lm({(): [0.04, 0.96], (1,): [0.06, 0.94]}, [1.0, 0.0])
        result = search_ids(lm, max_new_tokens=3)
        assert set(found(result)) == {(1, 0), (1, 1, 0)}

    @pytest.mark.parametrize(("least", "texts"), [(0, 0), (1, 1), (2, 2), (3, 3)])
    def test_min_children_open_on_a_flat_model(self, least: int, texts: int) -> None:
        lm = table_lm({(): [0.0, *[0.04] * 25]}, [1.0, *[0.0] * 25])
        result = search_ids(lm, min_children=least, max_new_tokens=2)
        assert sorted(found(result)) == [(token, 0) for token in range(1, texts + 1)]
        assert result.mass.total == pytest.approx(1)

    def test_max_children_cut_the_list(self) -> None:
        lm = table_lm({(): [0.0, 0.4, 0.35, 0.25]}, [1.0, 0.0, 0.0, 0.0])
        assert set(found(search_ids(lm, max_children=2))) == {(1, 0), (2, 0)}


class TestComplete:
    ROW = (0.3, 0.4, 0.3)

    def test_by_eos_and_stop_ids(self) -> None:
        result = search_ids(table_lm({}, self.ROW), max_new_tokens=2, stop_ids=[2])
        assert set(found(result)) == {(0,), (2,), (1, 0), (1, 2)}

    def test_by_several_eos_ids(self) -> None:
        backend = ToyBackend.table({}, self.ROW, eos_ids=(0, 1))
        result = search_ids(bestk.LanguageModel(backend), max_new_tokens=2)
        assert set(found(result)) == {(0,), (1,), (2, 0), (2, 1)}

    def test_by_a_stop_string_across_tokens(self) -> None:
        # The string spans two tokens, and the text is cut before it.
        lm = table_lm({(): [0.0, 1.0, 0.0], (1,): [0.2, 0.0, 0.8]}, [1.0, 0.0, 0.0], "stop", "now")
        result = bestk.search(lm, "stop", stop="stop now", max_new_tokens=4)
        assert found(result) == pytest.approx({(1, 2): math.log(0.8), (1, 0): math.log(0.2)})
        assert {h.token_ids: h.text for h in result.hypotheses} == {(1, 2): "", (1, 0): "stop"}

    def test_truncated_is_dropped_and_counted(self) -> None:
        result = search_ids(table_lm({}, [0.25, 0.5, 0.25]), max_new_tokens=2, **PLAIN)
        assert set(found(result)) == {(0,), (1, 0), (2, 0)}
        assert result.num_truncated == 4
        assert result.mass.truncated == pytest.approx(0.75**2)

    def test_an_end_at_the_last_token_is_complete(self) -> None:
        result = search_ids(table_lm({}, [0.5, 0.5]), max_new_tokens=1)
        assert set(found(result)) == {(0,)}
        assert result.num_truncated == 1

    def test_min_new_tokens(self) -> None:
        result = search_ids(table_lm({}, [0.6, 0.4]), max_new_tokens=4, min_new_tokens=3, **PLAIN)
        assert set(found(result)) == {(1, 1, 0), (1, 1, 1, 0)}
        assert result.mass.pruned_prob == pytest.approx(0.6 + 0.4 * 0.6)

    def test_min_new_tokens_holds_for_stop_strings(self) -> None:
        lm = table_lm({}, [0.0, 1.0], "word")
        result = bestk.search(lm, "word", stop="word", min_new_tokens=3, max_new_tokens=5)
        assert [h.token_ids for h in result.hypotheses] == [(1, 1, 1)]
        # The text is cut at the string that ended it, not at an earlier one.
        assert result.texts == ["word word "]

    def test_a_stop_string_that_came_too_early_cuts_nothing(self) -> None:
        lm = table_lm({(2,): [0.0, 1.0, 0.0]}, [0.5, 0.0, 0.5], "word", "stop")
        result = bestk.search(lm, "word", stop="stop", min_new_tokens=3, max_new_tokens=4)
        texts = {h.token_ids: h.text for h in result.hypotheses}
        assert texts == {
            (2, 1, 0): "stop word",
            (2, 1, 2): "stop word ",
        }


class TestTies:
    def test_older_step_first(self) -> None:
        # (2,) is as good as (1, 1), by the newest token, and older.
        lm = table_lm({(): [0.0, 0.5, 0.5], (1,): [0.0, 0.5, 0.5]}, [1.0, 0.0, 0.0])
        options = {"scoring": "last", "decay": "none", "k": 1, "budget": 4}
        assert expanded(search_ids(lm, **options)) == [(1,), (2,), (1, 1)]

    def test_higher_child_probability_next(self) -> None:
        # By the sum (1, 2) and (2, 3) are equal: 1/2·1/4 and 1/4·1/2, found in one step. Neither
        # the token's id nor the parent's slot would put the second first.
        rows = {
            (): [0.25, 0.5, 0.25, 0.0],
            (1,): [0.75, 0.0, 0.25, 0.0],
            (2,): [0.5, 0.0, 0.0, 0.5],
        }
        result = search_ids(table_lm(rows, [1.0, 0.0, 0.0, 0.0]), k=2, **PLAIN)
        assert expanded(result) == [(1,), (2,), (2, 3), (1, 2)]

    def test_lower_token_id_then(self) -> None:
        lm = table_lm({(): [0.0, 0.25, 0.25, 0.25, 0.25]}, [1.0, 0.0, 0.0, 0.0, 0.0])
        assert expanded(search_ids(lm, k=3)) == [(1,), (2,), (3,), (4,)]

    def test_older_parent_last(self) -> None:
        lm = table_lm({(): [0.0, 0.5, 0.5], (1,): [0.5, 0.5, 0], (2,): [0.5, 0.5, 0]}, [1.0, 0, 0])
        result = search_ids(lm, k=2, max_frontier=2, max_new_tokens=4, **PLAIN)
        assert expanded(result) == [(1,), (2,), (1, 1), (2, 1)]


class TestFrontier:
    def test_prunes_after_each_step_by_priority(self) -> None:
        lm = table_lm({(): [0.0, 0.5, 0.3, 0.2]}, [1.0, 0.0, 0.0, 0.0])
        result = search_ids(lm, max_frontier=2)
        assert set(found(result)) == {(1, 0), (2, 0)}
        assert result.mass.pruned_frontier == pytest.approx(0.2)
        assert result.tree is not None
        assert result.tree.child_state[:4].tolist().count(State.DROPPED) == 1

    def test_the_root_counts_as_one_expansion(self) -> None:
        lm = table_lm({}, [0.5, 0.5])
        assert search_ids(lm, budget=1, k=1).cost.expanded == 1
        assert set(found(search_ids(lm, budget=2, k=1))) == {(0,), (1, 0)}

    @pytest.mark.parametrize("budget", [5, 6, 7, 8, 9])
    def test_the_last_group_shrinks_to_the_budget(self, budget: int) -> None:
        result = search_ids(table_lm({}, [0.0, 0.5, 0.5]), k=4, budget=budget, max_new_tokens=9)
        assert result.cost.expanded == budget
        assert result.stop_reason == "budget"

    def test_one_model_call_a_step(self) -> None:
        # The root, then 2 of its children, then 4 of theirs.
        result = search_ids(table_lm({}, [0.0, 0.5, 0.5]), k=4, budget=7, max_new_tokens=9)
        assert result.cost.model_calls == 3
        assert result.tree is not None
        assert result.tree.expanded_at.tolist() == [0, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("scoring", "alpha"), [("mean", 1.0), ("sum", 0.0)])
def test_one_at_a_time_is_algorithm_1(seed: int, scoring: str, alpha: float) -> None:
    model = random_toy(seed, vocab_size=5)
    lm = bestk.LanguageModel(model)
    result = bestk.best_first(lm, [1, 2], scoring=scoring, budget=30, max_new_tokens=6)
    assert found(result) == pytest.approx(best_first(model, (1, 2), 30, 6, alpha))
    same = bestk.search(
        lm,
        [1, 2],
        k=1,
        decay_weight=0.0,
        min_prob=0.0,
        max_frontier=10**4,
        scoring=scoring,
        budget=30,
        max_new_tokens=6,
    )
    assert found(same) == found(result)


def test_best_first_keeps_the_children_that_a_config_asks_for() -> None:
    lm = table_lm({}, [0.4, 0.35, 0.25])
    config = bestk.SearchConfig(max_children=2, max_new_tokens=3)
    assert bestk.best_first(lm, [1], config).config.max_children == 2
    assert bestk.best_first(lm, [1], config, max_children=3).config.max_children == 3
    assert bestk.best_first(lm, [1], max_new_tokens=3).config.max_children == 100


class TestRanking:
    # (1, 0): 0.3 in 2 tokens; (0,): 0.36 in 1; (2, 2, 0): 0.34 in 3.
    LM = table_lm({(): [0.36, 0.3, 0.34], (1,): [1.0, 0, 0], (2,): [0, 0, 1.0]}, [1.0, 0, 0])

    @pytest.mark.parametrize(
        ("options", "order"),
        [
            ({}, [(2, 2, 0), (1, 0), (0,)]),
            ({"rank_by": "sum"}, [(0,), (2, 2, 0), (1, 0)]),
            ({"rank_by": "step", "k": 2}, [(0,), (1, 0), (2, 2, 0)]),
            ({"rank_by": "score", "scoring": "last"}, [(2, 2, 0), (1, 0), (0,)]),
            ({"rank_by": "score", "length_alpha": 0.1}, [(2, 2, 0), (0,), (1, 0)]),
        ],
    )
    def test_orders(self, options: dict[str, Any], order: list[tuple[int, ...]]) -> None:
        assert [h.token_ids for h in search_ids(self.LM, **options).hypotheses] == order

    def test_default_is_the_mean(self) -> None:
        scores = {h.token_ids: h.score for h in search_ids(self.LM).hypotheses}
        assert scores[(2, 2, 0)] == pytest.approx(math.log(0.34) / 3)

    def test_equal_texts_merge_into_the_likelier(self) -> None:
        lm = table_lm({(): [0.0, 0.3, 0.7]}, [1.0, 0.0, 0.0], "same", "same")
        result = bestk.search(lm, "same")
        (only,) = result.hypotheses
        assert (only.text, only.count, only.token_ids) == ("same", 2, (2, 0))
        assert result.num_completions == 2

    def test_hypotheses_tell_their_tokens(self) -> None:
        first = search_ids(self.LM).hypotheses[0]
        assert first.log_probs == pytest.approx((math.log(0.34), 0.0, 0.0))
        assert first.log_prob == pytest.approx(sum(first.log_probs))
        assert first.num_tokens == 3
        assert first.step == 2


class TestMass:
    def test_every_part_by_hand(self) -> None:
        rows = {(): [0.1, 0.5, 0.25, 0.12, 0.03], (1,): [0.5, 0.0, 0.5, 0.0, 0.0]}
        result = search_ids(
            table_lm(rows, [0.0, 0.0, 1.0, 0.0, 0.0]),
            k=1,
            budget=2,
            max_new_tokens=2,
            max_frontier=2,
        )
        mass = result.mass
        assert mass.completed == pytest.approx(0.1 + 0.25)
        assert mass.truncated == pytest.approx(0.25)
        assert mass.frontier == pytest.approx(0.25)
        assert mass.pruned_prob == pytest.approx(0.03)
        assert mass.pruned_frontier == pytest.approx(0.12)
        assert mass.pruned == pytest.approx(0.15)

    @pytest.mark.model
    @pytest.mark.parametrize("options", [{}, {"max_frontier": 4, "scoring": "last"}])
    def test_of_a_real_model_at_every_step(
        self, smollm2: bestk.LanguageModel, options: dict[str, Any]
    ) -> None:
        config = bestk.SearchConfig(beam_size=4, max_new_tokens=6, **options)
        run = bestk.Run(smollm2, ["The best thing about dogs is", "Water"], config, raw=True)
        for step in run:
            for result in run.results():
                assert abs(result.mass.total - 1) < 1e-6, f"lost at step {step.index}"
        assert all(result.cost.expanded > 10 for result in run.results())


def test_no_text_is_found_that_the_model_does_not_give() -> None:
    model = random_toy(3, vocab_size=4)
    result = bestk.search(bestk.LanguageModel(model), [1], max_new_tokens=5, **PLAIN)
    texts = every_text(model, (1,), 5)
    assert result.hypotheses
    assert found(result) == pytest.approx({ids: texts[ids] for ids in found(result)})


def test_nothing_random() -> None:
    lm = bestk.LanguageModel(random_toy(5, vocab_size=9))
    torch.manual_seed(0)
    first = bestk.search(lm, [1]).hypotheses
    torch.manual_seed(1)
    assert bestk.search(lm, [1]).hypotheses == first
