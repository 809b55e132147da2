"""Functions put in the place of a model's own: what was there comes back, however a call ends."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from bestk.backends.transformers.replaced import has_hooks, is_untouched, replaced


def twice(hidden: torch.Tensor) -> torch.Tensor:
    return 2 * hidden


def thrice(hidden: torch.Tensor) -> torch.Tensor:
    return 3 * hidden


def test_what_was_there_comes_back() -> None:
    plain, wrapped = nn.Identity(), nn.Identity()
    wrapped.forward = thrice  # as accelerate does
    home = types.ModuleType("home")
    home.turn = thrice  # type: ignore[attr-defined]
    one = torch.ones(1)
    with replaced((owner, "forward", twice) for owner in (plain, wrapped, plain)):
        assert plain(one) == wrapped(one) == 2
        with replaced([(plain, "forward", thrice), (home, "turn", twice)]):
            assert plain(one) == 3
            assert home.turn(one) == 2
        with pytest.raises(TypeError), replaced([(plain, "forward", thrice)]):
            plain(None)
        assert plain(one) == 2
    assert "forward" not in vars(plain)
    assert wrapped(one) == home.turn(one) == 3


def test_who_is_untouched() -> None:
    layer = nn.Linear(2, 2)
    assert is_untouched(layer)
    hook = layer.register_forward_pre_hook(lambda *_: None)
    assert has_hooks(layer)
    assert not is_untouched(layer)
    hook.remove()
    layer.forward = twice
    assert not has_hooks(layer)
    assert not is_untouched(layer)
