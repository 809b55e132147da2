"""BLEU and chrF by sacrebleu: of each text in a set, and of the corpus of best texts.

Sets have the mean of sentence scores (BLEU with effective order, as sacrebleu advises for
sentences). `BLEU` and `chrF` are the usual corpus scores of every example's first text, an example
without texts counting as an empty line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bestk_eval.examples import Example, Pool
from bestk_eval.extras import require
from bestk_eval.metrics.base import Column, CorpusMetric, TextMetric
from bestk_eval.statistics import Resample


class SentenceBleu(TextMetric):
    """Sentence BLEU and chrF, mean and best of a set."""

    family = "sentence-bleu"
    columns = (
        Column(key="sBLEU", title="sentence BLEU, mean", group="Quality"),
        Column(key="sChrF", title="sentence chrF, mean", group="Quality"),
        Column(key="OsBLEU", title="sentence BLEU, best text", group="Oracle", latex="sBLEU"),
        Column(key="OsChrF", title="sentence chrF, best text", group="Oracle", latex="sChrF"),
    )

    def __init__(self) -> None:
        sacrebleu = require("sacrebleu.metrics", "sacrebleu")
        self._metrics = [sacrebleu.BLEU(effective_order=True), sacrebleu.CHRF()]
        self.signature = "sentence-" + " + ".join(map(sign, self._metrics))

    def score(self, texts: Sequence[str], example: Example) -> Sequence[Sequence[float]]:
        references = list(example.references)
        return [[m.sentence_score(text, references).score for m in self._metrics] for text in texts]


class CorpusBleu(CorpusMetric):
    """Corpus BLEU and chrF of the first text of every example."""

    family = "bleu"
    columns = (
        Column(key="BLEU", title="corpus BLEU of the first texts", group="Quality"),
        Column(key="chrF", title="corpus chrF of the first texts", group="Quality"),
    )

    def __init__(self) -> None:
        sacrebleu = require("sacrebleu.metrics", "sacrebleu")
        self._metrics = [sacrebleu.BLEU(), sacrebleu.CHRF()]
        self.signature = "corpus-" + " + ".join(map(sign, self._metrics))

    def score(self, pools: Sequence[Pool], view: str, top: int) -> Sequence[Resample | float]:
        has_references = np.array([bool(pool.example.references) for pool in pools])
        if not has_references.any():
            return [float("nan")] * len(self._metrics)
        kept = [pool for pool in pools if pool.example.references]
        firsts = [pool.texts[0] if pool.texts else "" for pool in kept]
        references = streams([pool.example.references for pool in kept])
        return [_resample(m, firsts, references, has_references) for m in self._metrics]


def streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Turn references by example into sacrebleu's streams; None where an example has fewer.

    >>> streams([["a", "b"], ["c"]])
    [['a', 'c'], ['b', None]]
    """
    most = max(map(len, references))
    return [[row[i] if i < len(row) else None for row in references] for i in range(most)]


def sign(metric: Any) -> str:
    """Return sacrebleu's own signature with the metric's name; all references are used."""
    if getattr(metric, "num_refs", None) is None:  # sacrebleu knows it once it has scored something
        metric.corpus_score(["word"], [["word"]])
    settings = metric.get_signature().info | {"nrefs": "all"}
    name = type(metric).__name__.lower()
    return name + "|" + "|".join(f"{k}:{v}" for k, v in settings.items() if v is not None)


def _resample(
    metric: Any,
    texts: list[str],
    references: list[list[str | None]],
    has_references: NDArray[np.bool_],
) -> Resample:
    # What sacrebleu's own paired tests do: count once per sentence, add up per sample.
    counted = np.array(metric._extract_corpus_statistics(texts, references), dtype=np.float64)
    counts = np.zeros((len(has_references), counted.shape[1]))
    counts[has_references] = counted

    def score(rows: NDArray[np.int64] | None) -> float:
        total = counts.sum(axis=0) if rows is None else counts[rows].sum(axis=0)
        return float(metric._compute_score_from_stats(total.tolist()).score)

    return score
