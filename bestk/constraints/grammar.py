"""`regex`, `json_schema` and `grammar`: every text is one that a grammar derives, by xgrammar.

The grammar is compiled once for a tokenizer; every node has its own matcher, a copy of its parent's
that has read one more token. The tokens that a matcher rules out are forbidden before the model's
distribution is renormalised, so probabilities are those of the model under the grammar. For a JSON
schema the grammar leads the way, and jsonschema has the last word on a finished document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.config import GRAMMARS, GrammarLimits, SearchConfig
from bestk.constraints.base import Constraint
from bestk.constraints.compiling import GrammarText, check, compiler_of
from bestk.constraints.json_schema import validator
from bestk.constraints.states import PrefixStates, prefixes
from bestk.constraints.vocabulary import drops_first_space
from bestk.errors import OptionError
from bestk.processors.base import NodeContext

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarMatcher

    from bestk.lm.language_model import LanguageModel


class GrammarConstraint(Constraint):
    """Forbids the tokens that a grammar rules out after each node's own prefix."""

    restricts = True

    def __init__(
        self, config: SearchConfig, lm: LanguageModel, limits: GrammarLimits | None = None
    ) -> None:
        name = next(name for name in GRAMMARS if getattr(config, name) is not None)
        if lm.tokenizer is None:
            raise OptionError(f"{name} needs a tokenizer, and model {lm.name} has none: pass one")
        special = {*getattr(lm.tokenizer, "all_special_ids", ()), *lm.backend.eos_ids}
        # Special ids leave no trace in the text, so those that complete a text end it here too.
        ends = sorted(special & {*lm.backend.eos_ids, *config.stop_ids})
        if not ends:
            raise OptionError(
                f"{name} needs an id that ends a text, and model {lm.name} has none: give stop_ids"
            )
        source = GrammarText(name, getattr(config, name))
        if limits is not None:
            check(source, limits)
        self.is_valid = None if config.json_schema is None else validator(config.json_schema)
        compiled = compiler_of(lm, tuple(ends))
        self.whole = compiled(source, limits)  # of the text as it reads
        self.compiled = self.whole  # of its tokens
        if drops_first_space(lm):
            self.compiled = compiled(source._replace(after_space=True), limits)
        self.vocab_size = lm.backend.vocab_size
        device = lm.backend.device
        self.is_hidden = torch.zeros(self.vocab_size, dtype=torch.bool, device=device)
        self.is_hidden[[token for token in special - {*ends} if token < self.vocab_size]] = True
        self.bits = torch.arange(32, dtype=torch.int32, device=device)
        self.states = PrefixStates[Any](_matcher(self.compiled), _read)

    def restrict(
        self, context: NodeContext, log_probs: Float[Tensor, "batch nodes vocab"]
    ) -> Float[Tensor, "batch nodes vocab"]:
        """Forbid what the matcher of each node rules out."""
        matchers = [
            None if prefix is None else self.states[prefix]
            for row in prefixes(context.nodes)
            for prefix in row
        ]
        allowed = self.allowed(matchers).view_as(log_probs)
        return log_probs.masked_fill(~allowed, -torch.inf)

    def allowed(self, matchers: list[GrammarMatcher | None]) -> Bool[Tensor, "nodes vocab"]:
        """Mark which tokens may follow each node; none where there is no matcher."""
        width = (self.vocab_size + 31) // 32
        packed = torch.zeros(len(matchers), width, dtype=torch.int32)
        for index, matcher in enumerate(matchers):
            if matcher is not None and not matcher.fill_next_token_bitmask(packed, index):
                packed[index] = -1  # every token may follow
        return self._unpack(packed.to(self.bits.device)) & ~self.is_hidden

    def is_met_by(self, text: str) -> bool:
        """Return whether the grammar derives the whole text, and its schema holds for it."""
        matcher = _matcher(self.whole)
        # An empty string is not something to accept: it is where every matcher begins.
        is_whole = (not text or matcher.accept_string(text)) and matcher.is_completed()
        return bool(is_whole) and (self.is_valid is None or self.is_valid(text))

    def _unpack(self, packed: Int[Tensor, "nodes words"]) -> Bool[Tensor, "nodes vocab"]:
        bits = (packed[..., None] >> self.bits) & 1  # [nodes, words, 32]
        return bits.bool().flatten(1)[:, : self.vocab_size]


def _matcher(compiled: CompiledGrammar) -> GrammarMatcher:
    import xgrammar

    return xgrammar.GrammarMatcher(compiled)


def _read(matcher: GrammarMatcher | None, token: int) -> GrammarMatcher | None:
    """Copy a matcher and let it read a token; None if it may not come here."""
    if matcher is None:
        return None
    copy = matcher.fork()
    return copy if copy.accept_token(token) else None
