"""The exception tree. Every message says the value, the rule and the way out.

BestKError
├── OptionError           a setting that breaks its rule, or a name that does not exist
├── PromptError           an empty prompt, or one that leaves no room to generate
├── ModelError            a model that cannot be loaded, or gives no usable probabilities
│   └── ServerError       a server that does not answer, or not with what a search needs
├── MissingExtraError     a package of an optional extra is not installed
├── MissingDataError      a dataset, or the data or model of a metric, is not there
├── SchemaError           a saved result that cannot be read back
└── SearchInterrupted     a search broke off; `partial` holds what it had found
    └── OutOfMemoryError  the device ran out of memory
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class BestKError(Exception):
    """Base of every error that bestk raises on purpose."""


class OptionError(BestKError, ValueError):
    """A setting breaks its rule."""


class PromptError(BestKError, ValueError):
    """A prompt cannot be searched."""


class ModelError(BestKError):
    """A model cannot be loaded, or its output cannot be used."""


class ServerError(ModelError):
    """A server does not answer, or not with what a search needs."""


class MissingExtraError(BestKError, ImportError):
    """An optional package is not installed."""


class MissingDataError(BestKError):
    """A dataset, or the data or the model that a metric needs, is not there."""


class SchemaError(BestKError, ValueError):
    """A saved file is not what this version reads."""


class SearchInterrupted(BestKError):
    """A search broke off; `partial` holds one result per prompt with what was found until then."""

    def __init__(self, message: str, partial: list[Any] | None = None) -> None:
        super().__init__(message)
        self.partial: list[Any] = partial or []


class OutOfMemoryError(SearchInterrupted):
    """The device ran out of memory."""


def first_line(error: BaseException, silent: str | None = None) -> str:
    r"""Shorten somebody else's error to what it says first, or to its kind where it says nothing.

    >>> first_line(ValueError("no such file\nTraceback")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else silent or type(error).__name__


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Word the message for a name that does not exist, with the nearest one that does.

    >>> unknown("option", "beamsize", ["beam_size", "budget"])
    "unknown option 'beamsize': did you mean 'beam_size'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(names)
    return f"unknown {kind} {name!r}: {hint}"
