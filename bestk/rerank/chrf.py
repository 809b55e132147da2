"""chrF of every text with every other as the reference, at once.

The numbers are those of sacrebleu's `CHRF().sentence_score`: n-grams of one to six characters
without spaces, β = 2, orders that one of the two texts is too short for left out. One call of it
for each of n² pairs takes seconds where n-grams counted together take milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from bestk.rerank.ngrams import shared_counts

ORDER = 6
BETA = 2


def chrf_of_pairs(texts: Sequence[str]) -> Tensor:
    """Return the chrF of text i (row) with text j (column) as the reference, from 0 to 100."""
    rows = ["".join(text.split()) for text in texts]
    precision = torch.zeros(len(texts), len(texts), dtype=torch.float64)
    recall, orders = torch.zeros_like(precision), torch.zeros_like(precision)
    for n in range(1, ORDER + 1):
        shared = shared_counts([_numbered(row, n) for row in rows])
        sizes = torch.tensor([max(len(row) - n + 1, 0) for row in rows], dtype=torch.float64)
        precision += shared / sizes[:, None].clamp(min=1)
        recall += shared / sizes.clamp(min=1)
        orders += (sizes[:, None] > 0) & (sizes > 0)
    precision, recall = precision / orders.clamp(min=1), recall / orders.clamp(min=1)
    weighted = BETA**2 * precision + recall
    return 100 * (1 + BETA**2) * precision * recall / weighted.clamp(min=1e-300)


def _numbered(row: str, n: int) -> set[tuple[str, int]]:
    """List the n-grams of a row, the second of a kind apart from the first: a set counts them."""
    found: Counter[str] = Counter()
    numbered = set()
    for start in range(len(row) - n + 1):
        gram = row[start : start + n]
        numbered.add((gram, found[gram]))
        found[gram] += 1
    return numbered
