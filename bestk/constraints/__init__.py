"""Constraints on texts: what they must hold or match, and the ways for them to end.

To add one: subclass `Constraint` (`base.py`) in a file of its own. A search takes it as an object,
`constraints=[...]`; to make it a setting, list a function that builds it in `BUILDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bestk.config import GrammarLimits, SearchConfig
from bestk.constraints.base import Constraint, ConstraintSet
from bestk.constraints.criteria import Criteria
from bestk.constraints.endings import Endings
from bestk.constraints.include import MustInclude
from bestk.constraints.stop_strings import StopStrings
from bestk.errors import OptionError

if TYPE_CHECKING:
    from bestk.lm.language_model import LanguageModel

__all__ = ["BUILDERS", "Constraint", "ConstraintSet", "compile_apart", "constraints_of"]


def _grammar(config: SearchConfig, lm: LanguageModel) -> Constraint | None:
    named = [name for name in config.constraints if name != "must_include"]
    if not named:
        return None
    can = lm.backend.capabilities
    if not can.full_logits:
        raise OptionError(
            f"{lm.backend.name} lists only its likeliest tokens, so {named[0]} cannot be used "
            f"with it: use a transformers model{f', or {can.way_out}' if can.way_out else ''}"
        )
    from bestk.constraints.grammar import GrammarConstraint

    return GrammarConstraint(config, lm)


def compile_apart(
    config: SearchConfig, lm: LanguageModel, limits: GrammarLimits | None = None
) -> None:
    """Have a stranger's grammar measured and compiled apart, for the search to find it ready."""
    if config.has_grammar and lm.backend.capabilities.full_logits:
        from bestk.constraints.grammar import GrammarConstraint

        GrammarConstraint(config, lm, limits or GrammarLimits())


def _must_include(config: SearchConfig, lm: LanguageModel) -> Constraint | None:
    if not config.must_include:
        return None
    return MustInclude(config, lm, seeks=lm.backend.capabilities.full_logits)


def _stop(config: SearchConfig, lm: LanguageModel) -> Constraint | None:
    return StopStrings(config.stop, lm.decode, config.min_new_tokens) if config.stop else None


def _endings(config: SearchConfig, lm: LanguageModel) -> Constraint | None:
    can_look = lm.tokenizer is not None and lm.backend.capabilities.full_logits
    return Endings(config, lm) if (config.end_prob or 1) < 1 and can_look else None


# What a setting asks for; None where it asks for nothing.
BUILDERS: list[Callable[[SearchConfig, LanguageModel], Constraint | None]] = [
    _grammar,
    _must_include,
    _stop,
    _endings,
]


def constraints_of(
    config: SearchConfig,
    lm: LanguageModel,
    criteria: Sequence[Any] = (),
    given: Sequence[Constraint] = (),
) -> ConstraintSet | None:
    """Build the constraints of a search; nothing at all where it has none."""
    built = [build(config, lm) for build in BUILDERS]
    every = [constraint for constraint in built if constraint is not None]
    if criteria:
        every.append(Criteria(criteria, config.min_new_tokens))
    for constraint in given:
        if not isinstance(constraint, Constraint):
            raise OptionError(
                f"constraints must be bestk.Constraint objects, got {type(constraint).__name__}"
            )
    every += given

    def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
        return lm.decode(sequences, config.stop, config.min_new_tokens)

    return ConstraintSet(every, decode) if every else None
