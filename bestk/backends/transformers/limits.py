"""What a model does otherwise with longer sequences: windows, rescaled positions, full experts.

All of it concerns one sequence alone, so searches that share a forward must be on the same side of
every limit. Knows configs; nothing of sessions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Settings that the tokens of a pass are counted for, in the order they come: Switch's, Llama 4's.
_COUNTS = ("expert_capacity", "floor_scale")
# Enough for a small tree to pass.
_SHRUNK = 2


def window(config: Any) -> int | None:
    """Return the width of the model's sliding window, None if it has none in use."""
    width = getattr(config, "sliding_window", None) or 0
    if width <= 0 or getattr(config, "use_sliding_window", True) is False:
        return None
    layers = getattr(config, "layer_types", None)
    if layers is not None and "sliding_attention" not in layers:
        return None
    return int(width)


def scale(config: Any, length: int) -> tuple[Hashable, ...]:
    """Return what a sequence's length makes of the positions of all its tokens."""
    return tuple(
        length > rope["original_max_position_embeddings"]
        if rope.get("rope_type") == "longrope"
        else "dynamic" in (rope.get("rope_type") or "")
        and max(0, length - config.max_position_embeddings)
        for rope in _ropes(config)
    )


def obstacle(config: Any, begin: int, end: int) -> str | None:
    """Return why sequences of `begin` to `end` tokens cannot share a cache, None if they can."""
    if scale(config, begin) != scale(config, end):
        return "since its positions depend on how long a text gets"
    for name in _COUNTS:
        most = getattr(config, name, None)
        if getattr(config, "moe_eval_capacity_token_fraction", 0) > 0:  # NLLB's grows with the text
            continue
        if most is not None and end > most:
            return f"since its {name} of {most} counts the tokens of a pass, not of a text"
    return None


def longest(config: Any) -> int | None:
    """Return how many positions the model has, None where it does not say."""
    length = getattr(config, "max_position_embeddings", None) or 0
    if length <= 0:  # XLNet's is −1
        return None
    factors = [
        rope["factor"] for rope in _ropes(config) if "dynamic" in (rope.get("rope_type") or "")
    ]
    return int(length * max(factors, default=1))


@contextmanager
def shrunk(config: Any, passed: Sequence[bool]) -> Iterator[None]:
    """Let a few tokens be past some limits: those of the window and of every kind of position."""
    limits = [(vars(config), "sliding_window")]
    limits += [(rope, "original_max_position_embeddings") for rope in _ropes(config)]
    before = [
        (held, name, held[name])
        for is_past, (held, name) in zip(passed, limits, strict=True)
        if is_past
    ]
    try:
        for held, name, value in before:
            held[name] = min(_SHRUNK, value)
        yield
    finally:
        for held, name, value in before:
            held[name] = value


def is_rescaled(module: Any) -> bool:
    """Return whether a module computes positions that depend on a sequence's length."""
    kinds = getattr(module, "rope_type", None) or ()
    named = [kinds] if isinstance(kinds, str) else list(kinds.values() if kinds else ())
    return any("dynamic" in kind or kind == "longrope" for kind in named)


def forget(module: Any) -> None:
    """Let rescaled positions be as before the first sequence was read."""
    for name in [name for name in module._buffers if name.endswith("original_inv_freq")]:
        module._buffers[name.replace("original_", "")] = module._buffers[name]
    for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
        setattr(module, name, module.original_max_seq_len)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """List the settings of rotary positions, those of every kind of layer."""
    given = getattr(config, "rope_parameters", None) or {}
    return [part for part in given.values() if isinstance(part, dict)] or [given]
