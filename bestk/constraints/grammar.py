"""`regex`, `json_schema` and `grammar`: every text is one that a grammar derives, by xgrammar.

The grammar is compiled once for a tokenizer; every node has its own matcher, a copy of its parent's
that has read one more token. The tokens that a matcher rules out are forbidden before the model's
distribution is renormalised, so probabilities are those of the model under the grammar. For a JSON
schema the grammar leads the way, and jsonschema has the last word on a finished document.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.config import GRAMMARS, SearchConfig
from bestk.constraints.base import Constraint
from bestk.constraints.states import PrefixStates, prefixes
from bestk.constraints.vocabulary import drops_first_space, tokenizer_info
from bestk.errors import MissingExtraError, OptionError
from bestk.processors.base import NodeContext

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher

    from bestk.lm.language_model import LanguageModel

_compilers: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], GrammarCompiler]] = (
    weakref.WeakKeyDictionary()
)


class GrammarConstraint(Constraint):
    """Forbids the tokens that a grammar rules out after each node's own prefix."""

    restricts = True

    def __init__(self, config: SearchConfig, lm: LanguageModel) -> None:
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
        schema = config.json_schema
        self.is_valid = None if schema is None else _validator(json.loads(schema))
        spec = getattr(config, name)
        self.whole = compile_grammar(name, spec, lm, tuple(ends))  # of the text as it reads
        self.compiled = self.whole  # of its tokens
        if drops_first_space(lm):
            self.compiled = compile_grammar(name, spec, lm, tuple(ends), after_space=True)
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


def compile_grammar(
    name: str, spec: str, lm: LanguageModel, ends: tuple[int, ...], *, after_space: bool = False
) -> CompiledGrammar:
    """Compile a regex, JSON schema or EBNF grammar for a model's tokenizer, once.

    With `after_space` a space may come before it all, for tokenizers that then drop it.
    """
    compiler = _compiler(lm, ends)
    from xgrammar import Grammar

    try:
        if name == "regex":
            grammar = Grammar.from_regex(spec)
        elif name == "json_schema":
            # As json.dumps writes it: no two texts that differ in white space alone.
            grammar = Grammar.from_json_schema(spec, any_whitespace=False)
        else:
            grammar = Grammar.from_ebnf(spec)
        if after_space:
            grammar = Grammar.concat(Grammar.from_regex(" ?"), grammar)
        return compiler.compile_grammar(grammar)
    except (RuntimeError, ValueError) as error:
        raise OptionError(f"{name} {_short(spec)} cannot be used: {_reason(error)}") from None


def _compiler(lm: LanguageModel, ends: tuple[int, ...]) -> GrammarCompiler:
    try:
        import xgrammar
    except ImportError as error:
        raise _missing("xgrammar") from error
    known = _compilers.setdefault(lm.tokenizer, {})
    key = (lm.backend.vocab_size, *ends)
    if key not in known:
        try:
            known[key] = xgrammar.GrammarCompiler(tokenizer_info(lm, ends))
        except (ValueError, TypeError, AttributeError) as error:
            raise OptionError(
                f"regex, json_schema and grammar need a tokenizer of transformers, and {lm.name} "
                f"has a {type(lm.tokenizer).__name__}: load it with tokenizer=, or leave them out"
            ) from error
    return known[key]


def _matcher(compiled: CompiledGrammar) -> GrammarMatcher:
    import xgrammar

    return xgrammar.GrammarMatcher(compiled)


def _read(matcher: GrammarMatcher | None, token: int) -> GrammarMatcher | None:
    """Copy a matcher and let it read a token; None if it may not come here."""
    if matcher is None:
        return None
    copy = matcher.fork()
    return copy if copy.accept_token(token) else None


def _validator(schema: Any) -> Callable[[str], bool]:
    """Make a check of whole documents: xgrammar reads over some parts of JSON Schema."""
    try:
        import jsonschema
        import referencing
    except ImportError as error:
        raise _missing("jsonschema") from error
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(map(str, error.path)) or "the schema"
        raise OptionError(f"json_schema is not a schema: {error.message} at {where}") from None
    # A registry of its own keeps references to other files from being fetched.
    check = kind(schema, registry=referencing.Registry(), format_checker=kind.FORMAT_CHECKER)

    def is_valid(text: str) -> bool:
        try:
            return bool(check.is_valid(json.loads(text)))
        except json.JSONDecodeError:
            return False

    return is_valid


def _missing(package: str) -> MissingExtraError:
    return MissingExtraError(f"{package} is not installed: pip install 'bestk[constraints]'")


def _short(spec: str) -> str:
    return repr(spec if len(spec) <= 60 else spec[:57] + "...")


def _reason(error: BaseException) -> str:
    """Take the sentence out of an error of the C++ library, without its time and file."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[\d:]+\] \S+?:\d+: ", "", line)
