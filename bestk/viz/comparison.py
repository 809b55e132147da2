"""Methods side by side for somebody who knows none of them: their texts, then what each spent.

Nothing is printed here: what is returned goes to a rich console, and is as wide as that.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from bestk.baselines.beam import Beam
from bestk.baselines.comparison import ComparedRow
from bestk.baselines.filters import Filter, MinProb, Nucleus, Typical
from bestk.baselines.methods import BestFirst, Sample, Scored, method_of
from bestk.baselines.sampling import Sampling
from bestk.viz.terminal import shown

_SIDE_BY_SIDE = 120  # columns; where there are fewer, methods stand one below the other
_MOST_BESIDE = 4
_COMMON = 5  # words: a beginning that all texts share is told once

_LEGEND = (
    "finished: came to their own end, others end in …; likely: how probable the model finds them, "
    "per token; different: words, pairs and triples of words that are no repeats; tokens: what the "
    "model had to compute"
)


class ComparisonView:
    """The best few texts of each method, side by side where there is room, and their price."""

    def __init__(self, rows: Sequence[ComparedRow], num_shown: int) -> None:
        self.rows, self.num_shown = rows, num_shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [_texts(row, self.num_shown) for row in self.rows] if self.num_shown else []
        if len(texts) <= _MOST_BESIDE and options.max_width >= _SIDE_BY_SIDE:
            beside = Table.grid(padding=(0, 4, 0, 0), expand=True)
            for _ in texts:
                beside.add_column(ratio=1)
            beside.add_row(*texts)
            yield beside
        else:
            yield from texts
        yield _prices(self.rows)
        yield Text()
        yield Text(_LEGEND, "dim")


def title(method: str) -> str:
    """Name a method in words.

    >>> title("Ncls0.9"), title("BKS_diverse")
    ('Sampling (top-p 0.9)', 'bestk')
    """
    chosen = method_of(method)
    if isinstance(chosen, Sampling):
        return "Sampling" + _of_filter(chosen.filter)
    if isinstance(chosen, Beam):
        if chosen.filter is not None:
            return "Beam sampling" + _of_filter(chosen.filter)
        groups = chosen.num_groups
        return "Beam search" if groups == 1 else f"Diverse beam search ({groups} groups)"
    if isinstance(chosen, Sample):
        return "Sampling without replacement"
    if isinstance(chosen, BestFirst):
        return "Best-first search"
    is_usual = isinstance(chosen, Scored) and chosen.policy == "diverse"
    return "bestk" if is_usual else f"bestk ({method})"


def _of_filter(kept: Filter | None) -> str:
    if isinstance(kept, Nucleus):
        return f" (top-p {kept.p:g})"
    if isinstance(kept, MinProb):
        return f" (min-p {kept.p:g})"
    return f" (typical {kept.p:g})" if isinstance(kept, Typical) else ""


def _texts(row: ComparedRow, num_shown: int) -> RenderableType:
    lines = [" ".join(shown(one).split()) for one in row.chosen[:num_shown]]
    start = _beginning(lines)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for number, line in enumerate(lines, start=1):
        table.add_row(str(number), Text(f"… {line[len(start) :].lstrip()}" if start else line))
    head = [Text(title(row.method), "bold")]
    if start:
        head.append(Text(f"all begin: {start} …", "italic"))
    return Group(*head, table, Text())


def _beginning(lines: Sequence[str]) -> str:
    """Return the words that all lines begin with, if they are many; no line is nothing else."""
    split = [line.split() for line in lines]
    common = []
    for words in zip(*(words[:-1] for words in split), strict=False):
        if len({*words}) > 1:
            break
        common.append(words[0])
    return " ".join(common) if len(lines) > 1 and len(common) >= _COMMON else ""


def _prices(rows: Sequence[ComparedRow]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for heading in ("finished", "likely", "different", "tokens", "time"):
        table.add_column(heading, justify="right")
    for row in rows:
        cost, chosen = row.result.cost, row.chosen
        whole = sum(one.is_complete for one in chosen)
        table.add_row(
            title(row.method),
            f"{whole} of {len(chosen)}",
            f"{row.likelihood:.0f}%",
            f"{row.distinct:.0f}%",
            str(cost.expanded),
            "" if cost.seconds is None else f"{cost.seconds:.1f} s",
        )
    return table
