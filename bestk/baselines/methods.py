"""The paper's methods by name, and `run_method`, which runs any of them on prompts.

Names are the paper's: BS, DBS, DBS+, Ncls0.8, Typ0.5, BNcls0.8, BTyp0.5, BFS, BKS_mean, BKS_last;
and Minp0.1, Nsig1, Temp0.7, BKS_diverse, SWOR: n texts drawn without replacement. A number in a
name may be any other; BKS is best-k search with whatever scoring the settings have. Knows no
algorithm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from bestk.api import Batch, best_first_config
from bestk.baselines.beam import Beam
from bestk.baselines.filters import MinProb, Nucleus, TopSigma, Typical
from bestk.baselines.sampling import Sampling
from bestk.config import NOT_OF_SAMPLES, SearchConfig
from bestk.core.methods import Method
from bestk.engine.request import Request, Update, requests_of
from bestk.engine.scheduler import Scheduler
from bestk.errors import OptionError, unknown
from bestk.lm.language_model import LanguageModel, Prompt, is_batch
from bestk.result import SearchResult
from bestk.settings import SearchOptions


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Best-k search with a scoring or policy of its own, or (None) those in the settings."""

    scoring: str | None = None
    policy: str = "best-k"

    def config(self, lm: LanguageModel, config: SearchConfig) -> SearchConfig:
        """Return the settings of the search."""
        if self.policy == "diverse":
            return SearchConfig.of({"num_texts": config.num_texts or config.beam_size}, config)
        if self.scoring is None:
            return config
        own = {"scoring": self.scoring, "length_alpha": None, "policy": self.policy}
        return SearchConfig.of(own, config)


@dataclass(frozen=True, kw_only=True)
class BestFirst:
    """Vanilla best-first search, Algorithm 1 of the paper."""

    def config(self, lm: LanguageModel, config: SearchConfig) -> SearchConfig:
        """Return the settings of best-k search with which it is best-first search."""
        return best_first_config(lm, config)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Sampling without replacement, by one search."""

    def config(self, lm: LanguageModel, config: SearchConfig) -> SearchConfig:
        """Return the settings of the search, without those of other methods."""
        usual = SearchConfig()
        own = {name: getattr(usual, name) for name in NOT_OF_SAMPLES}
        n = config.num_texts or config.beam_size
        return SearchConfig.of({**own, "num_texts": n, "sample": "texts", "policy": None}, config)


Preset = Scored | BestFirst | Sample  # a search with settings of its own
AnyMethod = Method | Preset

METHODS: dict[str, AnyMethod] = {
    "BS": Beam(),
    "DBS": Beam(num_groups=5),
    "DBS+": Beam(num_groups=10),
    "Ncls0.5": Sampling(filter=Nucleus(0.5)),
    "Ncls0.8": Sampling(filter=Nucleus(0.8)),
    "Ncls0.9": Sampling(filter=Nucleus(0.9)),
    "Minp0.1": Sampling(filter=MinProb(0.1)),
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
    "BKS_mean": Scored(scoring="mean"),
    "BKS_last": Scored(scoring="last"),
    "BKS_diverse": Scored(policy="diverse"),
    "SWOR": Sample(),
}

BATCH_SIZE = 8  # prompts run side by side

_FAMILIES: dict[str, Callable[[float], AnyMethod]] = {
    "ncls": lambda p: Sampling(filter=Nucleus(p)),
    "minp": lambda p: Sampling(filter=MinProb(p)),
    "nsig": lambda n: Sampling(filter=TopSigma(n)),
    "temp": lambda t: Sampling(temperature=t),
    "typ": lambda p: Sampling(filter=Typical(p)),
    "bncls": lambda p: Beam(filter=Nucleus(p)),
    "btyp": lambda p: Beam(filter=Typical(p)),
}


def run_method(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    method: str | AnyMethod = "BKS_mean",
    config: SearchConfig | None = None,
    *,
    raw: bool = False,
    num_draws: int | None = None,
    batch_size: int = BATCH_SIZE,
    keep_tree: bool = True,
    **options: Unpack[SearchOptions],
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
    every: list[Any] = list(prompts) if is_batch(prompts) else [prompts]
    settings = SearchConfig.of(options, config)
    requests = requests_for(lm, every, chosen, settings, raw=raw, keep_tree=keep_tree)
    with contextlib.closing(Scheduler(batch_size)) as scheduler:
        found = results_of(scheduler.run(requests))
    results = [found[request] for request in requests]
    return results if is_batch(prompts) else results[0]


def requests_for(
    lm: LanguageModel,
    prompts: Sequence[Any],
    method: str | AnyMethod,
    config: SearchConfig,
    *,
    seed: int | None = None,
    **options: Any,
) -> list[Request]:
    """Make requests for a method, which may be best-k search with other settings."""
    chosen = method_of(method)
    if seed is not None:
        config = SearchConfig.of({"seed": seed}, config)
    if isinstance(chosen, Preset):
        return requests_of(lm, prompts, chosen.config(lm, config), **options)
    return requests_of(lm, prompts, config, method=chosen, **options)


def results_of(updates: Iterable[Update]) -> dict[Request, SearchResult]:
    """Return the results that a scheduler tells of; the first error is raised."""
    found = {}
    for update in updates:
        if update.error is not None:
            raise update.error
        assert update.result is not None
        found[update.request] = update.result
    return found


def method_of(method: str | AnyMethod) -> AnyMethod:
    """Find a method by its name, in any case; a `Method` is itself.

    >>> method_of("ncls0.7")
    Sampling(filter=Nucleus(p=0.7), num_draws=None, temperature=1.0, walk=None)
    """
    if not isinstance(method, str):
        return method
    by_name = {name.lower(): known for name, known in METHODS.items()}
    by_name["bks"] = Scored()  # with the scoring of the settings; no method of its own
    if method.lower() in by_name:
        return by_name[method.lower()]
    match = re.fullmatch(r"(b?ncls|b?typ|minp|nsig|temp)_?([0-9.]+)", method.lower())
    if match is None:
        return _not_found(method)
    try:
        number = float(match[2])
    except ValueError:
        raise OptionError(f"method {method!r} needs a number such as 0.5") from None
    return _FAMILIES[match[1]](number)


def check_method(method: str | AnyMethod, config: SearchConfig) -> None:
    """Refuse, before anything runs, a name that is none or settings that a method cannot take."""
    chosen = method_of(method)
    if isinstance(chosen, Beam | Sampling):
        chosen.check(config)


def _not_found(method: str) -> AnyMethod:
    raise OptionError(unknown("method", method, METHODS))
