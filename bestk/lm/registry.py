"""Engines that run a model elsewhere, by the scheme that their names begin with.

`bestk.load("http://localhost:8000")` comes here; what follows a scheme is for its opener to read.
Knows which function opens what, and which options it takes; imports it when it is needed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from bestk.errors import OptionError, unknown
from bestk.lm.language_model import LanguageModel

# A scheme, and the function `(name, **options) -> LanguageModel` that opens such names.
OPENERS = {
    "http": "bestk.backends.http.open:from_server",
    "https": "bestk.backends.http.open:from_server",
    "vllm": "bestk.backends.vllm.open:load_vllm",
}


def opener(name: str) -> Callable[..., LanguageModel] | None:
    """Find the function that opens a name, None where it is no engine's."""
    scheme, colon, _ = name.partition(":")
    if not colon or scheme not in OPENERS:
        return None
    module, _, function = OPENERS[scheme].partition(":")
    found: Callable[..., LanguageModel] = getattr(importlib.import_module(module), function)
    return found


def check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that a function does not name, and say which is nearest."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return  # it hands options on, and knows best which
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise OptionError(f"{name} takes other options: {unknown('option', option, known)}")
