"""What commands share of the terminal: reading prompts, following a search, printing results.

Results go to stdout; progress and status go to stderr, and only if that is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from bestk.cli.options import engine_options
from bestk.errors import OptionError, PromptError

if TYPE_CHECKING:
    from bestk.batch import JobProgress
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


def print_json(data: Any) -> None:
    """Print plain data as one JSON document."""
    print(json.dumps(data, ensure_ascii=False, indent=2))


def print_result(
    result: SearchResult, tokens_text: Callable[[Sequence[int]], str] | None = None
) -> None:
    """Print the texts and the summary; the tree above them if tokens can be shown."""
    from bestk.viz import terminal

    view = terminal.result_view(result)
    if tokens_text is not None:
        view = Group(terminal.tree_view(result, tokens_text), Text(), view)
    print_view(view)


def print_view(view: RenderableType, *, is_wrapped: bool = False) -> None:
    """Print what rich can show: as wide as a terminal; in a pipe or a file plain, and unwrapped."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(view)
        return
    from bestk.viz.terminal import plain

    print(plain(view, None if is_wrapped else _UNWRAPPED))


def print_summary(result: SearchResult) -> None:
    """Print the summary alone."""
    from bestk.viz import terminal

    print_view(Group(Text(), terminal.summary_view(result)))


def print_new(found: Sequence[Hypothesis]) -> None:
    """Print texts in one line each."""
    for hypothesis in found:
        line = hypothesis.text.strip().replace("\n", "⏎")
        print(f"{hypothesis.score:.3f}  {line}", flush=True)


def print_lines(found: Sequence[Hypothesis]) -> None:
    """Print texts as lines of JSON."""
    for one in found:
        told = {"text": one.text, "score": one.score, "log_prob": one.log_prob}
        told |= {"num_tokens": one.num_tokens, "finish_reason": one.finish_reason}
        print(json.dumps(told, ensure_ascii=False), flush=True)


def print_notice(result: SearchResult) -> None:
    """Print in one line on stderr why there is no text, where there is none."""
    if result.notice is not None:
        print("Note: " + " ".join(result.notice.split()), file=sys.stderr)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and what is to be said of each, aligned."""
    width = max(map(len, facts))
    for name, told in facts.items():
        print(f"{name:<{width}}  {told}")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of words with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def print_batch(job: JobProgress) -> int:
    """Print on stderr what a job wrote, and return the exit code: 1 if there were bad rows."""
    print(f"{job.num_rows:,} rows in {job.output}", file=sys.stderr)
    if job.num_bad:
        print(f"{job.num_bad:,} bad rows: {job.errors} says why", file=sys.stderr)
    return 1 if job.num_bad else 0


def _load(name: str, options: dict[str, Any]) -> LanguageModel:
    from transformers.utils import logging

    import bestk

    _import_transformers()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return bestk.load(name, **options)


def _import_transformers() -> None:
    """Import what models are made of, without what no search uses: a third of the time.

    Where they are installed, scikit-learn, scipy and pandas come along for a way of drafting texts
    and for the training of detectors.
    """
    from transformers import utils

    names = ("is_scipy_available", "is_sklearn_available")
    before = {name: vars(utils)[name] for name in names}
    vars(utils).update(dict.fromkeys(names, lambda: False))
    try:
        import transformers.generation.utils
        import transformers.modeling_utils  # noqa: F401
    finally:
        vars(utils).update(before)
