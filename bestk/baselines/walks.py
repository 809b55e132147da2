"""Draws that share what they pay for: walks through one tree, whose nodes are evaluated once.

A walk draws tokens from nodes that are known for nothing, and waits where it comes to one that is
not: that node is evaluated in the next pass, for all who wait there. So a budget of C node
expansions pays for C different prefixes, and walks begin until it is spent. They are

- `shared`: independent of one another;
- `distinct`: no text is drawn twice (Kool et al. 2019; Shi et al. 2020), by taking what was found
  out of the probabilities on its path;
- `arithmetic`: each by one number of a sequence that fills 0 to 1 evenly (Vilnis et al. 2023);
- `leaves`: not drawn: each leaves the tree at the likeliest branch that none took, and goes on with
  the likeliest token (distinct leaf enumeration, arXiv 2604.20500).

Choices are made on the host, from the few tokens that the filter keeps. Knows no text.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bestk.baselines.base import Step, TreePolicy, check_finite, mass_of
from bestk.baselines.filters import Filter
from bestk.config import SearchConfig
from bestk.core.policy import Plan, Shape
from bestk.core.record import Finding, Found
from bestk.nodes import BatchSpec, Children

WALKS = ("shared", "distinct", "arithmetic", "leaves")

_MOST_IDLE = 100  # walks one after another that ask for no new node: then there is none
_USUAL_LENGTH = 0.6  # of a text, as a share of T, before any has ended
_NOTHING = 1e-12  # of probability left


@dataclass(eq=False)
class Node:
    """A prefix; what follows it is known once it has been evaluated."""

    parent: Node | None
    place: int  # among the parent's tokens
    token: int
    log_prob: float  # of its token
    depth: int
    reach: float = 0.0  # log-probability of the path, as the filter leaves it
    slot: int = 0
    is_known: bool = False
    tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    log_probs: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    weights: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # what is left
    full: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # what there was
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    children: dict[int, Node] = field(default_factory=dict)
    found: set[int] = field(default_factory=set)  # places of texts that have been drawn

    def place_of(self, token: int, log_prob: float) -> int:
        """Return the place of a token; one that the filter leaves out gets a place without p."""
        (places,) = np.nonzero(self.tokens == token)
        if len(places):
            return int(places[0])
        self.tokens = np.append(self.tokens, token)
        self.log_probs = np.append(self.log_probs, log_prob)
        self.full, self.weights = np.append(self.full, 0.0), np.append(self.weights, 0.0)
        self.sums = self.weights.cumsum()
        return len(self.tokens) - 1

    def learn(
        self,
        tokens: NDArray[np.int64],
        log_probs: NDArray[np.float64],
        weights: NDArray[np.float64],
    ) -> None:
        """Note which tokens may follow, and how likely."""
        self.tokens, self.log_probs = tokens, log_probs
        self.full = weights / weights.sum()
        self.weights, self.is_known = self.full.copy(), True
        self.sums = self.weights.cumsum()

    def reweigh(self, place: int, share: float) -> None:
        """Leave only a share of what a token had."""
        self.weights[place] = self.full[place] * share
        self.sums = self.weights.cumsum()

    def path(self) -> list[Node]:
        """List the nodes from below the root to this one."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def step(self, clock: int) -> Step:
        """Return what is asked of the model to know what follows."""
        total = sum(node.log_prob for node in self.path())
        parent = self.parent.slot if self.parent else 0
        return Step(self.token, parent, self.depth, clock, total, self.log_prob)


@dataclass(eq=False)
class Walk:
    """A draw on its way; `code` is where it goes, if one number says so."""

    node: Node
    code: float | None = None
    first: int | None = None  # the place that it begins with


class Walkers:
    """All walks of one prompt."""

    def __init__(self, how: str, config: SearchConfig, key: int) -> None:
        self.how, self.length, self.budget = how, config.max_new_tokens, config.total_budget
        self.width = config.beam_size
        self.source = np.random.default_rng(key)
        self.shift = float(self.source.random())
        self.root = Node(None, 0, -1, 0.0, 0)
        self.walks: list[Walk] = []
        self.pending: list[Node] = []
        self.texts: list[Found] = []
        self.branches: list[tuple[float, int, Node, int]] = []  # that no walk took, a heap
        self.count = itertools.count()
        self.expanded, self.calls = 1, 1
        self.num_begun = self.num_idle = 0
        self.is_over = False

    def begin(self) -> None:
        """Begin walks while there is room for them to end; one at least."""
        while not self.is_over and len(self.walks) < self.width and self._has_room():
            if self.how == "leaves":
                if not self._branch_off():
                    return
                continue
            if self.num_idle >= _MOST_IDLE or self.root.sums[-1] <= _NOTHING:
                self.is_over = not self.walks
                return
            code = None
            if self.how == "arithmetic":
                code = (_evenly(self.num_begun) + self.shift) % 1.0
            self.walks.append(Walk(self.root, code))
            self.num_begun += 1
            self.num_idle += 1

    def pick(self, walk: Walk) -> int | None:
        """Draw a token of a known node; None where nothing is left below it."""
        sums = walk.node.sums
        if self.how == "leaves":
            place, walk.first = walk.first, None
            return int(walk.node.full.argmax()) if place is None else place
        if sums[-1] <= _NOTHING:
            return None
        at = (self.source.random() if walk.code is None else walk.code) * sums[-1]
        place = min(int(np.searchsorted(sums, at, side="right")), len(sums) - 1)
        if walk.code is not None:
            low = sums[place - 1] if place else 0.0
            walk.code = float(min(max((at - low) / (sums[place] - low), 0.0), 1 - 2**-40))
        return place

    def go(self, walk: Walk, place: int, *, is_complete: bool) -> None:
        """Take a walk along a token: to its end, to a known node, or to wait for one."""
        node = walk.node
        if is_complete or node.depth + 1 >= self.length:
            self._end(node, place, is_complete=is_complete)
            self.walks.remove(walk)
            return
        child = node.children.get(place)
        if child is None:
            token, log_prob = int(node.tokens[place]), float(node.log_probs[place])
            reach = node.reach + float(np.log(node.full[place]))
            child = Node(node, place, token, log_prob, node.depth + 1, reach)
            node.children[place] = child
            self.pending.append(child)
            self.num_idle = 0
        walk.node = child

    def learn(self, node: Node) -> None:
        """Note the branches of a node that the walk which waits there does not take."""
        taken = -1 if node is self.root else int(node.full.argmax())
        for place in np.flatnonzero(node.full).tolist() if self.how == "leaves" else ():
            if place != taken:
                reach = node.reach + float(np.log(node.full[place]))
                heapq.heappush(self.branches, (-reach, next(self.count), node, place))

    def end_at(self, node: Node, token: int, log_prob: float) -> None:
        """End a text here by rule, whatever the filter says of it; walks go on."""
        place = node.place_of(token, log_prob)
        if place not in node.found:
            self._end(node, place, is_complete=True)

    def plan(self) -> list[Node]:
        """Return the nodes to be evaluated next, as many as are paid for."""
        return self.pending[: max(0, min(self.width, self.budget - self.expanded))]

    def _end(self, node: Node, place: int, *, is_complete: bool) -> None:
        if self.how in ("distinct", "leaves") and place in node.found:
            return  # another walk was under way to the same text, or a rule ended it
        node.found.add(place)
        whole = node.path()
        log_probs = (*(n.log_prob for n in whole), float(node.log_probs[place]))
        self.texts.append(
            Found(
                token_ids=(*(n.token for n in whole), int(node.tokens[place])),
                log_probs=log_probs,
                log_prob=sum(log_probs),
                step=self.calls,
                is_complete=is_complete,
            )
        )
        if self.how == "distinct":
            node.reweigh(place, 0.0)
            while node.parent is not None:
                node.parent.reweigh(node.place, float(node.sums[-1]))
                node = node.parent

    def _branch_off(self) -> bool:
        """Begin at the likeliest branch, unless a walk may still come by one that is likelier."""
        if not self.branches:
            self.is_over = not self.walks
            return False
        # What a walk does not take has at most half of what there is.
        most = max((walk.node.reach for walk in self.walks), default=-np.inf) + np.log(0.5)
        if -self.branches[0][0] < most:
            return False
        _, _, node, place = heapq.heappop(self.branches)
        self.walks.append(Walk(node, first=place))
        return True

    def _has_room(self) -> bool:
        lengths = [len(text.token_ids) for text in self.texts]
        usual = sum(lengths) / len(lengths) if lengths else _USUAL_LENGTH * self.length
        needed = sum(max(1.0, usual - walk.node.depth) for walk in self.walks)
        return not self.walks or self.expanded + needed + usual <= self.budget


class WalkPolicy(TreePolicy):
    """The walks of a batch of prompts."""

    def __init__(
        self,
        how: str,
        filter: Filter,
        temperature: float,
        config: SearchConfig,
        shape: Shape,
    ) -> None:
        self.how, self.filter, self.temperature = how, filter, temperature
        spec = BatchSpec(
            width=config.beam_size,
            slots=config.total_budget + 1,
            depth=config.max_new_tokens,
            num_children=0,
        )
        super().__init__(config, shape, spec, 0)
        self.stops = {*shape.stop_ids, *config.stop_ids}
        self.rows: list[Walkers] = []

    def begin(self, rows: Tensor, keys: Sequence[int]) -> Plan:
        """Start all searches, each with a source of randomness of its own."""
        self.rows = [Walkers(self.how, self.config, key) for key in keys]
        return super().begin(rows, keys)

    def ended(self) -> list[int]:
        """Name the searches of which no node is to be evaluated."""
        return [n for n, row in enumerate(self.rows) if not row.plan() or n in self.timed_out]

    def next(self) -> Plan:
        """Plan the nodes that walks wait for."""
        clocks = self.clock.tolist()
        return self.plan(
            [
                [node.step(clock) for node in row.plan()]
                for row, clock in zip(self.rows, clocks, strict=True)
            ]
        )

    def step(self, plan: Plan, children: Children) -> None:
        """Learn what follows the planned nodes, and let all walks go on until they wait."""
        assert children.whole is not None
        self.clock += not plan.is_begin
        check_finite(children.whole, plan.nodes.is_valid, int(self.clock[0]))
        planned = [[row.root] if plan.is_begin else row.plan() for row in self.rows]
        for nodes, count in zip(planned, self.tree.count.tolist(), strict=True):
            for place, node in enumerate(nodes):
                node.slot = count + place
        self.take(plan)
        self._learn(plan, planned, children)
        if not plan.is_begin:
            for row, nodes in zip(self.rows, planned, strict=True):
                row.pending = row.pending[len(nodes) :]
                row.expanded += len(nodes)
                row.calls += bool(nodes)
        self._walk()

    def findings(self, rows: Sequence[int], *, keep_tree: bool = True) -> list[Finding]:
        """Return the texts drawn, in the order in which they ended. There is no tree."""
        return [
            Finding(
                texts=list(row.texts),
                mass=mass_of(row.texts),
                expanded=row.expanded,
                steps=row.calls,
                stop_reason="timeout" if number in self.timed_out else "budget",
                num_truncated=sum(not text.is_complete for text in row.texts),
            )
            for number, row in ((number, self.rows[number]) for number in rows)
        ]

    def _learn(
        self,
        plan: Plan,
        planned: Sequence[Sequence[Node]],
        children: Children,
    ) -> None:
        """Bring the tokens that the filter keeps to the host, for every planned node."""
        owners = [(row, node) for row, own in zip(self.rows, planned, strict=True) for node in own]
        if not owners:  # all has ended, and nobody has looked yet
            return
        log_probs = children.whole
        assert log_probs is not None
        if self.config.min_new_tokens:
            too_early = (plan.nodes.depth + 1 < self.config.min_new_tokens)[..., None]
            log_probs = log_probs.masked_fill(too_early & self.is_stop, -torch.inf)
        own = log_probs[plan.nodes.is_valid]  # by row, then place: the order of the nodes
        weights = (own.double() / self.temperature).log_softmax(dim=-1)
        kept = self.filter.keeps(weights.float())
        counts = kept.sum(dim=1).tolist()
        token = kept.nonzero()[:, 1]
        columns = token, own[kept].double(), weights[kept].exp()
        parts = [np.split(c.cpu().numpy(), np.cumsum(counts)[:-1]) for c in columns]
        for (row, node), *told in zip(owners, *parts, strict=True):
            node.learn(*told)
            row.learn(node)
        if (endings := self.endings(plan.nodes, children)) is None:
            return
        stops, values = (column[plan.nodes.is_valid] for column in endings)
        for number, place in (values > -torch.inf).nonzero().tolist():
            row, node = owners[number]
            row.end_at(node, int(stops[number, place]), float(values[number, place]))

    def _walk(self) -> None:
        """Take every walk along tokens until all wait for nodes, or have ended."""
        while True:
            for row in self.rows:
                row.begin()
            moves = list(self._moves())
            if not moves:
                return
            for row, walk, place in moves:
                is_complete = int(walk.node.tokens[place]) in self.stops
                row.go(walk, place, is_complete=is_complete)

    def _moves(self) -> Iterator[tuple[Walkers, Walk, int]]:
        for row in self.rows:
            for walk in [walk for walk in row.walks if walk.node.is_known]:
                place = row.pick(walk)
                if place is None:  # all below it was drawn since the walk set out
                    row.walks.remove(walk)
                else:
                    yield row, walk, place


def _evenly(number: int) -> float:
    """Return a number of van der Corput's sequence: 0, 1/2, 1/4, 3/4, 1/8, …"""
    value, share = 0.0, 0.5
    while number:
        value += share * (number & 1)
        number, share = number >> 1, share / 2
    return value
