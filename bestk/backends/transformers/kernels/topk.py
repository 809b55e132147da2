"""GPU kernels in Triton that pick the likeliest tokens from logits, in two launches.

The first reads the vocabulary once: of every few neighbouring tokens it keeps the likeliest, and of
every piece its share of the sum that makes log-probabilities. The n likeliest tokens can only be
among the n neighbourhoods whose likeliest token is highest, so the second looks at those alone. A
logit and its token are compared as one whole number, the logit's bits before the token's, so that
of equal logits the lowest id comes first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bestk.nodes import Children

# With more children, sorting is the better way.
MOST_CHILDREN = 32
_PIECE = 2048
_NEAR = tl.constexpr(64)  # tokens of a neighbourhood
_NOTHING = tl.constexpr(-9223372036854775807)  # below the key of any token


def top_children(logits: Tensor, num_children: int) -> Children:
    """Pick the likeliest tokens, as `bestk.backends.children.top_children` does."""
    rows = logits.flatten(0, -2)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    count, vocab = rows.shape
    assert num_children <= vocab
    pieces, places = triton.cdiv(vocab, _PIECE), triton.cdiv(vocab, _NEAR.value)
    keys = rows.new_empty(count, places, dtype=torch.int64)
    sums = rows.new_empty(count, pieces, 2, dtype=torch.float32)
    _survey[(count, pieces)](
        rows, keys, sums, rows.stride(0), vocab, pieces, places,
        block=_PIECE, num_warps=4,
    )  # fmt: skip
    token = rows.new_empty(count, num_children, dtype=torch.int64)
    log_prob = rows.new_empty(count, num_children, dtype=torch.float32)
    _pick[(count,)](
        rows, keys, sums, token, log_prob, rows.stride(0), vocab, pieces, places, num_children,
        block_children=triton.next_power_of_2(num_children),
        block_places=triton.next_power_of_2(places),
        block_pieces=triton.next_power_of_2(pieces),
        num_warps=4,
    )  # fmt: skip
    shape = (*logits.shape[:-1], num_children)
    return Children(token.view(shape), log_prob.view(shape))


@triton.jit
def _survey(
    logits, keys, sums, row_stride, vocab, pieces, places,
    block: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = piece * block + tl.arange(0, block)
    inside = token < vocab
    x = tl.load(logits + row * row_stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    best = tl.max(x, axis=0)
    best = tl.where(best == float("-inf"), 0.0, best)  # nothing but −inf sums to 0
    at = row * pieces + piece
    tl.store(sums + at * 2, best)
    tl.store(sums + at * 2 + 1, tl.sum(tl.exp(x - best), axis=0))

    key = tl.where(inside, _key(x, token), _NOTHING)
    highest = tl.max(tl.reshape(key, [block // _NEAR, _NEAR]), axis=1)
    place = piece * (block // _NEAR) + tl.arange(0, block // _NEAR)
    tl.store(keys + row * places + place, highest, mask=place < places)


@triton.jit
def _pick(
    logits, keys, sums, token, log_prob, row_stride, vocab, pieces, places, num_children,
    block_children: tl.constexpr, block_places: tl.constexpr,
    block_pieces: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, block_pieces)
    is_piece = piece < pieces
    best = tl.load(sums + (row * pieces + piece) * 2, mask=is_piece, other=float("-inf"))
    share = tl.load(sums + (row * pieces + piece) * 2 + 1, mask=is_piece, other=0.0)
    # A piece of nothing but −inf says 0, which must not stand for its highest logit.
    best = tl.where(share == 0.0, float("-inf"), best)
    highest = tl.max(best, axis=0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = highest + tl.log(
        tl.sum(tl.where(is_piece, share * tl.exp(best - highest), 0.0), axis=0)
    )
    total = tl.where(total == float("-inf"), 0.0, total)

    place = tl.arange(0, block_places)
    key = tl.load(keys + row * places + place, mask=place < places, other=_NOTHING)
    lane = tl.arange(0, block_children)
    chosen = tl.full([block_children], -1, tl.int32)
    for child in range(num_children):
        top = tl.max(key, axis=0)
        key = tl.where(key == top, _NOTHING, key)
        where = tl.where(top == _NOTHING, -1, _token(top) // _NEAR)  # there may be fewer places
        chosen = tl.where(lane == child, where.to(tl.int32), chosen)

    near = chosen[:, None] * _NEAR + tl.arange(0, _NEAR)[None, :]
    is_token = (chosen[:, None] >= 0) & (near < vocab)
    x = tl.load(logits + row * row_stride + near, mask=is_token, other=float("-inf"))
    near_key = tl.where(is_token, _key(x.to(tl.float32), near), _NOTHING)
    near_key = tl.reshape(near_key, [block_children * _NEAR])
    for child in range(num_children):
        top = tl.max(near_key, axis=0)
        near_key = tl.where(near_key == top, _NOTHING, near_key)
        order = (top >> 32).to(tl.int32)
        value = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        tl.store(token + row * num_children + child, _token(top))
        tl.store(log_prob + row * num_children + child, value - total)


@triton.jit
def _key(x, token):
    """Turn logits and their tokens into whole numbers of the same order."""
    x = tl.where(x == 0.0, 0.0, x)  # −0 and 0 are equal
    bits = x.to(tl.int32, bitcast=True)
    # Negative numbers have their bits turned, so that whole numbers are in the order of the reals.
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return order * 4294967296 + (0x7FFFFFFF - token)


@triton.jit
def _token(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)
