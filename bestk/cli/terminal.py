"""What commands share of the terminal: reading prompts, following a search, printing results.

Results go to stdout; progress and status go to stderr, and only if that is a terminal.
"""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bestk.cli.options import engine_options
from bestk.errors import OptionError, PromptError, SearchInterrupted

if TYPE_CHECKING:
    from bestk.batch import Progress as BatchProgress
    from bestk.engine.run import Run
    from bestk.lm.language_model import LanguageModel
    from bestk.result import Hypothesis, SearchResult

# Lines of a pipe or a file are not wrapped.
_UNWRAPPED = 100_000


def stderr() -> Console:
    """Return a console for progress."""
    return Console(stderr=True, highlight=False)


def read_prompt(prompt: str, *, raw: bool = False, system: str | None = None) -> str:
    """Return the prompt, from standard input if it is `-`; an empty one is an error."""
    if raw and system is not None:
        raise OptionError("--system needs chat formatting: give it without --raw")
    if prompt == "-":
        prompt = sys.stdin.read().removesuffix("\n")
    if not prompt.strip():
        raise PromptError("the prompt is empty: give at least one word")
    return prompt


def load(name: str, engine: Sequence[str] | None = None, **options: Any) -> LanguageModel:
    """Load a model, showing on a terminal that it is being loaded; options of None are not given.

    `options` are those of `bestk.load`, `engine` those of an engine as `name=value`.
    """
    given = {option: value for option, value in options.items() if value is not None}
    given |= engine_options(engine or ())
    console = stderr()
    if not console.is_terminal:
        return _load(name, given)
    with console.status(f"loading {name}"):
        return _load(name, given)


def follow(run: Run, *, stream: bool = False) -> SearchInterrupted | KeyboardInterrupt | None:
    """Run a search to its end, or to Ctrl-C or an error, which is returned: `run` has the rest.

    With `stream` every text is printed as it completes, once. After the first Ctrl-C
    the step under way is finished; a second one is raised at once.
    """
    console = stderr()
    view = _View(run, console) if console.is_terminal else None
    printed: set[str] = set()
    with _interruptible() as pressed, view.live if view else nullcontext():
        try:
            for _ in run:
                if pressed.is_set():
                    return KeyboardInterrupt()
                fresh = run.fresh()[0] if view or stream else []
                if view:
                    view.update(fresh)
                if stream:
                    _print_new(fresh, printed)
        except SearchInterrupted as error:
            return error
        finally:
            run.close()
    return None


def print_json(data: Any) -> None:
    """Print plain data as one JSON document."""
    print(json.dumps(data, ensure_ascii=False, indent=2))


def print_result(
    result: SearchResult,
    chosen: Sequence[Hypothesis],
    tokens_text: Callable[[Sequence[int]], str] | None = None,
) -> None:
    """Print the chosen texts and the summary; the tree above them if tokens can be shown."""
    from bestk.viz import terminal

    view = terminal.result_view(result, chosen)
    if tokens_text is not None:
        view = Group(terminal.tree_view(result, tokens_text), Text(), view)
    print_view(view)


def print_view(view: RenderableType) -> None:
    """Print what rich can show: as wide as a terminal; in a pipe or a file unwrapped and plain."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(view)
        return
    plain = Console(file=io.StringIO(), highlight=False, width=_UNWRAPPED)
    with plain.capture() as captured:
        plain.print(view)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_summary(result: SearchResult) -> None:
    """Print the summary alone."""
    from bestk.viz import terminal

    print_view(Group(Text(), terminal.summary_view(result)))


def print_notice(result: SearchResult) -> None:
    """Say in one line on stderr why there is no text, where there is none."""
    if result.notice is not None:
        print("Note: " + " ".join(result.notice.split()), file=sys.stderr)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and what is to be said of each, aligned."""
    width = max(map(len, facts))
    for name, told in facts.items():
        print(f"{name:<{width}}  {told}")


def print_batch(job: BatchProgress) -> int:
    """Say on stderr what a job has written, and return the exit code: 1 if there were bad rows."""
    print(f"{job.num_rows:,} rows in {job.output}", file=sys.stderr)
    if job.num_bad:
        print(f"{job.num_bad:,} bad rows: {job.errors} says why", file=sys.stderr)
    return 1 if job.num_bad else 0


def _print_new(found: Sequence[Hypothesis], printed: set[str]) -> None:
    for hypothesis in found:
        if hypothesis.text not in printed:
            printed.add(hypothesis.text)
            line = hypothesis.text.strip().replace("\n", "⏎")
            print(f"{hypothesis.score:.3f}  {line}", flush=True)


class _View:
    """A progress bar of expansions with the newest text under it."""

    def __init__(self, run: Run, console: Console) -> None:
        self.run = run
        self.num_texts = 0
        self.newest = ""
        self.progress = Progress(
            TextColumn("searching"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed} of {task.total} expansions, {task.fields[texts]} texts"),
            TimeElapsedColumn(),
        )
        self.task = self.progress.add_task("", total=run.config.total_budget, texts=0)
        self.live = Live(console=console, transient=True, get_renderable=self._render)

    def update(self, fresh: Sequence[Hypothesis]) -> None:
        self.num_texts += len(fresh)
        if fresh:
            self.newest = " ".join(fresh[0].text.split())
        expanded = int(self.run.searches.tree.count[0])
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


def _load(name: str, options: dict[str, Any]) -> LanguageModel:
    from transformers.utils import logging

    import bestk

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return bestk.load(name, **options)
