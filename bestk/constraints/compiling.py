"""Compiles grammars for a tokenizer, once for a text: here, or in a process that can be killed.

What strangers send is measured before it is compiled, and compiled apart: one that takes too long,
too much memory or the compiler with it is refused, and nobody else waits. Knows no searches.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bestk.config import GrammarLimits
from bestk.constraints.grammar_worker import grammar_of
from bestk.constraints.vocabulary import tokenizer_info
from bestk.errors import MissingExtraError, ModelError, OptionError

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar

    from bestk.lm.language_model import LanguageModel

_KEPT_BYTES = 64 << 20  # of compiled grammars, for each tokenizer
_WORKER = Path(__file__).with_name("grammar_worker.py")


class GrammarText(NamedTuple):
    """A grammar to compile."""

    name: str  # regex, json_schema or grammar
    text: str
    after_space: bool = False  # a space may come before it all, for tokenizers that drop it


def check(source: GrammarText, limits: GrammarLimits) -> None:
    """Refuse a grammar that is too long, too deep or of too many parts."""
    text, depth, deepest = source.text, 0, 0
    for bracket in re.findall(r"[][(){}]", text[: limits.characters]):
        depth = max(depth + (1 if bracket in "[({" else -1), 0)
        deepest = max(deepest, depth)
    for value, most, what in (
        (len(text), limits.characters, "characters"),
        (deepest, limits.depth, "brackets in one another"),
        (text.count(",") + text.count("|"), limits.items, "commas and bars"),
    ):
        if value > most:
            raise OptionError(
                f"{source.name} has {value} {what}, at most {most} here: make it simpler"
            )


class Compiler:
    """The grammars of one tokenizer, and of the ids that end its texts."""

    def __init__(self, lm: LanguageModel, ends: tuple[int, ...]) -> None:
        import xgrammar

        try:
            self.tokens = tokenizer_info(lm, ends)
        except (ValueError, TypeError, AttributeError) as error:
            raise OptionError(
                f"regex, json_schema and grammar need a tokenizer of transformers, and {lm.name} "
                f"has a {type(lm.tokenizer).__name__}: load it with tokenizer=, or leave them out"
            ) from error
        self.compiler = xgrammar.GrammarCompiler(self.tokens, cache_enabled=False)
        self._kept: OrderedDict[GrammarText, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, source: GrammarText, limits: GrammarLimits | None = None) -> CompiledGrammar:
        """Return a compiled grammar; with limits one that was not there is compiled apart."""
        with self._lock:
            known = self._kept.get(source)
            if known is not None:
                self._kept.move_to_end(source)
                return known
        compiled = self._here(source) if limits is None else self._apart(source, limits)
        with self._lock:
            self._kept[source] = compiled
            while sum(one.memory_size_bytes for one in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return compiled

    def _here(self, source: GrammarText) -> CompiledGrammar:
        try:
            return self.compiler.compile_grammar(grammar_of(*source))
        except (RuntimeError, ValueError) as error:
            raise _refusal(source, str(error) or type(error).__name__) from None

    def _apart(self, source: GrammarText, limits: GrammarLimits) -> CompiledGrammar:
        from xgrammar import CompiledGrammar

        found = _process().compile(self, source, limits)
        return CompiledGrammar.deserialize_json(found, self.tokens)


class CompilerProcess:
    """The process that compiles apart; it starts at the first grammar and stays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._known: weakref.WeakKeyDictionary[Compiler, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()

    def compile(self, compiler: Compiler, source: GrammarText, limits: GrammarLimits) -> str:
        """Return a grammar as xgrammar writes it."""
        with self._lock:
            try:
                told, found = self._ask(compiler, source, limits)
            except (OSError, ValueError) as error:
                self._process = None
                raise ModelError(
                    "the process that compiles grammars has ended: ask again"
                ) from error
        if "error" not in told:
            return found.decode()
        raise _refusal(
            source,
            told["error"]
            or f"it took more than {limits.seconds:g} s or {limits.megabytes} MB to compile it and "
            "to read a text with it: make it simpler, with fewer repeats in repeats",
        )

    def _ask(
        self, compiler: Compiler, source: GrammarText, limits: GrammarLimits
    ) -> tuple[dict[str, Any], bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            weakref.finalize(self, _end, self._process)
            self._known.clear()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        number = self._known.get(compiler)
        if number is None:
            number = self._known[compiler] = next(self._numbers)
            tokens = {"number": number, "tokens": compiler.tokens.serialize_json()}
            process.stdin.write(json.dumps(tokens).encode() + b"\n")
        job = {
            "number": number,
            **source._asdict(),
            "seconds": limits.seconds,
            "memory": limits.megabytes << 20,
        }
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        told = json.loads(process.stdout.readline())
        return told, process.stdout.read(told.get("size", 0))


_process = cache(CompilerProcess)
_compilers: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Compiler]] = (
    weakref.WeakKeyDictionary()
)


def compiler_of(lm: LanguageModel, ends: tuple[int, ...]) -> Compiler:
    """Return the compiler of a model's tokenizer, the same one each time."""
    try:
        import xgrammar  # noqa: F401
    except ImportError as error:
        raise missing("xgrammar") from error
    known = _compilers.setdefault(lm.tokenizer, {})
    key = (lm.backend.vocab_size, *ends)
    if key not in known:
        known[key] = Compiler(lm, ends)
    return known[key]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass


def missing(package: str) -> MissingExtraError:
    """Word the error for a package that is not there."""
    return MissingExtraError(f"{package} is not installed: pip install 'bestk[constraints]'")


def _refusal(source: GrammarText, reason: str) -> OptionError:
    """Take the sentence out of an error of the C++ library, without its time and file."""
    text = source.text if len(source.text) <= 60 else source.text[:57] + "..."
    line = re.sub(r"^\[[\d:]+\] \S+?:\d+: ", "", reason.strip().splitlines()[0])
    return OptionError(f"{source.name} {text!r} cannot be used: {line}")
