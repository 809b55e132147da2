"""Sampling, with a filter or none: independent draws, seeded, as many as a budget pays for.

Every draw is exact: the filter sees the whole distribution and the token is found by inverting its
cumulative sum at one uniform number. Draw j of a prompt uses the j-th row of uniform numbers of the
prompt's own source, so ten draws are the first ten of a hundred, whatever else is in the batch.

A draw of n tokens costs n node expansions, as the paper counts them. The prompt is read once all
the same, and draws that are done make room for others at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.baselines.base import Step, TreePolicy, check_finite, check_plain, mass_of, shared
from bestk.baselines.filters import Epsilon, Filter, listed
from bestk.baselines.walks import WALKS, WalkPolicy
from bestk.config import SearchConfig
from bestk.core.noise import invert
from bestk.core.policy import Plan, Policy, Shape
from bestk.core.record import Finding, Found
from bestk.errors import OptionError, unknown
from bestk.nodes import BatchSpec, Children, NodeBatch

# First tokens are drawn this many draws at a time: all come from the root's one distribution.
_CHUNK = 64
# Walks are taken on the host: without a filter, among the tokens of this probability.
_WHOLE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Draws until the next one would not fit into the budget, or exactly `num_draws` times.

    Without a filter the draws are from the model's whole distribution. With `walk` draws pay for
    a prefix once, however many begin with it, and may depend on one another (`walks.py`).
    """

    filter: Filter | None = None
    num_draws: int | None = None  # None: as many as the budget pays for
    temperature: float = 1.0
    walk: str | None = None  # shared, distinct, arithmetic

    def __post_init__(self) -> None:
        count = self.num_draws
        if self.walk is not None and self.walk not in WALKS:
            raise OptionError(unknown("walk", str(self.walk), WALKS))
        if self.walk is not None and count is not None:
            raise OptionError(f"walk={self.walk} draws until the budget is spent: no num_draws")
        if not 0 < self.temperature < math.inf:
            raise OptionError(f"temperature must be above 0 and finite, got {self.temperature}")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise OptionError(f"num_draws must be a whole number, got {count!r}")
        if count is not None and count < 1:
            raise OptionError(f"num_draws must be at least 1, got {count}")

    def check(self, config: SearchConfig) -> None:
        """Refuse settings that it cannot run with."""
        check_plain("sampling", config)
        if self.walk is not None and config.stop:
            raise OptionError(f"walk={self.walk} knows no stop strings: give stop_ids")

    def policy(self, config: SearchConfig, shape: Shape) -> Policy:
        """Make the draws of a batch."""
        if self.walk is None:
            return SamplingPolicy(self, config, shape)
        kept = self.filter or Epsilon(_WHOLE)
        return WalkPolicy(self.walk, kept, self.temperature, config, shape)

    def describe(self, config: SearchConfig, seed: int) -> str:
        """Write the settings as fields of a signature."""
        unfiltered = "whole" if self.walk is None else f"Eps{_WHOLE:g}"
        name = unfiltered if self.filter is None else self.filter.name
        draws = "budget" if self.num_draws is None else str(self.num_draws)
        fields = [f"method:sample,{name}", f"draws:{draws}"]
        if self.temperature != 1:
            fields.append(f"temperature:{self.temperature:g}")
        if self.walk is not None:
            fields.append(f"walk:{self.walk}")
        return "|".join([*fields, f"seed:{seed}", shared(config)])


@dataclass
class Draw:
    """One text being drawn."""

    uniforms: list[float]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    slot: int = 0  # of the last token that was expanded
    step: int = 0
    is_complete: bool = False
    by_rule: list[Found] = field(default_factory=list)  # texts that could end on the way

    def end(self, token: int, log_prob: float) -> None:
        """End a text here by rule, and go on."""
        log_probs = (*self.log_probs, log_prob)
        ids = (*self.tokens, token)
        self.by_rule.append(
            Found(
                token_ids=ids,
                log_probs=log_probs,
                log_prob=sum(log_probs),
                step=self.step,
                is_complete=True,
            )
        )

    def found(self) -> list[Found]:
        """Return its text, behind those that a rule ended; one that it drew too is one."""
        whole = Found(
            token_ids=tuple(self.tokens),
            log_probs=tuple(self.log_probs),
            log_prob=sum(self.log_probs),
            step=self.step,
            is_complete=self.is_complete,
        )
        return [*(text for text in self.by_rule if text.token_ids != whole.token_ids), whole]

    def newest(self) -> Step:
        """Return its newest token, as what is asked of the model next."""
        total, last = sum(self.log_probs), self.log_probs[-1]
        return Step(self.tokens[-1], self.slot, len(self.tokens), self.step, total, last)


class Draws:
    """All draws of one prompt, in order, and which of them its budget pays for."""

    def __init__(self, limit: int | None, budget: int, length: int) -> None:
        self.limit, self.budget, self.length = limit, budget, length
        self.is_spent = False
        self.draws: list[Draw] = []
        self.under_way: list[Draw] = []
        self.waiting: list[Draw] = []  # with a first token, not started

    def has_more(self) -> bool:
        """Return whether another draw may start."""
        if self.limit is not None:
            return len(self.draws) < self.limit
        return not self.is_spent and sum(len(draw.tokens) for draw in self.draws) < self.budget

    def start(self, draw: Draw) -> None:
        """Put a draw that has its first token under way."""
        self.draws.append(draw)
        self.under_way.append(draw)
        self.settle()

    def settle(self) -> None:
        """End the draws that are done, and drop those that the budget no longer pays for.

        Tokens of earlier draws are paid first, so once a draw is past the budget it stays so.
        """
        if self.limit is None:
            spent = itertools.accumulate(len(draw.tokens) for draw in self.draws)
            paid = sum(total <= self.budget for total in spent)
            if paid < len(self.draws):
                self.is_spent = True
                dropped = set(map(id, self.draws[paid:]))
                self.draws = self.draws[:paid]
                self.under_way = [draw for draw in self.under_way if id(draw) not in dropped]
        self.under_way = [draw for draw in self.under_way if not self.is_done(draw)]

    def is_done(self, draw: Draw) -> bool:
        """Return whether a draw has ended, complete or cut off."""
        return draw.is_complete or len(draw.tokens) >= self.length


class SamplingPolicy(TreePolicy):
    """The draws of a batch of prompts, `width` of each under way at a time."""

    def __init__(self, method: Sampling, config: SearchConfig, shape: Shape) -> None:
        self.method = method
        self.width = min(config.beam_size, method.num_draws or config.beam_size)
        tokens = config.total_budget + self.width * config.max_new_tokens
        if method.num_draws is not None:
            tokens = method.num_draws * config.max_new_tokens
        spec = BatchSpec(
            width=self.width, slots=tokens + 1, depth=config.max_new_tokens, num_children=0
        )
        super().__init__(config, shape, spec, 0)
        limits = (method.num_draws, config.total_budget, config.max_new_tokens)
        self.rows = [Draws(*limits) for _ in range(shape.batch)]
        self.sources: list[torch.Generator] = []
        self.first: Float[Tensor, "batch 1 vocab"]
        self.root: NodeBatch
        self.calls = [1] * shape.batch

    def begin(self, rows: Tensor, keys: Sequence[int]) -> Plan:
        """Start all searches, each with a source of randomness of its own."""
        self.sources = [torch.Generator().manual_seed(key) for key in keys]
        return super().begin(rows, keys)

    def ended(self) -> list[int]:
        """Name the searches of which no draw is under way."""
        return [n for n, row in enumerate(self.rows) if not row.under_way or n in self.timed_out]

    def next(self) -> Plan:
        """Plan the newest token of every draw, in as many places as draws are under way."""
        return self.plan([[draw.newest() for draw in row.under_way] for row in self.rows])

    def step(self, plan: Plan, children: Children) -> None:
        """Draw one token for every draw under way, and start others where there is room."""
        assert children.whole is not None
        if plan.is_begin:
            self.root, self.first = plan.nodes, children.whole
            check_finite(self.first, self.root.is_valid, 0)
        else:
            self.clock += 1
            check_finite(children.whole, plan.nodes.is_valid, int(self.clock[0]))
        for row, count in zip(self.rows, self.tree.count.tolist(), strict=True):
            for place, draw in enumerate(row.under_way):
                draw.slot = count + place
        self.take(plan)
        if not plan.is_begin:
            self._end(plan.nodes, children)
            self._extend(plan.nodes, children.whole)
        self._fill()

    def findings(self, rows: Sequence[int], *, keep_tree: bool = True) -> list[Finding]:
        """Return the draws that have ended, in order. There is no tree."""
        findings = []
        for number in rows:
            row = self.rows[number]
            done = [draw for draw in row.draws if row.is_done(draw)]
            found = [text for draw in done for text in draw.found()]
            reason = "budget" if self.method.num_draws is None else "num_draws"
            findings.append(
                Finding(
                    texts=found,
                    mass=mass_of(found),
                    expanded=sum(len(draw.tokens) for draw in done),
                    steps=self.calls[number],
                    stop_reason="timeout" if row.under_way else reason,
                    num_truncated=sum(not text.is_complete for text in found),
                )
            )
        return findings

    def _fill(self) -> None:
        """Start draws where there is room; a draw may end with its first token."""
        for number, row in enumerate(self.rows):
            while len(row.under_way) < self.width and row.has_more():
                if not row.waiting:
                    row.waiting = self._first_tokens(number)
                row.start(row.waiting.pop(0))

    def _first_tokens(self, number: int) -> list[Draw]:
        length = self.config.max_new_tokens
        shape = (_CHUNK, length)
        uniforms = torch.rand(shape, generator=self.sources[number], dtype=torch.float64)
        log_probs = self.first[number : number + 1]  # [1, 1, vocab]
        firsts = uniforms[None, None, :, 0].to(log_probs.device)
        children = self._draw(log_probs, firsts, depth=1)
        one = self.root.take(torch.tensor([number], device=log_probs.device))
        exists = torch.ones_like(children.token, dtype=torch.bool)
        complete = self.completes(one, children, exists)[0, 0].tolist()
        return [
            Draw(uniforms=row, tokens=[token], log_probs=[value], is_complete=is_complete)
            for row, token, value, is_complete in zip(
                uniforms.tolist(),
                children.token[0, 0].tolist(),
                children.log_prob[0, 0].tolist(),
                complete,
                strict=True,
            )
        ]

    def _end(self, nodes: NodeBatch, children: Children) -> None:
        """Note the texts that end by rule."""
        if (endings := self.endings(nodes, children)) is None:
            return
        tokens, values = endings
        for number, place, which in (values > -math.inf).nonzero().tolist():
            at = number, place, which
            self.rows[number].under_way[place].end(int(tokens[at]), float(values[at]))

    def _extend(self, nodes: NodeBatch, log_probs: Float[Tensor, "batch nodes vocab"]) -> None:
        """Draw the next token of every draw."""
        width = nodes.token.shape[1]
        numbers: list[list[float]] = []
        for number, row in enumerate(self.rows):
            self.calls[number] += bool(row.under_way)
            own = [draw.uniforms[len(draw.tokens)] for draw in row.under_way]
            numbers.append(own + [0.0] * (width - len(own)))
        uniforms = torch.tensor(numbers, dtype=torch.float64, device=log_probs.device)
        children = self._draw(log_probs, uniforms[..., None], nodes.depth + 1)
        complete = self.completes(nodes, children, nodes.is_valid[..., None])
        drawn = [x[..., 0].tolist() for x in (children.token, children.log_prob, complete)]
        for row, *columns in zip(self.rows, *drawn, strict=True):
            # A row has as many places as draws at least; the places past them are empty.
            for draw, token, value, is_complete in zip(row.under_way, *columns, strict=False):
                draw.tokens.append(token)
                draw.log_probs.append(value)
                draw.is_complete = is_complete
                draw.step = int(self.clock[0])
            row.settle()

    def _draw(
        self,
        log_probs: Float[Tensor, "batch nodes vocab"],
        uniforms: Float[Tensor, "batch nodes draws"],
        depth: Int[Tensor, "batch nodes"] | int,
    ) -> Children:
        allowed = self._allowed(log_probs, depth) / self.method.temperature
        if self.method.filter is None:
            token = invert(allowed.double().exp(), uniforms)
        else:
            # By id, so that the few tokens kept give the same draws as the whole vocabulary would.
            kept, is_filled = listed(self.method.filter.keeps(allowed.log_softmax(dim=-1)))
            weights = allowed.gather(-1, kept).double().exp() * is_filled
            token = kept.gather(-1, invert(weights, uniforms))
        return Children(token, log_probs.gather(-1, token).double())

    def _allowed(
        self, log_probs: Float[Tensor, "*nodes vocab"], depth: Int[Tensor, "*nodes"] | int
    ) -> Float[Tensor, "*nodes vocab"]:
        if not self.config.min_new_tokens:
            return log_probs
        depths = torch.as_tensor(depth, device=log_probs.device)
        too_early = (depths < self.config.min_new_tokens)[..., None] & self.is_stop
        return log_probs.masked_fill(too_early, -torch.inf)
