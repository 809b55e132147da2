"""One row of a job: which prompt it holds, which settings it changes, what is passed through.

    {"prompt": "…"}  or  {"messages": [{"role": "user", "content": "…"}]}  or  {"token_ids": [1, 2]}

`id` and columns of other names go to the output as they are; `options` changes settings of the
search for this row. A row that cannot be searched raises an error that says why. Knows no files.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bestk.config import SearchConfig
from bestk.errors import OptionError, PromptError
from bestk.lm.images import holds_data, is_image
from bestk.lm.language_model import LanguageModel, Prompt

PROMPTS = ("prompt", "messages", "token_ids")
# Columns of the input that say what to do; all others are passed through.
CONSUMED = (*PROMPTS, "options")
# Columns of the output, whatever the input has.
_FOUND = ("texts", "scores", "rerank_scores", "mass", "cost")
OWN = ("line", *_FOUND, "stop_reason", "notice", "signature", "result", "hypotheses")


@dataclass(frozen=True)
class RawRow:
    """A row as it was read: a line of JSON, or the columns of a Parquet file."""

    line: int  # from 1
    content: bytes | dict[str, Any]

    def is_blank(self) -> bool:
        """Return whether there is nothing in it, as in the last line of many files."""
        return isinstance(self.content, bytes) and not self.content.strip()


@dataclass(frozen=True)
class RowRequest:
    """A row that can be searched."""

    line: int
    prompt: Prompt
    config: SearchConfig
    columns: dict[str, Any]  # passed through, `id` first


def columns_of(row: RawRow) -> dict[str, Any]:
    """Return the columns of a row; what is no JSON object raises a PromptError."""
    if isinstance(row.content, dict):
        return row.content
    try:
        text = row.content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"the line is not UTF-8: byte {error.start} is {error.reason}") from None
    try:
        data = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in row.content.lower():  # half of a surrogate pair is no character
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise PromptError(f"the line is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise PromptError(f"a row must be a JSON object with a prompt, got {text.strip()[:40]!r}")
    return data


def read_row(
    row: RawRow,
    columns: Mapping[str, Any],
    lm: LanguageModel,
    config: SearchConfig,
    *,
    raw: bool,
    system: str | None,
    keep: Sequence[str] | None = None,
) -> RowRequest:
    """Make a row ready to be searched, or raise an error that says why it cannot be."""
    kept = {name: columns[name] for name in passed_on(columns, keep)}
    for name in kept:
        if name in OWN:
            raise PromptError(f"column {name!r} is one of the output's own: rename it")
    settings = _settings(columns.get("options"), config)
    prompt = _prompt(columns, lm, raw=raw, system=system)
    return RowRequest(row.line, prompt, settings, kept)


def passed_on(names: Iterable[str], keep: Sequence[str] | None) -> list[str]:
    """Choose the columns that go to the output, `id` first.

    >>> passed_on(["prompt", "topic", "id"], None), passed_on(["prompt", "topic", "id"], ["prompt"])
    (['id', 'topic'], ['prompt'])
    """
    kept = [name for name in names if (name not in CONSUMED if keep is None else name in keep)]
    return sorted(kept, key=lambda name: name != "id")


def _prompt(
    columns: Mapping[str, Any], lm: LanguageModel, *, raw: bool, system: str | None
) -> Prompt:
    given = [name for name in PROMPTS if columns.get(name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise PromptError(f"a row must have one of {', '.join(PROMPTS)}, got {found}")
    name = given[0]
    value = columns[name]
    if name == "prompt":
        if not isinstance(value, str):
            raise PromptError(f"prompt must be text, got {value!r:.60}")
        return lm.asked(value, raw=raw, system=system)
    if not isinstance(value, list) or not value:
        raise PromptError(f"{name} must be a list that is not empty, got {value!r:.60}")
    is_right = _is_message if name == "messages" else _is_id
    for item in value:
        if not is_right(item):
            wanted = "dicts with role and content" if name == "messages" else "whole numbers"
            raise PromptError(f"{name} must be {wanted}, got {item!r:.60}")
        if name == "messages":
            _check_images(item["content"])
    return value


def _check_images(content: Any) -> None:
    """Refuse images that a row only names: it may be a stranger's, and the files are not."""
    for part in content if isinstance(content, list) else ():
        if is_image(part) and not holds_data(part):
            raise PromptError(
                "an image of a row lies in it, as a data URL: "
                '{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}, '
                f"got {part!r:.60}"
            )


def _settings(options: Any, config: SearchConfig) -> SearchConfig:
    if options is None:
        return config
    if isinstance(options, str):  # in a Parquet file the simplest form
        try:
            options = json.loads(options)
        except ValueError as error:
            raise OptionError(f"options must be a JSON object: {error}") from None
    if not isinstance(options, dict):
        raise OptionError(f"options must be an object with settings, got {options!r:.60}")
    given = {name: value for name, value in options.items() if value is not None}
    lists = {f.name for f in dataclasses.fields(config) if isinstance(f.default, tuple)}
    for name in lists & given.keys():
        if isinstance(given[name], list):
            given[name] = tuple(given[name])
    return SearchConfig.of(given, config)


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and "role" in item and "content" in item


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):  # it could be read, and not written again
        raise ValueError(f"{number} is past the range of a double")
    return value
