"""What is asked of the scheduler, and what it tells: requests, made ready and checked, and updates.

Knows prompts, settings and hooks; nothing of batches.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bestk.config import SearchConfig
from bestk.constraints.criteria import absorb
from bestk.core.methods import Method, check_policy
from bestk.core.policy import spec_of
from bestk.engine.evaluator import OF_EVALUATION, Evaluation, evaluation_of
from bestk.errors import OptionError
from bestk.lm.language_model import LanguageModel, check_prefetch
from bestk.nodes import BatchSpec
from bestk.processors.pipeline import Hooks
from bestk.result import Hypothesis, SearchResult, signature
from bestk.version import __version__

if TYPE_CHECKING:
    from bestk.engine.batch import Row

# Settings that concern a node alone, or a search alone: those of one batch may differ in them.
_OWN: dict[str, Any] = {
    f.name: f.default
    for f in dataclasses.fields(SearchConfig)
    if f.name in (*OF_EVALUATION, "timeout", "rank_by", "on_cut", "fill", "seed")
}


@dataclass(kw_only=True, eq=False)
class Request:
    """One search that is asked for."""

    lm: LanguageModel
    prompt: Any
    ids: Any  # what the backend reads
    config: SearchConfig
    evaluation: Evaluation
    hooks: Hooks = field(default_factory=Hooks)
    method: Method | None = None  # None: the policy of the settings
    barred: Sequence[int] = ()  # nodes of the trie that are excluded, marked
    number: int = 0  # the prompt's place among the caller's
    is_watched: bool = False  # whether every step is told
    keep_tree: bool = True
    max_seconds: float | None = None  # a limit beside the config's timeout
    prefetch: int | None = None  # nodes of a pass, evaluated ahead of time; None: what pays
    submitted: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float | None:
        """How long the search may run."""
        limits = [x for x in (self.config.timeout, self.max_seconds) if x is not None]
        return min(limits, default=None)

    @property
    def length(self) -> int:
        """Count the tokens that the model reads."""
        return len(self.ids)

    @cached_property
    def shared_config(self) -> SearchConfig:
        """The settings that all searches of a batch have in common."""
        return _shared(self.config)

    @cached_property
    def spec(self) -> BatchSpec:
        """How much a batch needs for this search."""
        return spec_of(self.config, self.lm.backend.vocab_size, self.evaluation.num_forced)

    @cached_property
    def key(self) -> Hashable:
        """What the searches of one batch have in common."""
        backend, evaluation = self.lm.backend, self.evaluation
        # Sums over more places round in another order, so those of one batch list as many.
        is_named = evaluation.allowed is not None
        shape = self.shared_config, evaluation.num_forced, evaluation.stop_ids
        captured: tuple[Hashable, ...] = ()
        if backend.device.type == "cuda":  # a graph holds one evaluation, or none
            graph = evaluation if evaluation.is_static else None
            captured = (graph, evaluation.judges, len(self.barred), self.is_watched)
        kind = backend.kind(self.ids, self.spec)
        ahead = self.prefetch, self.hooks.see_nodes
        return id(backend), shape, self.method, kind, captured, is_named, ahead

    @property
    def signature(self) -> str:
        """Name everything that a number made from the search depends on."""
        if self.method is None:
            names = [*self.hooks.names, *(["exclude"] if len(self.barred) else [])]
            return signature(self.config, self.lm.name, names)
        told = self.method.describe(self.config, self.config.seed)
        return f"bestk|model:{self.lm.name}|{told}|v:{__version__}"

    def named(self, hypotheses: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
        """Say of every text which item it is."""
        if self.hooks.allowed is None:
            return hypotheses
        trie = self.hooks.allowed.trie
        return [
            dataclasses.replace(one, item=trie.item_at(trie.find(one.token_ids)))
            for one in hypotheses
        ]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Turn ids into the texts that are returned."""
        return self.lm.decode(sequences, self.config.stop, self.config.min_new_tokens)


@dataclass(kw_only=True)
class Update:
    """What happened to a request: a step, a result, an error; both where the model broke.

    `row` is the search while it runs: read what is needed before the scheduler goes on.
    """

    request: Request
    row: Row | None = None
    result: SearchResult | None = None
    error: Exception | None = None


def requests_of(
    lm: LanguageModel,
    prompts: Sequence[Any],
    config: SearchConfig,
    hooks: Hooks | None = None,
    *,
    raw: bool = True,
    method: Method | None = None,
    exclude: Sequence[Iterable[Any]] = (),
    **options: Any,
) -> list[Request]:
    """Make requests of prompts, and refuse what cannot be searched before anything is.

    Texts are continued as they are, or with `raw=False` answered by a chat model. `exclude` has the
    items that are left out, for each prompt, or nothing at all.
    """
    hooks = hooks or Hooks()
    if options.get("prefetch") is None:
        options["prefetch"] = lm.prefetch
    check_prefetch(options["prefetch"])
    barred = _barred(hooks, exclude, len(prompts))
    if hooks.allowed is not None:
        if method is not None:
            raise OptionError("allowed= is for searches, not for other methods")
        config = hooks.allowed.settings(config)
    if config.sample is not None and hooks.constraints:
        raise OptionError(
            f"sample={config.sample!r} draws from what the model says: constraints as objects may "
            "bar what was drawn, so leave them out"
        )
    if method is None:
        check_policy(config)
    else:
        method.check(config)
    ids = [lm.encode(lm.asked(prompt, raw=raw)) for prompt in prompts]
    config, criteria = absorb(
        config,
        hooks.stopping_criteria,
        [lm.context_length(one) for one in ids],
        vocab_size=lm.backend.vocab_size,
        has_text=lm.tokenizer is not None,
    )
    check(lm, ids, config)
    evaluation = evaluation_of(lm, config, hooks, criteria)
    requests = [
        Request(
            lm=lm,
            prompt=lm.told(prompt),
            ids=one,
            config=config,
            evaluation=evaluation,
            hooks=hooks,
            method=method,
            barred=barred[number],
            number=number,
            **options,
        )
        for number, (prompt, one) in enumerate(zip(prompts, ids, strict=True))
    ]
    if requests and method is None:
        is_whole = evaluation.needs_whole or config.sample is not None
        lm.backend.check(requests[0].spec, whole=is_whole)
    return requests


@functools.lru_cache(maxsize=64)
def _shared(config: SearchConfig) -> SearchConfig:
    return dataclasses.replace(config, **_OWN)


def _barred(hooks: Hooks, exclude: Sequence[Iterable[Any]], count: int) -> Sequence[Sequence[int]]:
    """Find what is excluded for each prompt in the trie; a few sizes, for graphs."""
    if not exclude:
        return [()] * count
    if hooks.allowed is None:
        raise OptionError("exclude leaves items out of a trie: give allowed= too")
    if len(exclude) != count:
        raise OptionError(f"exclude must be a list for each of {count} prompts, got {len(exclude)}")
    found = [hooks.allowed.trie.barred(items).tolist() for items in exclude]
    sizes = [1 << (len(some) - 1).bit_length() if some else 0 for some in found]
    return [[-1] * (size - len(some)) + some for size, some in zip(sizes, found, strict=True)]


def check(lm: LanguageModel, ids: Sequence[Any], config: SearchConfig) -> None:
    """Refuse prompts that leave no room for a text, and stop ids that do not exist."""
    size = lm.backend.vocab_size
    for token in config.stop_ids:
        if not 0 <= token < size:
            raise OptionError(f"stop_ids go from 0 to {size - 1}, got {token}")
    for prompt in ids:
        lm.check_length(prompt, config.max_new_tokens)
