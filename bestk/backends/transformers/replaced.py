"""Puts functions in the place of a model's own for the length of a call, and back.

Knows nothing of what the functions do. When the call ends the model is as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import nn

Replacement: TypeAlias = tuple[Any, str, Any]  # the owner, the name of its function, another one


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Shadow functions of single objects until the block ends, and put back what was there."""
    before = []
    try:
        for owner, name, function in replacements:
            attributes: dict[str, Any] = owner.__dict__
            # Something where another library wraps the function, as accelerate does.
            before.append((attributes, name, attributes.get(name)))
            attributes[name] = function
        yield
    finally:
        for attributes, name, original in reversed(before):
            if original is None:
                del attributes[name]
            else:
                attributes[name] = original


def is_untouched(module: nn.Module) -> bool:
    """Return whether nobody watches a module or has replaced what it does."""
    return "forward" not in vars(module) and not has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """Return whether somebody wants to see or change what goes in or comes out of a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
