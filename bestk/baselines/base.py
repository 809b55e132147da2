"""What all methods share: the protocol, a batch of prompts made ready, and results made of texts.

Methods run on the same sessions and trees as best-k search, so they work for every backend. Knows
nothing of how any method chooses its tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bestk.backends.base import Children, Group
from bestk.config import SearchConfig
from bestk.constraints.stop_strings import StopStrings
from bestk.core.best_k import Rule
from bestk.core.mass import Mass
from bestk.core.record import TreeRecord
from bestk.core.tree import Tree
from bestk.errors import ModelError, OptionError
from bestk.lm.language_model import LanguageModel
from bestk.result import Cost, Hypothesis, SearchResult, merge, rank, ranking_score
from bestk.version import __version__


@runtime_checkable
class Method(Protocol):
    """A way to get texts out of a model."""

    def run(
        self,
        lm: LanguageModel,
        prompts: Sequence[Any],
        config: SearchConfig,
        *,
        seed: int = 0,
        keep_tree: bool = True,
    ) -> list[SearchResult]:
        """Return a result for every prompt of one batch."""
        ...

    def describe(self) -> str:
        """Write the method's own settings as the `key:value` fields of a signature."""
        ...


@dataclass(frozen=True, kw_only=True)
class Found:
    """One text of one prompt, as a method found it."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    step: int
    is_complete: bool
    score: float | None = None  # None: by `rank_by`, like a text of best-k search


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All that a method has to say of one prompt."""

    found: Sequence[Found]
    expanded: int
    model_calls: int
    stop_reason: str
    tree: TreeRecord | None = None


# Asked between two steps of a method: whether anyone still wants what it finds.
_IS_UNWANTED: ContextVar[Callable[[], bool]] = ContextVar("is_unwanted", default=lambda: False)


@contextlib.contextmanager
def broken_off_when(is_unwanted: Callable[[], bool]) -> Iterator[None]:
    """Let methods that are run in here end, as if out of time, at the step after it is so."""
    token = _IS_UNWANTED.set(is_unwanted)
    try:
        yield
    finally:
        _IS_UNWANTED.reset(token)


def check_plain(kind: str, config: SearchConfig) -> None:
    """Refuse the settings that only best-k search and best-first search heed."""
    if names := [*config.shaping, *config.constraints]:
        raise OptionError(
            f"{kind} takes no {' and no '.join(names)}: leave it out, or take best-k search alone"
        )


class Job:
    """A batch of prompts, encoded and checked, with the settings that all methods share."""

    def __init__(
        self, lm: LanguageModel, prompts: Sequence[Any], config: SearchConfig, seed: int = 0
    ) -> None:
        self.lm = lm
        self.prompts = list(prompts)
        self.config = config
        self.seed = seed
        self.prompt_ids = [lm.encode(prompt) for prompt in self.prompts]
        for ids in self.prompt_ids:
            lm.check_length(ids, config.max_new_tokens)
        self.is_stop = _stops(lm, config)
        self.rules: list[Rule] = []
        if config.stop:
            self.rules.append(StopStrings(config.stop, lm.decode, config.min_new_tokens))
        self.started = time.perf_counter()
        self._is_unwanted = _IS_UNWANTED.get()

    @property
    def device(self) -> torch.device:
        """Say where the tensors of the batch live."""
        return self.lm.backend.device

    @property
    def is_out_of_time(self) -> bool:
        """Say whether the timeout has passed, or nobody waits any more."""
        limit = self.config.timeout
        if self._is_unwanted():
            return True
        return limit is not None and time.perf_counter() - self.started >= limit

    def keys(self) -> list[int]:
        """Return a number of 56 bits per prompt, by the seed and the prompt alone.

        So a prompt's draws are the same in any batch, at any place, on any device.
        """
        digests = [hashlib.sha256(repr((self.seed, ids)).encode()) for ids in self.prompt_ids]
        return [int.from_bytes(digest.digest()[:7], "big") for digest in digests]

    def generators(self) -> list[torch.Generator]:
        """Seed one source of randomness per prompt."""
        return [torch.Generator().manual_seed(key) for key in self.keys()]

    def may_not_stop(self, depth: int) -> Bool[Tensor, " vocab"] | None:
        """Mark the tokens that would end a text of `depth` tokens too early, None if none would.

        `depth` counts the token that completes the text, as `min_new_tokens` does.
        """
        return self.is_stop if depth < self.config.min_new_tokens else None

    def completes(
        self,
        group: Group,
        children: Children,
        exists: Bool[Tensor, "batch group children"],
    ) -> Bool[Tensor, "batch group children"]:
        """Say which children complete a text, by their token or by a stop string."""
        is_stop = self.is_stop[children.token.clamp(min=0)] & exists
        complete = is_stop
        for rule in self.rules:
            verdict = rule.judge(group, children, exists, is_stop)
            if verdict.complete is not None:
                complete = complete | (verdict.complete & exists)
        return complete

    def results(self, outcomes: Sequence[Outcome], signature: str) -> list[SearchResult]:
        """Decode, rank and merge what was found."""
        seconds = time.perf_counter() - self.started
        return [
            self._result(prompt, outcome, signature, seconds)
            for prompt, outcome in zip(self.prompts, outcomes, strict=True)
        ]

    def _result(
        self, prompt: Any, outcome: Outcome, signature: str, seconds: float
    ) -> SearchResult:
        texts = self.lm.decode(
            [f.token_ids for f in outcome.found], self.config.stop, self.config.min_new_tokens
        )
        raw = tuple(map(self._hypothesis, outcome.found, texts))
        return SearchResult(
            prompt=prompt,
            hypotheses=tuple(rank(merge(raw))),
            mass=mass(outcome.found),
            cost=Cost(expanded=outcome.expanded, model_calls=outcome.model_calls, seconds=seconds),
            signature=f"bestk|model:{self.lm.name}|{signature}|v:{__version__}",
            config=self.config,
            stop_reason=outcome.stop_reason,
            num_completions=sum(h.is_complete for h in raw),
            num_truncated=sum(not h.is_complete for h in raw),
            certified=0,
            tree=outcome.tree,
            raw=raw,
        )

    def _hypothesis(self, found: Found, text: str) -> Hypothesis:
        total = sum(found.log_probs)
        score = found.score
        if score is None:
            score = ranking_score(self.config, total, found.log_probs, found.step)
        return Hypothesis(
            text=text,
            score=score,
            log_prob=total,
            token_ids=found.token_ids,
            log_probs=found.log_probs,
            step=found.step,
            is_complete=found.is_complete,
        )


class Watch:
    """A shaper that changes nothing: it keeps the last whole distributions, for samplers."""

    def __init__(self) -> None:
        self.log_probs: Float[Tensor, "batch group vocab"] | None = None

    def __call__(
        self, group: Group, log_probs: Float[Tensor, "batch group vocab"]
    ) -> Float[Tensor, "batch group vocab"]:
        self.log_probs = log_probs
        return log_probs

    def take(self) -> Float[Tensor, "batch group vocab"]:
        """Hand out the distributions of the last call, once."""
        log_probs, self.log_probs = self.log_probs, None
        assert log_probs is not None, "the session did not call its shaper"
        return log_probs


def plant(tree: Tree) -> Group:
    """Give every tree its root, slot 0, and return the roots as the first group."""
    tree.count.fill_(1)
    tree.expanded_at[:, 0] = 0
    nothing = torch.zeros_like(tree.parent[:, :1])
    path = torch.full_like(tree.path[:, :1], -1)
    return Group(
        token=nothing - 1,
        slot=nothing,
        depth=nothing,
        log_prob=torch.zeros_like(nothing, dtype=torch.float64),
        path=path,
        prefix=path,
        is_valid=torch.ones_like(nothing, dtype=torch.bool),
    )


def mass(found: Sequence[Found]) -> Mass:
    """Add up the probability of the different texts found; the rest was not looked at."""
    different = {f.token_ids: f for f in found}.values()
    completed = sum(_prob(f) for f in different if f.is_complete)
    truncated = sum(_prob(f) for f in different if not f.is_complete)
    return Mass(
        completed=completed,
        truncated=truncated,
        frontier=0.0,
        pruned_prob=1 - completed - truncated,
        pruned_frontier=0.0,
    )


def check_finite(log_prob: Tensor, is_valid: Tensor, step: int) -> None:
    """Raise if the model gave NaN for a node."""
    if bool((log_prob.isnan().any(dim=-1) & is_valid).any()):
        raise ModelError(
            f"the model gave NaN at step {step}: "
            "a wider dtype (float32) or intact weights would help"
        )


def shared(config: SearchConfig) -> str:
    """Write the settings that all methods share as fields of a signature."""
    fields = [f"b:{config.beam_size}", f"T:{config.max_new_tokens}"]
    if config.min_new_tokens:
        fields.append(f"minnewtokens:{config.min_new_tokens}")
    for name in ("stop_ids", "stop"):
        if value := getattr(config, name):
            fields.append(f"{name.replace('_', '')}:{','.join(map(repr, value))}")
    return "|".join(fields)


def _stops(lm: LanguageModel, config: SearchConfig) -> Bool[Tensor, " vocab"]:
    size = lm.backend.vocab_size
    for token in config.stop_ids:
        if not 0 <= token < size:
            raise OptionError(f"stop_ids go from 0 to {size - 1}, got {token}")
    is_stop = torch.zeros(size, dtype=torch.bool, device=lm.backend.device)
    is_stop[[*lm.backend.eos_ids, *config.stop_ids]] = True
    return is_stop


def _prob(found: Found) -> float:
    return math.exp(sum(found.log_probs))
