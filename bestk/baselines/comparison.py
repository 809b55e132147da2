"""Methods side by side on one prompt: how many texts, how different, how long it took.

`compare` runs them one after the other; how the rows look is in `viz/comparison.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bestk.baselines.methods import METHODS, check_method, run_method
from bestk.config import DIVERSITY, SearchConfig
from bestk.errors import OptionError
from bestk.lm.language_model import LanguageModel, Prompt
from bestk.rerank.ngrams import ORDERS, distinctness
from bestk.rerank.select import check_selection, narrow
from bestk.result import Hypothesis, SearchResult

COMPARED = ("BKS_mean", "BKS_last", "BS", "DBS", "BNcls0.8", "Ncls0.8", "Typ0.5")
NUM_TEXTS = 10  # as many as a beam gives, so that no method is measured on more


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """What one method found; distinctness is that of its `num_texts` best or most diverse texts."""

    method: str
    result: SearchResult
    num_texts: int = NUM_TEXTS
    select: str | None = None
    diversity: float = DIVERSITY

    @functools.cached_property
    def chosen(self) -> Sequence[Hypothesis]:
        """The texts that are shown and measured."""
        return narrow(self.result, self.num_texts, self.select, diversity=self.diversity).hypotheses

    @property
    def texts(self) -> list[str]:
        """Return the chosen texts as strings."""
        return [hypothesis.text for hypothesis in self.chosen]

    @property
    def likelihood(self) -> float:
        """Return how likely the model finds a token of the chosen texts, on average, in percent."""
        shares = [math.exp(one.log_prob / max(one.num_tokens, 1)) for one in self.chosen]
        return 100 * sum(shares) / max(len(shares), 1)

    @property
    def distinct(self) -> float:
        """Return the mean of D-1, D-2 and D-3, in percent."""
        return 100 * sum(distinctness(self.texts)) / len(ORDERS)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "method": self.method,
            "found": len(self.result.raw),
            "unique": len(self.result.hypotheses),
            "complete": self.result.num_completions,
            "distinct": self.distinct,
            "likelihood": self.likelihood,
            "expanded": self.result.cost.expanded,
            "seconds": self.result.cost.seconds,
            "texts": self.texts,
            "signature": self.result.signature,
        }


def compare(
    lm: LanguageModel,
    prompt: Prompt,
    methods: Sequence[str] | None = None,
    config: SearchConfig | None = None,
    *,
    raw: bool = False,
    seed: int = 0,
    num_texts: int = NUM_TEXTS,
    select: str | None = None,
    diversity: float = DIVERSITY,
) -> Iterator[ComparedRow]:
    """Run methods on one prompt at an equal budget, and yield each as it ends.

    Without `methods` those of `COMPARED` that can run with the settings are taken.
    Of each `num_texts` are shown and measured: the best, or with `select="diverse"` the diverse,
    which differ by `diversity`. The model is warmed up first, so that no method pays for it.
    """
    check_selection(select, diversity, num_texts)
    config = config or SearchConfig()
    names = list(METHODS) if methods is not None and list(methods) == ["all"] else methods
    if names is None:
        unable = {name for members in left_out(config).values() for name in members}
        names = [name for name in COMPARED if name not in unable]
    for name in names:
        check_method(name, config)  # what cannot run costs no other's time
    run_method(lm, prompt, "BS", raw=raw, beam_size=1, max_new_tokens=2, k=1)
    for name in names:
        result = run_method(lm, prompt, name, config, raw=raw, seed=seed)
        yield ComparedRow(
            method=name, result=result, num_texts=num_texts, select=select, diversity=diversity
        )


def left_out(config: SearchConfig) -> dict[str, list[str]]:
    """Return why methods of `COMPARED` cannot run with the settings, and which."""
    reasons: dict[str, list[str]] = {}
    for name in COMPARED:
        try:
            check_method(name, config)
        except OptionError as error:
            reasons.setdefault(str(error), []).append(name)
    return reasons
