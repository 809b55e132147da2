"""Grammaticality: the probability that a CoLA classifier gives to a text being acceptable.

The classifier is any that `cola.py` loads, by default the one that the paper's source for this
metric used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from bestk_eval.examples import Example
from bestk_eval.metrics.base import Column, TextMetric
from bestk_eval.metrics.cola import ACCEPTABLE, load_cola
from bestk_eval.statistics import Numbers

DEFAULT_MODEL = "textattack/roberta-base-CoLA"

_BATCH = 32


class Grammar(TextMetric):
    """Mean probability of being acceptable."""

    family = "grammar"
    is_slow = True
    columns = (Column(key="GRM", title="P(acceptable) by a CoLA model, mean", group="Quality"),)
    is_needed: Callable[[Example], bool] = staticmethod(lambda example: True)

    def __init__(self, model: str = DEFAULT_MODEL) -> None:
        self.name = model
        self.signature = f"grammar|model:{model}|score:p-acceptable"
        self._known: dict[str, float] = {}

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        # When it is first needed: where all scores are kept, it never is.
        return load_cola(self.name)

    def score(self, texts: Sequence[str], example: Example) -> Sequence[Sequence[float]]:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        for start in range(0, len(new), _BATCH):
            batch = new[start : start + _BATCH]
            self._known.update(zip(batch, self._classify(batch), strict=True))
        return [[100 * self._known[text]] for text in texts]

    def summarise(self, mean: Numbers, best: Numbers) -> Sequence[float]:
        return [float(mean[0])]

    def _classify(self, texts: list[str]) -> list[float]:
        import torch

        tokenizer, model = self._loaded
        limit = min(getattr(tokenizer, "model_max_length", 512), 512)
        encoded = tokenizer(
            texts, padding=True, truncation=True, max_length=limit, return_tensors="pt"
        )
        with torch.no_grad():
            logits = model(**encoded.to(model.device)).logits
        probabilities: list[float] = logits.float().softmax(dim=-1)[:, ACCEPTABLE].tolist()
        return probabilities
