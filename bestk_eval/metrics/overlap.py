"""How different the texts of an example are: distinct n-grams, and self-BLEU.

Distinctness is the paper's D-1, D-2 and D-3 and their mean. `bestk.rerank.ngrams` says what a word
is; the divisor is the number of words, not of n-grams, for every n.

Self-BLEU (Zhu et al., 2018) is how much each text repeats the others: the mean over texts of its
sentence BLEU against all other texts of the set as references. Lower is better. A set of fewer than
two texts has none. Quadratic in the texts, so at most 50 of a set, the best by rank, are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from bestk import __version__
from bestk.rerank.ngrams import ORDERS, distinctness
from bestk_eval.examples import Pool
from bestk_eval.extras import require
from bestk_eval.metrics.base import Column, SetMetric
from bestk_eval.metrics.bleu import sign

MAX_TEXTS = 50


class Distinct(SetMetric):
    """D-n in percent; a set without words has 0."""

    family = "distinct"
    signature = f"distinct|n:1-3|words:lower,inner-apostrophe|per:word|v:{__version__}"
    columns = (
        *(
            Column(key=f"D-{n}", title=f"different {n}-grams per word, %", group="Diversity")
            for n in ORDERS
        ),
        Column(
            key="D", title="mean of D-1, D-2, D-3", group="Diversity", latex=r"$\overline{\rm D}$"
        ),
    )

    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        values = [100 * value for value in distinctness(pool.chosen(view, top))]
        return [*values, sum(values) / len(values)]


class SelfBleu(SetMetric):
    """Self-BLEU of a set."""

    family = "self-bleu"
    columns = (Column(key="sfBLEU", title="self-BLEU of the texts", group="Diversity", better=-1),)

    def __init__(self) -> None:
        self._bleu = require("sacrebleu.metrics", "sacrebleu").BLEU(effective_order=True)
        self.signature = f"self-{sign(self._bleu)}|texts:{MAX_TEXTS}"

    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        texts = pool.chosen(view, top)[:MAX_TEXTS]
        if len(texts) < 2:
            return [float("nan")]
        scores = [
            self._bleu.sentence_score(text, texts[:place] + texts[place + 1 :]).score
            for place, text in enumerate(texts)
        ]
        return [sum(scores) / len(scores)]
