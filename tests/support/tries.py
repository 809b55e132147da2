"""Random catalogues, and what a pencil says of them: every item with its probability."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

from bestk.backends.toy import ToyBackend

Ids = tuple[int, ...]


def random_rows(
    seed: int, vocab_size: int, *, depth: int = 4, most: int = 40, is_fixed: bool = False
) -> list[Ids]:
    """Make different sequences, some of which begin others unless all are of one length."""
    rng = random.Random(seed)
    lengths = [depth] if is_fixed else range(1, depth + 1)
    rows = {
        tuple(rng.randrange(vocab_size) for _ in range(rng.choice(lengths)))
        for _ in range(rng.randint(1, most))
    }
    return rng.sample(sorted(rows), len(rows))


def item_scores(
    model: ToyBackend,
    prompt: Ids,
    rows: Sequence[Ids],
    *,
    without: Collection[int] = (),
    bias: Sequence[float] | None = None,
    renormalize: bool = False,
) -> dict[int, float]:
    """Score every row that the model can write: log p, and what is added to it."""
    left = [ids for row, ids in enumerate(rows) if row not in without]
    left = [ids for ids in left if bias is None or bias[rows.index(ids)] > -math.inf]
    allowed: dict[Ids, set[int]] = {}
    for ids in left:
        for length, token in enumerate(ids):
            allowed.setdefault(ids[:length], set()).add(token)
    scores = {}
    for ids in left:
        total = 0.0
        for length, token in enumerate(ids):
            log_probs = model.log_probs(prompt + ids[:length])
            total += log_probs[token]
            if renormalize:
                siblings = sum(math.exp(log_probs[other]) for other in allowed[ids[:length]])
                total -= math.log(siblings) if siblings else 0.0
        row = rows.index(ids)
        if total > -math.inf:
            scores[row] = total + (0.0 if bias is None else bias[row])
    return scores
