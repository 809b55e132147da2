"""Reads finished or unfinished runs back, one or several of the same examples together."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import UnionType
from typing import Any

from bestk.errors import OptionError, SchemaError, unknown
from bestk_eval.examples import Example, Pool, digest
from bestk_eval.methods import NamedMethod, parse, parse_all
from bestk_eval.store import MEND, has_lines, read_lines, read_settings
from bestk_eval.tasks import task_of
from bestk_eval.tasks.reading import choose, read_examples

# Settings in which runs that are reported together may differ; another model has its own rows, and
# its own arithmetic. The data is compared by what is in it.
_MAY_DIFFER = {"methods", "source", "split", "device", "batch_size", "model"}
_OF_THE_MODEL = {"dtype", "source_language", "decoder_prompt"}


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What methods found for the same examples.

    `pools[row]` has one pool per example; a row is a method, with its model if there are several.
    """

    settings: tuple[dict[str, Any], ...]
    pools: dict[str, list[Pool]]
    methods: dict[str, NamedMethod]
    folders: dict[str, Path]  # of the run that a row is from
    num_planned: int  # examples that were to be run

    @property
    def task(self) -> str:
        """Return the name of the task."""
        return str(self.settings[0]["task"])

    @property
    def kind(self) -> str:
        """Return the kind of the task."""
        return str(self.settings[0]["kind"])

    @property
    def num_examples(self) -> int:
        """Count the examples that every method has been through."""
        return len(next(iter(self.pools.values())))

    @property
    def signature(self) -> str:
        """Name what all numbers depend on."""
        first = self.settings[0]
        models = "+".join(dict.fromkeys(str(s["model"]) for s in self.settings))
        return (
            f"{first['task']}|model:{models}|n:{self.num_examples}|data:{first['data']}"
            f"|style:{first['style']}|b:{first['beam_size']}|T:{first['max_new_tokens']}"
            f"|seed:{first['seed']}|v:{first['bestk']}"
        )

    def with_order(self, pools: dict[str, list[Pool]]) -> Evaluated:
        """Return the same evaluation with the texts in another order."""
        return dataclasses.replace(self, pools=pools)


def load_runs(
    folders: Sequence[Path],
    *,
    methods: Sequence[str] | None = None,
    data_dir: Path | None = None,
) -> Evaluated:
    """Read runs; together they must be of the same examples, with the same settings.

    `methods` keeps some of the rows. A run that was put away without its examples reads them from
    `data_dir`, or from the hub, as the run itself did.
    """
    if not folders:
        raise OptionError("there is nothing to report: name a folder that bestk eval wrote")
    settings = [read_settings(folder) for folder in folders]
    for one, other in combinations(zip(folders, settings, strict=True), 2):
        _refuse_other(*one, *other)
    several = len({s["model"] for s in settings}) > 1
    pools: dict[str, dict[str, Pool]] = {}
    found: dict[str, NamedMethod] = {}
    places: dict[str, Path] = {}
    for folder, own in zip(folders, settings, strict=True):
        rows = {name: f"{name} @{own['model']}" if several else name for name in own["methods"]}
        for name in own["methods"]:
            if (row := rows[name]) in found:
                raise OptionError(f"{folder} has {row} again: name one folder for each method")
            found[row] = parse(name)
            places[row] = folder
        by_method = _read(folder, own, data_dir)
        pools |= {row: by_method[name] for name, row in rows.items()}
    wanted = list(pools) if methods is None else _wanted(methods, pools)
    return Evaluated(
        settings=tuple(settings),
        pools=_in_common({row: pools[row] for row in wanted}, folders),
        methods={row: found[row] for row in wanted},
        folders={row: places[row] for row in wanted},
        num_planned=int(settings[0]["examples"]),
    )


def _refuse_other(first: Path, told: dict[str, Any], folder: Path, other: dict[str, Any]) -> None:
    """Refuse two runs that one signature cannot stand for."""
    free = _MAY_DIFFER if told["model"] == other["model"] else _MAY_DIFFER | _OF_THE_MODEL
    for name in ("task", "data", *told, *other):
        if name not in free and other.get(name) != told.get(name):
            raise OptionError(
                f"{folder} has {name} {other.get(name)}, {first} has {told.get(name)}: "
                "only runs of the same examples and settings go together, report it alone"
            )


def _read(
    folder: Path, settings: dict[str, Any], data_dir: Path | None
) -> dict[str, dict[str, Pool]]:
    """Read what a run has found, by method and example."""
    pools: dict[str, dict[str, Pool]] = {name: {} for name in settings["methods"]}
    examples = {example.id: example for example in _examples(folder, settings, data_dir)}
    seconds: dict[tuple[str, str], float] = {}
    for place, record in read_lines(folder / "times.jsonl"):
        with _spoilt(place):
            seconds[record["example"], record["method"]] = float(record["seconds"])
    for place, record in read_lines(folder / "results.jsonl"):
        with _spoilt(place):
            key = record["example"], record["method"]
            pools[key[1]][key[0]] = _pool(record, examples[key[0]], seconds.get(key))
    return pools


def _pool(record: dict[str, Any], example: Example, seconds: float | None) -> Pool:
    """Make a pool of a line of results; KeyError, TypeError or ValueError where it is none."""
    lists: dict[str, Any] = {
        "texts": _listed(record["texts"], str),
        "counts": _listed(record["counts"], int),
        "scores": _listed(record["scores"], int | float),
    }
    if record.get("log_probs") is not None:
        lists["log_probs"] = _listed(record["log_probs"], int | float)
    if len({len(values) for values in lists.values()}) > 1:
        raise ValueError(", ".join(f"{len(values)} {name}" for name, values in lists.items()))
    return Pool(
        example=example,
        seconds=seconds,
        expanded=int(record["expanded"]),
        model_calls=int(record["model_calls"]),
        **lists,
    )


def _listed(values: Any, kind: type | UnionType) -> tuple[Any, ...]:
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise TypeError(f"{str(values)[:40]!r} is no list of {getattr(kind, '__name__', kind)}")
    return tuple(values)


@contextmanager
def _spoilt(place: str) -> Iterator[None]:
    """Name the line that is not what a run writes."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"{place} is no line of a run ({error!r}): {MEND}") from None


def _examples(folder: Path, settings: dict[str, Any], data_dir: Path | None) -> list[Example]:
    path = folder / "examples.jsonl"
    if has_lines(path):
        return [Example.from_json(record, place) for place, record in read_lines(path)]
    if settings.get("source") is None:
        raise SchemaError(f"{folder} has neither examples.jsonl nor the name of its task")
    task = task_of(settings["source"])
    every = read_examples(task, data_dir, settings.get("split"))
    examples = choose(every, int(settings["examples"]), int(settings["seed"]))
    if digest(examples) != settings["data"]:
        source, way_out = data_dir or "the hub", "give its own with --data-dir"
        if task.examples is not None:
            source, way_out = settings["source"], "bring it back as it was, or run bestk eval again"
        raise OptionError(
            f"{folder} was run on other examples (data {settings['data']}) than {source} gives "
            f"({digest(examples)}): {way_out}"
        )
    return examples


def _wanted(names: Sequence[str], rows: Collection[str]) -> list[str]:
    """Find the rows of some methods, in the order asked for; each model has its own."""
    wanted: list[str] = []
    for method in parse_all(names):
        found = [row for row in rows if row.partition(" @")[0] == method.name]
        if not found:
            raise OptionError(unknown("method", method.name, [*rows]))
        wanted += found
    return wanted


def _in_common(pools: dict[str, dict[str, Pool]], folders: Sequence[Path]) -> dict[str, list[Pool]]:
    """Keep the examples that every method has been through, in one order."""
    first = next(iter(pools.values()))
    common = [name for name in first if all(name in found for found in pools.values())]
    if not common:
        raise OptionError(f"{', '.join(map(str, folders))}: {_lacking(pools)}")
    return {row: [found[name] for name in common] for row, found in pools.items()}


def _lacking(pools: dict[str, dict[str, Pool]]) -> str:
    """Name which methods keep a report from being made, and how to leave them out."""
    empty = [row for row, found in pools.items() if not found]
    lacking = {row.partition(" @")[0] for row in empty}
    others = dict.fromkeys(name for row in pools if (name := row.partition(" @")[0]) not in lacking)
    if not empty or not others:
        return "no example has been through every method yet, bestk eval goes on with it"
    return (
        f"no example has been through {', '.join(empty)} yet: bestk eval goes on with it, "
        f"--methods {','.join(others)} leaves out what is missing"
    )
