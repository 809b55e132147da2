"""GPU kernels in Triton for a step of the search itself: look, pop and push in a launch each.

One program holds one whole search. It does what the tensor operations of `state`, `frontier` and
`tree` do, with the same numbers in the same order of ties; those say what is right, this is for
speed alone. Only the first places of `Frontier.order` and `Frontier.priority` are kept up, as many
as a pop takes, and open nodes lie without gaps. Steps in which text has a say go without.

Threads of a program see one another's writes after a barrier only. What a program reads and then
overwrites has a barrier in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from bestk.core.policy import Plan
from bestk.core.push_kernel import push_children
from bestk.core.state import ROUNDING
from bestk.nodes import Children, NodeBatch

if TYPE_CHECKING:
    from bestk.core.best_k import BestK

# A program holds a frontier with all that a group finds, and a group's paths. Beyond these sizes
# it would run out of registers, and take long to compile.
_MOST_POOL = 4096
_MOST_FOUND = 2048
_MOST_PATHS = 8192

_EXPANDED = tl.constexpr(3)  # `State`, as a number that a kernel can hold


class StepKernels:
    """The kernels, made ready for searches of one shape."""

    def __init__(self, policy: BestK) -> None:
        config, spec, tree = policy.config, policy.spec, policy.search.tree
        self.num_children = tree.child_token.shape[2]
        self.group = triton.next_power_of_2(spec.width)
        self.depth = triton.next_power_of_2(tree.path.shape[2])
        self.children = triton.next_power_of_2(self.num_children)
        self.found = triton.next_power_of_2(spec.width * self.num_children)
        self.pool = triton.next_power_of_2(config.max_frontier + spec.width * self.num_children)
        self.pop_warps = 4 if self.group * self.depth <= 2048 else 16
        is_small = self.pool <= 1024 and self.group * self.children <= 512
        self.push_warps = 8 if is_small else 16
        # A kernel's own arguments would be rounded to single precision.
        reals = torch.tensor([policy.threshold, ROUNDING], dtype=torch.float64)
        self.reals = reals.to(tree.count.device)
        self.by_length = config.alpha is not None
        self.lists_all = spec.num_children >= policy.search.shape.vocab_size

    @property
    def shape(self) -> tuple[int, ...]:
        """Return all that kernels are compiled for."""
        sizes = (self.group, self.depth, self.children, self.found, self.pool)
        return *sizes, self.by_length, self.lists_all

    def fits(self) -> bool:
        """Return whether a program can hold a search of this shape."""
        return (
            self.num_children > 0
            and self.pool <= _MOST_POOL
            and self.group * self.children <= _MOST_FOUND
            and self.group * self.depth <= _MOST_PATHS
        )

    def next(self, policy: BestK) -> Plan:
        """Return the best nodes of every frontier, as `BestK.next` does."""
        clock, width = policy.search.clock, policy.search.spec.width
        shape = (len(clock), width)
        # Each tensor of its own: a part of another may be aligned to less, for which Triton
        # would compile again.
        whole, paths = clock.new_empty, (*shape, policy.search.tree.path.shape[2])
        nodes = NodeBatch(
            token=whole(shape),
            slot=whole(shape),
            depth=whole(shape),
            path=whole(paths),
            prefix=whole(paths),
            is_valid=whole(shape, dtype=torch.bool),
        )
        plan = Plan(nodes, whole(shape, dtype=torch.float64))
        self._pop(policy, plan, looks=True)
        return plan

    def step(self, policy: BestK, plan: Plan, children: Children) -> None:
        """Take a step, as `BestK.step` does."""
        if plan.is_begin:
            policy.search.tree.count += plan.nodes.is_valid.sum(dim=1)
        else:
            self._pop(policy, plan, looks=False)
        self._push(policy, plan, children)

    def _pop(self, policy: BestK, plan: Plan, *, looks: bool) -> None:
        """Look at the best nodes, or take them into the trees."""
        search, nodes = policy.search, plan.nodes
        tree, frontier = search.tree, search.frontier
        with torch.cuda.device_of(search.clock):
            pop_group[(len(search.clock),)](
                search.clock, tree.count, search.is_active,
                frontier.nodes.is_open, frontier.nodes.whole, frontier.nodes.real,
                frontier.priority, frontier.order,
                tree._whole, tree._real, tree.path, tree.child_state,
                nodes.token, nodes.slot, nodes.depth, plan.log_prob, nodes.path, nodes.prefix,
                nodes.is_valid,
                policy.config.total_budget, nodes.token.shape[1], frontier.size, tree.capacity,
                tree.path.shape[2], self.num_children, looks=looks,
                block_group=self.group, block_depth=self.depth, num_warps=self.pop_warps,
            )  # fmt: skip

    def _push(self, policy: BestK, plan: Plan, children: Children) -> None:
        """Sort the children of a step into tree and frontier."""
        search, nodes, config = policy.search, plan.nodes, policy.config
        tree, frontier, ledger = search.tree, search.frontier, search.ledger
        batch, width = nodes.token.shape
        assert children.token.shape[2] == self.num_children
        found = (batch, width * self.num_children)
        most = config.max_completions
        with torch.cuda.device_of(search.clock):
            push_children[(batch,)](
                nodes.slot.contiguous(), nodes.depth.contiguous(), plan.log_prob.contiguous(),
                nodes.is_valid.contiguous(),
                children.token.contiguous(), children.log_prob.contiguous(),
                search.is_stop, policy.power, policy.decay, self.reals,
                search.clock, tree.count, search.broken_at, search.timed_out,
                search.is_active, search.num_completions, search.num_truncated,
                ledger.completed, ledger.truncated, ledger.pruned_prob, ledger.pruned_frontier,
                search.pruned_bound,
                tree.child_token, tree.child_log_prob, tree.child_score, tree.child_state,
                frontier.nodes.is_open, frontier.nodes.whole, frontier.nodes.real,
                frontier.priority, frontier.order,
                self.reals.new_empty(found), nodes.slot.new_empty(3, *found),
                width, search.spec.width, frontier.size, tree.capacity, self.num_children,
                search.spec.num_children, len(policy.decay) - 1, config.total_budget,
                config.min_new_tokens, config.max_new_tokens, config.min_children,
                2**31 - 1 if most is None else most,
                batch,
                by_length=self.by_length, lists_all=self.lists_all,
                block_group=self.group, block_children=self.children, block_found=self.found,
                block_pool=self.pool, num_warps=self.push_warps,
            )  # fmt: skip


@triton.jit(do_not_specialize=["budget", "width", "size", "capacity", "depths", "num_children"])
def pop_group(
    clock, count, is_active,
    open_nodes, open_whole, open_real, open_priority, open_order,
    tree_whole, tree_real, tree_path, tree_state,
    token, slot, depth, log_prob, path, prefix, is_valid,
    budget, width, size, capacity, depths, num_children, looks: tl.constexpr,
    block_group: tl.constexpr, block_depth: tl.constexpr,
):  # fmt: skip
    """Find the best nodes of a search: to look at them, or to take them."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block_group)
    inside = place < width
    active = tl.load(is_active + row).to(tl.int64)
    used = tl.load(count + row)
    now = tl.load(clock + row) + active
    index = tl.load(open_order + row * size + place, mask=inside, other=0)
    was_open = tl.load(open_nodes + row * size + index, mask=inside, other=0) != 0
    valid = was_open & (place < (budget - used) * active)

    # What is no node is written as zeros, so that a group depends on its own search alone.
    node = open_whole + row * 5 * size + index
    new_token = tl.load(node, mask=valid, other=0)
    parent = tl.load(node + size, mask=valid, other=0)
    child = tl.load(node + 2 * size, mask=valid, other=0)
    new_depth = tl.load(node + 3 * size, mask=valid, other=0)
    found_at = tl.load(node + 4 * size, mask=valid, other=0)
    node_real = open_real + row * 3 * size + index
    total = tl.load(node_real + size, mask=valid, other=0.0)
    last = tl.load(node_real + 2 * size, mask=valid, other=0.0)
    priority = tl.load(open_priority + row * size + place, mask=valid, other=0.0)
    new_slot = tl.where(valid, used + place, capacity)

    level = tl.arange(0, block_depth)[None, :]
    in_path = inside[:, None] & (level < depths)
    first = row * (capacity + 1)
    ancestors = tl.load(
        tree_path + (first + parent)[:, None] * depths + level, mask=in_path, other=-1
    )
    is_own = level == tl.maximum(new_depth - 1, 0)[:, None]
    whole_path = tl.where(is_own, new_slot[:, None], ancestors)
    if looks:
        is_older = in_path & (whole_path >= 0) & ~is_own
        older = tree_whole + (first + tl.maximum(whole_path, 0)) * 5
        tokens = tl.load(older, mask=is_older, other=-1)
        tokens = tl.where(is_own, new_token[:, None], tokens)
        at = row * width + place
        tl.store(token + at, new_token, mask=inside)
        tl.store(slot + at, new_slot, mask=inside)
        tl.store(depth + at, new_depth, mask=inside)
        tl.store(log_prob + at, total, mask=inside)
        tl.store(is_valid + at, valid, mask=inside)
        tl.store(path + at[:, None] * depths + level, whole_path, mask=in_path)
        tl.store(prefix + at[:, None] * depths + level, tokens, mask=in_path)
    else:
        tl.debug_barrier()
        tl.store(clock + row, now)
        tl.store(count + row, used + tl.sum(valid.to(tl.int64), axis=0))
        tl.store(open_nodes + row * size + index, was_open & ~valid, mask=inside)
        tl.store(tree_state + (first + parent) * num_children + child, _EXPANDED, mask=valid)
        home = tree_whole + (first + new_slot) * 5
        tl.store(home, new_token, mask=valid)
        tl.store(home + 1, parent, mask=valid)
        tl.store(home + 2, new_depth, mask=valid)
        tl.store(home + 3, found_at, mask=valid)
        tl.store(home + 4, now, mask=valid)
        home_real = tree_real + (first + new_slot) * 3
        tl.store(home_real, total, mask=valid)
        tl.store(home_real + 1, last, mask=valid)
        tl.store(home_real + 2, priority, mask=valid)
        tl.store(
            tree_path + (first + new_slot)[:, None] * depths + level, whole_path,
            mask=in_path & valid[:, None],
        )  # fmt: skip
