"""What a fresh clone relies on and carries: pins for every package, packed results."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import bestk

ROOT = Path(bestk.__file__).parent.parent


def test_every_package_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", pin) for pin in pins), (
        "exact pins only"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["dev"]
    extras = project["optional-dependencies"]
    (taken_along,) = [re.findall(r"[\w-]+", need) for need in needed if need.startswith("bestk[")]
    needed += [need for extra in taken_along[1:] for need in extras[extra]]
    names = {re.split(r"[<>=!~\[; ]", requirement)[0].lower() for requirement in needed} - {"bestk"}
    assert names <= {pin.partition("==")[0] for pin in pins}, (
        "add the new package to constraints.txt"
    )


def test_stored_results_are_packed_and_small() -> None:
    """Runs stay while a table is made of them: at most 5 MB a task."""
    sizes: Counter[str] = Counter()
    for folder in (ROOT / "results").iterdir():
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        sizes[settings["source"]] += sum(path.stat().st_size for path in folder.iterdir())
        for path in folder.glob("*.jsonl*"):
            assert path.suffix == ".xz", f"pack {path.name} with xz: a third of gzip's size"
    assert max(sizes.values()) <= 5_000_000, sizes
