"""Words and n-grams of texts, and how different a set of texts, or like one another two, are.

Words are lower-cased runs of letters and digits, with apostrophes and hyphens inside; punctuation
is no word. n-grams do not cross texts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence, Set

import torch
from torch import Tensor

ORDERS = (1, 2, 3)

_AT_ONCE = 4096  # members that are counted together: bounds the memory

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")


def words(text: str) -> list[str]:
    """Split a text into words.

    >>> words("Don't stop, well-known Dog!")
    ["don't", 'stop', 'well-known', 'dog']
    """
    return _WORD.findall(text.lower())


def ngrams(row: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """List the n-grams of a row of words."""
    return [tuple(row[start : start + n]) for start in range(len(row) - n + 1)]


def gram_sets(text: str) -> list[set[tuple[str, ...]]]:
    """Return the different 1-, 2- and 3-grams of a text."""
    row = words(text)
    return [set(ngrams(row, n)) for n in ORDERS]


def distinctness(texts: Sequence[str]) -> list[float]:
    """Return D-1, D-2 and D-3: different n-grams over the number of words.

    >>> distinctness(["a dog runs", "a dog sits"])
    [0.6666666666666666, 0.5, 0.3333333333333333]
    """
    rows = [words(text) for text in texts]
    total = sum(map(len, rows))
    if not total:
        return [0.0 for _ in ORDERS]
    return [len({gram for row in rows for gram in ngrams(row, n)}) / total for n in ORDERS]


def agreements(texts: Sequence[str]) -> Tensor:
    """Return how much each two texts share: mean F1 of their sets of 1- and 2-grams; 1 to itself.

    Two texts of one word have no 2-grams, and go by their words alone.

    >>> agreements(["a dog runs", "a dog sits"]).tolist()
    [[1.0, 0.5833333333333333], [0.5833333333333333, 1.0]]
    """
    return agreements_of([gram_sets(text) for text in texts])


def agreements_of(texts: Sequence[Sequence[Set[Hashable]]]) -> Tensor:
    """Do the same with texts whose sets of 1-grams, 2-grams and so on are there already."""
    total = torch.zeros(len(texts), len(texts), dtype=torch.float64)
    orders = torch.zeros_like(total)
    for n in (0, 1):
        grams = [sets[n] for sets in texts]
        sizes = torch.tensor([len(found) for found in grams], dtype=torch.float64)
        both = sizes + sizes[:, None]
        total += 2 * shared_counts(grams) / both.clamp(min=1)
        orders += both > 0
    return (total / orders.clamp(min=1)).fill_diagonal_(1.0)


def shared_counts(sets: Sequence[Set[Hashable]]) -> Tensor:
    """Count what each two sets have in common.

    >>> shared_counts([{1, 2}, {2, 3}, {4}]).tolist()
    [[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
    """
    holders: dict[Hashable, list[int]] = defaultdict(list)
    for place, members in enumerate(sets):
        for member in members:
            holders[member].append(place)
    several = [places for places in holders.values() if len(places) > 1]
    shared = torch.zeros(len(sets), len(sets))  # whole numbers: exact
    for start in range(0, len(several), _AT_ONCE):
        block = several[start : start + _AT_ONCE]
        columns = [column for column, places in enumerate(block) for _ in places]
        holds = torch.zeros(len(sets), len(block))
        holds[[place for places in block for place in places], columns] = 1.0
        shared += holds @ holds.T
    shared.fill_diagonal_(0.0)
    return shared.double() + torch.tensor([float(len(members)) for members in sets]).diag()
