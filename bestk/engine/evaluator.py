"""What is done with what the model says of nodes: processors, constraints, the likeliest tokens.

All of it concerns a node alone, so searches of any settings share a pass: rows of equal settings
are taken together. Knows neither which nodes come next nor who asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bestk.backends.children import normalised, top_children, with_forced
from bestk.config import GRAMMARS, SHAPING, SearchConfig
from bestk.constraints import constraints_of
from bestk.constraints.base import Marks
from bestk.core.policy import Policy
from bestk.errors import OptionError
from bestk.lm.language_model import LanguageModel
from bestk.nodes import Children, NodeBatch, Verdict
from bestk.processors.base import ContextTable, LogitsProcessor, NodeContext
from bestk.processors.foreign import AllowedTokens
from bestk.processors.pipeline import Hooks, processors_of

if TYPE_CHECKING:
    from bestk.engine.request import Request

# Evaluations of a model that are kept for requests with the same settings.
_KEPT = 64


class Evaluation:
    """The processors and constraints of searches with the same settings."""

    def __init__(
        self, lm: LanguageModel, config: SearchConfig, hooks: Hooks, criteria: Sequence[Any] = ()
    ) -> None:
        backend = lm.backend
        self.stop_ids = backend.eos_ids if hooks.eos_ids is None else hooks.eos_ids
        self.constraints = constraints_of(config, lm, criteria, hooks.constraints)
        self.processors: list[LogitsProcessor] = processors_of(
            config,
            hooks,
            device=backend.device,
            vocab_size=backend.vocab_size,
            eos_ids=self.stop_ids,
            tokenizer=lm.tokenizer,
        )
        named = hooks.prefix_allowed_tokens_fn
        self.mask = None if named is None or hooks.renormalize else AllowedTokens(named)
        self.counted_length = hooks.counted_length
        constraints, self.allowed = self.constraints, hooks.allowed
        self.restricts = constraints is not None and constraints.restricts
        self.num_forced = 0 if constraints is None else constraints.num_forced
        self.judges = constraints is not None and constraints.judges
        if self.allowed is not None:
            if constraints is not None:
                raise OptionError(
                    "allowed= says where texts end: leave constraints and stopping_criteria out"
                )
            self.allowed.check(lm)
            self.judges = True
            if self.allowed.trie.is_nested:  # items that begin others are listed a second time
                self.num_forced = config.num_children(backend.vocab_size)

    @property
    def needs_whole(self) -> bool:
        """Whether whole distributions are needed."""
        return self.shapes or self.num_forced > 0 or self.allowed is not None

    @property
    def shapes(self) -> bool:
        """Whether distributions are normalised, and then changed, before tokens are picked."""
        rules = self.constraints
        is_seeking = rules is not None and rules.num_forced > 0 and not rules.is_static
        return bool(self.processors or self.mask) or self.restricts or is_seeking

    @property
    def needs_context(self) -> bool:
        """Whether it looks at what stands before a text."""
        asks = bool(self.processors or self.mask or self.allowed)
        return asks or self.constraints is not None

    def shaped(self, context: NodeContext, scores: Tensor) -> Tensor:
        """Apply the processors, in `generate`'s order, and then the constraints."""
        for processor in self.processors:
            scores = processor(context, scores)
        if self.constraints is not None and self.restricts:
            scores = self.constraints.restrict(context, scores)
        return scores

    def forced(self, nodes: NodeBatch, places: int) -> Tensor | None:
        """Return the tokens that must be listed, in so many places, −1 for none."""
        assert self.constraints is not None
        forced = self.constraints.forced(nodes)
        if forced is None:
            return nodes.token.new_full((*nodes.token.shape, places), -1)
        return torch.nn.functional.pad(forced, (0, places - forced.shape[-1]), value=-1)

    @property
    def is_static(self) -> bool:
        """Whether it is a fixed series of tensor operations: a CUDA graph can hold it."""
        rules = self.constraints is None or self.constraints.is_static
        return rules and self.mask is None and all(one.is_static for one in self.processors)


# Settings that concern a node alone; and others that an evaluation looks at.
OF_EVALUATION = ("stop", "end_prob", "must_include", "include_bonus", *GRAMMARS, *SHAPING)
_LOOKED_AT = (*OF_EVALUATION, "stop_ids", "min_new_tokens", "max_new_tokens")


def evaluation_of(
    lm: LanguageModel, config: SearchConfig, hooks: Hooks, criteria: Sequence[Any] = ()
) -> Evaluation:
    """Return the evaluation of some settings, the same one for requests with the same."""
    allowed = hooks.allowed
    if hooks != Hooks(allowed=allowed):
        return Evaluation(lm, config, hooks, criteria)
    known: OrderedDict[Any, Evaluation] = lm.evaluations
    if allowed is not None:  # a trie that goes takes them along
        known = allowed.evaluations.setdefault(lm, OrderedDict())
    key = tuple(getattr(config, name) for name in _LOOKED_AT)
    if key not in known:
        known[key] = Evaluation(lm, config, hooks)
    known.move_to_end(key)
    while len(known) > _KEPT:
        known.popitem(last=False)
    return known[key]


class Part(NamedTuple):
    """Rows that have the same evaluation; None for all rows of the batch."""

    evaluation: Evaluation | None
    rows: Tensor | None


class Evaluator:
    """Turns what the model says of a batch's nodes into children."""

    def __init__(
        self, policy: Policy, batch: int, device: torch.device, width: int, *, is_normalised: bool
    ) -> None:
        self.policy, self.spec = policy, policy.spec
        self.is_normalised = is_normalised
        self.of_row: list[Evaluation | None] = [None] * batch
        self.contexts = ContextTable(batch, device, width, policy.spec.slots + 1)
        self.parts: list[Part] = [Part(None, None)]
        policy.judge, policy.named = self.completes, self.named

    def fill(self, requests: Mapping[int, Request], prompts: dict[int, Any]) -> None:
        """Take new searches into rows; `prompts` are replaced where contexts had to be computed."""
        for row, request in requests.items():
            self.of_row[row] = request.evaluation
        self._part()
        asking = [row for row, one in requests.items() if one.evaluation.needs_context]
        if not asking:
            return
        backend = requests[asking[0]].lm.backend
        contexts = backend.contexts([prompts[row] for row in asking])
        for row, context in zip(asking, contexts, strict=True):
            prompts[row], request = context.prompt, requests[row]
            counted = request.evaluation.counted_length
            self.contexts.fill(
                row, context.ids, context.source, counted, request.number, request.barred
            )

    def release(self, row: int) -> None:
        """Forget what a search asked for that has left."""
        self.of_row[row] = None
        self._part()

    def resized(self, policy: Policy, rows: Sequence[int], batch: int) -> Evaluator:
        """Return an evaluator of another size, with these searches in its first rows."""
        device = self.contexts.ids.device
        other = Evaluator(policy, batch, device, 0, is_normalised=self.is_normalised)
        index = torch.tensor([*rows, *[0] * (batch - len(rows))], dtype=torch.int64, device=device)
        other.contexts = self.contexts.take(index)
        other.of_row = [*(self.of_row[row] for row in rows), *[None] * (batch - len(rows))]
        other._part()
        return other

    @property
    def needs_whole(self) -> bool:
        """Whether any row needs whole distributions."""
        needs = (one is not None and one.needs_whole for one, _ in self.parts)
        return self.policy.draws or self.spec.num_children == 0 or any(needs)

    @property
    def is_static(self) -> bool:
        """Whether a CUDA graph can hold all of it."""
        return all(one is None or one.is_static for one, _ in self.parts)

    def children(self, nodes: NodeBatch, found: Tensor | Children) -> Children:
        """Return the children of nodes, of what the model gave for them."""
        judged = any(one is not None and one.judges for one, _ in self.parts)
        if len(self.parts) == 1:
            return self._children(self.parts[0], self.contexts, nodes, found, judged)
        made = []
        for part in self.parts:
            rows = part.rows
            assert rows is not None
            contexts, some = self.contexts.take(rows), nodes.take(rows)
            made.append(self._children(part, contexts, some, _rows(found, rows), judged))
            self.contexts.states[rows] = contexts.states
        return self._joined(made, nodes)

    def named(self, nodes: NodeBatch) -> tuple[Tensor, Tensor] | None:
        """Return the tokens that must be listed, −1 for none, and their least log-probability."""
        token: Tensor | None = None
        for one, rows in self.parts:
            if one is None or one.constraints is None:
                continue
            at = torch.arange(len(nodes.token), device=nodes.token.device) if rows is None else rows
            if (forced := one.constraints.forced(nodes.take(at))) is None:
                continue
            if token is None:
                token = forced.new_full((*nodes.token.shape, forced.shape[-1]), -1)
                least = torch.zeros(token.shape, dtype=torch.float64, device=token.device)
            token[at] = forced
            least[at] = one.constraints.least.to(least)
        return None if token is None else (token, least)

    def completes(self, nodes: NodeBatch, children: Children, asked: Marks) -> Marks:
        """Return which of some children complete a text, by what they read as."""
        complete = torch.zeros_like(asked)
        for evaluation, rows in self.parts:
            if evaluation is None or evaluation.constraints is None:
                continue
            every = torch.arange(len(complete), device=complete.device) if rows is None else rows
            context = NodeContext(self.contexts.take(every), nodes.take(every))
            some = Children(children.token[every], children.log_prob[every])
            complete[every] = evaluation.constraints.completes(context, some, asked[every])
        return complete

    def _children(
        self,
        part: Part,
        contexts: ContextTable,
        nodes: NodeBatch,
        found: Tensor | Children,
        judged: bool,
    ) -> Children:
        """Return the children of nodes whose searches have the same settings."""
        evaluation, context = part.evaluation, NodeContext(contexts, nodes)
        forced = None
        if isinstance(found, Children):
            children = found
        else:
            scores, is_normalised = found, self.is_normalised
            if self.spec.num_children == 0 or (evaluation is not None and evaluation.shapes):
                scores = found if is_normalised else found.float().log_softmax(dim=-1)
            if evaluation is not None and evaluation.shapes:
                scores, is_normalised = evaluation.shaped(context, scores), False
            if evaluation is not None and evaluation.mask is not None:
                scores, is_normalised = evaluation.mask(context, normalised(scores)), True
            if evaluation is not None and evaluation.allowed is not None:
                floor = self.policy.floor
                return evaluation.allowed.children(
                    nodes,
                    contexts.states,
                    contexts.barred,
                    scores,
                    places=self.spec.num_children,
                    repeats=self.spec.num_forced,
                    is_normalised=is_normalised,
                    floor=floor if floor is None or part.rows is None else floor[part.rows],
                )
            if self.spec.num_children == 0:
                nothing = nodes.token[..., None][..., :0]
                return Children(nothing, nothing.float(), whole=scores)
            if self.policy.draws:
                log_probs = scores if is_normalised else normalised(scores.float())
                children = self.policy.draw(nodes, log_probs, part.rows)
            else:
                children = top_children(scores, self.spec.num_children, is_normalised=is_normalised)
            if evaluation is not None and evaluation.num_forced:
                forced = evaluation.forced(nodes, self.spec.num_forced)
            elif self.spec.num_forced:
                forced = nodes.token.new_full((*nodes.token.shape, self.spec.num_forced), -1)
            if forced is not None:
                children = with_forced(children, scores, forced, is_normalised=is_normalised)
        gate = self.policy.gate(nodes, children) if judged else None
        if gate is None:
            return children
        if evaluation is None or evaluation.constraints is None:
            passes = gate.passes(gate.may_open, None)
            return children._replace(
                verdict=Verdict(gate.may_open, passes, torch.zeros_like(passes))
            )
        verdict = evaluation.constraints.judge(context, children, gate, forced)
        return children._replace(verdict=verdict)

    def _joined(self, made: Sequence[Children], nodes: NodeBatch) -> Children:
        """Put the children of all parts into their rows; idle rows have none."""
        batch, width = nodes.token.shape

        def whole(columns: Sequence[Tensor], fill: Any) -> Tensor:
            most = max(column.shape[2] for column in columns)
            table = columns[0].new_full((batch, width, most), fill)
            for (_, rows), column in zip(self.parts, columns, strict=True):
                assert rows is not None
                table[rows, :, : column.shape[2]] = column
            return table

        children = Children(
            whole([one.token for one in made], 0),
            whole([one.log_prob.double() for one in made], -torch.inf),
        )
        rests = [one.rest[..., None].double() for one in made if one.rest is not None]
        if rests:
            children = children._replace(rest=whole(rests, -torch.inf)[..., 0])
        verdicts = [one.verdict for one in made if one.verdict is not None]
        if not verdicts:
            return children
        bonuses = [
            one.bonus
            if one.bonus is not None
            else torch.zeros_like(one.passes, dtype=torch.float64)
            for one in verdicts
        ]
        repeats = [one.repeats for one in verdicts if one.repeats is not None]
        verdict = Verdict(
            may_open=whole([one.may_open for one in verdicts], False),
            passes=whole([one.passes for one in verdicts], False),
            completes=whole([one.completes for one in verdicts], False),
            bonus=whole(bonuses, 0.0) if any(one.bonus is not None for one in verdicts) else None,
            repeats=whole(repeats, False) if repeats else None,
        )
        return children._replace(verdict=verdict)

    def _part(self) -> None:
        """Put rows of the same evaluation together; rows without a search go with any."""
        rows: dict[int, list[int]] = {}
        for row, one in enumerate(self.of_row):
            if one is not None:
                rows.setdefault(id(one), []).append(row)
        known = {id(one): one for one in self.of_row if one is not None}
        if len(known) < 2:
            self.parts = [Part(next(iter(known.values()), None), None)]
            return
        device = self.contexts.ids.device
        self.parts = [
            Part(known[name], torch.tensor(some, device=device)) for name, some in rows.items()
        ]


def _rows(found: Tensor | Children, rows: Tensor) -> Tensor | Children:
    if isinstance(found, Children):
        return Children(found.token[rows], found.log_prob[rows])
    return found[rows]
