"""What a fresh clone relies on: pins for every package, a README whose example runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

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


@pytest.mark.model
def test_readme_example_prints_what_the_readme_says(
    smollm2: bestk.LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```\n+```\n(.*?)```", readme, re.DOTALL)
    assert found is not None, "the README must show an example and its output"
    code, written = found.groups()
    monkeypatch.setattr(bestk, "load", lambda _: smollm2)
    exec(compile(code, "README.md", "exec"), {})
    # Scores may differ in their last digit from one machine to the next; texts may not.
    printed = capsys.readouterr().out
    assert [line.split(maxsplit=1)[1] for line in printed.splitlines()] == [
        line.split(maxsplit=1)[1] for line in written.splitlines()
    ]
