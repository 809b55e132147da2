"""Beam search, diverse beam search and beam sampling, on one tree per prompt.

A plain beam returns what `generate(num_beams=…)` of transformers 5 returns. A diverse beam
(Vijayakumar et al., 2018) is several teams that share the model calls: each pays a penalty for
tokens that the teams before it have just taken. With a filter the candidates are drawn, not ranked.
Beams are slots of the tree, so nothing is copied when one beam wins over another.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.baselines.base import TreePolicy, check_finite, check_plain, mass_of, shared
from bestk.baselines.filters import Filter, listed
from bestk.baselines.team import Team
from bestk.config import SearchConfig
from bestk.core.frontier import Nodes
from bestk.core.noise import gumbel, of_beams
from bestk.core.policy import Plan, Policy, Shape
from bestk.core.record import Finding, Found, TreeRecord
from bestk.core.tree import State
from bestk.errors import OptionError
from bestk.nodes import BatchSpec, Children, NodeBatch


@dataclass(frozen=True, kw_only=True)
class Beam:
    """Beam search with `beam_size` beams; its options mean what they mean to `generate`.

    With `num_groups` above 1 it is diverse beam search, with a filter beam sampling. `num_runs` is
    how often that is run, for the best text of each: what `generate(num_return_sequences=…)` of
    transformers 4.23 did. It costs as many times the beams.
    """

    num_groups: int = 1
    num_runs: int | None = None
    diversity_penalty: float = 1.0
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    filter: Filter | None = None

    def __post_init__(self) -> None:
        if isinstance(self.num_groups, bool) or self.num_groups < 1:
            raise OptionError(f"num_groups must be at least 1, got {self.num_groups}")
        runs = self.num_runs
        is_count = isinstance(runs, int) and not isinstance(runs, bool) and runs > 0
        if runs is not None and not (is_count and self.filter):
            raise OptionError(
                f"num_runs is a whole number from 1, of beam samplers such as BNcls0.8, got {runs}"
            )
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise OptionError(
                f"early_stopping must be True, False or 'never', got {self.early_stopping!r}"
            )
        for name in ("diversity_penalty", "length_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise OptionError(f"{name} must be finite, got {getattr(self, name)}")
        if self.filter is not None and self.num_groups > 1:
            raise OptionError(
                f"beam sampling has one group, got num_groups={self.num_groups}: drop the filter"
            )

    def check(self, config: SearchConfig) -> None:
        """Refuse settings that it cannot run with."""
        check_plain("beam search", config)
        if config.beam_size % self.num_groups:
            raise OptionError(
                f"beam_size={config.beam_size} must be a multiple of "
                f"num_groups={self.num_groups}: change either, or leave diverse beam search out"
            )

    def policy(self, config: SearchConfig, shape: Shape) -> Policy:
        """Make the beams of a batch."""
        return BeamPolicy(self, config, shape)

    def describe(self, config: SearchConfig, seed: int) -> str:
        """Write the settings as fields of a signature."""
        fields = ["method:beam"]
        if self.num_groups > 1:
            fields = ["method:diverse-beam", f"groups:{self.num_groups}"]
            fields.append(f"diversity:{self.diversity_penalty:g}")
        if self.filter is not None:
            fields = [f"method:beam-sample,{self.filter.name}"]
        if self.num_runs is not None:
            fields += [f"runs:{self.num_runs}", f"seed:{seed}"]
        fields += [f"lp:{self.length_penalty:g}", f"early:{self.early_stopping}"]
        return "|".join([*fields, shared(config)])


class BeamPolicy(TreePolicy):
    """The beams of a batch of prompts: the trees, and the teams that grow them."""

    def __init__(self, method: Beam, config: SearchConfig, shape: Shape) -> None:
        self.method = method
        self.num_stops = len({*shape.stop_ids, *config.stop_ids})
        self.size = config.beam_size // method.num_groups
        self.num_teams = method.num_runs or method.num_groups
        # With e stop tokens (1 + e)·b candidates always leave b that go on.
        self.num_candidates = max(2, 1 + self.num_stops) * self.size
        spec = BatchSpec(
            width=self.size * self.num_teams,
            slots=self.size * self.num_teams * config.max_new_tokens,
            depth=config.max_new_tokens,
            num_children=min(shape.vocab_size, self._num_children(config)),
            num_forced=0 if method.filter is not None else shape.num_forced,
        )
        super().__init__(
            config, shape, spec, self.num_candidates * self.num_teams + shape.num_forced
        )
        self.by_rule = Nodes.empty(shape.batch, 0, shape.device)  # texts that a rule ended
        self.teams = [
            Team(
                shape.batch,
                self.size,
                length_penalty=method.length_penalty,
                early_stopping=method.early_stopping,
                max_new_tokens=config.max_new_tokens,
                device=shape.device,
            )
            for _ in range(self.num_teams)
        ]
        self.depth = 0  # of the nodes expanded last
        self.places = torch.zeros(0)  # where among the planned nodes each team's beams are

    def ended(self) -> list[int]:
        """Name the searches of which no team runs."""
        running = torch.stack([team.is_running for team in self.teams]).any(dim=0).tolist()
        return [row for row, runs in enumerate(running) if not runs or row in self.timed_out]

    def next(self) -> Plan:
        """Plan the running beams of all teams."""
        beams = functools.reduce(Nodes.joined, (team.running for team in self.teams))
        # Slots are handed out in order, so the empty places must come last; those that are empty
        # in every tree are left off.
        width = max(1, int(beams.is_open.sum(dim=1).max()))
        order = (~beams.is_open).to(torch.int8).sort(dim=1, stable=True).indices
        self.places = order.argsort(dim=1).clamp(max=width - 1)
        nodes = beams.take(order[:, :width])
        return Plan(self.tree.place(nodes), nodes.log_prob, taken=nodes, priority=nodes.score)

    def step(self, plan: Plan, children: Children) -> None:
        """Let each team choose among its own beams' children, then keep what was chosen."""
        if plan.taken is not None:
            self.clock += plan.nodes.is_valid.any(dim=1)
            self.depth += 1
            taken = plan.taken
            self.tree.mark(taken.parent, taken.child, State.EXPANDED, taken.is_open)
        self.take(plan)
        vocab_size, device = self.shape.vocab_size, self.shape.device
        used = torch.zeros(self.shape.batch, vocab_size, device=device)
        seen = children.log_prob if children.whole is None else children.whole
        check_finite(seen, plan.nodes.is_valid, self.depth)
        tokens, log_probs, states = [], [], []
        for number, team in enumerate(self.teams):
            places = self._places(number)
            if children.whole is None:
                picked = self._best(team, children, places, used)
            else:
                picked = self._drawn(number, children.whole, places)
            place, candidates = self._candidates(number, plan, places, *picked)
            table, exists = _table(place, candidates, plan.nodes)
            complete = self.completes(plan.nodes, table, exists)
            kept = team.choose(candidates, complete.any(dim=1), self.depth + 1)
            used.scatter_add_(1, team.running.token, team.running.is_open.float())
            tokens.append(table.token)
            log_probs.append(table.log_prob)
            states.append(torch.where(exists, kept[:, None], int(State.NONE)))
        if (endings := self.endings(plan.nodes, children)) is not None:
            self._end(plan, *endings)
            tokens.append(endings[0])
            log_probs.append(endings[1])
            ends = endings[1] > -math.inf
            states.append(torch.where(ends, int(State.COMPLETE), int(State.NONE)))
        children = Children(torch.cat(tokens, dim=2), torch.cat(log_probs, dim=2))
        score = plan.log_prob[..., None] + children.log_prob  # beams go by their likelihood
        self.tree.record(plan.nodes, children, score, torch.cat(states, dim=2))

    def findings(self, rows: Sequence[int], *, keep_tree: bool = True) -> list[Finding]:
        """Read the finished texts out of the trees, each team's best first, best team first."""
        counts, clocks = self.tree.count.tolist(), self.clock.tolist()
        found_by = [self._found(team.finished) for team in self.teams]
        if self.method.num_runs is not None:  # of each run the best
            found_by = [[texts[:1] for texts in found] for found in found_by]
        by_rule, findings = self._found(self.by_rule), []
        for row in rows:
            found = [text for texts in found_by for text in texts[row]]
            known = {text.token_ids for text in found}
            found += [text for text in by_rule[row] if text.token_ids not in known]
            found.sort(key=lambda f: -(f.score or 0.0))
            findings.append(
                Finding(
                    texts=found,
                    mass=mass_of(found),
                    expanded=counts[row],
                    steps=clocks[row] + 1,
                    stop_reason="timeout" if row in self.timed_out else "finished",
                    num_truncated=sum(not text.is_complete for text in found),
                    record=TreeRecord.of(self.tree, [row])[0] if keep_tree else None,
                )
            )
        return findings

    def _found(self, done: Nodes) -> list[list[Found]]:
        """List finished texts, row by row; the device is asked once for all of them."""
        tree = self.tree
        rows = torch.arange(len(done.parent), device=done.parent.device)[:, None]
        parent, child = done.parent, done.child
        path = tree.path[rows, parent].clamp(min=0)  # [batch, texts, depth]
        columns = (
            done.is_open,
            tree.token[rows[..., None], path],
            tree.last_log_prob[rows[..., None], path],
            tree.depth[rows, parent],
            tree.child_token[rows, parent, child],
            tree.child_log_prob[rows, parent, child],
            tree.child_state[rows, parent, child],
            tree.expanded_at[rows, parent],
        )
        listed = [column.tolist() for column in columns]
        return [
            [self._text(*text) for text in zip(*row, strict=True) if text[0]]
            for row in zip(*listed, strict=True)
        ]

    def _text(
        self,
        _: bool,
        tokens: list[int],
        log_probs: list[float],
        depth: int,
        token: int,
        log_prob: float,
        state: int,
        step: int,
    ) -> Found:
        whole = (*log_probs[:depth], log_prob)
        return Found(
            token_ids=(*tokens[:depth], token),
            log_probs=whole,
            log_prob=sum(whole),
            step=step,
            is_complete=state == State.COMPLETE,
            # The penalty for diversity steers the choice; it is no part of the score.
            score=sum(whole) / float(len(whole)) ** self.method.length_penalty,
        )

    def _num_children(self, config: SearchConfig) -> int:
        """Count the children per node that can matter to a team's best candidates."""
        forbidden = self.num_stops if config.min_new_tokens else 0
        penalised = config.beam_size if self.method.num_groups > 1 else 0
        return 0 if self.method.filter is not None else self.num_candidates + forbidden + penalised

    def _places(self, number: int) -> Int[Tensor, "batch beams"]:
        """Return where among the nodes a team's beams are: first all are the root.

        A run begins with as many equal beams, as transformers 4.23 did.
        """
        if self.depth == 0:
            size = 1 if self.method.num_runs is None else self.size
            return torch.zeros_like(self.clock)[:, None].expand(-1, size)
        return self.places[:, number * self.size : (number + 1) * self.size]

    def _best(
        self,
        team: Team,
        children: Children,
        places: Int[Tensor, "batch beams"],
        used: Float[Tensor, "batch vocab"],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = places[..., None].expand(-1, -1, children.token.shape[2])
        token, last = children.token.gather(1, wide), children.log_prob.double().gather(1, wide)
        last = self._allowed(last, token)
        score = team.scores(self.depth)[..., None] + last
        if self.method.num_groups > 1:
            times = used.gather(1, token.flatten(1).clamp(min=0)).view_as(score)
            score = score - self.method.diversity_penalty * times
        # A stable sort: equal scores by beam, then by probability, then by lower id.
        order = score.flatten(1).sort(dim=1, descending=True, stable=True).indices
        return order[:, : self.num_candidates], token, last, score

    def _drawn(
        self,
        number: int,
        log_probs: Float[Tensor, "batch nodes vocab"],
        places: Int[Tensor, "batch beams"],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw candidates without replacement, by their beams' whole probability.

        The largest of log p + Gumbel noise are such draws, in the order drawn.
        """
        assert self.method.filter is not None
        too_early = self.may_not_stop(self.depth + 1)
        if too_early is not None:
            log_probs = log_probs.masked_fill(too_early, -math.inf)
        keeps = self.method.filter.keeps(log_probs, min_tokens=1 + self.num_stops)
        token, is_filled = listed(keeps)  # [batch, nodes, kept]
        last = log_probs.gather(2, token).double().masked_fill(~is_filled, -math.inf)
        wide = places[..., None].expand(-1, -1, token.shape[2])
        token, last = token.gather(1, wide), last.gather(1, wide)
        score = self.teams[number].scores(self.depth)[..., None] + last
        beams = torch.arange(token.shape[1], device=token.device) + number * self.size
        address = of_beams(torch.tensor(self.keys, device=token.device), self.depth, beams)
        drawn = (score + gumbel(address, token)).flatten(1)
        order = drawn.topk(min(self.num_candidates, drawn.shape[1]), dim=1).indices
        if self.method.num_runs is not None:  # the drawn by score, as in transformers 4.23
            by_score = score.flatten(1).gather(1, order).sort(dim=1, descending=True, stable=True)
            order = order.gather(1, by_score.indices)
        return order, token, last, score

    def _candidates(
        self,
        number: int,
        plan: Plan,
        places: Int[Tensor, "batch beams"],
        order: Int[Tensor, "batch picked"],
        token: Int[Tensor, "batch beams tokens"],
        last_log_prob: Float[Tensor, "batch beams tokens"],
        score: Float[Tensor, "batch beams tokens"],
    ) -> tuple[Int[Tensor, "batch candidates"], Nodes]:
        """Gather a team's picked continuations, with the places of their parents among the nodes.

        Where there are fewer than there may be the rest is empty. A candidate's score is what the
        beam compares: the sum of log p, less penalties.
        """
        numbers, num_picked = torch.arange(self.num_candidates, device=order.device), order.shape[1]
        order = torch.nn.functional.pad(order, (0, self.num_candidates - num_picked))
        place = places.gather(1, order // token.shape[2])
        score, last = (x.flatten(1).gather(1, order) for x in (score, last_log_prob))
        return place, Nodes.of(
            is_open=plan.nodes.is_valid.gather(1, place)
            & (score > -math.inf)
            & (numbers < num_picked),
            token=token.flatten(1).gather(1, order),
            parent=plan.nodes.slot.gather(1, place),
            child=(number * self.num_candidates + numbers).expand_as(order),
            depth=torch.full_like(order, self.depth + 1),
            step=self.clock[:, None].expand_as(order),
            score=score,
            log_prob=plan.log_prob.gather(1, place) + last,
            last_log_prob=last,
        )

    def _end(
        self,
        plan: Plan,
        token: Int[Tensor, "batch nodes stops"],
        value: Float[Tensor, "batch nodes stops"],
    ) -> None:
        """Note the texts that end by rule; beams go on as if there were none."""
        number = torch.arange(token.shape[2], device=token.device)
        total = (plan.log_prob[..., None] + value).flatten(1)
        ended = Nodes.of(
            is_open=value.flatten(1) > -math.inf,
            token=token.flatten(1),
            parent=plan.nodes.slot[..., None].expand(token.shape).flatten(1),
            child=(self.num_teams * self.num_candidates + number).expand(token.shape).flatten(1),
            depth=torch.full_like(token.flatten(1), self.depth + 1),
            step=self.clock[:, None].expand_as(total),
            score=total,
            log_prob=total,
            last_log_prob=value.flatten(1),
        )
        self.by_rule = Nodes.joined(self.by_rule, ended)

    def _allowed(
        self, last: Float[Tensor, "batch beams tokens"], token: Int[Tensor, "batch beams tokens"]
    ) -> Float[Tensor, "batch beams tokens"]:
        too_early = self.may_not_stop(self.depth + 1)
        return last if too_early is None else last.masked_fill(too_early[token], -math.inf)


def _table(
    place: Int[Tensor, "batch candidates"], candidates: Nodes, nodes: NodeBatch
) -> tuple[Children, Bool[Tensor, "batch nodes candidates"]]:
    """Lay candidates out as children of the nodes: number i is child i of its node."""
    numbers = torch.arange(nodes.token.shape[1], device=nodes.token.device)
    exists = (place[:, None] == numbers[:, None]) & candidates.is_open[:, None]
    token = candidates.token[:, None].expand(exists.shape)
    log_prob = candidates.last_log_prob[:, None].expand(exists.shape)
    return Children(token, log_prob), exists
