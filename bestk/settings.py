"""Every setting of a search as people meet it: its panel, a line of help, its type and its range.

The command line makes options of it, the server a list for its page. Defaults and rules are in
`config.py`, which reads names, ranges and values by what is here; knows no front end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from bestk.errors import OptionError, unknown

SCORINGS = ("mean", "sum", "last")
DECAYS = ("power", "log", "none")
RANKINGS = ("mean", "sum", "score", "step")
ON_CUT = ("keep", "trim")
SAMPLES = ("texts", "tokens")
DIFFERENCES = {"similar": 0.5, "different": 1.0, "very different": 2.0}  # novelty in words

# The smallest value of every setting that is a whole number.
LEAST = {
    "k": 1,
    "beam_size": 1,
    "max_new_tokens": 1,
    "min_new_tokens": 0,
    "budget": 1,
    "min_children": 0,
    "max_children": 1,
    "max_frontier": 1,
    "max_completions": 1,
    "certify": 1,
    "top_k": 1,
    "num_texts": 1,
    "no_repeat_ngram_size": 1,
    "encoder_no_repeat_ngram_size": 1,
    "forced_bos_token_id": 0,
    "seed": -(2**53),
}

MOST = 2**53  # tensors compare these numbers, and so do JSON's readers

# How far real numbers reach before a score or a logit could overflow; far past any sensible value.
REACH = {
    "length_alpha": (-20.0, 20.0),
    "decay_weight": (0.0, 1e6),
    "decay_power": (0.0, 20.0),
    "include_bonus": (0.0, 1e6),
    "prune_margin": (0.0, 1e6),
    "depth_bonus": (0.0, 1e6),
    "novelty": (0.0, 100.0),
    "temperature": (1e-4, 1e4),
    "repetition_penalty": (1e-4, 1e4),
    "encoder_repetition_penalty": (1e-4, 1e4),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
}

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

# Help by panel, then by field of SearchConfig; every field stands in one of the panels.
_SEARCH = {
    "num_texts": "Different texts that are wanted; the budget is then n × max new tokens.",
    "fill": "Fill n up; else texts much less likely than the best are left out.",
    "novelty": f"What saying something new is worth, in nats; or {', '.join(DIFFERENCES)}.",
    "k": "Nodes expanded in one model call: 5, or n where n texts are wanted.",
    "beam_size": "Equivalent beam size, 10 or n: the budget is beam size × max new tokens.",
    "max_new_tokens": "Longest text, in tokens.",
    "min_new_tokens": "Shortest text, in tokens.",
    "budget": "Node expansions in total, instead of beam size × max new tokens.",
    "scoring": f"Score of a node: {', '.join(SCORINGS)}.",
    "length_alpha": "Score by the sum of log-probabilities over length^alpha, instead.",
    "decay": f"How waiting lowers a node's priority: {', '.join(DECAYS)}.",
    "decay_weight": "Weight of the decay: higher prefers newer nodes.",
    "decay_power": "Power of a node's age in the decay.",
    "min_prob": "Tokens below this probability are not opened.",
    "min_children": "Likeliest tokens opened in any case.",
    "max_children": "Tokens looked at per node; all that can pass min prob unless given.",
    "max_frontier": "Open nodes kept after each step.",
    "prune_margin": "Drop open nodes whose score is more than this below the k-th best.",
    "depth_bonus": "Added to a node's priority for each of its tokens: the search goes deep.",
    "sample": "Draw texts, n different ones without replacement, or tokens, each node's children.",
    "seed": "Seed of what is drawn.",
    "policy": "Which nodes come next: best-k, the paper's algorithm, or diverse, for n texts.",
    "on_cut": "Texts that are cut off: keep them so, or trim them to their last whole sentence.",
    "rank_by": f"Order of the texts: {', '.join(RANKINGS)}.",
}
_STOPPING = {
    "max_completions": "Stop once this many texts are complete.",
    "timeout": "Stop after this many seconds.",
    "certify": "Stop once this many texts are proven the likeliest.",
    "stop_ids": "Token id that completes a text.",
    "stop": "String that completes a text.",
    "end_prob": "A text may end behind a sentence if that is so likely; told n, 0.01, 1 for never.",
}
_CONSTRAINTS = {
    "must_include": "Word or phrase that every text holds, forms as 'ran|runs'.",
    "include_bonus": "Added to the score for each of them that a node's text holds.",
    "regex": "Regular expression that every text matches from start to end.",
    "json_schema": "A JSON schema: every text is a document of it.",
    "grammar": "An EBNF grammar: every text derives from its rule root.",
}
_SHAPING = {
    "temperature": "Divides the logits: above 1 flattens the model's distributions.",
    "top_k": "Keep this many of the likeliest tokens.",
    "top_p": "Keep the likeliest tokens that hold this share of the probability.",
    "min_p": "Keep tokens that have this share of the likeliest one's probability.",
    "typical_p": "Keep tokens whose surprise is nearest the entropy, of this share in all.",
    "repetition_penalty": "Above 1, tokens of the prompt and the text get less likely.",
    "presence_penalty": "Taken off the logits of tokens that the text holds already.",
    "frequency_penalty": "Taken off them for each time that the text holds them.",
    "no_repeat_ngram_size": "No n-gram of this size comes twice, prompt included.",
    "encoder_repetition_penalty": "Above 1, tokens of the prompt get likelier.",
    "encoder_no_repeat_ngram_size": "No n-gram of this size comes from the prompt.",
    "bad_words": "Word that no text holds.",
    "bad_words_ids": "Sequence of token ids that no text holds.",
    "suppress_tokens": "Token id that no text holds.",
    "begin_suppress_tokens": "Token id that no text begins with.",
    "forced_bos_token_id": "Token id that every text begins with.",
    "forced_eos_token_id": "Token id that ends a text of max new tokens.",
}
PANELS = {
    "Search": _SEARCH,
    "Stopping": _STOPPING,
    "Constraints": _CONSTRAINTS,
    "Shaping": _SHAPING,
}

SHAPING = tuple(_SHAPING)  # what changes the model's probabilities
CHOICES = {
    "scoring": SCORINGS,
    "decay": DECAYS,
    "rank_by": RANKINGS,
    "on_cut": ON_CUT,
    "sample": SAMPLES,
}
# The ranges of settings that are real numbers; where an end is missing there is none.
RANGES: dict[str, tuple[float, float | None]] = {
    **REACH,
    "min_prob": (0.0, 1.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "timeout": (0.0, None),
    "end_prob": (0.0, 1.0),
}
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
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None

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


def every_setting(config: type) -> Iterator[Setting]:
    """Yield all settings of `SearchConfig`, in the order of the panels."""
    kinds = typing.get_type_hints(config)
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for panel, lines in PANELS.items():
        for name, text in lines.items():
            least, most = RANGES.get(name, (LEAST.get(name), None))
            yield Setting(
                name=name,
                kind=_without_none(kinds[name]),
                default=defaults[name],
                is_optional=defaults[name] is None,
                help=text,
                panel=panel,
                choices=CHOICES.get(name),
                minimum=least,
                maximum=most,
            )


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (kind,) = (part for part in typing.get_args(kind) if part is not type(None))
    return kind


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


def phrases_of(value: Any) -> tuple[str, ...]:
    """Read the phrases of `must_include`."""
    phrases: tuple[str, ...] = tuple_of("must_include", value, str)
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
