"""METEOR by nltk with WordNet: exact, stemmed and synonym matches, best reference.

Tokens are nltk's word tokens of the whole text as one line, lower-cased: no sentence model needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from bestk_eval.examples import Example
from bestk_eval.extras import require
from bestk_eval.metrics.base import Column, TextMetric
from bestk_eval.metrics.wordnet import wordnet
from bestk_eval.statistics import Numbers


class Meteor(TextMetric):
    """Mean METEOR of a set."""

    family = "meteor"
    is_slow = True
    scores = ("meteor",)
    columns = (
        Column(key="MTR", title="METEOR, mean", group="Quality"),
        Column(key="OMTR", title="METEOR, best text", group="Oracle", latex="MTR"),
    )

    def __init__(self) -> None:
        self._meteor = require("nltk.translate.meteor_score", "nltk").meteor_score
        self._tokenize = require("nltk.tokenize", "nltk").word_tokenize
        self._wordnet = wordnet()

    @property
    def signature(self) -> str:
        return (
            f"meteor|tok:nltk-words|case:lower|refs:best|wordnet:{self._wordnet.get_version()}"
            f"|nltk:{version('nltk')}"
        )

    def score(self, texts: Sequence[str], example: Example) -> Numbers:
        references = [self._tokens(text) for text in example.references]
        rows = [
            [100 * self._meteor(references, self._tokens(text), wordnet=self._wordnet)]
            for text in texts
        ]
        return np.array(rows, dtype=np.float64).reshape(-1, 1)

    def summarise(self, mean: Numbers, best: Numbers) -> Sequence[float]:
        return [float(mean[0]), float(best[0])]

    def _tokens(self, text: str) -> Any:
        return self._tokenize(text, preserve_line=True)
