"""A progress bar for an evaluation on stderr, where that is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from bestk_eval.runner import Progress


class EvalView:
    """Shows how an evaluation goes."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("evaluating"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.description}"),
        )
        self.bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self.bar = self.bars.add_task("", total=None)

    def __enter__(self) -> EvalView:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def update(self, progress: Progress) -> None:
        """Show where it stands."""
        self.bars.update(
            self.bar,
            completed=progress.done,
            total=progress.total,
            description=progress.method,
        )
