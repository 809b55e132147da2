"""`bestk doctor`: what is missing on this machine, and how to get it."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> int:
    """[bold]bestk doctor[/bold]

    Say what is there and what is missing, and how to get it; exit code 1 if bestk cannot run.
    """
    from bestk.cli import terminal
    from bestk.lm.health import checks

    found = list(checks())
    if as_json:
        terminal.print_json([dataclasses.asdict(check) for check in found])
    else:
        marks = {True: "✔", False: "–"}
        terminal.print_columns(
            [(marks[one.is_there], one.name, one.told, one.way_out) for one in found]
        )
    return 1 if any(one.is_needed and not one.is_there for one in found) else 0
