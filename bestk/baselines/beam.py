"""Beam search, diverse beam search and beam sampling, on one tree per prompt.

A plain beam returns what `generate(num_beams=…)` of transformers 5 returns. A diverse beam
(Vijayakumar et al., 2018) is several teams that share the model calls: each pays a penalty for
tokens that the teams before it have just taken. With a filter the candidates are drawn, not ranked.
Beams are slots of the tree, so nothing is copied when one beam wins over another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.backends.base import Children, Group, Room, Session
from bestk.baselines.base import (
    Found,
    Job,
    Outcome,
    Watch,
    check_finite,
    check_plain,
    plant,
    shared,
)
from bestk.baselines.filters import Filter, listed
from bestk.baselines.noise import exponential
from bestk.baselines.team import Candidates, Team
from bestk.config import SearchConfig
from bestk.core.record import TreeRecord
from bestk.core.tree import State, Tree
from bestk.errors import OptionError
from bestk.lm.language_model import LanguageModel
from bestk.result import SearchResult


@dataclass(frozen=True, kw_only=True)
class Beam:
    """Beam search with `beam_size` beams; its options mean what they mean to `generate`.

    With `num_groups` above 1 it is diverse beam search, with a filter beam sampling.
    """

    num_groups: int = 1
    diversity_penalty: float = 1.0
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    filter: Filter | None = None

    def __post_init__(self) -> None:
        if isinstance(self.num_groups, bool) or self.num_groups < 1:
            raise OptionError(f"num_groups must be at least 1, got {self.num_groups}")
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

    def run(
        self,
        lm: LanguageModel,
        prompts: Sequence[Any],
        config: SearchConfig,
        *,
        seed: int = 0,
        keep_tree: bool = True,
    ) -> list[SearchResult]:
        """Return the texts of one batch of prompts."""
        self.check(config)
        job = Job(lm, prompts, config, seed)
        beams = Beams(self, job)
        watch = Watch() if self.filter is not None else None
        session = lm.backend.start(job.prompt_ids, beams.room, watch)
        try:
            beams.search(session, watch)
        finally:
            session.close()
        return job.results(beams.outcomes(keep_tree), f"{self.describe()}|{shared(config)}")

    def describe(self) -> str:
        """Write the settings as fields of a signature."""
        fields = ["method:beam"]
        if self.num_groups > 1:
            fields = ["method:diverse-beam", f"groups:{self.num_groups}"]
            fields.append(f"diversity:{self.diversity_penalty:g}")
        if self.filter is not None:
            fields = [f"method:beam-sample,{self.filter.name}"]
        return "|".join([*fields, f"lp:{self.length_penalty:g}", f"early:{self.early_stopping}"])


class Beams:
    """The beams of a batch of prompts: the trees, and the teams that grow them."""

    def __init__(self, method: Beam, job: Job) -> None:
        config, batch, vocab = job.config, len(job.prompts), job.lm.backend.vocab_size
        self.method, self.job = method, job
        self.num_stops = int(job.is_stop.sum())
        self.size = config.beam_size // method.num_groups
        # With e stop tokens (1 + e)·b candidates always leave b that go on.
        self.num_candidates = max(2, 1 + self.num_stops) * self.size
        self.room = Room(
            width=config.beam_size,
            capacity=config.beam_size * config.max_new_tokens,
            depth=config.max_new_tokens,
            num_children=min(vocab, self._num_children(config.min_new_tokens)),
        )
        self.teams = [
            Team(
                batch,
                self.size,
                length_penalty=method.length_penalty,
                early_stopping=method.early_stopping,
                max_new_tokens=config.max_new_tokens,
                device=job.device,
            )
            for _ in range(method.num_groups)
        ]
        width = self.num_candidates * method.num_groups
        self.tree = Tree(batch, self.room.capacity, self.room.depth, width, job.device)
        self.keys = torch.tensor(job.keys(), device=job.device)
        self.depth = 0  # of the nodes expanded last
        self.clock = torch.zeros(batch, dtype=torch.int64, device=job.device)
        self.has_timed_out = False

    def search(self, session: Session, watch: Watch | None) -> None:
        """Expand all running beams, let every team choose, until none has any left."""
        group = plant(self.tree)
        self.push(group, session.root(group), watch)
        while any(bool(team.is_running.any()) for team in self.teams):
            if self.job.is_out_of_time:
                self.has_timed_out = True
                return
            group = self.pop()
            self.push(group, session.expand(group), watch)

    def pop(self) -> Group:
        """Give the running beams of all teams their slots."""
        nodes = [team.running for team in self.teams]

        def column(name: str) -> Tensor:
            return torch.cat([getattr(node, name) for node in nodes], dim=1)

        is_valid, parent = column("is_valid"), column("parent")
        self.clock += is_valid.any(dim=1)
        self.depth += 1
        self.tree.mark(parent, column("child"), State.EXPANDED, is_valid)
        # Slots are handed out in order, so the empty places must come last; those that are empty
        # in every tree are left off.
        width = max(1, int(is_valid.sum(dim=1).max()))
        order = (~is_valid).to(torch.int8).sort(dim=1, stable=True).indices
        self.places = order.argsort(dim=1).clamp(max=width - 1)
        order = order[:, :width]

        def ordered(name: str) -> Tensor:
            return column(name).gather(1, order)

        return self.tree.append(
            token=ordered("token"),
            parent=ordered("parent"),
            depth=torch.full_like(order, self.depth),
            step=(self.clock - 1)[:, None].expand_as(order),
            log_prob=ordered("log_prob"),
            last_log_prob=ordered("last_log_prob"),
            priority=ordered("score"),
            clock=self.clock,
            is_valid=ordered("is_valid"),
        )

    def push(self, group: Group, children: Children, watch: Watch | None) -> None:
        """Let each team choose among its own beams' children, then keep what was chosen."""
        taken = torch.zeros(
            len(group.token), self.job.lm.backend.vocab_size, device=self.job.device
        )
        whole = None if watch is None else watch.take()
        seen = children.log_prob if whole is None else whole
        check_finite(seen, group.is_valid, self.depth)
        tokens, log_probs, states = [], [], []
        for number, team in enumerate(self.teams):
            places = self._places(number)
            if whole is None:
                candidates = self._best(team, group, children, places, taken)
            else:
                candidates = self._drawn(team, group, whole, places)
            table, exists = _table(candidates, group)
            complete = self.job.completes(group, table, exists)
            offset = number * self.num_candidates
            kept = team.choose(candidates, complete.any(dim=1), self.depth + 1, offset)
            taken.scatter_add_(1, team.running.token, team.running.is_valid.float())
            tokens.append(table.token)
            log_probs.append(table.log_prob)
            states.append(torch.where(exists, kept[:, None], int(State.NONE)))
        children = Children(torch.cat(tokens, dim=2), torch.cat(log_probs, dim=2))
        score = group.log_prob[..., None] + children.log_prob  # beams go by their likelihood
        self.tree.record(group, children, score, torch.cat(states, dim=2))

    def outcomes(self, keep_tree: bool) -> list[Outcome]:
        """Read the finished texts out of the trees, each team's best first, best team first."""
        counts, clocks = self.tree.count.tolist(), self.clock.tolist()
        found_by = [self._found(team) for team in self.teams]
        outcomes = []
        for row, count in enumerate(counts):
            record = TreeRecord.of(self.tree, [row])[0] if keep_tree else None
            found = [text for rows in found_by for text in rows[row]]
            found.sort(key=lambda f: -(f.score or 0.0))
            outcomes.append(
                Outcome(
                    found=found,
                    expanded=count,
                    model_calls=clocks[row] + 1,
                    stop_reason="timeout" if self.has_timed_out else "finished",
                    tree=record,
                )
            )
        return outcomes

    def _found(self, team: Team) -> list[list[Found]]:
        """List a team's finished texts, row by row; the device is asked once for all of them."""
        done, tree = team.finished, self.tree
        rows = torch.arange(len(done.parent), device=done.parent.device)[:, None]
        parent, child = done.parent, done.child
        path = tree.path[rows, parent].clamp(min=0)  # [batch, texts, depth]
        columns = (
            done.is_valid,
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
            step=step,
            is_complete=state == State.COMPLETE,
            # The penalty for diversity steers the choice; it is no part of the score.
            score=sum(whole) / float(len(whole)) ** self.method.length_penalty,
        )

    def _num_children(self, min_new_tokens: int) -> int:
        """Count the children per node that can matter to a team's best candidates."""
        forbidden = self.num_stops if min_new_tokens else 0
        penalised = self.job.config.beam_size if self.method.num_groups > 1 else 0
        return (
            0 if self.method.filter is not None else (self.num_candidates + forbidden + penalised)
        )

    def _places(self, number: int) -> Int[Tensor, "batch beams"]:
        """Say where in the group a team's beams are; before the first step all are the root."""
        if self.depth == 0:
            return torch.zeros_like(self.clock)[:, None]
        return self.places[:, number * self.size : (number + 1) * self.size]

    def _best(
        self,
        team: Team,
        group: Group,
        children: Children,
        places: Int[Tensor, "batch beams"],
        taken: Float[Tensor, "batch vocab"],
    ) -> Candidates:
        wide = places[..., None].expand(-1, -1, children.token.shape[2])
        token, last = children.token.gather(1, wide), children.log_prob.double().gather(1, wide)
        last = self._allowed(last, token)
        score = team.scores(self.depth)[..., None] + last
        if self.method.num_groups > 1:
            times = taken.gather(1, token.flatten(1)).view_as(score)
            score = score - self.method.diversity_penalty * times
        # A stable sort: equal scores by beam, then by probability, then by lower id.
        order = score.flatten(1).sort(dim=1, descending=True, stable=True).indices
        order = order[:, : self.num_candidates]
        return Candidates.of(order, places, token, last, score, group, self.num_candidates)

    def _drawn(
        self,
        team: Team,
        group: Group,
        log_probs: Float[Tensor, "batch group vocab"],
        places: Int[Tensor, "batch beams"],
    ) -> Candidates:
        """Draw candidates without replacement, by their beams' whole probability.

        The largest of log p + Gumbel noise are such draws, in the order drawn.
        """
        assert self.method.filter is not None
        too_early = self.job.may_not_stop(self.depth + 1)
        if too_early is not None:
            log_probs = log_probs.masked_fill(too_early, -math.inf)
        keeps = self.method.filter.keeps(log_probs, min_tokens=1 + self.num_stops)
        token, is_filled = listed(keeps)  # [batch, group, kept]
        last = log_probs.gather(2, token).double().masked_fill(~is_filled, -math.inf)
        wide = places[..., None].expand(-1, -1, token.shape[2])
        token, last = token.gather(1, wide), last.gather(1, wide)
        score = team.scores(self.depth)[..., None] + last
        noise = exponential(self.keys, self.depth, token)
        drawn = (score - noise.log()).flatten(1)
        order = drawn.topk(min(self.num_candidates, drawn.shape[1]), dim=1).indices
        return Candidates.of(order, places, token, last, score, group, self.num_candidates)

    def _allowed(
        self, last: Float[Tensor, "batch beams tokens"], token: Int[Tensor, "batch beams tokens"]
    ) -> Float[Tensor, "batch beams tokens"]:
        too_early = self.job.may_not_stop(self.depth + 1)
        return last if too_early is None else last.masked_fill(too_early[token], -math.inf)


def _table(
    candidates: Candidates, group: Group
) -> tuple[Children, Bool[Tensor, "batch group candidates"]]:
    """Lay candidates out as children of the group's nodes: number i is child i of its node."""
    numbers = torch.arange(group.token.shape[1], device=group.token.device)
    exists = (candidates.place[:, None] == numbers[:, None]) & candidates.is_valid[:, None]
    token = candidates.token[:, None].expand(exists.shape)
    log_prob = candidates.last_log_prob[:, None].expand(exists.shape)
    return Children(token, log_prob), exists
