"""A progress bar for an evaluation on stderr, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from bestk_eval.runner import Progress


def follow(steps: Iterable[Progress], console: Console | None = None) -> Progress | None:
    """Run an evaluation to its end and return where it stands then."""
    console = console or Console(stderr=True)
    last = None
    columns = (
        TextColumn("evaluating"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task("", total=None)
        for last in steps:
            bars.update(bar, completed=last.done, total=last.total, description=last.method)
    return last
