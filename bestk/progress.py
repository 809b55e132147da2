"""A progress bar for a call that takes longer than a second, where somebody sits before it.

Knows requests and their updates; draws on stderr, in terminals and notebooks, never into logs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from bestk.engine.request import Request, Update

if TYPE_CHECKING:
    from tqdm import tqdm

_DELAY = 1.0  # seconds: what is done by then needs no bar


def is_watched() -> bool:
    """Whether stderr is a terminal's or a notebook's."""
    is_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    return is_notebook or (sys.stderr is not None and sys.stderr.isatty())


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """Counts prompts; of a single one, the expansions of its search.

    `wanted` is True or False, or None: where somebody watches.
    """

    def __init__(self, requests: Sequence[Request], wanted: bool | None) -> None:
        self.requests = requests
        self.is_shown = is_watched() if wanted is None else wanted
        self.of_steps = len(requests) == 1
        self._bar: tqdm[None] | None = None

    def __enter__(self) -> ProgressBar:
        if not self.is_shown or not self.requests:
            return self
        from tqdm import tqdm

        total, unit = len(self.requests), "prompt"
        if self.of_steps:
            (request,) = self.requests
            total, unit, request.is_watched = request.config.total_budget, "expansion", True
        self._bar = tqdm(
            desc="searching", total=total, unit=unit, delay=_DELAY, leave=False, file=sys.stderr
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, update: Update) -> None:
        """Show what happened."""
        if self._bar is None:
            return
        if self.of_steps and update.row is not None:
            self._bar.update(update.row.standing.expanded - self._bar.n)
        elif not self.of_steps and update.result is not None:
            self._bar.update()
