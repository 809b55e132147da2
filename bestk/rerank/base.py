"""What a reranker is: it gives every text of one prompt a score.

Higher is better. Knows prompts as text, and nothing of particular rerankers.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from bestk.errors import OptionError, PromptError
from bestk.lm.images import content_text


class Reranker(abc.ABC):
    """Scores the texts of one prompt."""

    name: str = "reranker"
    needs_source: bool = True  # whether the prompt's text is looked at

    @abc.abstractmethod
    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        """Return a score per text, higher is better; `log_probs` are the model's."""


class ByFunction(Reranker):
    """Scores each text by a function of the prompt and the text.

    >>> ByFunction(lambda source, text: -len(text))("", ["long text", "short"])
    [-9.0, -5.0]
    """

    def __init__(self, function: Callable[[str, str], float], name: str | None = None) -> None:
        self.function = function
        self.name = str(name or getattr(function, "__name__", type(function).__name__))

    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        return numbers(self.name, [self.function(source, text) for text in texts])


def numbers(name: str, given: Any) -> list[float]:
    """Turn what a reranker returned (a list, an array or a tensor) into plain numbers."""
    score, found = given, []
    try:
        for score in given:
            found.append(float(score))
    except (TypeError, ValueError, RuntimeError):  # torch raises the last
        shown = " ".join(repr(score).split())
        raise OptionError(
            f"reranker {name} must return a number for every text, got {shown:.60}"
        ) from None
    return found


def source_text(prompt: Any) -> str:
    """Return the text of a prompt: itself, or what the user said last in a chat."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[-1], dict):
        for message in reversed(prompt):
            if message.get("role") == "user" and message.get("content"):
                return content_text(message["content"])
    raise PromptError("a prompt of token ids cannot be judged as text: give rerank its source")
