"""Options that several commands share: every setting of a search, and the model.

`@search_options` gives a command one option per field of SearchConfig, with the default read from
there; `config_of` makes a checked config of them. Settings that are long texts are read from files.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bestk.config import DTYPES, SearchConfig
from bestk.errors import OptionError
from bestk.server.limits import Limits
from bestk.settings import Setting, every_setting

# A shell has no way to write lists of lists: `bad_words` says the same in words.
NO_OPTION = frozenset({"bad_words_ids"})
_FIELDS = [f.name for f in dataclasses.fields(SearchConfig) if f.name not in NO_OPTION]
# Too long for a shell: the option names a file.
_FILES = frozenset({"json_schema", "grammar"})
_TYPES = {tuple[int, ...]: list[int], tuple[str, ...]: list[str]}
_NAMES = {
    "num_texts": ("--num-texts", "-n"),
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
        help="Short name, folder, hub name, vllm:NAME or a server's address.",
        rich_help_panel="Model",
    ),
]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-option",
        help="name=value for a server or engine, such as patience=300, or for any model "
        "prefetch=0; may be repeated.",
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
    str | None,
    typer.Option(
        help="Which of n texts: the best, or diverse, good ones that differ, as is usual.",
        rich_help_panel="Choice",
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
    """Give a command an option for each field of SearchConfig that it has no parameter for."""
    known = {setting.name: setting for setting in every_setting(SearchConfig)}
    return _with_options(command, [_parameter(known[name]) for name in _FIELDS])


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one option for each limit of a server, in place of its `**limits`."""
    kinds = typing.get_type_hints(Limits)
    return _with_options(
        command,
        [
            inspect.Parameter(
                f"max_{field.name}",
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=Annotated[
                    kinds[field.name],
                    typer.Option(help=field.metadata["help"], rich_help_panel="Limits"),
                ],
            )
            for field in dataclasses.fields(Limits)
        ],
    )


def _with_options(
    command: Callable[..., Any], added: Sequence[inspect.Parameter]
) -> Callable[..., Any]:
    """Give a command these options in place of its `**` ones."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
    taken = {parameter.name for parameter in parameters}
    parameters += [parameter for parameter in added if parameter.name not in taken]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return command


def config_of(settings: dict[str, Any]) -> SearchConfig:
    """Make a config of a command's `**settings`."""
    files = {name: _text_of(name, settings[name]) for name in _FILES}
    return SearchConfig(**{**settings, **files})


def _parameter(setting: Setting) -> inspect.Parameter:
    names = _NAMES.get(setting.name, ("--" + setting.name.replace("_", "-"),))
    option = typer.Option(*names, help=_help(setting), rich_help_panel=setting.panel)
    kind = _TYPES.get(setting.kind, setting.kind)
    if setting.name in _FILES:
        kind = Path
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=[*setting.default] if setting.is_list else setting.default,
        annotation=Annotated[kind | None if setting.is_optional else kind, option],
    )


def _help(setting: Setting) -> str:
    if setting.name in _FILES:
        return "File with " + setting.help[0].lower() + setting.help[1:]
    return (
        setting.help.removesuffix(".") + "; may be repeated." if setting.is_list else setting.help
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
