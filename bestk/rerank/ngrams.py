"""Words and n-grams of texts, and how different a set of texts, or like one another two, are.

Words are lower-cased runs of letters and digits, with apostrophes and hyphens inside; punctuation
is no word. n-grams do not cross texts. How alike texts are goes by stems, which a reader takes for
the same word: "walks" and "walked", "two" and "2".
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Hashable, Sequence, Set

import torch
from torch import Tensor

ORDERS = (1, 2, 3)

_AT_ONCE = 4096  # members that are counted together: bounds the memory

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {name: str(value) for value, name in enumerate(_NUMBERS)}
_POSSESSIVE = re.compile(r"['’]s?$")
_ENDINGS = {"sses": "ss", "ies": "y", "ied": "y", "ing": "", "ed": "", "es": "", "s": ""}
_NO_PLURAL = ("ss", "us", "is")

_REPEATED = 8  # words that come twice, the second time at the end: a loop
_TIMES = 3  # that the same few words follow one another, wherever
_LEAST_NEW = 0.6  # of the 3-grams of a text that are different
_LEAST_WORDS = 12  # below which that share says nothing


def words(text: str) -> list[str]:
    """Split a text into words.

    >>> words("Don't stop, well-known Dog!")
    ["don't", 'stop', 'well-known', 'dog']
    """
    return _WORD.findall(text.lower())


@functools.lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return a word without its inflection, as far as English endings show it.

    >>> [stem(word) for word in ("dogs", "walking", "stopped", "carries", "bus", "two", "dog's")]
    ['dog', 'walk', 'stop', 'carry', 'bus', '2', 'dog']
    """
    word = _POSSESSIVE.sub("", _DIGITS.get(word, word))
    for ending, instead in _ENDINGS.items():
        rest = word.removesuffix(ending)
        if rest == word or len(rest) < 3 or not re.search("[aeiouy]", rest):
            continue
        if ending == "s" and word.endswith(_NO_PLURAL):
            break
        word = rest + instead
        if not instead and len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
            word = word[:-1]
        break
    return word.removesuffix("e") if len(word) > 3 else word


def stems(text: str) -> list[str]:
    """Split a text into words and return their stems.

    >>> stems("The DOGS chased 1,000 cats.")
    ['the', 'dog', 'chas', '1000', 'cat']
    """
    return [stem(word) for word in words(re.sub(r"(?<=\d),(?=\d{3})", "", text))]


def is_loop(text: str) -> bool:
    """Tell whether a text repeats itself: three times in a row, at its end, or all over.

    >>> [is_loop(text) for text in ("A mix of flour, flour, flour and love", "Flour on the floor")]
    [True, False]
    """
    row = words(text) or [mark for mark in text if not mark.isspace()]
    # The last word of a text that was cut may be half a word.
    return _has_run(row) or _ends_as_before(row) or _ends_as_before(row[:-1]) or _is_poor(row)


def _has_run(row: list[str]) -> bool:
    for length in range(1, min(_REPEATED, len(row) // _TIMES) + 1):
        same = 0  # words in a row that are as the one a length before
        for word, before in zip(row[length:], row, strict=False):
            # "0, 0, 0" is a list of numbers.
            same = same + 1 if word == before and not (length == 1 and word.isdecimal()) else 0
            if same == length * (_TIMES - 1):
                return True
    return False


def _ends_as_before(row: list[str]) -> bool:
    last = row[-_REPEATED:]
    starts = range(len(row) - _REPEATED)
    return any(row[i] == last[0] and row[i : i + _REPEATED] == last for i in starts)


def _is_poor(row: list[str]) -> bool:
    grams = ngrams(row, 3)
    return len(row) >= _LEAST_WORDS and len(set(grams)) < _LEAST_NEW * len(grams)


def ngrams(row: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """List the n-grams of a row of words."""
    return [tuple(row[start : start + n]) for start in range(len(row) - n + 1)]


def gram_sets(text: str) -> list[set[tuple[str, ...]]]:
    """Return the different 1-, 2- and 3-grams of a text's stems."""
    row = stems(text)
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
    """Return how much each two texts share: mean F1 of their sets of 1- and 2-grams.

    Words count by their stems. A text agrees with itself by 1; two texts of one word have no
    2-grams, and go by their words alone.

    >>> agreements(["a dog runs", "a dog sits"]).tolist()
    [[1.0, 0.5833333333333333], [0.5833333333333333, 1.0]]
    """
    return agreements_of([gram_sets(text) for text in texts])


def agreements_of(texts: Sequence[Sequence[Set[Hashable]]]) -> Tensor:
    """Do the same with texts whose sets of 1-grams, or of 1-grams and 2-grams, are there."""
    total = torch.zeros(len(texts), len(texts), dtype=torch.float64)
    orders = torch.zeros_like(total)
    for grams in itertools.islice(zip(*texts, strict=True), 2):
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
