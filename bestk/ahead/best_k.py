"""Best-k search whose passes evaluate nodes ahead of time, by kernels: a CUDA graph can hold them.

Every pass has the same number of rows, and attention goes by paths; so what is evaluated beside a
node changes no bit of what is said of it. The search itself is `BestK`, by the same kernels. Knows
what `Evaluations` knows, as tensors with a row per search.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import triton
from jaxtyping import Int
from torch import Tensor

from bestk.ahead.evaluations import FREE
from bestk.ahead.kernels import choose, settle
from bestk.core.best_k import BestK
from bestk.core.policy import Plan, Shape
from bestk.nodes import BatchSpec, Children, NodeBatch

# A program holds the evaluations of a search, and the paths of a pass.
_MOST_SLOTS = 8192
_MOST_PATHS = 16384
# What a pass costs besides its nodes, in nodes.
_PASS = 160
# Narrow passes between two looks at whether wide ones pay.
_LOOK_EVERY = 4
# Shapes whose kernels were tried, and whether they run.
_TRIED: dict[tuple[object, ...], bool] = {}


class BestKAhead(BestK):
    """Evaluates nodes before they are popped, and takes every step that it can.

    A pass is wide where that pays, and always if somebody asked for it; else as wide as a step.
    """

    guesses = True  # whether rows that the next step does not need are used

    def __init__(self, policy: BestK, spec: BatchSpec, *, is_asked: bool) -> None:
        vars(self).update(vars(policy))  # the same searches, in other passes
        self.spec, self.is_asked, self.is_wide = spec, is_asked, True
        shape, tree = self.search.shape, self.search.tree
        size, number = spec.slots + 1, tree.child_token.shape[2]

        def whole(*sizes: int, fill: int = 0) -> Int[Tensor, "..."]:
            return torch.full((shape.batch, *sizes), fill, dtype=torch.int64, device=shape.device)

        def real(*sizes: int) -> Tensor:
            return whole(*sizes).double()

        self.token, self.depth, self.parent, self.child = (whole(size) for _ in range(4))
        self.log_prob, self.path = real(size), whole(size, spec.depth, fill=-1)
        self.home = whole(size, fill=FREE)
        self.of_tree = whole(tree.capacity + 1)
        self.child_token, self.child_slot = whole(size, number), whole(size, number, fill=-1)
        self.child_log_prob, self.child_score = real(size, number), real(size, number)
        self.passes, self.evaluated = whole(), whole()
        self.longest, self.deepest = whole(), whole()  # text that ended, node
        self.gain = whole()  # of wide passes
        self.child_open = whole(size, number)
        self.has_ready = True
        group = (self.search.spec.width,)
        depths = (*group, tree.path.shape[2])
        found = group[0] * number
        # What a step passes on to the next part of it.
        self.group = [whole(*group), whole(*group), whole(*group), whole(*depths), whole(*depths)]
        self.group += [whole(*group).bool(), real(*group), whole(*group, number)]
        self.group += [real(*group, number)]
        self.scratch = real(found), whole(3 * found)

    @property
    def nodes_per_pass(self) -> int:
        """Count the places for nodes of the next pass."""
        return self.spec.width if self.is_wide else self.search.spec.width

    @staticmethod
    def fits(policy: BestK, spec: BatchSpec) -> bool:
        """Return whether kernels can hold such searches."""
        is_known = policy.kernels is not None and policy.config.certify is None
        depth = triton.next_power_of_2(spec.depth)
        return is_known and spec.slots < _MOST_SLOTS and spec.width * depth <= _MOST_PATHS

    def does_run(self) -> bool:
        """Make a pass without a node, which changes nothing, before a graph captures one."""
        assert self.kernels is not None
        shape = self.token.device, self.spec, *self.kernels.shape
        if shape not in _TRIED:
            try:
                nodes = self.next().nodes
                nothing = nodes.path.new_zeros(*nodes.token.shape, self.kernels.num_children)
                self._settle(nodes, Children(nothing, nothing.float()))
                _TRIED[shape] = True
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a compiler has many ways to fail
                logging.getLogger("bestk").debug("nothing is evaluated ahead of time: %s", error)
                _TRIED[shape] = False
        return _TRIED[shape]

    def begin(self, rows: Int[Tensor, " begun"], keys: Sequence[int] = ()) -> Plan:
        """Start these searches anew."""
        self.home.index_fill_(0, rows, FREE)
        for slot in (0, self.spec.slots):  # the root, and scratch
            self.home[:, slot].index_fill_(0, rows, 0)
        for counter in (self.passes, self.evaluated, self.longest, self.deepest):
            counter.index_fill_(0, rows, 0)
        return super().begin(rows, keys)

    def next(self) -> Plan:
        """Return the nodes of the next pass: those that the next step lacks first."""
        search, tree, kernels = self.search, self.search.tree, self.kernels
        assert kernels is not None
        frontier, whole = search.frontier, self.token.new_empty
        shape, slots = (len(self.token), self.nodes_per_pass), self.spec.slots
        paths = (*shape, self.spec.depth)
        nodes = NodeBatch(
            token=whole(shape),
            slot=whole(shape),
            depth=whole(shape),
            path=whole(paths),
            prefix=whole(paths),
            is_valid=whole(shape, dtype=torch.bool),
        )
        with torch.cuda.device_of(self.token):
            choose[(shape[0],)](
                search.clock, tree.count, search.is_active,
                frontier.nodes.is_open, frontier.nodes.whole, frontier.nodes.real, self.decay,
                self.token, self.log_prob, self.depth, self.parent, self.child, self.path,
                self.home, self.of_tree,
                self.child_token, self.child_log_prob, self.child_score, self.child_slot,
                self.child_open,
                nodes.token, nodes.slot, nodes.depth, nodes.path, nodes.prefix, nodes.is_valid,
                whole(shape), whole(shape), whole(shape),
                torch.empty_like(self.token), torch.empty_like(self.token),
                shape[1], search.spec.width, frontier.size, tree.capacity, slots, self.spec.depth,
                kernels.num_children, len(self.decay) - 1, self.config.total_budget,
                shape[1] if self.guesses and self.is_wide else 0,
                block_rows=triton.next_power_of_2(self.spec.width),
                block_depth=kernels.depth, block_open=triton.next_power_of_2(frontier.size),
                block_slots=triton.next_power_of_2(slots),
                num_warps=4,
            )  # fmt: skip
        return Plan(nodes, self.log_prob[:, :1])

    def step(self, plan: Plan, children: Children) -> None:
        """Keep what was said of the nodes of a pass, and take every step whose nodes are known."""
        assert children.verdict is None
        if plan.is_begin:
            super().step(plan, children)
        self._settle(plan.nodes, children)

    def ended(self) -> list[int]:
        """Name the searches that are over, and choose how wide the next pass is."""
        ready = (self.evaluated - self.search.tree.count) * self.is_active
        active, gain, ready = torch.stack([self.is_active.long(), self.gain, ready]).tolist()
        self.is_wide, self.has_ready = self.is_asked or sum(gain) > 0, any(ready)
        return [row for row, is_active in enumerate(active) if not is_active]

    @property
    def look_every(self) -> int:
        """Count the passes between two looks; one that takes several steps may be the last."""
        return 1 if self.is_wide or self.has_ready else _LOOK_EVERY

    def _settle(self, nodes: NodeBatch, children: Children) -> None:
        search, tree, kernels = self.search, self.search.tree, self.kernels
        assert kernels is not None
        frontier, ledger, config = search.frontier, search.ledger, self.config
        batch, rows = nodes.token.shape
        most = config.max_completions
        with torch.cuda.device_of(self.token):
            settle[(batch,)](
                nodes.slot.contiguous(), nodes.depth.contiguous(), nodes.is_valid.contiguous(),
                children.token.contiguous(), children.log_prob.contiguous(),
                self.passes, self.evaluated, self.longest, self.deepest, self.gain,
                self.log_prob, self.parent, self.child, self.home, self.of_tree,
                self.child_token, self.child_log_prob, self.child_score, self.child_slot,
                self.child_open, *self.group,
                search.clock, tree.count, search.broken_at, search.timed_out,
                search.is_active, search.num_completions, search.num_truncated,
                ledger.completed, ledger.truncated, ledger.pruned_prob, ledger.pruned_frontier,
                search.pruned_bound,
                tree._whole, tree._real, tree.path,
                tree.child_token, tree.child_log_prob, tree.child_score, tree.child_state,
                frontier.nodes.is_open, frontier.nodes.whole, frontier.nodes.real,
                frontier.priority, frontier.order,
                *self.scratch, search.is_stop, self.power, self.decay, kernels.reals,
                rows, search.spec.width, frontier.size, tree.capacity, self.spec.slots,
                tree.path.shape[2], kernels.num_children, search.spec.num_children,
                len(self.decay) - 1, config.total_budget,
                config.min_new_tokens, config.max_new_tokens, config.min_children,
                2**31 - 1 if most is None else most, batch, _PASS // batch, self.spec.width,
                by_length=kernels.by_length, lists_all=kernels.lists_all,
                block_rows=triton.next_power_of_2(self.spec.width),
                block_group=kernels.group, block_depth=kernels.depth,
                block_children=kernels.children, block_found=kernels.found,
                block_pool=kernels.pool, num_warps=kernels.push_warps,
            )  # fmt: skip

    def spent(self, row: int) -> tuple[int, int]:
        """Return how often the model ran for a search, and on how many of its nodes."""
        return int(self.passes[row]), int(self.evaluated[row])

    def like(self, shape: Shape) -> BestK:
        """Return searches of another shape with the same settings, none of which has begun."""
        return BestKAhead(BestK(self.config, shape), self.spec, is_asked=self.is_asked)

    def columns(self) -> list[Tensor]:
        """Name every tensor that has a row per search."""
        own = [self.token, self.depth, self.parent, self.child, self.log_prob, self.path, self.home]
        own += [self.child_token, self.child_log_prob, self.child_score, self.child_slot]
        own += [self.child_open, self.of_tree, self.passes, self.evaluated]
        return [*super().columns(), *own, self.longest, self.deepest, self.gain]
