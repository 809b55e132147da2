"""Searches of one shape, a row each: the only caller of a session.

A row whose search has ended takes the next one while the others go on; where the session can be
resized, the batch has no idle rows. On a GPU a pass is replayed as a graph: all of it where every
part is a fixed series of kernels, else the forward pass and the step, with a call in between.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bestk.core.methods import policy_of
from bestk.core.policy import Plan, Shape
from bestk.core.record import Finding, Standing, texts_of
from bestk.engine.evaluator import Evaluator
from bestk.engine.graphs import GraphRunner
from bestk.engine.prefetch import captured, prefetch_of, rows_of_pass, with_room
from bestk.engine.request import Request
from bestk.engine.results import hypotheses_of, result_of
from bestk.nodes import Children, Verdict
from bestk.result import Hypothesis, SearchResult

# Seconds that a search has as if it had them when it begins: none is infinitely ahead of others.
_LEAST_SPENT = 0.1


@dataclass(eq=False)
class Row:
    """A search that runs: where it is, since when, and what was told of it."""

    batch: Batch
    request: Request
    number: int
    begun: float
    most_calls: int  # the call at which its budget is spent if all goes well
    spent: float = 0.0  # seconds of the model's time
    slot: int = 0  # up to here, and so many completions, texts were told
    total: int = 0
    told: set[Any] = field(default_factory=set)

    @property
    def finding(self) -> Finding:
        """What the search has found so far."""
        return self.batch.policy.findings([self.number])[0]

    @property
    def is_late(self) -> bool:
        """Whether its time is up."""
        seconds = self.request.seconds
        return seconds is not None and time.monotonic() - self.begun >= seconds

    def result(self) -> SearchResult:
        """Return what was found so far as a result."""
        return self.batch.result(self, self.finding, time.monotonic())

    @property
    def standing(self) -> Standing:
        """Where the search stands."""
        return self.batch.policy.standing(self.number)

    def fresh(self, standing: Standing) -> list[Hypothesis]:
        """Return the texts that were completed since the last call, each once."""
        record = self.finding.record if standing.num_completions > self.total else None
        if record is None:
            return []
        # Nothing is certain while the search goes on.
        by_score = self.request.hooks.allowed is not None
        found = texts_of(record, float("inf"), since=self.slot, by_score=by_score)
        self.slot, self.total = standing.expanded, standing.num_completions
        texts = []
        request = self.request
        for hypothesis in request.named(hypotheses_of(found, request.config, request.decode)):
            name = hypothesis.text if request.hooks.allowed is None else hypothesis.token_ids
            if name not in self.told:
                self.told.add(name)
                texts.append(hypothesis)
        return texts


class Batch:
    """The searches of one shape that run side by side."""

    def __init__(self, requests: Sequence[Request], rows: int, prompt_size: int) -> None:
        first = requests[0]
        backend, device = first.lm.backend, first.lm.backend.device
        self.key, self.device = first.key, device
        self.backend = weakref.ref(backend)  # what is kept for a model must not keep it alive
        shape = Shape(
            batch=rows,
            vocab_size=backend.vocab_size,
            # A trie says what ends.
            stop_ids=() if first.hooks.allowed else first.evaluation.stop_ids,
            device=device,
            num_forced=first.evaluation.num_forced,
            is_judged=first.evaluation.judges,
        )
        self.policy = policy_of(first.shared_config, shape, first.method)
        backend.check(
            self.policy.spec,
            whole=first.evaluation.needs_whole
            or self.policy.draws
            or not self.policy.spec.num_children,
        )
        prompts = [request.ids for request in requests[:rows]]
        prompts += prompts[:1] * (rows - len(prompts))
        ahead = rows_of_pass(first, backend.capabilities, rows)
        spec = with_room(self.policy.spec, ahead)
        self.session = backend.start(prompts, spec, prompt_size)
        ahead = rows_of_pass(first, self.session.capabilities, rows)
        self.prefetch = prefetch_of(first, self.policy, spec, ahead)
        self.policy = captured(first, self.policy, self.session, spec, ahead)
        if spec != self.policy.spec and self.prefetch is None:  # nobody needs the room
            self.session.close()
            self.session = backend.start(prompts, self.policy.spec, prompt_size)
        self.num_rows, self.prompt_size = rows, prompt_size
        is_static = self.policy.is_static and self.session.capabilities.static
        self.graphs = GraphRunner() if is_static and device.type == "cuda" else None
        self.evaluator = Evaluator(
            self.policy,
            rows,
            device,
            0 if self.graphs is None else prompt_size,  # what a graph reads stays where it is
            is_normalised=backend.capabilities.normalised,
        )
        self.rows: dict[int, Row] = {}
        self.arrivals: list[Request] = []
        self.calls, self.has_begun = 0, False
        self.clock = 0.0  # the batch whose clock is the lowest takes the next turn
        self.moved: set[int] | None = None  # who took a step at the last one; None: all

    @property
    def requests(self) -> list[Request]:
        """Name the searches that run or are about to."""
        return [*(row.request for row in self.rows.values()), *self.arrivals]

    @property
    def can_resize(self) -> bool:
        """Whether running searches can go on in a batch of another size."""
        return self.graphs is None and self.policy.can_refill and self.session.capabilities.resize

    @property
    def is_short(self) -> bool:
        """Whether its searches must begin all at once, and are fewer than it was opened for."""
        is_fixed = not (self.has_begun or self.policy.can_refill)
        return is_fixed and 0 < len(self.arrivals) < self.num_rows

    def fits(self, request: Request, most: int) -> bool:
        """Return whether a search can begin here with the next step, among `most` rows."""
        count = len(self.rows) + len(self.arrivals)
        if self.has_begun and not self.policy.can_refill:
            return False
        if self.can_resize:
            return count < max(most, self.num_rows)
        return count < self.num_rows and request.length <= self.prompt_size

    def arrive(self, request: Request) -> None:
        """Take a search that fits."""
        self.arrivals.append(request)

    def leave(self, request: Request) -> None:
        """Let go of a search whose client has gone."""
        if request in self.arrivals:
            self.arrivals.remove(request)
        for row in [row for row in self.rows.values() if row.request is request]:
            self.policy.time_out([row.number])  # the row idles
            self._release(row)

    def step(self) -> None:
        """Let arrivals begin, or take the next step of every search."""
        self.moved = None
        late = [row.number for row in self.rows.values() if row.is_late]
        if late:
            self.policy.time_out(late)
            return
        if self.arrivals:
            self._fill()
            return
        for _ in range(self._passes()):
            self.calls += 1
            if self.graphs is not None:
                self._replay(self.graphs)
                continue
            plan, ahead, children = self.policy.next(), self.prefetch, None
            nodes = plan.nodes if ahead is None else ahead.nodes(plan)
            if nodes is not None:
                found = self.session.evaluate(nodes, whole=self.evaluator.needs_whole)
                children = self.evaluator.children(nodes, found)
            if ahead is not None:
                plan, children = ahead.step(plan, children)
                self.moved = ahead.moved
            assert children is not None
            self.policy.step(plan, children)

    def charge(self, seconds: float) -> None:
        """Note what a turn took: the share of a search falls with the root of what it had."""
        for row in self.rows.values():
            row.spent += seconds / len(self.rows)
        spent = [row.spent for row in self.rows.values()]
        self.clock += seconds / sum((_LEAST_SPENT + one) ** -0.5 for one in spent or [0.0])

    def ended(self) -> list[Row]:
        """Return the searches that are over."""
        return [self.rows[row] for row in self.policy.ended() if row in self.rows]

    def finish(self, rows: Sequence[Row]) -> list[tuple[Row, Finding, SearchResult]]:
        """Take the results of some searches, whose rows are then free."""
        now = time.monotonic()
        findings = self.policy.findings([row.number for row in rows])
        finished = []
        for row, finding in zip(rows, findings, strict=True):
            finished.append((row, finding, self.result(row, finding, now)))
            self._release(row)
        return finished

    def result(self, row: Row, finding: Finding, now: float) -> SearchResult:
        """Make a result of what a search has found."""
        source = self.policy if self.prefetch is None else self.prefetch
        return result_of(row.request, finding, now - row.begun, source.spent(row.number))

    def close(self) -> None:
        """Free the model's memory of all searches."""
        self.session.close()
        self.graphs = None
        self.rows, self.arrivals = {}, []

    def _release(self, row: Row) -> None:
        del self.rows[row.number]
        self.evaluator.release(row.number)

    def shrink(self) -> None:
        """Give up idle rows where half of all are, and nobody waits for them."""
        count = len(self.rows) + len(self.arrivals)
        if self.can_resize and 0 < count <= self.num_rows // 2:
            self._resize(count, self.prompt_size)

    def _fill(self) -> None:
        """Read the prompts of the searches that arrived, into idle rows."""
        self.has_begun = True
        count = len(self.rows) + len(self.arrivals)
        longest = max(request.length for request in self.arrivals)
        if count > self.num_rows or longest > self.prompt_size:
            assert self.can_resize, "who does not fit does not arrive"
            self._resize(max(count, self.num_rows), max(longest, self.prompt_size))
        free = [row for row in range(self.num_rows) if row not in self.rows]
        come = dict(zip(free, self.arrivals, strict=False))
        now = time.monotonic()
        prompts = {row: request.ids for row, request in come.items()}
        self.evaluator.fill(come, prompts)
        if self.graphs is not None and self.session.capabilities.static_prefill:
            self._prefill_static(self.graphs, prompts, come)
        else:
            rows = torch.tensor(list(come), device=self.device)
            plan = self.policy.begin(rows, [_key(request) for request in come.values()])
            found = self.session.prefill(plan.nodes, prompts, whole=self.evaluator.needs_whole)
            children = self.evaluator.children(plan.nodes, found)
            if self.prefetch is not None:
                self.prefetch.begin(list(come), plan, children)
            self.policy.step(plan, children)
        ends = self.calls + self.policy.most_steps
        self.rows |= {row: Row(self, one, row, now, ends) for row, one in come.items()}
        self.arrivals = []

    def _passes(self) -> int:
        """Choose how many passes to make before anybody looks: one, but where a look is dear."""
        is_seen = any(r.request.is_watched or r.request.seconds for r in self.rows.values())
        if self.device.type != "cuda" or is_seen:
            return 1
        if any(row.request.hooks.allowed for row in self.rows.values()):
            return 1  # it ends after a few, and idle passes would cost as much as they did
        # A search that never runs short of nodes ends when its budget does: look then, not later.
        ahead = [row.most_calls - self.calls for row in self.rows.values()]
        return max(1, min([self.policy.look_every, *(left for left in ahead if left > 0)]))

    def _replay(self, graphs: GraphRunner) -> None:
        """Take a step by replaying it."""
        width = self.policy.nodes_per_pass
        if self.evaluator.is_static:
            graphs.run(f"pass of {width}", self._pass)
            return
        plan, found = graphs.run(f"forward of {width}", self._forward)
        children = self.evaluator.children(plan.nodes, found)
        fed = graphs.feed(f"children of {width}", _flat(children))
        graphs.run(f"step of {width}", lambda: self.policy.step(plan, _unflat(fed, children)))

    def _pass(self) -> None:
        plan, found = self._forward()
        self.policy.step(plan, self.evaluator.children(plan.nodes, found))

    def _forward(self) -> tuple[Plan, Any]:
        plan = self.policy.next()
        return plan, self.session.evaluate(plan.nodes, whole=True)

    def _prefill_static(
        self, graphs: GraphRunner, prompts: Mapping[int, Sequence[int]], come: Mapping[int, Request]
    ) -> None:
        """Replay the reading of prompts, padded to a few shapes; the padding repeats a prompt."""
        rows, texts = list(prompts), list(prompts.values())
        count = min(1 << (len(rows) - 1).bit_length(), self.num_rows)
        rows += rows[:1] * (count - len(rows))
        texts += texts[:1] * (count - len(texts))
        width = bucket(max(map(len, texts)), self.prompt_size)
        padded = [[*text, *[0] * (width - len(text))] for text in texts]
        tokens, lengths, into = graphs.feed(
            f"prompts {count} x {width}",
            [torch.tensor(x, device=self.device) for x in (padded, list(map(len, texts)), rows)],
        )

        def read() -> tuple[Plan, Any]:
            plan = self.policy.begin(into, [])
            return plan, self.session.prefill_tensors(plan.nodes, tokens, lengths, into)

        plan, found = graphs.run(f"prefill {count} x {width}", read, warm_up=1)
        self.policy.step(plan, self.evaluator.children(plan.nodes, found))

    def _resize(self, count: int, prompt_size: int) -> None:
        """Let the searches go on in a batch of another size."""
        kept = list(self.rows)
        old = self.session
        self.policy = self.policy.resized(kept, count)
        self.evaluator = self.evaluator.resized(self.policy, kept, count)
        self.session = old.resize(kept, count, prompt_size)
        old.close()
        if self.prefetch is not None:
            self.prefetch.resized(self.policy, kept, count)
        for number, row in enumerate(self.rows.values()):
            row.number = number
        self.rows = {row.number: row for row in self.rows.values()}
        self.num_rows, self.prompt_size = count, prompt_size


def bucket(length: int, most: int) -> int:
    """Round a prompt's length up to one of a few sizes, so that few graphs are captured."""
    step = 32 if length <= 256 else 64 if length <= 1024 else 256
    return max(min(-(-length // step) * step, most), length)


def _key(request: Request) -> int:
    """Return a number of 56 bits, by the seed and the prompt alone.

    So a prompt's draws are the same in any batch, at any place, on any device.
    """
    digest = hashlib.sha256(repr((request.config.seed, request.ids)).encode())
    return int.from_bytes(digest.digest()[:7], "big")


def _flat(children: Children) -> list[torch.Tensor]:
    """List the tensors of children, with those of their verdict."""
    return [column for column in _columns(children) if column is not None]


def _unflat(columns: Sequence[torch.Tensor], like: Children) -> Children:
    """Put children together again."""
    left = iter(columns)
    every: list[Any] = [None if column is None else next(left) for column in _columns(like)]
    token, log_prob, rest, *verdict = every
    return Children(token, log_prob, Verdict(*verdict) if verdict else None, rest=rest)


def _columns(children: Children) -> list[Any]:
    """List the tensors of children, None for those that there are not."""
    token, log_prob, verdict, _, rest = children
    return [token, log_prob.double(), rest, *(verdict or ())]
