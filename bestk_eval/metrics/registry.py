"""Builds metrics by family name, and keeps the reason for each that could not be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bestk import LanguageModel
from bestk.errors import MissingDataError, MissingExtraError, OptionError, unknown
from bestk_eval.metrics.base import Metric
from bestk_eval.metrics.basic import Counts, SearchCost
from bestk_eval.metrics.bleu import CorpusBleu, SentenceBleu
from bestk_eval.metrics.grammar import DEFAULT_MODEL, Grammar
from bestk_eval.metrics.mauve import Mauve
from bestk_eval.metrics.overlap import Distinct, SelfBleu
from bestk_eval.metrics.rouge import Rouge
from bestk_eval.metrics.wordnet import Coverage, Meteor

FAMILIES: dict[str, Callable[[MetricModels], Metric]] = {
    "counts": lambda models: Counts(),
    "distinct": lambda models: Distinct(),
    "self-bleu": lambda models: SelfBleu(),
    "rouge": lambda models: Rouge(),
    "meteor": lambda models: Meteor(),
    "bleu": lambda models: CorpusBleu(),
    "sentence-bleu": lambda models: SentenceBleu(),
    "coverage": lambda models: Coverage(),
    "grammar": lambda models: Grammar(models.grammar or DEFAULT_MODEL),
    "mauve": lambda models: Mauve(models.mauve),
    "cost": lambda models: SearchCost(),
}


@dataclass(frozen=True, kw_only=True)
class MetricModels:
    """The models that some metrics look through."""

    grammar: str | None = None  # the default of the metric
    mauve: str | LanguageModel | None = None


@dataclass(frozen=True, kw_only=True)
class MetricSet:
    """The metrics that could be built, and why the others could not."""

    built: tuple[Metric, ...]
    left_out: dict[str, str] = field(default_factory=dict)


def build(families: Sequence[str] | None = None, models: MetricModels | None = None) -> MetricSet:
    """Build metrics; one whose package or data is missing is left out by name.

    Models are loaded when they are first needed: one that is missing is found out by then.
    """
    built: list[Metric] = []
    left_out: dict[str, str] = {}
    for family in FAMILIES if families is None else families:
        if family not in FAMILIES:
            raise OptionError(unknown("metric", family, FAMILIES))
        try:
            built.append(FAMILIES[family](models or MetricModels()))
        except (MissingExtraError, MissingDataError) as error:
            left_out[family] = str(error)
    return MetricSet(built=tuple(built), left_out=left_out)
