"""Reads finished or unfinished runs back, one or several of the same examples together."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestk.errors import OptionError, SchemaError, unknown
from bestk.evaluation.examples import Example, Pool, digest
from bestk.evaluation.methods import NamedMethod, parse, parse_all
from bestk.evaluation.store import has_lines, read_lines, read_settings
from bestk.evaluation.tasks import task_of
from bestk.evaluation.tasks.reading import choose, read_examples


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What methods found for the same examples.

    `pools[row]` has one pool per example; a row is a method, with its model if there are several.
    """

    settings: tuple[dict[str, Any], ...]
    pools: dict[str, list[Pool]]
    methods: dict[str, NamedMethod]
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

    def with_order(self, pools: dict[str, list[Pool]]) -> Evaluation:
        """Return the same evaluation with the texts in another order."""
        return dataclasses.replace(self, pools=pools)


def load_runs(
    folders: Sequence[Path],
    *,
    methods: Sequence[str] | None = None,
    data_dir: Path | None = None,
) -> Evaluation:
    """Read runs; together they must be of one task and the same examples.

    `methods` keeps some of the rows. A run that was put away without its examples reads them from
    `data_dir`, or from the hub, as the run itself did.
    """
    if not folders:
        raise OptionError("there is nothing to report: name a folder that bestk eval wrote")
    settings = [read_settings(folder) for folder in folders]
    for folder, other in zip(folders[1:], settings[1:], strict=True):
        for name in ("task", "data"):
            if other[name] != settings[0][name]:
                raise OptionError(
                    f"{folder} has {name} {other[name]}, {folders[0]} has {settings[0][name]}: "
                    "only runs of the same examples go together"
                )
    several = len({s["model"] for s in settings}) > 1
    pools: dict[str, dict[str, Pool]] = {}
    found: dict[str, NamedMethod] = {}
    for folder, own in zip(folders, settings, strict=True):
        for name in own["methods"]:
            row = f"{name} @{own['model']}" if several else name
            if row in found:
                raise OptionError(f"{folder} has {row} again: name one folder for each method")
            found[row] = parse(name)
            pools[row] = {}
        _read(folder, own, several, pools, data_dir)
    if methods is not None:
        wanted = _wanted(methods, pools)
        pools = {row: pools[row] for row in wanted}
        found = {row: found[row] for row in wanted}
    return Evaluation(
        settings=tuple(settings),
        pools=_in_common(pools, folders),
        methods=found,
        num_planned=int(settings[0]["examples"]),
    )


def _read(
    folder: Path,
    settings: dict[str, Any],
    several: bool,
    pools: dict[str, dict[str, Pool]],
    data_dir: Path | None,
) -> None:
    examples = {example.id: example for example in _examples(folder, settings, data_dir)}
    seconds = {
        (line["example"], line["method"]): float(line["seconds"])
        for line in read_lines(folder / "times.jsonl")
    }
    for record in read_lines(folder / "results.jsonl"):
        try:
            key = record["example"], record["method"]
            row = f"{key[1]} @{settings['model']}" if several else key[1]
            pools[row][key[0]] = Pool(
                example=examples[key[0]],
                texts=tuple(record["texts"]),
                counts=tuple(record["counts"]),
                scores=tuple(record["scores"]),
                log_probs=_maybe(record.get("log_probs")),
                seconds=seconds.get(key),
                expanded=record["expanded"],
                model_calls=record["model_calls"],
            )
        except (KeyError, TypeError) as error:
            raise SchemaError(f"{folder}/results.jsonl has a spoilt line: {error!r}") from None


def _maybe(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


def _examples(folder: Path, settings: dict[str, Any], data_dir: Path | None) -> list[Example]:
    path = folder / "examples.jsonl"
    if has_lines(path):
        return [
            Example.from_json(data, f"{path}:{number}")
            for number, data in enumerate(read_lines(path), start=1)
        ]
    if settings.get("source") is None:
        raise SchemaError(f"{folder} has neither examples.jsonl nor the name of its task")
    every = read_examples(task_of(settings["source"]), data_dir, settings.get("split"))
    examples = choose(every, int(settings["examples"]), int(settings["seed"]))
    if digest(examples) != settings["data"]:
        raise OptionError(
            f"{folder} was run on other examples (data {settings['data']}) than "
            f"{data_dir or 'the hub'} gives ({digest(examples)}): give its own with --data-dir"
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
        raise OptionError(
            f"{', '.join(map(str, folders))}: no example has been through every method yet"
        )
    return {row: [found[name] for name in common] for row, found in pools.items()}
