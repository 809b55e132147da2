"""Memory of a batch job over its life: `bestk batch` on the toy model, watched from outside.

Prints the resident memory of the process at every tenth of the rows, and the rows per second. Flat
means: no more at the end than after the first tenth, but for a few MB of noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--format", choices=("jsonl", "jsonl.gz", "parquet"), default="jsonl")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print the curve as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        write_rows(source, options.rows)
        output = Path(folder) / f"out.{options.format}"
        curve, seconds = watch(source, output, options.rows, options.batch_size)
        if options.format == "jsonl":
            with output.open("rb") as file:
                assert sum(1 for _ in file) == options.rows, "a row is missing"
    print_curve(curve, options.rows, seconds, as_json=options.json)


def write_rows(path: Path, count: int) -> None:
    words = ("the", "old", "dog", "near", "a", "quiet", "house", "every", "bird")
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            picked = [words[(number * 7 + place * 5) % 9] for place in range(number % 6 + 1)]
            row = {"id": f"row-{number}", "prompt": " ".join([*picked, f"w{number % 1000}"])}
            file.write(json.dumps(row) + "\n")


def watch(
    source: Path, output: Path, rows: int, batch_size: int
) -> tuple[list[tuple[int, float]], float]:
    """Run the job; return rows done with the megabytes held then, and the seconds of it all."""
    command = [sys.executable, "-m", "bestk", "batch", str(source), "-o", str(output)]
    command += ["--model", "toy", "--beam-size", "2", "--max-new-tokens", "5", "-n", "3"]
    command += ["--batch-size", str(batch_size)]
    state = output.with_name(output.name + ".job") / "state.json"
    started = time.monotonic()
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    curve: list[tuple[int, float]] = []
    while process.poll() is None:
        time.sleep(0.2)
        try:
            done = json.loads(state.read_text())["num_rows"]
            held = resident_megabytes(process.pid)
        except (OSError, ValueError, IndexError):
            continue  # not begun yet, or just ended
        if done and (not curve or done > curve[-1][0]):
            curve.append((done, held))
    assert process.returncode == 0, f"the job failed: exit code {process.returncode}"
    return curve, time.monotonic() - started


def resident_megabytes(pid: int) -> float:
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


def print_curve(
    curve: list[tuple[int, float]], rows: int, seconds: float, *, as_json: bool
) -> None:
    tenths = []
    for part in range(1, 11):
        near = min(curve, key=lambda point: abs(point[0] - rows * part / 10))
        tenths.append({"rows": near[0], "megabytes": round(near[1], 1)})
    peak = max(held for _, held in curve)
    summary = {"rows": rows, "seconds": round(seconds, 1), "rows_per_second": rows / seconds}
    if as_json:
        print(json.dumps(summary | {"peak_megabytes": round(peak, 1), "curve": tenths}))
        return
    print(f"{rows:,} rows in {seconds:.0f} s, {rows / seconds:.0f} rows/s; peak {peak:.0f} MB")
    for point in tenths:
        print(f"{point['rows']:>9,} rows  {point['megabytes']:.1f} MB")


if __name__ == "__main__":
    main()
