"""Ten texts of ours against ten of each other method: as they come, and at equal diversity.

    python recipes/ten.py --summary                       # ours less each other, all tasks
    python recipes/ten.py commongen                       # the tables of one task, in seconds
    python recipes/ten.py --figure docs/images/ten.png    # quality against diversity, all tasks
    python recipes/ten.py commongen --measure             # score the runs again: many minutes
    python recipes/ten.py commongen --chosen chosen.json  # the ten of each, for recompute.py

Of every pool the selector chooses ten at five values of `diversity`. That draws a curve for each
method: distinctness (D), mean ROUGE (R), ROUGE of the best single text (O; OR is the paper's, the
best of each measure), by example. As they come is the selector's default. At equal diversity both
curves are read at one D, by straight lines between the points: ours at its default, or at the
nearest D that the other reaches. Seeds of a sampler are averaged by example. Intervals are paired
bootstraps over examples, p-values sign flips, corrected for the number of methods by Holm. What
was measured lies beside the run, for every example.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bestk.config import DIVERSITY
from bestk.rerank.ngrams import distinctness
from bestk.rerank.select import diverse
from bestk_eval.examples import Pool
from bestk_eval.loading import load_runs
from bestk_eval.metrics.rouge import Rouge
from bestk_eval.statistics import Comparison, Numbers, compare_means, estimate, holm
from bestk_eval.store import read_lines

ROOT = Path(__file__).parent.parent
TASKS = {"commongen": "CommonGen", "squad": "SQuAD", "scitldr": "SciTLDR"}
UNTUNED = {"quoref": "QuoRef", "drop": "DROP (contrast set)", "xsum": "XSum"}
# Examples of earlier runs, by their place there, that ours was made with.
SEEN = {"commongen": range(200, 240), "squad": range(100, 140)}
OURS = "BKS_diverse:end_prob=1"
# What a method is, by how its name begins and ends.
FAMILIES = {
    "BKS_diverse": "best-k search told n, tuned",
    "BKS_mean": "best-k search, mean",
    "BKS_last": "best-k search, last",
    "BS": "beam search",
    "DBS": "diverse beam search",
    "Minp.*distinct": "min-p, without replacement",
    "Minp.*shared": "min-p, oversampled",
    "Ncls.*shared": "nucleus, oversampled",
    "Temp.*distinct": "temperature, without replacement",
    "Nsig.*shared": "top-n-sigma, oversampled",
    ".*arithmetic": "arithmetic sampling",
    ".*leaves": "distinct leaf enumeration",
    "SWOR": "stochastic beam",
}
DIVERSITIES = (0.0, 0.25, 0.5, 0.75, 1.0)
NUM_TEXTS = 10
COLUMNS = ("D", "R", "O", "OR")
COLOURS = {
    "B": "#7f7f7f",
    "D": "#bc8f3f",
    "M": "#3f8f5f",
    "N": "#9f5fbf",
    "K": "#6f9fdf",
    "T": "#3fafaf",
    "S": "#8f6f4f",
}
Measured = dict[str, dict[str, dict[str, Any]]]  # by method and example


@dataclass(frozen=True, kw_only=True)
class Method:
    """The numbers of a method, its seeds averaged."""

    name: str
    curve: Numbers  # example, diversity, column
    spent: Numbers  # example: different texts, whether they are short of ten, expansions, calls

    @property
    def default(self) -> Numbers:
        """Return the numbers of the ten that the selector chooses by itself."""
        return self.curve[:, DIVERSITIES.index(DIVERSITY)]

    def reach(self, distinct: float) -> float:
        """Return the D nearest to one asked for that the curve has."""
        means = self.curve[:, :, 0].mean(axis=0)
        return float(np.clip(distinct, means.min(), means.max()))

    def at(self, distinct: float) -> Numbers:
        """Read the curve where its mean D is a value, between two points by a straight line."""
        means = self.curve[:, :, 0].mean(axis=0)
        order = np.argsort(means, kind="stable")
        place = float(np.interp(distinct, means[order], np.arange(len(order))))
        low = int(place)
        high = min(low + 1, len(order) - 1)
        share = place - low
        found: Numbers = (1 - share) * self.curve[:, order[low]] + share * self.curve[
            :, order[high]
        ]
        return found


def measure(folder: Path, data_dir: Path | None = None) -> Measured:
    """Choose ten texts of every pool at every diversity, and score them."""
    metric, known = Rouge(), dict[tuple[str, str], Sequence[float]]()

    def scores(pool: Pool, text: str) -> Sequence[float]:
        key = pool.example.id, text
        if key not in known:
            known[key] = metric.score([text], pool.example)[0]
        return known[key]

    def numbers(pool: Pool, diversity: float) -> list[float]:
        places = diverse(pool.texts, pool.log_probs, NUM_TEXTS, diversity)
        texts = [pool.texts[place] for place in places]
        found = np.array([scores(pool, text) for text in texts] or [[0.0] * 4])
        best = found.max(axis=0)
        distinct = 100 * sum(distinctness(texts)) / 3
        told = (distinct, found[:, 3].mean(), best[3], best[:3].mean())
        return [round(float(number), 2) for number in told]

    return {
        row: {
            pool.example.id: {
                "curve": [numbers(pool, diversity) for diversity in DIVERSITIES],
                "texts": len(pool.texts),
                "expanded": pool.expanded,
                "calls": pool.model_calls,
            }
            for pool in pools
        }
        for row, pools in load_runs([folder], data_dir=data_dir).pools.items()
    }


def found_in(task: str) -> dict[str, Method]:
    """Return the methods of a task, without the examples that ours was made with."""
    earlier = {task: ROOT / "results" / task / "results.jsonl"} if task in SEEN else {}
    order = [list(_examples(path)) for path in earlier.values()]
    return methods(load(task), {ids[place] for ids in order for place in SEEN[task]})


def _examples(path: Path) -> dict[str, None]:
    return dict.fromkeys(record["example"] for _, record in read_lines(path))


def methods(measured: Measured, seen: Collection[str] = ()) -> dict[str, Method]:
    """Join the seeds of each sampler, over the examples that every method has."""
    common = [
        name
        for name in next(iter(measured.values()))
        if name not in seen and all(name in rows for rows in measured.values())
    ]
    groups: dict[str, list[str]] = {}
    for row in measured:
        groups.setdefault(re.sub(r"seed=\d+,?", "", row).rstrip(":,"), []).append(row)
    found = {}
    for name, rows in groups.items():
        every = [[measured[row][example] for example in common] for row in rows]
        curves = np.array([[one["curve"] for one in row] for row in every])
        spent = [
            [[o["texts"], o["texts"] < NUM_TEXTS, o["expanded"], o["calls"]] for o in row]
            for row in every
        ]
        found[name] = Method(
            name=name, curve=curves.mean(axis=0), spent=np.array(spent, float).mean(axis=0)
        )
    return found


def family(name: str) -> str:
    """Say what a method is.

    >>> family("Minp0.2:walk=distinct")
    'min-p, without replacement'
    """
    return next(told for pattern, told in FAMILIES.items() if re.match(pattern, name))


def summary(tasks: Sequence[str]) -> str:
    """Write ours less each other at equal D, a row for each family of methods."""
    cells: dict[str, dict[str, str]] = {}
    for task in tasks:
        found = found_in(task)
        others = [method for name, method in found.items() if name != OURS]
        for row in against(found[OURS], others, at_equal=True):
            off = row["D"].difference
            told = " / ".join(_short(row, key) for key in ("R", "O"))
            told += f" (D {off:+.0f})" if abs(off) > 0.5 else ""
            cells.setdefault(family(row["other"]), {})[task] = told
    lines = ["| ours less | " + " | ".join(TASKS[task] for task in tasks) + " |"]
    lines.append("|:--" * (len(tasks) + 1) + "|")
    for name in [name for name in FAMILIES.values() if name in cells]:
        lines.append(f"| {name} | " + " | ".join(cells[name].get(t, "") for t in tasks) + " |")
    return "\n".join(lines)


def _short(row: dict[str, Any], key: str) -> str:
    found: Comparison = row[key]
    return f"{found.difference:+.1f}" + ("*" if row[f"p_{key}"] < 0.05 else "")


def seconds(task: str) -> str:
    """Write what a prompt took each method, one after another with the machine to itself."""
    told = json.loads(place(task).with_name("seconds.json").read_text(encoding="utf-8"))
    rows = [f"| {method} | {value:.0f} |" for method, value in told.items()]
    return "\n".join(["|  | ms a prompt |", "| :-- | --: |", *rows])


def chosen(folder: Path, data_dir: Path | None) -> dict[str, dict[str, list[int]]]:
    """List the places of the ten that the selector chooses, by method and example."""
    return {
        row: {
            pool.example.id: diverse(pool.texts, pool.log_probs, NUM_TEXTS, DIVERSITY)
            for pool in pools
        }
        for row, pools in load_runs([folder], data_dir=data_dir).pools.items()
    }


def against(ours: Method, others: Sequence[Method], *, at_equal: bool) -> list[dict[str, Any]]:
    """Test ours less each other, in D, R and O; p-values corrected over the others."""
    told: list[dict[str, Any]] = []
    for other in others:
        mine, theirs = ours.default, other.default
        distinct = float(mine[:, 0].mean())
        if at_equal:
            distinct = ours.reach(other.reach(distinct))
            mine, theirs = ours.at(distinct), other.at(distinct)
        tests = {key: compare_means(mine[:, n], theirs[:, n]) for n, key in enumerate(COLUMNS)}
        told.append({"other": other.name, "at": distinct, **tests})
    for key in COLUMNS:
        corrected = holm([row[key].p_value for row in told])
        for row, p_holm in zip(told, corrected, strict=True):
            row[f"p_{key}"] = p_holm
    return told


def tables(found: dict[str, Method], title: str) -> str:
    """Write what each method has and spent, and what ours is more or less than it."""
    ours = found[OURS]
    others = [method for name, method in found.items() if name != OURS]
    lines = [
        f"**{title}, {len(ours.curve)} examples, the ten that the selector chooses**",
        "",
        "|  | \\|S\\| | short of ten | expansions | passes | D | R | O | OR |",
        "| :-- |" + " --: |" * 8,
    ]
    for method in found.values():
        texts, short, expanded, calls = method.spent.mean(axis=0)
        cells = [f"{texts:.1f}", f"{100 * short:.0f}%", f"{expanded:.0f}", f"{calls:.0f}"]
        cells += [_with_interval(method.default[:, n]) for n in range(len(COLUMNS))]
        lines.append(f"| {method.name} | {' | '.join(cells)} |")
    lines += [
        "",
        f"**{title}: ours less each other, as they come, and at equal D**",
        "",
        "|  | D | R | O | at D | R | O | OR |",
        "| :-- |" + " --: |" * 7,
    ]
    pairs = zip(
        against(ours, others, at_equal=False), against(ours, others, at_equal=True), strict=True
    )
    for came, equal in pairs:
        cells = [_difference(came, key) for key in ("D", "R", "O")]
        # Where the curves have no D in common, at the ends that are nearest.
        off = equal["D"].difference
        cells.append(f"{equal['at']:.0f}" + (f" ({off:+.0f})" if abs(off) > 0.5 else ""))
        cells += [_difference(equal, key) for key in ("R", "O", "OR")]
        lines.append(f"| {came['other']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _with_interval(values: Numbers) -> str:
    found = estimate(values, len(values))
    assert found.low is not None
    assert found.high is not None
    return f"{found.value:.1f}±{(found.high - found.low) / 2:.1f}"


def _difference(row: dict[str, Any], key: str) -> str:
    found: Comparison = row[key]
    star = "*" if row[f"p_{key}"] < 0.05 else ""
    return f"{found.difference:+.1f}{star} [{found.low:+.1f}, {found.high:+.1f}]"


def draw(path: Path) -> None:
    """Draw R and O against D for every task: curves, and the default with its intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.2), layout="constrained")
    panels = figure.subplots(2, len(TASKS))
    for column, (task, title) in enumerate(TASKS.items()):
        found = found_in(task)
        for place, key in enumerate(("R", "O")):
            axes = panels[place][column]
            for method in found.values():
                _curve(axes, method, COLUMNS.index(key))
            axes.grid(alpha=0.25)
            axes.set_title(f"{title}, {len(found[OURS].curve)} examples", fontsize=9)
            axes.set_xlabel("distinctness D of ten texts", fontsize=8)
            axes.set_ylabel({"R": "mean ROUGE", "O": "ROUGE of the best text"}[key], fontsize=8)
            axes.tick_params(labelsize=7)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=90, metadata={"Software": None})


def _curve(axes: Any, method: Method, column: int) -> None:
    is_ours = method.name == OURS
    kind = method.name.removeprefix("BKS_")[0] if is_ours else method.name[0]
    colour = "#c02f2f" if is_ours else COLOURS["K" if method.name.startswith("BKS") else kind]
    style = "--" if "shared" in method.name or "15" in method.name or "last" in method.name else "-"
    means = method.curve.mean(axis=0)
    order = np.argsort(means[:, 0])
    axes.plot(
        means[order, 0], means[order, column], style, color=colour, label=method.name,
        linewidth=2.2 if is_ours else 1.1, zorder=3 if is_ours else 2,
    )  # fmt: skip
    middle = [estimate(method.default[:, n], len(method.default)) for n in (0, column)]
    bars = [[[e.value - (e.low or 0)], [(e.high or 0) - e.value]] for e in middle]
    axes.errorbar(
        middle[0].value, middle[1].value, xerr=bars[0], yerr=bars[1], fmt="o", color=colour,
        markersize=5 if is_ours else 3.5, elinewidth=0.7, zorder=4,
    )  # fmt: skip


def load(task: str) -> Measured:
    """Return what was measured of a task."""
    return json.loads(lzma.decompress(place(task).read_bytes()))  # type: ignore[no-any-return]


def save(task: str, measured: Measured) -> None:
    """Keep what was measured beside the run."""
    told = json.dumps(measured, separators=(",", ":"), ensure_ascii=False)
    place(task).write_bytes(lzma.compress(told.encode()))


def place(task: str) -> Path:
    """Name the file of what was measured."""
    return ROOT / "results" / f"ten-{task}" / "measured.json.xz"


def main() -> None:
    """Print tables, draw the figure, or measure again."""
    parser = argparse.ArgumentParser(description="Ten texts against ten.")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--seconds", action="store_true", help="what a prompt took")
    parser.add_argument("--chosen", type=Path, help="write the places of the ten there")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    for task in options.tasks:
        if task not in TASKS | UNTUNED:
            parser.error(f"unknown task {task!r}: known are {', '.join(TASKS | UNTUNED)}")
        if options.measure:
            save(task, measure(place(task).parent, options.data_dir))
        if options.chosen is not None:
            told = chosen(place(task).parent, options.data_dir)
            options.chosen.write_text(json.dumps(told))
            continue
        title = (TASKS | UNTUNED)[task]
        print(seconds(task) if options.seconds else tables(found_in(task), title))
    if options.summary:
        print(summary(list(TASKS)))
    if options.figure is not None:
        draw(options.figure)


if __name__ == "__main__":
    main()
