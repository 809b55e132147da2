"""Markdown from what gpu_beam.py and gpu_same_tree.py print, beside what was aimed for.

    python benchmarks/table.py benchmarks/results/h200-*
    python benchmarks/table.py benchmarks/results/h200-* --into docs/benchmarks.md

Raw logs will do: only rows (JSON lines) and lines about equal trees are taken. Of several rows for
the same measurement the last one counts. With `--into` they replace what stands between the page's
marks. A target is a fraction of transformers' beam search in the same process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"

# (k, batch): the fraction of beam search's time aimed for.
_USUAL = {(10, 1): 0.13, (5, 1): 0.24, (10, 32): 0.20}
TARGETS = {
    "llama-135m": {(10, 1): 0.13, (5, 1): 0.24, (10, 32): 0.18},
    "llama-1b": _USUAL,
    "llama-8b": {(10, 1): 0.20, (5, 1): 0.38, (10, 32): 0.22},
    "bart-large": _USUAL,
    "t5-large": _USUAL,
}
FLOOR_TARGETS = {("llama-8b", 10, 1): 1.8}  # times the floor, for (shape, k, batch)
COLUMNS = (
    "k",
    "batch",
    "target",
    "measured",
    "",
    "beam s",
    "best-k s",
    "first call s",
    "beam peak MB",
    "best-k peak MB",
    "× floor",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, help="page whose tables are replaced")
    arguments = parser.parse_args()
    made = sections(arguments.logs)
    if arguments.into is None:
        print("\n\n".join(made.values()))
    else:
        page = arguments.into.read_text(encoding="utf-8")
        arguments.into.write_text(replaced(page, made), encoding="utf-8")


def sections(logs: Sequence[Path]) -> dict[str, str]:
    """Return what the logs say: `tables` of times, and which `trees` were equal."""
    lines = [line for path in sorted(logs) for line in path.read_text("utf-8").splitlines()]
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    equal = [line for line in lines if "trees equal" in line]
    made = {}
    if entries:
        made["tables"] = tables(entries)
    if equal:
        made["trees"] = "\n".join(["```", *equal, "```"])
    return made


def tables(entries: Iterable[dict[str, Any]]) -> str:
    """Write one table per shape, and how many targets were met."""
    machines: dict[str, None] = {}
    rows: dict[str, dict[tuple[int, int], dict[str, Any]]] = {}
    for entry in entries:
        if "shape" in entry:
            key = (entry["k"], entry["batch"])
            rows.setdefault(entry["shape"], {})[key] = entry
        elif "gpu" in entry:
            machines[", ".join(f"{name} {value}" for name, value in entry.items())] = None
    order = [shape for shape in TARGETS if shape in rows]
    order += [shape for shape in rows if shape not in TARGETS]
    parts = [f"Machine: {machine}." for machine in machines]
    every = [row for shape in order for row in rows[shape].values()]
    aimed = [row for row in every if target(row) is not None]
    met = sum(is_met(row) for row in aimed)
    parts.append(f"Targets met: {met} of {len(aimed)}.")
    for shape in order:
        lines = [f"### {shape}", "", _line(COLUMNS), _line(["---:"] * len(COLUMNS))]
        lines += [_line(cells(row)) for row in rows[shape].values()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def target(row: dict[str, Any]) -> float | None:
    """Return what was aimed for, None where nothing was."""
    return TARGETS.get(row["shape"], {}).get((row["k"], row["batch"]))


def is_met(row: dict[str, Any]) -> bool:
    """Say whether a row reaches its target, to the two digits that a target has."""
    aim = target(row)
    return aim is not None and round(row["ratio"], 2) <= aim


def cells(row: dict[str, Any]) -> list[str]:
    """Lay out one row."""
    aim = target(row)
    floor = FLOOR_TARGETS.get((row["shape"], row["k"], row["batch"]))
    verdict = "" if aim is None else "met" if is_met(row) else f"{row['ratio'] / aim:.1f}× target"
    return [
        str(row["k"]),
        str(row["batch"]),
        "" if aim is None else f"{aim:.2f}",
        f"{row['ratio']:.2f}",
        verdict,
        f"{row['beam_s']:.3f}",
        f"{row['bestk_s']:.3f}",
        f"{row['first_call_s']:.2f}",
        f"{row['beam_peak_mb']:.0f}",
        f"{row['bestk_peak_mb']:.0f}",
        f"{row['over_floor']:.1f}" + ("" if floor is None else f" (target {floor})"),
    ]


def replaced(page: str, made: dict[str, str]) -> str:
    """Put sections between a page's marks of their names."""
    for name, text in made.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            raise SystemExit(f"the page must hold the marks {begin} and {end}")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def _line(values: Iterable[str]) -> str:
    return "| " + " | ".join(values) + " |"


if __name__ == "__main__":
    main()
