"""`must_include`: every text holds some words or phrases, in any order.

Three things make a search find such texts. A child whose text holds more of them has a higher
score; tokens that begin or go on with a missing one are looked at however unlikely the model finds
them, with their true probabilities; and no text may end before it holds all (`endings`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.constraints.base import Constraint, Marks
from bestk.constraints.phrases import Phrase, fold, spellings
from bestk.constraints.states import Prefix, PrefixStates, prefixes
from bestk.nodes import Children, NodeBatch
from bestk.processors.base import NodeContext

if TYPE_CHECKING:
    from bestk.lm.language_model import LanguageModel

# Tokens named for one form at the most: four starts (a space before it or not, a capital or not)
# and what comes next in each of them.
_FORCED_PER_FORM = 8


class Spelling(NamedTuple):
    """The tokens of a phrase in one of its forms, and how many of them end the text."""

    phrase: int
    tokens: tuple[int, ...]
    done: int = 0

    @property
    def share(self) -> float:
        """Return what part of it is there."""
        return self.done / len(self.tokens)


@dataclass(frozen=True)
class Inclusion:
    """How far a node has come."""

    prefix: Prefix
    text: str
    missing: tuple[int, ...]  # numbers of the phrases that the text does not hold
    begun: tuple[Spelling, ...] = ()  # of missing phrases, some but not all tokens end the text


class MustInclude(Constraint):
    """Scores children by what their texts hold, and has tokens of what is missing listed."""

    def __init__(self, config: SearchConfig, lm: LanguageModel, *, seeks: bool = True) -> None:
        self.lm = lm
        self.bonus_each = config.include_bonus
        self.seeks = seeks
        self.phrases = tuple({fold(text): Phrase(text) for text in config.must_include}.values())
        most = _FORCED_PER_FORM * sum(len(phrase.forms) for phrase in self.phrases)
        self.num_forced = min(most, lm.backend.vocab_size) if seeks else 0
        root = Inclusion((), "", tuple(range(len(self.phrases))))
        self.states = PrefixStates(root, self._advance)
        self._spelt: dict[str, tuple[int, ...]] = {}

    def is_met_by(self, text: str) -> bool:
        """Return whether a text holds everything."""
        return all(phrase.is_in(text) for phrase in self.phrases)

    def forced(self, nodes: NodeBatch) -> Int[Tensor, "batch nodes forced"] | None:
        """Name the tokens that begin or go on with a missing phrase."""
        if not self.seeks:
            return None
        rows = [
            [[] if prefix is None else self._tokens(self.states[prefix]) for prefix in row]
            for row in prefixes(nodes)
        ]
        size = self.num_forced
        padded = [[[*tokens, *[-1] * size][:size] for tokens in row] for row in rows]
        return torch.tensor(padded, dtype=torch.int64, device=nodes.token.device)

    def bonus(
        self, context: NodeContext, children: Children, asked: Marks
    ) -> Float[Tensor, "batch nodes children"]:
        """Give each child a bonus for every phrase that its text holds."""
        rows, places, numbers = asked.nonzero(as_tuple=True)
        tokens = children.token[rows, places, numbers].tolist()
        nodes = prefixes(context.nodes)
        earned = []
        for row, place, token in zip(rows.tolist(), places.tolist(), tokens, strict=True):
            prefix = nodes[row][place]
            assert prefix is not None, "a place without a node has no children"
            earned.append(self.earned(self.states[(*prefix, token)]))
        bonus = torch.zeros_like(children.log_prob, dtype=torch.float64)
        bonus[rows, places, numbers] = torch.tensor(earned, dtype=bonus.dtype, device=bonus.device)
        return bonus

    def earned(self, progress: Inclusion) -> float:
        """Return the bonus: for phrases that are there, and for the part of one that is begun."""
        num_met = len(self.phrases) - len(progress.missing)
        share = max((spelling.share for spelling in progress.begun), default=0.0)
        return self.bonus_each * (num_met + share)

    def _advance(self, parent: Inclusion, token: int) -> Inclusion:
        prefix = (*parent.prefix, token)
        text = self.lm.decode([prefix])[0]
        # Not only what was missing: "dog" at the end of the parent's text may become "dogma".
        missing = tuple(
            number for number, phrase in enumerate(self.phrases) if not phrase.is_in(text)
        )
        begun = {
            spelling._replace(done=spelling.done + 1)
            for spelling in (*parent.begun, *self._starts(parent))
            if spelling.tokens[spelling.done] == token
            and spelling.done + 1 < len(spelling.tokens)
            and spelling.phrase in missing
        }
        return Inclusion(prefix, text, missing, tuple(sorted(begun)))

    def _tokens(self, progress: Inclusion) -> list[int]:
        begun = [spelling.tokens[spelling.done] for spelling in progress.begun]
        starts = [spelling.tokens[0] for spelling in self._starts(progress)]
        return list(dict.fromkeys([*begun, *starts]))

    def _starts(self, progress: Inclusion) -> Iterator[Spelling]:
        """Spell the missing phrases as they could go on the text."""
        for number in progress.missing:
            for form in self.phrases[number].forms:
                for spelling in spellings(form, progress.text):
                    if tokens := self._spell(spelling):
                        yield Spelling(number, tokens)

    def _spell(self, text: str) -> tuple[int, ...]:
        if text not in self._spelt:
            self._spelt[text] = tuple(self.lm.spell(text))
        return self._spelt[text]
