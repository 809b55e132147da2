"""Which policy a search follows.

A policy is a class in a file of its own that overrides what it does differently, such as
`BestK.priority` or `BestK.score`; it is added by one line in `POLICIES`. What it remembers of each
search it makes with `SearchState.keep`: that begins anew, and moves, with its search.
"""

from __future__ import annotations

import functools
import logging
from typing import Protocol, runtime_checkable

from bestk.config import SearchConfig
from bestk.core.best_k import BestK
from bestk.core.diverse import Diverse
from bestk.core.drawing import Drawing
from bestk.core.gumbel import Gumbel
from bestk.core.policy import Policy, Shape
from bestk.core.uniform_cost import UniformCost
from bestk.errors import OptionError, unknown

logger = logging.getLogger("bestk")

POLICIES: dict[str, type[BestK]] = {
    "best-k": BestK,
    "diverse": Diverse,
    "uniform-cost": UniformCost,
}
SAMPLERS: dict[str, type[BestK]] = {"texts": Gumbel, "tokens": Drawing}  # by what they draw


@runtime_checkable
class Method(Protocol):
    """Another way to get texts out of a model than the policies of a search: beams, samples."""

    def check(self, config: SearchConfig) -> None:
        """Refuse settings that it cannot run with."""
        ...

    def policy(self, config: SearchConfig, shape: Shape) -> Policy:
        """Make the policy of a batch."""
        ...

    def describe(self, config: SearchConfig, seed: int) -> str:
        """Write the method and its settings as the `key:value` fields of a signature."""
        ...


def policy_of(config: SearchConfig, shape: Shape, method: Method | None = None) -> Policy:
    """Make the policy of a batch: the method's, or the one that the settings name."""
    if method is not None:
        return method.policy(config, shape)
    known = POLICIES[config.policy] if config.sample is None else SAMPLERS[config.sample]
    return known(config, shape)


def may_look_ahead(config: SearchConfig) -> bool:
    """Return whether nodes of such searches may be evaluated before they are popped.

    Who steps in a way of its own goes another way, or looks at tree slots.
    """
    known = POLICIES[config.policy] if config.sample is None else SAMPLERS[config.sample]
    return (known.next, known.step) == (BestK.next, BestK.step)


def check_policy(config: SearchConfig) -> None:
    """Refuse a name that is none, and notice steps that are wider than the beam."""
    if config.policy not in POLICIES:
        raise OptionError(unknown("policy", config.policy, POLICIES))
    if config.budget is None and config.k > config.beam_size:
        _notice_width(config.k, config.beam_size)


@functools.cache
def _notice_width(k: int, beam_size: int) -> None:
    logger.warning("k=%d is above beam_size=%d: the paper keeps it within the beam", k, beam_size)
