"""Shows on stderr how a job goes: rows, rate, time left. On no terminal, a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from bestk.batch.job import Progress

_EVERY = 30.0  # seconds between two lines where there is no terminal


def follow(steps: Iterable[Progress], console: Console) -> Progress:
    """Run a job to its end and return where it stands then; Ctrl-C says what is kept."""
    started = time.monotonic()
    told = started
    last = None
    columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
    with Bars(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        bar = bars.add_task("loading the model", total=None)
        first = None
        try:
            for last in steps:
                if first is None:  # what was done before does not count for the rate
                    first, started = last, time.monotonic()
                now = time.monotonic()
                text = describe(last, first, now - started)
                share = last.share
                bars.update(bar, completed=share or 0, total=share and 1, description=text)
                if not console.is_terminal and now - told >= _EVERY:
                    told = now
                    console.print(text, soft_wrap=True)
        except KeyboardInterrupt:
            kept = 0 if last is None else last.num_rows
            console.print(f"stopped, {kept:,} rows are kept: the same command goes on")
            raise
    assert last is not None
    return last


def describe(now: Progress, first: Progress, seconds: float) -> str:
    """Say in a line how far a job is, how fast, and how long it will take.

    >>> from pathlib import Path
    >>> at = dict(num_rows=0, num_bad=0, is_done=False, output=Path("o"), errors=Path("e"))
    >>> begun = Progress(num_read=0, share=0.5, **at)
    >>> describe(Progress(num_read=100, share=0.6, **at), begun, 10.0)
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
