"""A search as a terminal shows it: a bar, texts as they complete; Ctrl-C keeps what was found."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bestk.api import Outcomes
from bestk.cli import terminal
from bestk.engine.batch import Row
from bestk.engine.request import Request, Update
from bestk.engine.scheduler import Scheduler
from bestk.errors import SearchInterrupted
from bestk.result import Hypothesis, SearchResult

Tell = Callable[[Sequence[Hypothesis]], None]


class SearchView:
    """Shows a search to its end, or to Ctrl-C or an error, which is kept with what was found.

    With `tell` every text is told as it completes, once. After the first Ctrl-C the step under
    way is finished; a second one is raised at once.
    """

    def __init__(self, requests: Sequence[Request], tell: Tell | None = None) -> None:
        console = terminal.stderr()
        (self.request,) = requests
        self.scheduler = Scheduler()
        self.outcomes = Outcomes(requests, self.scheduler)
        self.tell, self.told = tell, set[str]()
        self.error: BaseException | None = None
        self.bar = _Bar(self.request.config.total_budget, console) if console.is_terminal else None
        self.request.is_watched = True
        self._exits = ExitStack()

    @property
    def room(self) -> int | None:
        """How many more texts are wanted, None for any number."""
        most = self.request.config.num_texts
        return most if most is None else max(0, most - len(self.told))

    @property
    def result(self) -> SearchResult:
        """What was found."""
        return self.outcomes.partial()[0]

    def rest(self, result: SearchResult) -> Sequence[Hypothesis]:
        """Return the texts that are wanted and were not told: those that were cut off."""
        most = result.config.num_texts or 0
        left = [text for text in result if text.text not in self.told]
        return left[: max(0, most - len(self.told))]

    def __enter__(self) -> SearchView:
        self.pressed = self._exits.enter_context(_interruptible())
        if self.bar is not None:
            self._exits.enter_context(self.bar.live)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        self._exits.close()
        self.outcomes.close()
        is_kept = isinstance(error, SearchInterrupted | _Pressed)
        if is_kept:
            self.error = KeyboardInterrupt() if isinstance(error, _Pressed) else error
        return is_kept

    def update(self, update: Update) -> None:
        """Show a step; leave where Ctrl-C was pressed."""
        self.outcomes.note(update)
        if self.outcomes.broken:
            self.outcomes.results()  # raises
        if update.row is not None:
            self._show(update.row)
        if self.pressed.is_set() and update.result is None:
            raise _Pressed

    def _show(self, row: Row) -> None:
        if self.bar is None and self.tell is None:
            return
        standing = row.standing
        fresh = row.fresh(standing)[: self.room]
        self.told |= {text.text for text in fresh}
        if self.bar is not None:
            self.bar.update(standing.expanded, fresh)
        if self.tell is not None:
            self.tell(fresh)


class _Pressed(Exception):
    """Ctrl-C was pressed, and the step under way is done."""


class _Bar:
    """A progress bar of expansions with the newest text under it."""

    def __init__(self, budget: int, console: Console) -> None:
        self.num_texts = 0
        self.newest = ""
        self.progress = Progress(
            TextColumn("searching"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed} of {task.total} expansions, {task.fields[texts]} texts"),
            TimeElapsedColumn(),
        )
        self.task = self.progress.add_task("", total=budget, texts=0)
        self.live = Live(console=console, transient=True, get_renderable=self._render)

    def update(self, expanded: int, fresh: Sequence[Hypothesis]) -> None:
        self.num_texts += len(fresh)
        if fresh:
            self.newest = " ".join(fresh[0].text.split())
        self.progress.update(self.task, completed=expanded, texts=self.num_texts)

    def _render(self) -> RenderableType:
        newest = Text(self.newest, style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self.progress, newest)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Note the first Ctrl-C, for a step to end with its books in order; let a second one act."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def note(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
