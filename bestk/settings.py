"""What a setting of a search is: its kind, its range, a line of help and a panel, read and checked.

`SearchConfig` declares each once; the command line makes options of them, the server fields of its
bodies and a list for its page. Also what people call them elsewhere. Knows no front end.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Interval

from bestk.errors import OptionError, unknown

DIFFERENCES = {"similar": 0.5, "different": 1.0, "very different": 2.0}  # novelty in words
MOST = 2**53  # tensors compare whole numbers, and so do JSON's readers

# Kinds of numbers; real ones end where a score or a logit could overflow, past any sensible value.
Count = Annotated[int, Interval(ge=1)]
Natural = Annotated[int, Interval(ge=0)]
Share = Annotated[float, Interval(gt=0, le=1)]
Weight = Annotated[float, Interval(ge=0, le=1e6)]
Factor = Annotated[float, Interval(ge=1e-4, le=1e4)]
Penalty = Annotated[float, Interval(ge=-100, le=100)]


def _declared(panel: str) -> Callable[..., Any]:
    """Return what declares a setting: a line of help, which goes into a panel, and a default."""

    def declare(help: str, default: Any = None) -> Any:
        return dataclasses.field(default=default, metadata={"help": help, "panel": panel})

    return declare


search, stopping = _declared("Search"), _declared("Stopping")
constraint, shaping = _declared("Constraints"), _declared("Shaping")

# Names that people bring from transformers, vLLM and OpenAI's API, with our own for the same.
FOREIGN = {
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), "num_texts"),
    **dict.fromkeys(("num_beams", "beam_width", "beams"), "beam_size"),
    **dict.fromkeys(("max_length", "max_tokens", "max_completion_tokens"), "max_new_tokens"),
    **dict.fromkeys(("min_length", "min_tokens"), "min_new_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop"),
    **dict.fromkeys(("stop_token_ids", "eos_token_id"), "stop_ids"),
    **dict.fromkeys(("length_penalty", "alpha"), "length_alpha"),
    **dict.fromkeys(("diversity_penalty", "num_beam_groups"), "novelty"),
    **dict.fromkeys(("guided_json", "response_format", "json"), "json_schema"),
    **dict.fromkeys(("force_words", "force_words_ids"), "must_include"),
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "max_time": "timeout",
    "early_stopping": "max_completions",
}
# Settings of chance, which most searches have none of.
OF_CHANCE = ("do_sample", "sampling", "top_h")

_NAMES = {int: "integer", float: "number", str: "string", bool: "boolean"}


class SearchOptions(TypedDict, total=False):
    """The fields of `SearchConfig` as `search` takes them, for editors and type checkers."""

    num_texts: int | None
    fill: bool
    novelty: float | Literal["similar", "different", "very different"]
    k: int
    beam_size: int
    max_new_tokens: int
    min_new_tokens: int
    budget: int | None
    scoring: Literal["mean", "sum", "last"]
    length_alpha: float | None
    decay: Literal["power", "log", "none"]
    decay_weight: float
    decay_power: float
    min_prob: float
    min_children: int
    max_children: int | None
    max_frontier: int
    prune_margin: float | None
    depth_bonus: float
    sample: Literal["texts", "tokens"] | None
    seed: int
    max_completions: int | None
    timeout: float | None
    certify: int | None
    rank_by: Literal["mean", "sum", "score", "step"]
    on_cut: Literal["keep", "trim"]
    policy: str
    stop_ids: int | Sequence[int]
    stop: str | Sequence[str]
    end_prob: float | None
    must_include: str | Sequence[str]
    include_bonus: float
    regex: str | None
    json_schema: str | dict[str, Any] | None
    grammar: str | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int | None
    encoder_repetition_penalty: float
    encoder_no_repeat_ngram_size: int | None
    bad_words: str | Sequence[str]
    bad_words_ids: Sequence[Sequence[int]]
    suppress_tokens: int | Sequence[int]
    begin_suppress_tokens: int | Sequence[int]
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of `SearchConfig`, told to people."""

    name: str
    kind: Any  # the type, without None
    default: Any
    is_optional: bool  # may be None, which is the default
    help: str
    panel: str
    choices: tuple[str, ...] | None
    reach: Interval

    @property
    def type_name(self) -> str:
        """Name the type as JSON does; lists as what they hold and `[]`.

        >>> from bestk.config import SearchConfig
        >>> next(s.type_name for s in every_setting(SearchConfig) if s.name == "stop_ids")
        'integer[]'
        """
        return _type_name(self.kind)

    @property
    def is_list(self) -> bool:
        """Whether the setting holds any number of values."""
        return typing.get_origin(self.kind) is tuple

    @property
    def minimum(self) -> Any:
        """The lower end of its range, if it has one."""
        return self.reach.ge if self.reach.gt is None else self.reach.gt

    @property
    def maximum(self) -> Any:
        """The upper end of its range, if it has one."""
        return self.reach.le

    def read(self, value: Any) -> Any:
        """Return a value as it is kept; refuse one that is not of the setting's kind or range."""
        if self.is_list:
            (item, _) = typing.get_args(self.kind)
            value = (
                tuple_of(self.name, value, item) if item in _NAMES else tuples_of(self.name, value)
            )
        value = _READERS.get(self.name, lambda value: value)(value)
        if value is not None or not self.is_optional:
            self._check(value)
        return value

    def _check(self, value: Any) -> None:
        name = self.name
        if self.choices is not None and value not in self.choices:
            raise OptionError(unknown(name, str(value), self.choices))
        if self.kind is bool and not isinstance(value, bool):
            raise OptionError(f"{name} must be true or false, got {value!r}")
        if self.kind is str and not (isinstance(value, str) and value):
            raise OptionError(f"{name} must be a text that is not empty, got {value!r}")
        if self.kind in (int, float):
            self._check_number(value)

    def _check_number(self, value: Any) -> None:
        name, is_whole = self.name, self.kind is int
        if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
            raise OptionError(f"{name} must be a {'whole ' * is_whole}number, got {value!r}")
        if is_whole and value > MOST:
            raise OptionError(f"{name} must be at most {MOST}, got more")
        if not is_whole and not -sys.float_info.max <= value <= sys.float_info.max:
            raise OptionError(f"{name} must be finite, got {value}")
        least, above, most = self.minimum, self.reach.gt, self.maximum
        is_low = least is not None and (value < least or value == above)
        if not is_low and (most is None or value <= most):
            return
        rule = f"must be at least {least}" if above is None else f"must be above {above}"
        if most is not None:
            rule = (
                f"goes from {least:g} to {most:g}"
                if above is None
                else f"{rule} and at most {most}"
            )
        none = ": leave it out for none" if is_whole and self.is_optional else ""
        raise OptionError(f"{name} {rule}, got {value if is_whole else format(value, 'g')}{none}")


def no_setting(name: str, known: Iterable[str], spell: Callable[[str], str] = str) -> str:
    """Word the message for a setting that does not exist, with what it is called here.

    >>> no_setting("num_beams", ["beam_size"])
    "unknown option 'num_beams': it is called 'beam_size' here"
    >>> no_setting("do_sample", ["beam_size"])
    "unknown option 'do_sample': a search lists texts; sample='texts' draws them"
    """
    names = set(known)
    if name in OF_CHANCE:
        return f"unknown option {spell(name)!r}: a search lists texts; sample='texts' draws them"
    if FOREIGN.get(name) in names:
        return f"unknown option {spell(name)!r}: it is called {spell(FOREIGN[name])!r} here"
    return unknown("option", spell(name), map(spell, names))


@functools.cache
def every_setting(config: type) -> tuple[Setting, ...]:
    """Return all settings of `SearchConfig`."""
    kinds = typing.get_type_hints(config, include_extras=True)
    return tuple(_setting(kinds[f.name], f) for f in dataclasses.fields(config))


def _setting(kind: Any, field: dataclasses.Field[Any]) -> Setting:
    reach = Interval()
    while (origin := typing.get_origin(kind)) in (types.UnionType, typing.Union, Annotated):
        if origin is Annotated:
            kind, reach = kind.__origin__, kind.__metadata__[0]
        else:
            (kind,) = (part for part in typing.get_args(kind) if part is not type(None))
    choices = typing.get_args(kind) if origin is Literal else None
    return Setting(
        name=field.name,
        kind=kind if choices is None else str,
        default=field.default,
        is_optional=field.default is None,
        choices=choices,
        reach=reach,
        **field.metadata,
    )


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return _type_name(typing.get_args(kind)[0]) + "[]"
    return _NAMES[kind]


def tuple_of(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    """Read a list of one kind; one value alone is a list of it."""
    if isinstance(value, kind):
        value = (value,)
    if not isinstance(value, Sequence) or not all(
        isinstance(item, kind) and not isinstance(item, bool) for item in value
    ):
        raise OptionError(f"{name} must be a list of {kind.__name__}, got {value!r}")
    if kind is str and "" in value:
        raise OptionError(f"{name} must not hold an empty string")
    return tuple(value)


def phrases_of(phrases: tuple[str, ...]) -> tuple[str, ...]:
    """Read the phrases of `must_include`."""
    for phrase in phrases:
        if not all(form.strip() for form in phrase.split("|")):
            raise OptionError(
                f"must_include takes words and phrases, several forms as 'ran|runs', got {phrase!r}"
            )
    return phrases


def json_text(schema: Any) -> Any:
    """Turn a schema given as a dict into text, and see that a text is JSON."""
    if isinstance(schema, dict):
        try:
            return json.dumps(schema, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise OptionError(f"json_schema must be plain JSON data: {error}") from None
    if isinstance(schema, str):
        try:
            is_object = isinstance(json.loads(schema), dict)
        except json.JSONDecodeError as error:
            raise OptionError(f"json_schema must be JSON: {error}") from None
        if not is_object:
            raise OptionError(f"json_schema must be a JSON object, got {schema[:40]!r}")
    return schema


def nats_of(novelty: Any) -> Any:
    """Read `novelty`, which may be a word."""
    if not isinstance(novelty, str):
        return novelty
    if novelty not in DIFFERENCES:
        raise OptionError(unknown("novelty", novelty, DIFFERENCES))
    return DIFFERENCES[novelty]


def tuples_of(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Read a list of lists of token ids."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise OptionError(f"{name} must be a list of lists of int, got {value!r}")
    if any(not isinstance(item, Sequence) or not item for item in value):
        raise OptionError(f"{name} must be a list of lists of int, none empty, got {value!r}")
    return tuple(tuple_of(name, item, int) for item in value)


def plain(value: Any) -> str:
    """Write a value without the bar that separates the fields of a signature."""
    text = ",".join(map(repr, value)) if isinstance(value, tuple) else str(value)
    return text.replace("|", "/")


def digest(value: str) -> str:
    """Name a long text in a signature."""
    return hashlib.sha256(value.encode()).hexdigest()[:8]


_READERS: dict[str, Callable[[Any], Any]] = {
    "must_include": phrases_of,
    "json_schema": json_text,
    "novelty": nats_of,
}
