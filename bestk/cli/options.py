"""Options that several commands share: every setting of a search, and the model.

`@search_options` gives a command one option per field of SearchConfig, with the default read from
there, and hands it the checked config.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from bestk.config import DECAYS, DTYPES, RANKINGS, SCORINGS, SearchConfig

SEARCH_PANEL = "Search"
STOPPING_PANEL = "Stopping"

HELP = {
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
    "max_completions": "Stop once this many texts are complete.",
    "timeout": "Stop after this many seconds.",
    "certify": "Stop once this many texts are proven the likeliest.",
    "rank_by": f"Order of the texts: {', '.join(RANKINGS)}.",
    "stop_ids": "Token id that completes a text; may be repeated.",
    "stop": "String that completes a text; may be repeated.",
}
_STOPPING = ("max_completions", "timeout", "certify", "stop_ids", "stop")
_TYPES = {tuple[int, ...]: list[int], tuple[str, ...]: list[str]}
_NAMES = {"k": ("--k", "-k"), "stop_ids": ("--stop-id",)}

Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Short name, folder or hub name.", rich_help_panel="Model"),
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


def search_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a command's `config` parameter by one option for each field of SearchConfig."""
    fields = {field.name: field for field in dataclasses.fields(SearchConfig)}

    @functools.wraps(command)
    def with_config(**values: Any) -> Any:
        options = {name: values.pop(name) for name in fields}
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
    option = typer.Option(
        *names,
        help=HELP[field.name],
        rich_help_panel=STOPPING_PANEL if field.name in _STOPPING else SEARCH_PANEL,
    )
    default = [*getattr(SearchConfig, field.name)] if kind in _TYPES else field.default
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[_TYPES.get(kind, kind), option],
    )
