"""What a benchmark is asked and what it answers: settings, rows, a report, JSON and a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bestk.config import SearchConfig
from bestk.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT = "bestk.bench"

# Opens 20 children of every node however flat the distribution, so that no search runs dry. It is
# as many as can pass the default threshold, so a step costs what it costs by default.
_FULL = {"min_prob": 0.0, "max_children": 20}
_DERIVED = ("texts_per_second", "over_floor", "ratio")


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What is measured.

    With `full` every method does all of its work: beams and samples may not end before T tokens,
    and best-k search opens 20 children of every node, so that it spends its budget on any model.
    Without it they run as they would for a user, and may stop short of the budget.
    """

    ks: tuple[int, ...] = (5, 10)
    beam_size: int = SearchConfig().beam_size
    max_new_tokens: int = SearchConfig.max_new_tokens
    batch: int = 1  # prompts side by side
    prompt: str | None = None  # None: a text that comes with bestk
    prompt_tokens: int = 100  # how much of that text
    repeats: int = 5  # timed runs of each method; the median counts
    full: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "prompt_tokens", "repeats"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")
        object.__setattr__(self, "ks", tuple(dict.fromkeys(self.ks)))
        if not self.ks:
            raise OptionError("ks must hold at least one k, got none")
        for k in self.ks:
            self.best_k(k)  # says what is wrong with the others

    def best_k(self, k: int) -> SearchConfig:
        """Return the settings of best-k search."""
        common: dict[str, Any] = _FULL if self.full else {}
        return SearchConfig(
            k=k, beam_size=self.beam_size, max_new_tokens=self.max_new_tokens, **common
        )

    @property
    def min_new_tokens(self) -> int:
        """Tokens that beams and samples must have at least."""
        return self.max_new_tokens if self.full else 0

    @property
    def others(self) -> SearchConfig:
        """Return the settings of our beam search and of the sampler."""
        return SearchConfig(
            k=1,
            beam_size=self.beam_size,
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """What one method cost. Counts are of all prompts together."""

    method: str
    k: int | None  # of best-k search
    seconds: float  # median
    first_seconds: float  # of the first call, with all that it sets up
    unique_texts: int  # complete ones for best-k search; beams and samples may be cut off at T
    expanded: int
    model_calls: int  # the prompt's included
    memory_bytes: int
    outside: float | None  # share of the time outside the model; None on a GPU, which runs ahead
    floor_seconds: float
    beam_seconds: float  # of transformers' beam search

    @property
    def texts_per_second(self) -> float:
        """Divide the different texts by the time that they took."""
        return self.unique_texts / self.seconds

    @property
    def over_floor(self) -> float:
        """The time over the floor."""
        return self.seconds / self.floor_seconds

    @property
    def ratio(self) -> float:
        """Divide the time by that of transformers' beam search: below 1 is faster."""
        return self.seconds / self.beam_seconds

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data, with what follows from it."""
        derived = {name: getattr(self, name) for name in _DERIVED}
        return dataclasses.asdict(self) | derived


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """All rows of one run, and what they were measured on."""

    model: str
    device: str
    dtype: str
    threads: int
    load: float | None  # of the machine, before the run
    versions: dict[str, str]
    settings: BenchSettings
    prompt_tokens: int
    weight_bytes: int  # read in every model call
    encoder_bytes: int  # read once
    bandwidth: float  # bytes per second, measured
    memory: str  # what `memory_bytes` counts
    rows: tuple[BenchRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        settings = dataclasses.asdict(self.settings) | {"ks": list(self.settings.ks)}
        rows = [row.to_json() for row in self.rows]
        return {"format": FORMAT} | data | {"settings": settings, "rows": rows}


def table(report: BenchReport) -> RenderableType:
    """Lay a report out for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    asked = report.settings
    head = (
        f"{report.model}, {report.dtype} on {report.device}: b={asked.beam_size}, "
        f"T={asked.max_new_tokens}, batch {asked.batch}, prompts of {report.prompt_tokens} tokens, "
        f"median of {asked.repeats}.\n"
        f"beam search is transformers', ratio the time over its; MB is the {report.memory}; "
        "outside is time outside the model; floor s is reading the weights once a call at "
        f"{report.bandwidth / 1e9:.3g} GB/s.\n"
    )
    view = Table(box=None, pad_edge=False, collapse_padding=True)
    view.add_column("method", no_wrap=True)
    counts = ("seconds", "ratio", "texts", "texts/s", "nodes", "MB", "outside", "floor s", "×floor")
    for heading in counts:
        view.add_column(heading, justify="right")
    for row in report.rows:
        view.add_row(
            row.method,
            f"{row.seconds:.3f}",
            f"{row.ratio:.2f}",
            str(row.unique_texts),
            f"{row.texts_per_second:.1f}",
            str(row.expanded),
            f"{row.memory_bytes / 1e6:.1f}",
            "n/a" if row.outside is None else f"{row.outside:.1%}",
            f"{row.floor_seconds:.4f}",
            f"{row.over_floor:.1f}",
        )
    return Group(Text(head), view)
