"""SearchResult: a sequence of ranked texts, with where the probability went and what it cost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from bestk.config import SearchConfig
from bestk.core.mass import Mass
from bestk.core.record import TreeRecord
from bestk.errors import MissingExtraError
from bestk.result import saved
from bestk.result.notices import emptiness
from bestk.result.texts import Cost, Hypothesis
from bestk.version import __version__

if TYPE_CHECKING:
    import pandas


_SHORT = 60  # characters of a text in a repr


@dataclass(frozen=True, kw_only=True, repr=False)
class SearchResult(Sequence[Hypothesis]):
    """The outcome of one search: a sequence of its texts, best first.

    Results are equal that found the same in the same way; how long it took does not matter, nor
    whether the tree was kept.
    """

    prompt: Any
    hypotheses: tuple[Hypothesis, ...]
    mass: Mass
    cost: Cost
    signature: str
    config: SearchConfig
    stop_reason: str
    num_completions: int  # before texts were merged
    num_truncated: int
    certified: int  # how many hypotheses are proven to be the model's likeliest
    # What was not found is no likelier; −inf: all was, None: not known.
    bound: float | None = field(default=None, compare=False)
    notice: str | None = None  # why there is no text, or fewer are proven than were asked for
    tree: TreeRecord | None = field(default=None, compare=False)
    # As found, before texts were merged; not in the JSON.
    raw: tuple[Hypothesis, ...] = field(default=(), compare=False)
    # How to show the tokens of `tree`, so that pictures of it need no tokenizer.
    token_texts: Mapping[int, str] = field(default_factory=dict, compare=False)

    @property
    def texts(self) -> list[str]:
        """Return the texts alone, best first."""
        return [hypothesis.text for hypothesis in self.hypotheses]

    def __len__(self) -> int:
        return len(self.hypotheses)

    def __iter__(self) -> Iterator[Hypothesis]:
        return iter(self.hypotheses)

    @overload
    def __getitem__(self, place: int) -> Hypothesis: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Hypothesis, ...]: ...
    def __getitem__(self, place: int | slice) -> Hypothesis | tuple[Hypothesis, ...]:
        return self.hypotheses[place]

    def __repr__(self) -> str:
        """Return a line: how many texts, the best of them, what they cost."""
        best = f" {_short(self.hypotheses[0].text)!r}," if self.hypotheses else ""
        seconds = "" if self.cost.seconds is None else f", {self.cost.seconds:.1f} s"
        spent = f"{self.cost.expanded} expansions{seconds}"
        return f"<SearchResult: {len(self)} texts,{best} {spent}>"

    def __str__(self) -> str:
        """Return what the command prints: the texts, and what they cost."""
        from bestk.viz.terminal import plain, result_view

        return plain(result_view(self))

    def _repr_html_(self) -> str:
        """Show the texts in a notebook, with the tree to be opened below them."""
        from bestk.viz.html import notebook

        return notebook(self)

    def to_dict(self) -> dict[str, Any]:
        """Return what a reader of the texts needs, as plain data; `to_json` has everything."""
        kept = ["text", "score", "log_prob", "num_tokens", "token_ids", "step"]
        if any(hypothesis.rerank_score is not None for hypothesis in self):
            kept.append("rerank_score")
        data = self.to_json()
        return {
            "prompt": data["prompt"],
            "hypotheses": [{name: entry[name] for name in kept} for entry in data["hypotheses"]],
            "mass": data["mass"],
            "cost": data["cost"],
            "signature": self.signature,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a row for each text, best first."""
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(
            [saved.hypothesis_json(one) for one in self], columns=saved.columns(self)
        )

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the search as a self-contained page; write it to a file where a path is given."""
        from bestk.viz.html import to_html

        return to_html(self, path)

    def to_json(self, *, tree: bool = False) -> dict[str, Any]:
        """Return the result as plain data that `from_json` reads back."""
        return saved.to_json(self, tree=tree)

    def dumps(self, *, tree: bool = False, indent: int | None = None) -> str:
        """Return `to_json` as a string."""
        return saved.dumps(self.to_json(tree=tree), indent)

    def save(self, path: str | Path) -> None:
        """Write everything, the tree included, to a file that appears whole or not at all."""
        saved.write(Path(path), self.dumps(tree=True))

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> SearchResult:
        """Read back what `to_json` or `dumps` wrote."""
        return saved.read(cls, data)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHORT else line[: _SHORT - 1] + "…"


def signature(config: SearchConfig, model: str, hooks: Sequence[str] = ()) -> str:
    """Name everything that a number made from this search depends on."""
    told = f"hooks:{','.join(hooks)}|" if hooks else ""
    return f"bestk|model:{model}|{config.describe()}|{told}v:{__version__}"


def not_started(prompt: Any, config: SearchConfig, model: str) -> SearchResult:
    """Make the result of a search that something broke off before its prompt was read."""
    return SearchResult(
        prompt=prompt,
        hypotheses=(),
        mass=Mass(completed=0.0, frontier=1.0, pruned_prob=0.0, pruned_frontier=0.0, truncated=0.0),
        cost=Cost(expanded=0, steps=0, model_calls=0, evaluated=0, seconds=0),
        signature=signature(config, model),
        config=config,
        stop_reason="interrupted",
        num_completions=0,
        num_truncated=0,
        certified=0,
        notice=emptiness(config, "interrupted", 0, 0.0),
    )
