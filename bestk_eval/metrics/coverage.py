"""Coverage of concepts: the share of the words asked for that a text has, as in CommonGen.

A concept is there when a word of the text has it as a base form by WordNet's `morphy` (noun, verb
or adjective: "ran" has run, "leaves" has leaf and leave), or is the concept itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from bestk.rerank.ngrams import words
from bestk_eval.examples import Example
from bestk_eval.metrics.base import Column, TextMetric
from bestk_eval.metrics.wordnet import wordnet
from bestk_eval.statistics import Numbers


class Coverage(TextMetric):
    """Share of an example's `concepts` in a text; other tasks have none and no such number."""

    family = "coverage"
    scores = ("coverage",)
    columns = (
        Column(key="COV", title="% of concepts covered, mean", group="Quality"),
        Column(key="OCOV", title="% of concepts covered, best text", group="Oracle", latex="COV"),
    )
    is_needed: Callable[[Example], bool] = staticmethod(
        lambda example: bool(example.fields.get("concepts"))
    )

    def __init__(self) -> None:
        self._version = wordnet().get_version()

    @property
    def signature(self) -> str:
        return f"coverage|lemmas:morphy-nva|wordnet:{self._version}"

    def score(self, texts: Sequence[str], example: Example) -> Numbers:
        concepts = [str(concept) for concept in example.fields["concepts"]]
        rows = [[100 * coverage(text, concepts)] for text in texts]
        return np.array(rows, dtype=np.float64).reshape(-1, 1)

    def summarise(self, mean: Numbers, best: Numbers) -> Sequence[float]:
        return [float(mean[0]), float(best[0])]


def coverage(text: str, concepts: Sequence[str]) -> float:
    """Return the share of concepts that a text has."""
    there = {form for word in words(text) for form in base_forms(word)}
    return sum(bool(base_forms(concept.lower()) & there) for concept in concepts) / len(concepts)


@lru_cache(maxsize=100_000)
def base_forms(word: str) -> frozenset[str]:
    """Return a word with its base forms."""
    found = (form for pos in "nva" for form in wordnet()._morphy(word, pos))
    return frozenset([word, *found])
