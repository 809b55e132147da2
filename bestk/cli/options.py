"""Options that several commands share: every setting of a search, and the model.

`@search_options` gives a command one option per field of SearchConfig, with the default read from
there, and hands it the checked config. Settings that are long texts are read from files.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from bestk.config import DECAYS, DTYPES, RANKINGS, SCORINGS, SearchConfig
from bestk.errors import OptionError

# Help by panel, then by field of SearchConfig; every field stands in one of the panels.
_SEARCH = {
    "k": "Nodes expanded in one model call.",
    "beam_size": "Equivalent beam size: the budget is beam size × max new tokens.",
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
    "rank_by": f"Order of the texts: {', '.join(RANKINGS)}.",
}
_STOPPING = {
    "max_completions": "Stop once this many texts are complete.",
    "timeout": "Stop after this many seconds.",
    "certify": "Stop once this many texts are proven the likeliest.",
    "stop_ids": "Token id that completes a text; may be repeated.",
    "stop": "String that completes a text; may be repeated.",
}
_CONSTRAINTS = {
    "must_include": "Word or phrase that every text holds, forms as 'ran|runs'; may be repeated.",
    "include_bonus": "Added to the score for each of them that a node's text holds.",
    "regex": "Regular expression that every text matches from start to end.",
    "json_schema": "File with a JSON schema: every text is a document of it.",
    "grammar": "File with an EBNF grammar: every text derives from its rule root.",
}
_SHAPING = {
    "temperature": "Divides the logits: above 1 flattens the model's distributions.",
    "top_k": "Keep this many of the likeliest tokens.",
    "top_p": "Keep the likeliest tokens that hold this share of the probability.",
    "min_p": "Keep tokens that have this share of the likeliest one's probability.",
    "repetition_penalty": "Above 1, tokens of the prompt and the text get less likely.",
    "no_repeat_ngram_size": "No n-gram of this size comes twice, prompt included.",
    "encoder_repetition_penalty": "Above 1, tokens of the prompt get likelier.",
    "encoder_no_repeat_ngram_size": "No n-gram of this size comes from the prompt.",
    "bad_words": "Word that no text holds; may be repeated.",
    "suppress_tokens": "Token id that no text holds; may be repeated.",
    "begin_suppress_tokens": "Token id that no text begins with; may be repeated.",
    "forced_bos_token_id": "Token id that every text begins with.",
    "forced_eos_token_id": "Token id that ends a text of max new tokens; may be repeated.",
}
PANELS = {
    "Search": _SEARCH,
    "Stopping": _STOPPING,
    "Constraints": _CONSTRAINTS,
    "Shaping": _SHAPING,
}
# A shell has no way to write lists of lists: `bad_words` says the same in words.
NO_OPTION = frozenset({"bad_words_ids"})
# Too long for a shell: the option names a file.
_FILES = frozenset({"json_schema", "grammar"})
_TYPES = {tuple[int, ...]: list[int], tuple[str, ...]: list[str]}
_NAMES = {
    "k": ("--k", "-k"),
    "stop_ids": ("--stop-id",),
    "bad_words": ("--bad-word",),
    "suppress_tokens": ("--suppress-token",),
    "begin_suppress_tokens": ("--begin-suppress-token",),
}

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Short name, folder, hub name or a server's address.",
        rich_help_panel="Model",
    ),
]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-option",
        help="name=value for a server or engine, such as patience=300; may be repeated.",
        rich_help_panel="Model",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help=f"Number format of the weights: {', '.join(DTYPES)}.", rich_help_panel="Model"
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="Such as cpu or cuda:0; a GPU if there is one.", rich_help_panel="Model"),
]
SrcLang = Annotated[
    str | None,
    typer.Option(help="Language that a translation model reads.", rich_help_panel="Model"),
]
TgtLang = Annotated[
    str | None,
    typer.Option(help="Language that a translation model writes.", rich_help_panel="Model"),
]
Select = Annotated[
    str,
    typer.Option(
        help="Which texts: the best, or diverse, good ones that differ.", rich_help_panel="Choice"
    ),
]
Diversity = Annotated[
    float,
    typer.Option(
        help="How much diverse texts differ: 0, quality alone, to 1.", rich_help_panel="Choice"
    ),
]
Rerank = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Another order of the texts: mbr-chrf, mbr-bleu, comet-qe, reward:NAME.",
        rich_help_panel="Choice",
    ),
]


# What `--ray` may be followed by; anything else is not its value.
_ADDRESS = re.compile(r"auto|local|(\w+://)?[\w.-]+:\d+")


def with_address(arguments: Sequence[str]) -> list[str]:
    """Say which cluster is meant where `--ray` stands alone: typer knows no optional values.

    >>> with_address(["batch", "--ray", "in.jsonl"])
    ['batch', '--ray', 'local', 'in.jsonl']
    >>> with_address(["batch", "--ray", "head:6379", "in.jsonl"])
    ['batch', '--ray', 'head:6379', 'in.jsonl']
    """
    filled: list[str] = []
    for place, argument in enumerate(arguments):
        filled.append(argument)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if argument == "--ray" and not _ADDRESS.fullmatch(following):
            filled.append("local")
    return filled


def search_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a command's `config` parameter by one option for each field of SearchConfig."""
    known = dataclasses.fields(SearchConfig)
    fields = {field.name: field for field in known if field.name not in NO_OPTION}

    @functools.wraps(command)
    def with_config(**values: Any) -> Any:
        options = {name: values.pop(name) for name in fields}
        for name in _FILES:
            options[name] = _text_of(name, options[name])
        return command(config=SearchConfig(**options), **values)

    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [parameter for parameter in own if parameter.name != "config"]
    parameters += [_parameter(field) for field in fields.values()]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    with_config.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    with_config.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return with_config


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    kind = get_type_hints(SearchConfig)[field.name]
    names = _NAMES.get(field.name, ("--" + field.name.replace("_", "-"),))
    (panel,) = (title for title, lines in PANELS.items() if field.name in lines)
    option = typer.Option(*names, help=PANELS[panel][field.name], rich_help_panel=panel)
    default = [*getattr(SearchConfig, field.name)] if kind in _TYPES else field.default
    given = Path | None if field.name in _FILES else _TYPES.get(kind, kind)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[given, option],
    )


def engine_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `name=value` pairs; a value is JSON where it can be, else text.

    >>> engine_options(["model=tiny", "patience=300"])
    {'model': 'tiny', 'patience': 300}
    """
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise OptionError(f"--engine-option is written name=value, got {pair!r}")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def _text_of(name: str, path: Path | None) -> str | None:
    if path is None:
        return None
    option = "--" + name.replace("_", "-")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{option} cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{option} must name a file of UTF-8 text, got {path}") from error
