"""Self-BLEU: how much each text of a set repeats the others (Zhu et al., 2018). Lower is better.

The mean over texts of its sentence BLEU against all other texts of the set as references. A set of
fewer than two texts has no self-BLEU. Quadratic in the texts, so at most 50 of a set, the best by
rank, are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from bestk_eval.examples import Pool
from bestk_eval.extras import require
from bestk_eval.metrics.base import Column, SetMetric
from bestk_eval.metrics.bleu import sign

MAX_TEXTS = 50


class SelfBleu(SetMetric):
    """Self-BLEU of a set."""

    family = "self-bleu"
    columns = (Column(key="sfBLEU", title="self-BLEU of the texts", group="Diversity", better=-1),)

    def __init__(self) -> None:
        self._bleu = require("sacrebleu.metrics", "sacrebleu").BLEU(effective_order=True)

    @property
    def signature(self) -> str:
        return f"self-{sign(self._bleu)}|texts:{MAX_TEXTS}"

    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        texts = pool.chosen(view, top)[:MAX_TEXTS]
        if len(texts) < 2:
            return [float("nan")]
        scores = [
            self._bleu.sentence_score(text, texts[:place] + texts[place + 1 :]).score
            for place, text in enumerate(texts)
        ]
        return [sum(scores) / len(scores)]
