"""Constraints on texts, with a state for every node: what a text must hold, what it must match.

`constraints_of` turns the settings of a search into rules for its loop and a shaper for the model's
distributions. Knows texts and tokens through the language model that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from bestk.backends.base import Group, Shaper
from bestk.config import SearchConfig
from bestk.constraints.endings import Endings, Requirement
from bestk.constraints.include import Inclusion
from bestk.core.best_k import Rule
from bestk.errors import OptionError

if TYPE_CHECKING:
    from bestk.lm.language_model import LanguageModel


class Constraints(NamedTuple):
    """What the constraints of a search ask of the loop and of the backend."""

    rules: tuple[Rule, ...] = ()
    shaper: Shaper | None = None


def constraints_of(
    config: SearchConfig, lm: LanguageModel, enders: Sequence[Rule] = ()
) -> Constraints:
    """Build the rules and the shaper of a search; nothing at all where it has no constraints.

    `enders` are the rules by which a text may end, besides its stop tokens.
    """
    if not config.constraints:
        return Constraints()
    can_shape = getattr(lm.backend, "takes_shaper", True)
    rules: list[Rule] = []
    requirements: list[Requirement] = []
    shapers: list[Shaper] = []
    seeker = None
    if spec := next((name for name in config.constraints if name != "must_include"), None):
        if not can_shape:
            way_out = getattr(getattr(lm.backend, "facts", None), "way_out", None)
            raise OptionError(
                f"{lm.backend.name} lists only its likeliest tokens, so {spec} cannot be used "
                f"with it: use a transformers model{f', or {way_out}' if way_out else ''}"
            )
        from bestk.constraints.grammar import GrammarShaper

        shapers.append(shaper := GrammarShaper(config, lm))
        requirements.append(shaper)
    if config.must_include:
        rules.append(inclusion := Inclusion(config, lm, seeks=can_shape))
        requirements.append(inclusion)
        seeker = inclusion if can_shape else None

    def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
        return lm.decode(sequences, config.stop, config.min_new_tokens)

    rules.append(Endings(requirements, enders, decode))
    return Constraints(tuple(rules), Shapers(shapers, seeker) if shapers or seeker else None)


class Shapers:
    """Several shapers, one after the other, and the rule that wants tokens listed."""

    def __init__(self, shapers: Sequence[Shaper], seeker: Rule | None = None) -> None:
        self.shapers = tuple(shapers)
        self.seeker = seeker

    def __call__(
        self, group: Group, log_probs: Float[Tensor, "batch group vocab"]
    ) -> Float[Tensor, "batch group vocab"]:
        """Apply all shapers in order."""
        for shaper in self.shapers:
            log_probs = shaper(group, log_probs)
        return log_probs

    def wants(self, group: Group) -> Int[Tensor, "batch group wanted"] | None:
        """Ask the rule, if there is one."""
        return None if self.seeker is None else self.seeker.wants(group)
