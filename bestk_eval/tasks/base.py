"""Task: the settings of one task, its prompts in two styles, and the room an answer has.

`plain` is what a model fine-tuned for the task reads, as in the paper; `chat` asks an
instruction-tuned model in words. Both are filled from the fields of an example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bestk import LanguageModel, Prompt
from bestk.errors import OptionError, PromptError, SchemaError, unknown
from bestk_eval.examples import Example

STYLES = ("auto", "plain", "chat")
KINDS = ("question", "concepts", "summary", "translation", "text")

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A dataset on the Hugging Face hub."""

    path: str
    name: str | None = None
    split: str = "test"
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task.

    Examples come from `examples` (a function without arguments), or from records that `read` turns
    into them: of the first file that one of `files` matches in the data folder, or of `hub`.
    """

    name: str
    plain: str
    chat: str
    kind: str = "text"
    max_new_tokens: int = 30
    source_factor: float | None = (
        None  # answers may be so many times as long as the source, instead
    )
    keeps_cut: bool = False  # texts that were cut off are kept beside the complete ones
    long_field: str | None = None  # the field to shorten when a prompt does not fit the model
    files: tuple[str, ...] = ()
    hub: Hub | None = None
    read: Callable[[Record], Example] | None = None
    gather: Callable[[list[Example]], list[Example]] | None = None  # records that belong together
    examples: Callable[[], Iterable[Example]] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(unknown("kind of task", self.kind, KINDS))
        if self.examples is None and self.read is None:
            raise OptionError(f"task {self.name} has no examples: give it examples=, or read=")
        if self.max_new_tokens < 1:
            raise OptionError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")

    def of_split(self, split: str) -> Task:
        """Return the task with the examples of another split, such as dev or validation."""
        if self.examples is not None:
            raise OptionError(f"task {self.name} has no splits: leave split out")
        folders = dict.fromkeys(pattern.rpartition("/")[0] for pattern in self.files)
        return dataclasses.replace(
            self,
            files=tuple(f"{folder}/{split}*" for folder in folders),
            hub=None if self.hub is None else dataclasses.replace(self.hub, split=split),
        )

    def room(self, example: Example, lm: LanguageModel) -> int:
        """Return the longest answer in tokens: a constant, or a multiple of the source."""
        if self.source_factor is None:
            return self.max_new_tokens
        return max(1, round(self.source_factor * len(lm.encode(example.input))))

    def prompt(self, example: Example, style: str) -> Prompt:
        """Word the question: a text, or chat messages."""
        if style == "plain":
            return self._fill(self.plain, example)
        return [{"role": "user", "content": self._fill(self.chat, example)}]

    def prompt_that_fits(
        self, example: Example, style: str, lm: LanguageModel, max_new_tokens: int
    ) -> Prompt:
        """Word the question, with the end of the long field cut off if the model needs that."""
        prompt = self.prompt(example, style)
        if self.long_field is None or _fits(prompt, lm, max_new_tokens):
            return prompt
        words = str(example.fields[self.long_field]).split()
        low, high = 0, len(words)  # so many words fit, so many do not
        while high - low > 1:
            middle = (low + high) // 2
            if _fits(self.prompt(self._cut(example, words[:middle]), style), lm, max_new_tokens):
                low = middle
            else:
                high = middle
        return self.prompt(self._cut(example, words[:low]), style)

    def _cut(self, example: Example, words: list[str]) -> Example:
        assert self.long_field is not None
        return dataclasses.replace(
            example,
            fields={**example.fields, self.long_field: " ".join(words)},
        )

    def _fill(self, template: str, example: Example) -> str:
        values = {"input": example.input, **example.fields}
        shown = {k: " ".join(v) if isinstance(v, list | tuple) else v for k, v in values.items()}
        try:
            return template.format_map(shown)
        except (KeyError, IndexError, ValueError) as error:
            raise SchemaError(
                f"task {self.name}: the prompt {template!r} asks for {error}, an example has "
                + ", ".join(sorted(shown))
            ) from None


def style_of(style: str, lm: LanguageModel) -> str:
    """Choose `chat` for models with a chat template where the style is `auto`."""
    if style not in STYLES:
        raise OptionError(unknown("style", style, STYLES))
    if style == "auto":
        return "chat" if lm.is_chat else "plain"
    return style


def _fits(prompt: Prompt, lm: LanguageModel, max_new_tokens: int) -> bool:
    try:
        lm.check_length(lm.encode(prompt), max_new_tokens)
    except PromptError:
        return False
    return True
