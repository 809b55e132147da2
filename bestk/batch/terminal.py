"""Shows on stderr how a job goes: rows, rate, time left. On no terminal, a line now and then."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from bestk.batch.job import JobProgress

_EVERY = 30.0  # seconds between two lines where there is no terminal


class JobView:
    """A bar of a job's progress, or a line now and then where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
        is_hidden = not console.is_terminal
        self.bars = Bars(*columns, console=console, disable=is_hidden, transient=True)
        self.bar = self.bars.add_task("loading the model", total=None)
        self.started = self.told = time.monotonic()
        self.first: JobProgress | None = None
        self.last: JobProgress | None = None

    def __enter__(self) -> JobView:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bars.stop()
        if kind is KeyboardInterrupt:
            kept = 0 if self.last is None else self.last.num_rows
            self.console.print(f"stopped, {kept:,} rows are kept: the same command goes on")

    def update(self, progress: JobProgress) -> None:
        """Show where the job stands."""
        now = time.monotonic()
        if self.first is None:  # what was done before does not count for the rate
            self.first, self.started = progress, now
        self.last, share = progress, progress.share
        text = describe(progress, self.first, now - self.started)
        self.bars.update(self.bar, completed=share or 0, total=share and 1, description=text)
        if not self.console.is_terminal and now - self.told >= _EVERY:
            self.told = now
            self.console.print(text, soft_wrap=True)


def describe(now: JobProgress, first: JobProgress, seconds: float) -> str:
    """Return in a line how far a job is, how fast, and how long it will take.

    >>> from pathlib import Path
    >>> at = dict(num_rows=0, num_bad=0, is_done=False, output=Path("o"), errors=Path("e"))
    >>> begun = JobProgress(num_read=0, share=0.5, **at)
    >>> describe(JobProgress(num_read=100, share=0.6, **at), begun, 10.0)
    '0 rows, 60%, 10.0 rows/s, 0:40 left'
    """
    parts = [f"{now.num_rows:,} rows"]
    if now.num_bad:
        parts.append(f"{now.num_bad:,} bad")
    if now.share is not None:
        parts.append(f"{now.share:.0%}")
    if seconds > 0 and now.num_read:
        parts.append(f"{now.num_read / seconds:.1f} rows/s")
        gone = (now.share or 0) - (first.share or 0)
        if now.share is not None and gone > 0:
            parts.append(f"{_clock(seconds * (1 - now.share) / gone)} left")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
