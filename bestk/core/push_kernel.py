"""The GPU kernel that sorts what a group found into tree, ledger and frontier, in Triton.

It is the rest of `BestK.step` for one search: the children's states, the ledger, their order among
themselves, the frontier pruned, and the places of the next pop. Knows nothing of text.
"""

from __future__ import annotations

import triton
import triton.language as tl

# `State`, as numbers that a kernel can hold.
_BELOW, _OPEN = tl.constexpr(1), tl.constexpr(2)
_COMPLETE, _TRUNCATED, _DROPPED = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)
_LOWEST = tl.constexpr(-9223372036854775807)  # below the order of any real
_HIGHEST = tl.constexpr(9223372036854775807)
_COMPARED = tl.constexpr(8192)  # pairs of nodes at a time: more would not fit in the registers

_SIZES = ["width", "next_width", "size", "capacity", "num_children", "num_likeliest", "last_age"]
_SIZES += ["budget", "min_new_tokens", "max_new_tokens", "min_children", "max_completions", "batch"]


@triton.jit(do_not_specialize=_SIZES)
def push_children(
    group_slot, group_depth, group_log_prob, group_valid, child_token, child_log_prob,
    is_stop, powers, decays, reals,
    clock, count, broken_at, timed_out, is_active, num_completions, num_truncated,
    completed, truncated, pruned_prob, pruned_frontier, pruned_bound,
    tree_token, tree_log_prob, tree_score, tree_state,
    open_nodes, open_whole, open_real, open_priority, open_order,
    scratch_real, scratch_whole,
    width, next_width, size, capacity, num_children, num_likeliest, last_age, budget,
    min_new_tokens, max_new_tokens, min_children, max_completions, batch,
    by_length: tl.constexpr, lists_all: tl.constexpr, block_group: tl.constexpr,
    block_children: tl.constexpr, block_found: tl.constexpr, block_pool: tl.constexpr,
):  # fmt: skip
    """Push all that the groups found; one program is one search."""
    row = tl.program_id(0).to(tl.int64)
    now = tl.load(clock + row)
    used = tl.load(count + row)
    was_broken = tl.load(broken_at + row)
    is_late = tl.load(timed_out + row) != 0
    completions = tl.load(num_completions + row)
    first = row * (capacity + 1)
    found = width * num_children
    scratch_real += row * found
    scratch_token = scratch_whole + row * found
    scratch_flat = scratch_whole + (batch + row) * found
    scratch_order = scratch_whole + (2 * batch + row) * found

    # The children: [group, children], as the model gave them.
    place = tl.arange(0, block_group)
    child = tl.arange(0, block_children)[None, :]
    at = row * width + place
    in_group = place < width
    valid = tl.load(group_valid + at, mask=in_group, other=0) != 0
    slot = tl.load(group_slot + at, mask=valid, other=capacity)
    above = tl.load(group_log_prob + at, mask=valid, other=0.0)[:, None]
    depth = tl.load(group_depth + at, mask=valid, other=0)[:, None] + 1
    is_child = valid[:, None] & (child < num_children)
    entry = at[:, None] * num_children + child
    token = tl.load(child_token + entry, mask=is_child, other=0)
    last = tl.load(child_log_prob + entry, mask=is_child, other=float("-inf")).to(tl.float64)
    is_bad = (last != last) | (last == float("inf"))
    is_broken = tl.max(tl.max(is_bad.to(tl.int32), axis=1), axis=0) > 0
    last = tl.where(is_bad, float("-inf"), last)
    log_prob = above + last

    # What becomes of them.
    exists = is_child & (last > float("-inf"))
    stops, may_open, passes = gate(
        token, last, exists, depth, is_stop, reals, min_new_tokens, min_children
    )
    is_complete = passes & stops
    too_long = passes & ~stops & (depth >= max_new_tokens)
    opens = passes & ~stops & (depth < max_new_tokens)
    state = tl.where(exists, _BELOW, 0)
    state = tl.where(is_complete, _COMPLETE, state)
    state = tl.where(too_long, _TRUNCATED, state)
    state = tl.where(opens, _OPEN, state)
    score = last
    if by_length:
        score = log_prob / tl.load(powers + tl.minimum(depth, max_new_tokens))
    home = (first + slot)[:, None] * num_children + child
    tl.store(tree_token + home, token, mask=is_child)
    tl.store(tree_log_prob + home, last, mask=is_child)
    tl.store(tree_score + home, score, mask=is_child)
    tl.store(tree_state + home, state, mask=is_child)

    # Where their probability goes.
    mass = tl.exp(log_prob)
    mass_completed = _total(tl.where(is_complete, mass, 0.0))
    mass_truncated = _total(tl.where(too_long, mass, 0.0))
    mass_opened = _total(tl.where(opens, mass, 0.0))
    mass_above = _total(tl.where(valid[:, None], tl.exp(above), 0.0))
    mass_below = mass_above - mass_completed - mass_truncated - mass_opened
    completions += _total(is_complete.to(tl.int64))
    num_longer = _total(too_long.to(tl.int64))
    bound = tl.max(tl.where(may_open & ~passes, log_prob, float("-inf")), axis=1)
    if not lists_all:
        left = 1.0 - tl.sum(tl.exp(last), axis=1)
        left = tl.log(tl.maximum(left, tl.load(reals + 1)))
        least = tl.max(tl.where(child == num_likeliest - 1, last, float("-inf")), axis=1)
        unseen = tl.sum(above, axis=1) + tl.minimum(left, least)
        bound = tl.maximum(bound, tl.where(valid, unseen, float("-inf")))
    highest = tl.max(bound, axis=0)
    highest = tl.where(is_broken, float("inf"), highest)

    # Those that open, side by side.
    is_open = tl.reshape(opens.to(tl.int32), [block_group * block_children])
    num_found = tl.sum(is_open, axis=0)
    target = tl.reshape(tl.cumsum(is_open, axis=0), [block_group, block_children]) - 1
    tl.store(scratch_real + target, last, mask=opens)
    tl.store(scratch_token + target, token, mask=opens)
    tl.store(scratch_flat + target, place[:, None] * num_children + child, mask=opens)
    tl.debug_barrier()
    _rank(scratch_real, scratch_token, scratch_flat, scratch_order, num_found, block_found)
    tl.debug_barrier()

    # The pool: all that was open, then what was found, in the order of ties.
    node = tl.arange(0, block_pool)
    is_old = tl.load(open_nodes + row * size + node, mask=node < size, other=0) != 0
    is_new = (node >= size) & (node - size < num_found)
    flat = tl.load(scratch_order + node - size, mask=is_new, other=0)
    from_place = flat // num_children
    from_child = flat - from_place * num_children
    old = open_whole + row * 5 * size + node
    old_real = open_real + row * 3 * size + node
    origin = row * width + from_place
    node_token = _either(old, is_old, child_token + row * found + flat, is_new)
    node_parent = _either(old + size, is_old, group_slot + origin, is_new)
    node_child = tl.load(old + 2 * size, mask=is_old, other=0)
    node_child = tl.where(is_new, from_child, node_child)
    node_depth = _either(old + 3 * size, is_old, group_depth + origin, is_new)
    node_depth = tl.where(is_new, node_depth + 1, node_depth)
    node_step = tl.where(is_new, now, tl.load(old + 4 * size, mask=is_old, other=0))
    kept_child = (first + node_parent) * num_children + node_child
    node_score = _either(old_real, is_old, tree_score + kept_child, is_new)
    node_last = tl.load(old_real + 2 * size, mask=is_old, other=0.0)
    node_last = tl.where(is_new, tl.load(tree_log_prob + kept_child, mask=is_new), node_last)
    node_log_prob = tl.load(old_real + size, mask=is_old, other=0.0)
    node_above = tl.load(group_log_prob + origin, mask=is_new, other=0.0)
    node_log_prob = tl.where(is_new, node_above + node_last, node_log_prob)

    # The best of it stays, in the same order.
    is_node = is_old | is_new
    age = tl.minimum(tl.maximum(now + 1 - node_step, 0), last_age)
    order = ordered(node_score - tl.load(decays + age))
    order = tl.where(is_node, order, _LOWEST)
    stays = is_node & _among_best(order, is_node, size)
    drops = is_node & ~stays
    position = tl.cumsum(stays.to(tl.int32), axis=0) - 1
    num_open = tl.sum(stays.to(tl.int32), axis=0)
    mass_dropped = tl.sum(tl.where(drops, tl.exp(node_log_prob), 0.0), axis=0)
    dropped = tl.max(tl.where(drops, node_log_prob, float("-inf")), axis=0)
    highest = tl.maximum(highest, tl.maximum(dropped, tl.load(pruned_bound + row)))
    mass_completed += tl.load(completed + row)
    mass_truncated += tl.load(truncated + row)
    mass_below += tl.load(pruned_prob + row)
    mass_dropped += tl.load(pruned_frontier + row)
    num_longer += tl.load(num_truncated + row)

    tl.debug_barrier()
    tl.store(tree_state + kept_child, _DROPPED, mask=drops)
    tl.store(open_nodes + row * size + node, node < num_open, mask=node < size)
    new = open_whole + row * 5 * size + position
    tl.store(new, node_token, mask=stays)
    tl.store(new + size, node_parent, mask=stays)
    tl.store(new + 2 * size, node_child, mask=stays)
    tl.store(new + 3 * size, node_depth, mask=stays)
    tl.store(new + 4 * size, node_step, mask=stays)
    new_real = open_real + row * 3 * size + position
    tl.store(new_real, node_score, mask=stays)
    tl.store(new_real + size, node_log_prob, mask=stays)
    tl.store(new_real + 2 * size, node_last, mask=stays)

    tl.store(completed + row, mass_completed)
    tl.store(truncated + row, mass_truncated)
    tl.store(pruned_prob + row, mass_below)
    tl.store(pruned_frontier + row, mass_dropped)
    tl.store(num_truncated + row, num_longer)
    tl.store(num_completions + row, completions)
    tl.store(pruned_bound + row, highest)
    was_broken = tl.where(is_broken & (was_broken < 0), now, was_broken)
    tl.store(broken_at + row, was_broken)
    goes_on = (used < budget) & (num_open > 0) & (was_broken < 0) & (is_late == 0)
    tl.store(is_active + row, goes_on & (completions < max_completions))

    # The places of the next pop, best first; where there is no node, any closed place.
    rank = tl.arange(0, block_group)
    is_empty = (rank >= num_open) & (rank < next_width)
    tl.store(open_order + row * size + rank, rank, mask=is_empty)
    tl.store(open_priority + row * size + rank, float("-inf"), mask=is_empty)
    order = tl.where(stays, order, _LOWEST)
    for best in range(tl.minimum(num_open, next_width)):
        top = tl.max(order, axis=0)
        taken = tl.min(tl.where(stays & (order == top), position, block_pool), axis=0)
        order = tl.where(position == taken, _LOWEST, order)
        tl.store(open_order + row * size + best, taken)
        tl.store(open_priority + row * size + best, _real(top))


@triton.jit
def gate(token, last, exists, depth, is_stop, reals, min_new_tokens, min_children):
    """Return which children end a text by their token, may be opened, and are likely enough."""
    stops = tl.load(is_stop + tl.maximum(token, 0), mask=exists, other=0) != 0
    may_open = exists & ~(stops & (depth < min_new_tokens))
    is_among_best = tl.cumsum(may_open.to(tl.int32), axis=1) <= min_children
    passes = may_open & ((last >= tl.load(reals)) | is_among_best)
    return stops, may_open, passes


@triton.jit
def _rank(scratch_real, scratch_token, scratch_flat, scratch_order, num_found, block: tl.constexpr):
    """Order what was found by child probability, token id and place in the group."""
    node = tl.arange(0, block)
    inside = node < num_found
    last = tl.load(scratch_real + node, mask=inside, other=0.0)[:, None]
    token = tl.load(scratch_token + node, mask=inside, other=0)[:, None]
    rank = tl.zeros([block], tl.int32)
    at_once: tl.constexpr = 32 if block <= 256 else _COMPARED // block
    for start in range(0, num_found, at_once):
        other = start + tl.arange(0, at_once)
        is_other = (other < num_found)[None, :]
        other_last = tl.load(scratch_real + other, mask=other < num_found, other=0.0)[None, :]
        other_token = tl.load(scratch_token + other, mask=other < num_found, other=0)[None, :]
        is_before = (other_token == token) & (other[None, :] < node[:, None])
        is_before = (other_last == last) & ((other_token < token) | is_before)
        is_before = is_other & ((other_last > last) | is_before)
        rank += tl.sum(is_before.to(tl.int32), axis=1)
    flat = tl.load(scratch_flat + node, mask=inside, other=0)
    tl.store(scratch_order + rank, flat, mask=inside)


@triton.jit
def _among_best(order, is_node, size):
    """Mark which nodes are the `size` highest, of equal ones those that come first."""
    low = tl.min(tl.where(is_node, order, _HIGHEST), axis=0)
    high = tl.max(order, axis=0) + 1
    above_low = tl.sum(is_node.to(tl.int32), axis=0)  # or equal to it; above `high` are too few
    while (above_low > size) & (low + 1 < high):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        above = tl.sum((order >= middle).to(tl.int32), axis=0)
        is_low = above >= size
        low = tl.where(is_low, middle, low)
        above_low = tl.where(is_low, above, above_low)
        high = tl.where(is_low, high, middle)
    is_equal = order == low
    num_equal = size - tl.sum((order > low).to(tl.int32), axis=0)
    return (order > low) | (is_equal & (tl.cumsum(is_equal.to(tl.int32), axis=0) <= num_equal))


@triton.jit
def _either(one, is_one, other, is_other):
    return tl.where(is_other, tl.load(other, mask=is_other), tl.load(one, mask=is_one, other=0))


@triton.jit
def _total(x):
    return tl.sum(tl.sum(x, axis=1), axis=0)


@triton.jit
def ordered(x):
    """Turn reals into whole numbers of the same order."""
    x = tl.where(x == 0.0, 0.0, x)  # −0 and 0 are equal
    bits = x.to(tl.int64, bitcast=True)
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@triton.jit
def _real(order):
    return (order ^ ((order >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)
