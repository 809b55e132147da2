"""The paper's methods by name, and `run_method`, which runs any of them on prompts.

Names are the paper's: BS, DBS, DBS+, Ncls0.8, Typ0.5, BNcls0.8, BTyp0.5, BFS, BKS_mean, BKS_last. A
number in a name may be any other; BKS is best-k search with whatever scoring the settings have.
Knows no algorithm.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bestk.api import Batch, best_first, search
from bestk.baselines.base import Method
from bestk.baselines.beam import Beam
from bestk.baselines.filters import Nucleus, Typical
from bestk.baselines.sampling import Sampling
from bestk.config import SearchConfig
from bestk.errors import OptionError, unknown
from bestk.lm.language_model import LanguageModel, Prompt, is_batch
from bestk.result import SearchResult


@dataclass(frozen=True, kw_only=True)
class BestK:
    """Best-k search with a scoring of its own, or (None) the one in the settings."""

    scoring: str | None = None

    def run(
        self,
        lm: LanguageModel,
        prompts: Sequence[Any],
        config: SearchConfig,
        *,
        seed: int = 0,
        keep_tree: bool = True,
    ) -> list[SearchResult]:
        """Return the texts of one batch of prompts; nothing is random."""
        if self.scoring is not None:
            config = dataclasses.replace(config, scoring=self.scoring, length_alpha=None)
        results: list[SearchResult] = search(
            lm, list(prompts), config, batch_size=len(prompts), keep_tree=keep_tree
        )
        return results

    def describe(self) -> str:
        """Write the settings as fields of a signature."""
        return "method:best-k" + (f"|score:{self.scoring}" if self.scoring else "")


@dataclass(frozen=True, kw_only=True)
class BestFirst:
    """Vanilla best-first search, Algorithm 1 of the paper."""

    def run(
        self,
        lm: LanguageModel,
        prompts: Sequence[Any],
        config: SearchConfig,
        *,
        seed: int = 0,
        keep_tree: bool = True,
    ) -> list[SearchResult]:
        """Return the texts of one batch of prompts; nothing is random."""
        results: list[SearchResult] = best_first(
            lm, list(prompts), config, batch_size=len(prompts), keep_tree=keep_tree
        )
        return results

    def describe(self) -> str:
        """Write the settings as fields of a signature."""
        return "method:best-first"


METHODS: dict[str, Method] = {
    "BS": Beam(),
    "DBS": Beam(num_groups=5),
    "DBS+": Beam(num_groups=10),
    "Ncls0.5": Sampling(filter=Nucleus(0.5)),
    "Ncls0.8": Sampling(filter=Nucleus(0.8)),
    "Ncls0.9": Sampling(filter=Nucleus(0.9)),
    "Typ0.2": Sampling(filter=Typical(0.2)),
    "Typ0.5": Sampling(filter=Typical(0.5)),
    "Typ0.95": Sampling(filter=Typical(0.95)),
    "BNcls0.5": Beam(filter=Nucleus(0.5)),
    "BNcls0.8": Beam(filter=Nucleus(0.8)),
    "BNcls0.9": Beam(filter=Nucleus(0.9)),
    "BTyp0.2": Beam(filter=Typical(0.2)),
    "BTyp0.5": Beam(filter=Typical(0.5)),
    "BTyp0.95": Beam(filter=Typical(0.95)),
    "BFS": BestFirst(),
    "BKS_mean": BestK(scoring="mean"),
    "BKS_last": BestK(scoring="last"),
}

BATCH_SIZE = 8  # prompts run side by side

_FAMILIES: dict[str, Callable[[float], Method]] = {
    "ncls": lambda p: Sampling(filter=Nucleus(p)),
    "typ": lambda p: Sampling(filter=Typical(p)),
    "bncls": lambda p: Beam(filter=Nucleus(p)),
    "btyp": lambda p: Beam(filter=Typical(p)),
}


def run_method(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    method: str | Method = "BKS_mean",
    config: SearchConfig | None = None,
    *,
    seed: int = 0,
    num_draws: int | None = None,
    batch_size: int = BATCH_SIZE,
    keep_tree: bool = True,
    **options: Any,
) -> Any:
    """Run a method: one result for a prompt, a list of them for a list of prompts.

    `options` are the fields of `SearchConfig`: `beam_size` is the number of beams, the budget that
    of a sampler. `num_draws` makes a sampler draw so often whatever it costs. All texts come back,
    those cut off at `max_new_tokens` too (`is_complete` is false), in `raw` before they are merged.
    """
    chosen = method_of(method)
    if num_draws is not None:
        if not isinstance(chosen, Sampling):
            raise OptionError(f"num_draws is for samplers, got method {method!r}: leave it out")
        chosen = dataclasses.replace(chosen, num_draws=num_draws)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    settings = SearchConfig.of(options, config)
    if not is_batch(prompts):
        return chosen.run(lm, [prompts], settings, seed=seed, keep_tree=keep_tree)[0]
    results: list[SearchResult] = []
    for start in range(0, len(prompts), batch_size):
        chunk = list(prompts[start : start + batch_size])
        results += chosen.run(lm, chunk, settings, seed=seed, keep_tree=keep_tree)
    return results


def method_of(method: str | Method) -> Method:
    """Find a method by its name, in any case; a `Method` is itself.

    >>> method_of("ncls0.7")
    Sampling(filter=Nucleus(p=0.7), num_draws=None)
    """
    if not isinstance(method, str):
        return method
    by_name = {name.lower(): known for name, known in METHODS.items()}
    by_name["bks"] = BestK()  # with the scoring of the settings; no method of its own
    if method.lower() in by_name:
        return by_name[method.lower()]
    match = re.fullmatch(r"(b?ncls|b?typ)_?([0-9.]+)", method.lower())
    if match is None:
        return _not_found(method)
    try:
        return _FAMILIES[match[1]](float(match[2]))
    except ValueError as error:
        raise OptionError(f"method {method!r} needs a probability mass: {error}") from None


def check_method(method: str | Method, config: SearchConfig) -> None:
    """Refuse, before anything runs, a name that is none or settings that a method cannot take."""
    chosen = method_of(method)
    if isinstance(chosen, Beam | Sampling):
        chosen.check(config)


def _not_found(method: str) -> Method:
    raise OptionError(unknown("method", method, METHODS))
