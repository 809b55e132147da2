"""Evaluation ahead of time: a pass takes nodes along that will probably be popped later.

What a model says of a node depends on its prefix alone. Nodes are popped in the order of the plain
search, and a step whose nodes are all known needs no pass; so every search has its own clock, and
its tree, texts, ledger and certificates are the plain search's. Knows policies and evaluations; a
batch asks the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int

from bestk.ahead.evaluations import Evaluations
from bestk.ahead.lookahead import Guess, OpenNodes, look_ahead
from bestk.backends.base import Capabilities, Session
from bestk.core.best_k import BestK
from bestk.core.frontier import WHOLES
from bestk.core.methods import may_look_ahead
from bestk.core.policy import Plan, Policy
from bestk.core.tree import State
from bestk.engine.request import Request
from bestk.kernels import may_run
from bestk.nodes import BatchSpec, Children, NodeBatch, Verdict

# Evaluated nodes that may wait to be popped, for every row of a pass, if the budget is as large.
SPARE = 16
# What a pass costs on a CPU besides its nodes, in nodes; and passes beyond one for each level.
PASS, _LEVELS = 24, 2
_STAKE = 0.025  # of what a plain search costs: so much may be lost where it is not sure to pay
# Rows of a captured pass: more than so many, or than so many beams, nobody pops later.
_MOST_ROWS, _BEAMS, _ROUNDED = 64, 3, 8


def rows_of_pass(request: Request, can: Capabilities, batch: int) -> int:
    """Return how many nodes of a search a pass may evaluate, 0 where each is when it is popped.

    Code of others sees every node that is evaluated, and may count them: it is asked first. Where
    a pass is captured, it may take several steps; who watches wants to hear of each.
    """
    hooks, asked, spec = request.hooks, request.prefetch, request.spec
    is_captured = may_run("search", request.lm.backend.device) and not request.evaluation.judges
    is_out = hooks.allowed is not None or (is_captured and request.is_watched)
    if request.method is not None or is_out or not may_look_ahead(request.config):
        return 0
    if asked is not None:
        return max(asked, spec.width) if asked and is_captured else asked
    return 0 if hooks.see_nodes else usual_rows(spec, can, batch, is_captured=is_captured)


def usual_rows(spec: BatchSpec, can: Capabilities, batch: int, *, is_captured: bool) -> int:
    """Return the rows of a pass where nobody asked for a number."""
    rows = can.ridge
    if is_captured:
        wanted = -(-_BEAMS * -(-spec.slots // spec.depth) // _ROUNDED) * _ROUNDED
        rows = min(can.ridge // batch, wanted, _MOST_ROWS)
    return rows if 2 * rows >= 3 * spec.width else 0


def with_room(spec: BatchSpec, rows: int) -> BatchSpec:
    """Return what a session needs whose passes have so many rows."""
    if not rows:
        return spec
    spare = max(spec.width, min(spec.slots, SPARE * rows))
    return dataclasses.replace(spec, width=max(rows, spec.width), slots=spec.slots + spare)


class Pass(NamedTuple):
    """The nodes of a pass, and where each search keeps what becomes known of them."""

    nodes: NodeBatch
    slots: dict[int, Int[np.ndarray, " nodes"]]


def prefetch_of(request: Request, policy: Policy, spec: BatchSpec, rows: int) -> Prefetch | None:
    """Return what evaluates nodes of such searches ahead of time, None where nothing should."""
    if not rows or not isinstance(policy, BestK) or policy.kernels is not None:
        return None
    if policy.search.shape.device.type != "cpu":  # of arrays, which graphs know nothing of
        return None
    return Prefetch(policy, spec, rows, is_asked=request.prefetch is not None)


def captured(
    request: Request, policy: Policy, session: Session, spec: BatchSpec, rows: int
) -> Policy:
    """Return a policy that evaluates ahead of time by kernels, where it and the session can."""
    if not rows or not isinstance(policy, BestK) or policy.kernels is None:
        return policy
    from bestk.ahead.best_k import BestKAhead

    is_static = session.capabilities.static or policy.search.shape.device.type == "cpu"
    if not is_static or not BestKAhead.fits(policy, spec):
        return policy
    ahead = BestKAhead(policy, spec, is_asked=request.prefetch is not None)
    return ahead if ahead.does_run() else policy


class Prefetch:
    """What is known of the nodes of a batch, a row each."""

    def __init__(self, policy: BestK, spec: BatchSpec, rows: int, *, is_asked: bool) -> None:
        self.policy, self.spec, self.rows, self.is_asked = policy, spec, rows, is_asked
        self.known: list[Evaluations | None] = [None] * policy.search.shape.batch
        self.moved: set[int] = set()  # who took the last step
        self.asked: Pass

    def begin(self, rows: Sequence[int], plan: Plan, children: Children) -> None:
        """Keep what is known of the roots of searches that begin."""
        for row in rows:
            self.known[row] = Evaluations(self.spec, self.policy.spec.slots)
        root = np.zeros(1, dtype=np.int64)
        self.keep(Pass(plan.nodes, dict.fromkeys(rows, root)), children)

    def resized(self, policy: Policy, rows: Sequence[int], batch: int) -> None:
        """Go on with these searches, in the first rows."""
        assert isinstance(policy, BestK)
        self.policy = policy
        self.known = [*(self.known[row] for row in rows), *[None] * (batch - len(rows))]

    def slots(self, plan: Plan) -> Int[np.ndarray, "batch group"]:
        """Return where planned nodes are kept, −1 for those not evaluated, scratch for none."""
        assert plan.taken is not None
        is_valid = plan.nodes.is_valid.numpy()
        slots = np.full(is_valid.shape, self.spec.slots)
        for row in np.flatnonzero(is_valid.any(axis=1)).tolist():
            some = is_valid[row]
            parent, child = plan.taken.parent[row].numpy(), plan.taken.child[row].numpy()
            slots[row, some] = self._of(row).slots(parent[some], child[some])
        return slots

    def nodes(self, plan: Plan) -> NodeBatch | None:
        """Return the nodes of a pass, which every search waits for; None if one can go on now."""
        slots = self.slots(plan)
        if is_ready(plan, slots).any():
            return None
        self.asked = self.choose(plan, slots)
        return self.asked.nodes

    def step(self, plan: Plan, children: Children | None) -> tuple[Plan, Children]:
        """Return the step of the searches whose groups are known; the others wait.

        `children` are those of the nodes of a pass, if there was one.
        """
        if children is not None:
            self.keep(self.asked, children)
        slots = self.slots(plan)
        self.moved = set(np.flatnonzero(is_ready(plan, slots)).tolist())
        return self.commit(plan, slots)

    def choose(self, plan: Plan, slots: Int[np.ndarray, "batch group"]) -> Pass:
        """Choose the nodes of a pass: those that are missing, and others that are worth a row."""
        is_valid = plan.nodes.is_valid.numpy()
        waiting = np.flatnonzero(is_valid.any(axis=1)).tolist()
        placed = {}
        for row in waiting:
            known = self._of(row)
            group = slots[row][is_valid[row]]
            most = self._most(row, int((group < 0).sum()), len(waiting))
            guess = self._guess(row, is_valid[row], most)
            number = known.make_room(
                len(guess.parent), guess.num_missing, guess.reached, group[group >= 0]
            )
            placed[row] = known.place(guess.parent[:number], guess.child[:number])
            known.passes, known.rows = known.passes + 1, known.rows + number
        return Pass(self._nodes(placed, len(is_valid)), placed)

    def keep(self, asked: Pass, children: Children) -> None:
        """Keep what the model said of the nodes of a pass."""
        nodes = asked.nodes
        log_prob = nodes.token.new_zeros(nodes.token.shape, dtype=torch.float64)
        for row, slot in asked.slots.items():
            log_prob[row, : len(slot)] = torch.from_numpy(self._of(row).log_prob[slot])
        plan, children = Plan(nodes, log_prob), _judged(self.policy, nodes, children)
        told = _columns(children)
        told["opened"] = self.policy.fate(plan, children).opened.numpy()
        told["score"] = self.policy.score(plan, children).numpy()
        for row, slot in asked.slots.items():
            own = {name: column[row, : len(slot)] for name, column in told.items()}
            self._of(row).keep(slot, **own)

    def commit(self, plan: Plan, slots: Int[np.ndarray, "batch group"]) -> tuple[Plan, Children]:
        """Put nodes that are known into the tree; return their step, and no other node's."""
        goes = is_ready(plan, slots)
        is_valid = plan.nodes.is_valid.numpy() & goes[:, None]
        slot = np.where(is_valid, plan.nodes.slot.numpy(), self.policy.search.tree.capacity)
        nodes = dataclasses.replace(
            plan.nodes, is_valid=torch.from_numpy(is_valid), slot=torch.from_numpy(slot)
        )
        shape = (*is_valid.shape, self.spec.num_children + self.spec.num_forced)
        told = _columns(_nothing(shape))
        for row in goes.nonzero()[0].tolist():
            known, some = self._of(row), is_valid[row]
            known.commit(slots[row, some], slot[row, some])
            for name, column in told.items():
                column[row, some] = known.children[name][slots[row, some]]
        columns = {name: torch.from_numpy(column) for name, column in told.items()}
        token, log_prob = columns.pop("token"), columns.pop("log_prob")
        children = Children(token, log_prob, Verdict(**columns))
        return dataclasses.replace(plan, nodes=nodes), children

    def spent(self, row: int) -> tuple[int, int]:
        """Return how often the model ran for a search, and on how many of its nodes."""
        known = self._of(row)
        return known.passes, known.rows

    def _of(self, row: int) -> Evaluations:
        known = self.known[row]
        assert known is not None, "what is planned has begun"
        return known

    def _most(self, row: int, num_missing: int, waiting: int) -> int:
        """Return how many nodes of a search the next pass may take: more than it must if that pays.

        It pays late: a search needs a pass for every level of its tree, and then its other steps
        come in bursts. So the steps that are left are weighed against the levels that are. These
        are known where all texts may be as long as they can; if the longest that ended tells,
        others may go on all the same, and what is spent on guesses stays a small part of the whole.
        """
        if self.is_asked:
            return self.rows
        search, known, width = self.policy.search, self._of(row), self.policy.spec.width
        most, price = self.rows // waiting, PASS // waiting
        budget, used = self.policy.config.total_budget, int(search.tree.count[row])
        ends = (search.tree.child_state[row, :used] == State.COMPLETE).any(dim=1)
        lengths = (search.tree.depth[row, :used] + 1)[ends].tolist()

        def pays(longest: int) -> bool:
            left, levels = -(-(budget - used) // width), max(0, longest - known.deepest) + _LEVELS
            return left * (price + width) > levels * (price + most)

        if pays(self.spec.depth):
            return most
        if not lengths or not pays(max(lengths)):
            return num_missing
        ahead = known.rows - used + price * (known.passes - int(search.clock[row]) - 1)
        left = int(_STAKE * -(-budget // width) * (price + width)) - ahead
        return max(num_missing, min(most, num_missing + left))

    def _guess(self, row: int, is_next: Bool[np.ndarray, " group"], most: int) -> Guess:
        """Guess which nodes a search wants, its next group first."""
        policy, search = self.policy, self.policy.search
        frontier, known = search.frontier, self._of(row)
        places = np.flatnonzero(frontier.nodes.is_open[row].numpy())
        whole = frontier.nodes.whole[row].numpy()[:, places]
        columns = dict(zip(WHOLES, whole, strict=True))
        group = frontier.order[row, : len(is_next)].numpy()[is_next]
        nodes = OpenNodes(
            known.of_tree[columns["parent"]],
            columns["child"],
            whole,
            frontier.nodes.real[row].numpy()[:, places],
            np.searchsorted(places, group),
        )
        return look_ahead(
            known,
            nodes,
            policy.priority,
            clock=int(search.clock[row]) + 1,
            left=policy.config.total_budget - int(search.tree.count[row]),
            width=policy.spec.width,
            most=most,
        )

    def _nodes(self, placed: dict[int, Int[np.ndarray, " nodes"]], batch: int) -> NodeBatch:
        """Lay the placed nodes of all searches side by side."""
        width = max(map(len, placed.values()), default=0)
        slots = np.full((batch, width), self.spec.slots)
        for row, slot in placed.items():
            slots[row, : len(slot)] = slot
        tables: dict[str, np.ndarray] = {
            "token": np.zeros((batch, width), dtype=np.int64),
            "depth": np.zeros((batch, width), dtype=np.int64),
            "path": np.full((batch, width, self.spec.depth), -1),
            "prefix": np.full((batch, width, self.spec.depth), -1),
        }
        for row, slot in placed.items():
            for name, table in tables.items():
                table[row, : len(slot)] = getattr(self._of(row), name)[slot]
        columns = {name: torch.from_numpy(table) for name, table in tables.items()}
        where = torch.from_numpy(slots)
        return NodeBatch(**columns, slot=where, is_valid=where < self.spec.slots)


def is_ready(plan: Plan, slots: Int[np.ndarray, "batch group"]) -> Bool[np.ndarray, " batch"]:
    """Return which searches can take their next step at once."""
    has_group = plan.nodes.is_valid.any(dim=1).numpy()
    goes: Bool[np.ndarray, " batch"] = has_group & np.all(slots >= 0, axis=1)
    return goes


def _judged(policy: BestK, nodes: NodeBatch, children: Children) -> Children:
    """Return children with a verdict, where text had nothing to say too."""
    children = children._replace(log_prob=children.log_prob.double())
    if children.verdict is not None:
        return children
    gate = policy.gate(nodes, children)
    passes = gate.passes(gate.may_open, None)
    return children._replace(verdict=Verdict(gate.may_open, passes, torch.zeros_like(passes)))


def _columns(children: Children) -> dict[str, np.ndarray]:
    """Name the arrays of children."""
    verdict = children.verdict
    assert verdict is not None
    bonus = torch.zeros_like(children.log_prob) if verdict.bonus is None else verdict.bonus
    marks = {name: getattr(verdict, name).numpy() for name in ("may_open", "passes", "completes")}
    token, log_prob = children.token.numpy(), children.log_prob.numpy()
    return {"token": token, "log_prob": log_prob, **marks, "bonus": bonus.double().numpy()}


def _nothing(shape: tuple[int, int, int]) -> Children:
    """Return no children, in so many places."""
    token, no = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    log_prob = torch.full(shape, -torch.inf, dtype=torch.float64)
    return Children(token, log_prob, Verdict(no, no.clone(), no.clone()))
