"""Prompts that hold images: token ids with places for them, and what a processor made of them.

Such a prompt is read alone, by the model's own forward: that encodes the images, and knows where
their tokens stand and what they see of each other. The texts that follow are tokens like any other.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor

# Settings that name the tokens which stand for what is no text.
_PLACEHOLDERS = ("image", "video", "audio")


class ImagePrompt(Sequence[int]):
    """Token ids, the images' placeholders among them, and the arguments of `forward` beside them.

    `text` are the last of the ids where these were added to a prompt.
    """

    def __init__(
        self, ids: Sequence[int], inputs: Mapping[str, Any], text: Sequence[int] = ()
    ) -> None:
        self.ids, self.inputs, self.text = list(ids), dict(inputs), list(text)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        return self.ids[place]

    def __add__(self, tokens: Sequence[int]) -> ImagePrompt:
        """Return the prompt with text after it."""
        longer = {
            name: torch.nn.functional.pad(value, (0, len(tokens)))  # 0 is text
            for name, value in self.inputs.items()
            if name.endswith("token_type_ids")
        }
        return ImagePrompt([*self.ids, *tokens], {**self.inputs, **longer}, tokens)

    @functools.cached_property
    def digest(self) -> str:
        """Name the images."""
        found = hashlib.sha256()
        for name, value in sorted(self.inputs.items()):
            found.update(name.encode())
            found.update(
                value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode()
            )
        return found.hexdigest()

    def __repr__(self) -> str:
        return f"ImagePrompt({self.ids}, {self.digest})"

    def arguments(
        self, accepts: Collection[str], device: torch.device, dtype: torch.dtype
    ) -> dict[str, Any]:
        """Return what `forward` takes beside the ids."""

        def placed(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.to(device, dtype if value.is_floating_point() else value.dtype)

        return {name: placed(value) for name, value in self.inputs.items() if name in accepts}


def placeholders(config: Any) -> frozenset[int]:
    """Name the tokens that stand for images and the like, by a whole model's config."""
    names = [f"{kind}_token_{end}" for kind in _PLACEHOLDERS for end in ("id", "index")]
    found = (getattr(config, name, None) for name in names)
    return frozenset(token for token in found if isinstance(token, int))
