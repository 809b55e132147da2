"""GPU kernels in Triton that pick the likeliest tokens from logits, in two launches.

The vocabulary is read once, in pieces: each gives its likeliest tokens and its share of the sum
that makes log-probabilities; a second kernel merges the pieces. A logit and its token are compared
as one whole number, the logit's bits before the token's, so that of equal logits the lowest id
comes first.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from bestk.backends.base import Children

# With more children, sorting is the better way.
MOST_CHILDREN = 32
_PIECE = 4096


def can_pick(num_children: int) -> bool:
    """Say whether the kernels are for this many children; BESTK_CHILDREN=torch says never."""
    return 0 < num_children <= MOST_CHILDREN and os.environ.get("BESTK_CHILDREN") != "torch"


def top_children(logits: Tensor, num_children: int) -> Children:
    """Pick the likeliest tokens, as `bestk.backends.base.top_children` does."""
    rows = logits.flatten(0, -2).contiguous()
    count, vocab = rows.shape
    pieces = triton.cdiv(vocab, _PIECE)
    keys = rows.new_empty(count, pieces, num_children, dtype=torch.int64)
    sums = rows.new_empty(count, pieces, 2, dtype=torch.float32)
    _pick[(count, pieces)](rows, keys, sums, vocab, pieces, num_children, block=_PIECE, num_warps=8)
    token = rows.new_empty(count, num_children, dtype=torch.int64)
    log_prob = rows.new_empty(count, num_children, dtype=torch.float32)
    _merge[(count,)](
        keys, sums, token, log_prob, pieces, num_children,
        block=triton.next_power_of_2(pieces * num_children),
        block_pieces=triton.next_power_of_2(pieces),
        num_warps=4,
    )  # fmt: skip
    shape = (*logits.shape[:-1], num_children)
    return Children(token.view(shape), log_prob.view(shape))


@triton.jit
def _pick(logits, keys, sums, vocab, pieces, num_children, block: tl.constexpr):
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = piece * block + tl.arange(0, block)
    inside = token < vocab
    x = tl.load(logits + row * vocab + token, mask=inside, other=float("-inf")).to(tl.float32)
    at = row * pieces + piece
    best = tl.max(x, axis=0)
    best = tl.where(best == float("-inf"), 0.0, best)  # nothing but −inf sums to 0
    tl.store(sums + at * 2, best)
    tl.store(sums + at * 2 + 1, tl.sum(tl.exp(x - best), axis=0))

    x = tl.where(x == 0.0, 0.0, x)  # −0 and 0 are equal
    bits = x.to(tl.int32, bitcast=True)
    # Negative numbers have their bits turned, so that whole numbers are in the order of the reals.
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    key = order * 4294967296 + (0x7FFFFFFF - token)
    key = tl.where(inside, key, -9223372036854775807)
    for child in range(num_children):
        highest = tl.max(key, axis=0)
        tl.store(keys + at * num_children + child, highest)
        key = tl.where(key == highest, -9223372036854775807, key)


@triton.jit
def _merge(
    keys, sums, token, log_prob, pieces, num_children,
    block: tl.constexpr, block_pieces: tl.constexpr,
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

    index = tl.arange(0, block)
    key = tl.load(
        keys + row * pieces * num_children + index,
        mask=index < pieces * num_children, other=-9223372036854775807,
    )  # fmt: skip
    for child in range(num_children):
        top = tl.max(key, axis=0)
        key = tl.where(key == top, -9223372036854775807, key)
        order = (top >> 32).to(tl.int32)
        value = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        tl.store(token + row * num_children + child, 0x7FFFFFFF - (top & 0x7FFFFFFF))
        tl.store(log_prob + row * num_children + child, value - total)
