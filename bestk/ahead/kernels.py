"""GPU kernels in Triton for evaluation ahead of time: one program holds one whole search.

`settle` keeps what a pass said of its nodes, and takes every step whose nodes are known: with the
kernels of a plain step, in a loop. `choose` names the nodes of the next pass, as `lookahead` does:
those that the next step misses, and those that the search would pop if it ran on.

Threads of a program see one another's writes after a barrier only.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bestk.core.kernels import pop_group
from bestk.core.push_kernel import gate, ordered, push_children

_FREE, _READY = tl.constexpr(-2), tl.constexpr(-1)  # as in `evaluations`
_LOWEST = tl.constexpr(-9223372036854775807)  # below the order of any real
_SPARED = tl.constexpr(1 << 20)  # more than any depth
_LEVELS = tl.constexpr(2)  # passes beyond one for each level of a tree

_SIZES = ["rows", "width", "size", "capacity", "slots", "depths", "num_children", "num_likeliest"]
_SIZES += ["last_age", "budget", "most", "batch", "price", "wide"]
_SIZES += ["min_new_tokens", "max_new_tokens", "min_children", "max_completions"]


@triton.jit(do_not_specialize=_SIZES)
def settle(
    slot, depth, is_valid, child_token, child_log_prob, passes, evaluated, longest, deepest, gain,
    known_log_prob, known_parent, known_child, known_home, of_tree,
    kept_token, kept_log_prob, kept_score, kept_slot, kept_open,
    group_token, group_slot, group_depth, group_path, group_prefix, group_valid, group_log_prob,
    group_child_token, group_child_log_prob,
    clock, count, broken_at, timed_out, is_active, num_completions, num_truncated,
    completed, truncated, pruned_prob, pruned_frontier, pruned_bound,
    tree_whole, tree_real, tree_path, tree_token, tree_log_prob, tree_score, tree_state,
    open_nodes, open_whole, open_real, open_priority, open_order,
    scratch_real, scratch_whole, is_stop, powers, decays, reals,
    rows, width, size, capacity, slots, depths, num_children, num_likeliest, last_age, budget,
    min_new_tokens, max_new_tokens, min_children, max_completions, batch, price, wide,
    by_length: tl.constexpr, lists_all: tl.constexpr, block_rows: tl.constexpr,
    block_group: tl.constexpr, block_depth: tl.constexpr, block_children: tl.constexpr,
    block_found: tl.constexpr, block_pool: tl.constexpr,
):  # fmt: skip
    """Keep the children of the nodes of a pass, then commit as long as the next group is known."""
    row = tl.program_id(0).to(tl.int64)
    first = row * (slots + 1)
    number, ends_at, reaches = _keep(
        row, first, slot, depth, is_valid, child_token, child_log_prob,
        known_log_prob, known_parent, known_child, known_home,
        kept_token, kept_log_prob, kept_score, kept_slot, kept_open, is_stop, powers, reals,
        rows, num_children, min_new_tokens, max_new_tokens, min_children,
        by_length, block_rows, block_children,
    )  # fmt: skip
    tl.store(evaluated + row, tl.load(evaluated + row) + number)
    tl.store(passes + row, tl.load(passes + row) + (number > 0).to(tl.int64))
    ends_at = tl.maximum(ends_at, tl.load(longest + row))
    reaches = tl.maximum(reaches, tl.load(deepest + row))
    tl.debug_barrier()
    tl.store(longest + row, ends_at)
    tl.store(deepest + row, reaches)

    # The steps whose nodes are known.
    child = tl.arange(0, block_children)[None, :]
    rank = tl.arange(0, block_group)
    goes = number > 0
    while goes:
        used = tl.load(count + row)
        most = (budget - used) * tl.load(is_active + row).to(tl.int64)
        index = tl.load(open_order + row * size + rank, mask=rank < width, other=0)
        is_open = tl.load(open_nodes + row * size + index, mask=rank < width, other=0) != 0
        in_group = is_open & (rank < most)
        opened = open_whole + row * 5 * size + index
        parent = tl.load(opened + size, mask=in_group, other=0)
        which = tl.load(opened + 2 * size, mask=in_group, other=0)
        above = first + tl.load(of_tree + row * (capacity + 1) + parent, mask=in_group, other=0)
        kept = tl.load(kept_slot + above * num_children + which, mask=in_group, other=-1)
        is_known = tl.sum((in_group & (kept < 0)).to(tl.int32), axis=0) == 0
        goes = is_known & (tl.sum(in_group.to(tl.int32), axis=0) > 0)
        if goes:
            tl.store(of_tree + row * (capacity + 1) + used + rank, kept, mask=in_group)
            tl.store(known_home + first + kept, used + rank, mask=in_group)
            is_kept = in_group[:, None] & (child < num_children)
            source = (first + kept)[:, None] * num_children + child
            target = (row * width + rank)[:, None] * num_children + child
            told = tl.load(kept_token + source, mask=is_kept, other=0)
            tl.store(group_child_token + target, told, mask=is_kept)
            given = tl.load(kept_log_prob + source, mask=is_kept, other=0.0)
            tl.store(group_child_log_prob + target, given, mask=is_kept)
            tl.debug_barrier()
            pop_group(
                clock, count, is_active, open_nodes, open_whole, open_real, open_priority,
                open_order, tree_whole, tree_real, tree_path, tree_state,
                group_token, group_slot, group_depth, group_log_prob, group_path, group_prefix,
                group_valid, budget, width, size, capacity, depths, num_children, True,
                block_group, block_depth,
            )  # fmt: skip
            tl.debug_barrier()
            pop_group(
                clock, count, is_active, open_nodes, open_whole, open_real, open_priority,
                open_order, tree_whole, tree_real, tree_path, tree_state,
                group_token, group_slot, group_depth, group_log_prob, group_path, group_prefix,
                group_valid, budget, width, size, capacity, depths, num_children, False,
                block_group, block_depth,
            )  # fmt: skip
            tl.debug_barrier()
            push_children(
                group_slot, group_depth, group_log_prob, group_valid,
                group_child_token, group_child_log_prob, is_stop, powers, decays, reals,
                clock, count, broken_at, timed_out, is_active, num_completions, num_truncated,
                completed, truncated, pruned_prob, pruned_frontier, pruned_bound,
                tree_token, tree_log_prob, tree_score, tree_state,
                open_nodes, open_whole, open_real, open_priority, open_order,
                scratch_real, scratch_whole, width, width, size, capacity, num_children,
                num_likeliest, last_age, budget, min_new_tokens, max_new_tokens, min_children,
                max_completions, batch, by_length, lists_all, block_group, block_children,
                block_found, block_pool,
            )  # fmt: skip
            tl.debug_barrier()

    # A search needs a pass for every level of its tree, and then its other steps come in bursts: so
    # the steps that are left are weighed against the levels that are, in nodes. While all that end
    # are shorter than what goes on, any text may take as many tokens as it can.
    steps = (budget - tl.load(count + row) + width - 1) // width
    ends_at = tl.where(ends_at > reaches, ends_at, max_new_tokens)
    levels = tl.maximum(ends_at - reaches, 0) + _LEVELS
    worth = steps * (price + width) - levels * (price + wide)
    tl.store(gain + row, worth * tl.load(is_active + row).to(tl.int64))


@triton.jit
def _keep(
    row, first, slot, depth, is_valid, child_token, child_log_prob,
    known_log_prob, known_parent, known_child, known_home,
    kept_token, kept_log_prob, kept_score, kept_slot, kept_open, is_stop, powers, reals,
    rows, num_children, min_new_tokens, max_new_tokens, min_children,
    by_length: tl.constexpr, block_rows: tl.constexpr, block_children: tl.constexpr,
):  # fmt: skip
    """Keep what the model said of the nodes of a pass.

    Returns how many there are, the length of the longest text that ends there, and their depth.
    """
    child = tl.arange(0, block_children)[None, :]
    place = tl.arange(0, block_rows)
    at = row * rows + place
    valid = tl.load(is_valid + at, mask=place < rows, other=0) != 0
    node = first + tl.load(slot + at, mask=valid, other=0)
    below = tl.load(depth + at, mask=valid, other=0)[:, None] + 1
    is_child = valid[:, None] & (child < num_children)
    entry = at[:, None] * num_children + child
    token = tl.load(child_token + entry, mask=is_child, other=0)
    last = tl.load(child_log_prob + entry, mask=is_child, other=float("-inf")).to(tl.float64)
    exists = is_child & (last > float("-inf")) & (last < float("inf"))
    stops, _, likely = gate(
        token, last, exists, below, is_stop, reals, min_new_tokens, min_children
    )
    score = last
    if by_length:
        above = tl.load(known_log_prob + node, mask=valid, other=0.0)[:, None]
        score = (above + last) / tl.load(powers + tl.minimum(below, max_new_tokens))
    opens = likely & ~stops & (below < max_new_tokens)
    home = node[:, None] * num_children + child
    tl.store(kept_token + home, token, mask=is_child)
    tl.store(kept_log_prob + home, last, mask=is_child)
    tl.store(kept_score + home, tl.where(opens, score, float("-inf")), mask=is_child)
    tl.store(kept_slot + home, -1, mask=is_child)
    # Those that open, side by side, and −1 behind them.
    line = kept_open + node[:, None] * num_children
    tl.store(line + tl.cumsum(opens.to(tl.int32), axis=1) - 1, child + 0 * below, mask=opens)
    end = tl.sum(opens.to(tl.int32), axis=1)
    tl.store(kept_open + node * num_children + end, -1, mask=valid & (end < num_children))
    is_inner = valid & (node > first)
    tl.store(known_home + node, _READY, mask=is_inner)
    parent = first + tl.load(known_parent + node, mask=is_inner, other=0)
    which = tl.load(known_child + node, mask=is_inner, other=0)
    tl.store(kept_slot + parent * num_children + which, node - first, mask=is_inner)
    ends_at = tl.max(tl.max(tl.where(likely & stops, below, 0), axis=1), axis=0)
    reaches = tl.max(tl.max(tl.where(is_child, below - 1, 0), axis=1), axis=0)
    return tl.sum(valid.to(tl.int64), axis=0), ends_at, reaches


@triton.jit(do_not_specialize=_SIZES)
def choose(
    clock, count, is_active, open_nodes, open_whole, open_real, decays,
    known_token, known_log_prob, known_depth, known_parent, known_child, known_path, known_home,
    of_tree, kept_token, kept_log_prob, kept_score, kept_slot, kept_open,
    token, slot, depth, path, prefix, is_valid, row_parent, row_child, row_slot, heads, found,
    rows, width, size, capacity, slots, depths, num_children, last_age, budget, most,
    block_rows: tl.constexpr, block_depth: tl.constexpr,
    block_open: tl.constexpr, block_slots: tl.constexpr,
):  # fmt: skip
    """Run a search on over scratch values until `most` nodes are found that were not evaluated."""
    row = tl.program_id(0).to(tl.int64)
    first = row * (slots + 1)
    row_parent += row * rows
    row_child += row * rows
    row_slot += row * rows
    heads += first  # of ready nodes: which of its open children is next, and when they were found
    found += first
    now = tl.load(clock + row) + 1
    left = (budget - tl.load(count + row)) * tl.load(is_active + row).to(tl.int64)

    # Open nodes, and for every ready one its best child that nobody has popped yet.
    place = tl.arange(0, block_open)
    is_open = tl.load(open_nodes + row * size + place, mask=place < size, other=0) != 0
    opened = open_whole + row * 5 * size
    found_at = tl.load(opened + 4 * size + place, mask=is_open, other=0)
    worth = tl.load(open_real + row * 3 * size + place, mask=is_open, other=0.0)
    one = tl.arange(0, block_slots)
    home = tl.load(known_home + first + one, mask=one < slots, other=0)
    level = tl.load(known_depth + first + one, mask=one < slots, other=0)
    head_score = tl.full([block_slots], float("-inf"), tl.float64)
    head_step = tl.zeros([block_slots], tl.int64)
    head_order = tl.full([block_slots], _LOWEST, tl.int64)
    is_reached = tl.zeros([block_slots], tl.int32)
    order = _aged(worth, found_at, is_open, now, decays, last_age)

    then = now
    popped = left * 0
    number, missing = left * 0, left * 0
    goes = left > 0
    while goes:
        top, at = tl.max(order, axis=0, return_indices=True)
        top_head, slot_at = tl.max(head_order, axis=0, return_indices=True)
        is_any = (top > _LOWEST) | (top_head > _LOWEST)
        is_head = top_head > top
        takes_open = is_any & (top_head <= top)
        takes_head = is_any & is_head
        from_tree = tl.load(opened + size + at, mask=takes_open, other=0)
        from_slot = tl.load(of_tree + row * (capacity + 1) + from_tree, mask=takes_open, other=0)
        from_slot = tl.where(takes_head, slot_at.to(tl.int64), from_slot)
        entry = (first + from_slot) * num_children
        following = tl.load(heads + slot_at, mask=takes_head, other=0)
        which = tl.load(opened + 2 * size + at, mask=takes_open, other=0)
        its_head = tl.load(kept_open + entry + following, mask=takes_head, other=0)
        which = tl.where(takes_head, its_head, which)
        kept = tl.load(kept_slot + entry + which, mask=is_any, other=-1)
        is_row = is_any & (kept < 0)
        is_ready = is_any & (kept >= 0)
        # The next child of where it came from, and the first one of a ready node.
        following += 1
        has_more = takes_head & (following < num_children)
        sibling = tl.load(kept_open + entry + following, mask=has_more, other=-1)
        has_more = has_more & (sibling >= 0)
        sibling_score = tl.load(kept_score + entry + sibling, mask=has_more, other=float("-inf"))
        step = tl.load(found + slot_at, mask=takes_head, other=0)
        below = (first + kept) * num_children
        eldest = tl.load(kept_open + below, mask=is_ready, other=-1)
        is_opened = is_ready & (eldest >= 0)
        eldest_score = tl.load(kept_score + below + eldest, mask=is_opened, other=float("-inf"))
        tl.debug_barrier()
        tl.store(row_parent + number, from_slot, mask=is_row)
        tl.store(row_child + number, which, mask=is_row)
        tl.store(heads + slot_at, following, mask=takes_head)
        tl.store(heads + kept, 0, mask=is_ready)
        tl.store(found + kept, then, mask=is_ready)
        tl.debug_barrier()
        number += is_row.to(tl.int64)
        missing += (is_row & (then == now)).to(tl.int64)
        order = tl.where(takes_open & (place == at), _LOWEST, order)
        is_open = is_open & ~(takes_open & (place == at))
        is_from = takes_head & (one == slot_at)
        head_score = tl.where(is_from, sibling_score, head_score)
        is_to = is_ready & (one == kept)
        head_score = tl.where(is_to, eldest_score, head_score)
        head_step = tl.where(is_to, then, head_step)
        is_reached = tl.where(is_to, tl.where(then == now, 2, 1), is_reached)
        popped += is_any.to(tl.int64)
        left -= is_any.to(tl.int64)
        ends_step = (popped == width) | (top_head <= _LOWEST) & (top <= _LOWEST)
        is_over = ends_step & (popped == 0)
        if ends_step:
            then += 1
            popped = popped * 0
            order = _aged(worth, found_at, is_open, then, decays, last_age)
            is_head_open = head_score > float("-inf")
            head_order = _aged(head_score, head_step, is_head_open, then, decays, last_age)
        else:
            has_more = sibling_score > float("-inf")
            its_order = _aged(sibling_score, step, has_more, then, decays, last_age)
            head_order = tl.where(is_from, its_order, head_order)
        goes = (left > 0) & ((popped > 0) | (is_over == 0)) & ((then == now) | (number < most))

    # Room for them: first what nobody reaches goes, then all but the next group, deepest first.
    num_free = tl.sum(((home == _FREE) & (one < slots)).to(tl.int64), axis=0)
    may_go = (home == _READY) & (is_reached < 2)
    key = level + tl.where(is_reached == 0, _SPARED, 0)
    key = tl.where(may_go, key, -1)
    top = tl.max(key, axis=0)
    while (top >= 0) & (num_free < tl.where(top >= _SPARED, number, missing)):
        gone = tl.min(tl.where(key == top, one, block_slots - 1), axis=0).to(tl.int64)
        above = tl.load(known_parent + first + gone)
        which = tl.load(known_child + first + gone)
        tl.store(kept_slot + (first + above) * num_children + which, -1)
        tl.store(known_home + first + gone, _FREE)
        home = tl.where(one == gone, _FREE, home)
        key = tl.where(one == gone, -1, key)
        num_free += 1
        top = tl.max(key, axis=0)
    number = tl.minimum(number, num_free)

    # Their slots.
    is_free = (home == _FREE) & (one < slots)
    rank = tl.cumsum(is_free.to(tl.int32), axis=0) - 1
    tl.store(row_slot + rank, one, mask=is_free & (rank < number))
    tl.debug_barrier()
    lane = tl.arange(0, block_rows)
    inside, valid = lane < rows, lane < number
    own = tl.load(row_slot + lane, mask=valid, other=slots)
    above = tl.load(row_parent + lane, mask=valid, other=0)
    which = tl.load(row_child + lane, mask=valid, other=0)
    entry = (first + above) * num_children + which
    own_token = tl.load(kept_token + entry, mask=valid, other=0)
    log_prob = tl.load(known_log_prob + first + above, mask=valid, other=0.0)
    log_prob += tl.load(kept_log_prob + entry, mask=valid, other=0.0)
    deep = tl.load(known_depth + first + above, mask=valid, other=0)
    step = tl.arange(0, block_depth)[None, :]
    in_path = inside[:, None] & (step < depths)
    of_node = valid[:, None] & in_path
    own_path = tl.load(
        known_path + (first + above)[:, None] * depths + step, mask=of_node, other=-1
    )
    is_own = of_node & (step == deep[:, None])
    is_older = of_node & (own_path >= 0) & ~is_own
    tokens = tl.load(known_token + first + own_path, mask=is_older, other=-1)
    tokens = tl.where(is_own, own_token[:, None], tokens)
    own_path = tl.where(is_own, own[:, None], own_path)
    deep = tl.where(valid, deep + 1, 0)
    tl.debug_barrier()
    node = first + own
    tl.store(known_token + node, own_token, mask=valid)
    tl.store(known_log_prob + node, log_prob, mask=valid)
    tl.store(known_depth + node, deep, mask=valid)
    tl.store(known_parent + node, above, mask=valid)
    tl.store(known_child + node, which, mask=valid)
    tl.store(known_path + node[:, None] * depths + step, own_path, mask=of_node)
    at_row = row * rows + lane
    tl.store(token + at_row, own_token, mask=inside)
    tl.store(slot + at_row, own, mask=inside)
    tl.store(depth + at_row, deep, mask=inside)
    tl.store(is_valid + at_row, valid, mask=inside)
    tl.store(path + at_row[:, None] * depths + step, own_path, mask=in_path)
    tl.store(prefix + at_row[:, None] * depths + step, tokens, mask=in_path)


@triton.jit
def _aged(score, step, is_node, clock, decays, last_age):
    """Return the order of nodes in the pop at `clock`."""
    age = tl.minimum(tl.maximum(clock - step, 0), last_age)
    return tl.where(is_node, ordered(score - tl.load(decays + age)), _LOWEST)
