"""Puts functions in the place of a model's own for the length of a call, and back.

Puts back what a model changes of itself, too. Knows nothing of what the functions do. When the call
ends the model is as it was.
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


@contextmanager
def unchanged(modules: Iterable[nn.Module]) -> Iterator[list[nn.Module]]:
    """Put back what the block changes of modules, and list those that it did change."""
    before = [
        (module, held, dict(held))
        for module in modules
        for own in [vars(module)]
        for held in (own, own["_modules"], own["_buffers"], own["_parameters"])
    ]
    changed: list[nn.Module] = []
    try:
        yield changed
    finally:
        for module, held, was in before:
            if len(held) != len(was) or any(held.get(name) is not was[name] for name in was):
                changed.append(module)
                held.update(was)
                for name in held.keys() - was.keys():
                    del held[name]


def is_untouched(module: nn.Module) -> bool:
    """Return whether nobody watches a module or has replaced what it does."""
    return "forward" not in vars(module) and not has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """Return whether somebody wants to see or change what goes in or comes out of a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
