"""`bestk models`: which models there are on this machine."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print the models as JSON.")] = False,
) -> None:
    """[bold]bestk models[/bold]

    List the models of this machine, by the names that --model takes.
    """
    from bestk.cli import terminal
    from bestk.lm.inventory import known_models

    found = list(known_models())
    if as_json:
        terminal.print_json([dataclasses.asdict(model) for model in found])
    else:
        terminal.print_columns([(model.name, model.place, model.about) for model in found])
