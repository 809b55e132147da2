"""What is published: a small wheel that imports by itself, and the task models beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import bestk
from bestk.lm.task_models import PACKAGED

ROOT = Path(bestk.__file__).parent.parent
SEEN = """
import json, bestk
from importlib.metadata import entry_points, metadata
from bestk.lm import task_models
print(json.dumps({
    "file": bestk.__file__,
    "version": bestk.__version__,
    "commands": sorted(entry_points(group="bestk.commands").names),
    "models": task_models.names(),
    "typed": "Typing :: Typed" in metadata("bestk").get_all("Classifier"),
}))
"""


def python(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": "", **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(source: Path, folder: Path) -> Path:
    pytest.importorskip("hatchling", reason="builds wheels: pip install 'bestk[dev]'")
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow  # builds two wheels, one of 23 MB, and installs them
def test_wheels(tmp_path: Path) -> None:
    small = built(ROOT, tmp_path / "bestk")
    assert small.stat().st_size <= 1_000_000
    names = zipfile.ZipFile(small).namelist()
    assert {name.split("/")[0] for name in names} <= {
        "bestk",
        "bestk_eval",
        f"bestk-{bestk.__version__}.dist-info",
    }
    assert {"bestk/py.typed", "bestk/server/static/app.js"} <= set(names)
    assert not [name for name in names if "safetensors" in name or "__pycache__" in name]

    site = str(tmp_path / "site")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", site)
    python(*install, str(small))
    seen = json.loads(python("-c", SEEN, PYTHONPATH=site))
    assert seen["file"].startswith(site), "the checkout was imported"
    assert seen["version"] == bestk.__version__
    assert {"bench", "eval", "report"} <= set(seen["commands"])
    assert seen["typed"]
    assert seen["models"] == [], "a wheel without models finds none"

    python(*install, str(built(ROOT / "models", tmp_path / "models")))
    assert json.loads(python("-c", SEEN, PYTHONPATH=site))["models"] == sorted(PACKAGED)


def test_the_citation_is_of_this_version() -> None:
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert told["version"] == bestk.__version__
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert told["preferred-citation"]["doi"] in readme


def test_the_container_calls_a_command_that_is_there() -> None:
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    told = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines if line[:1].isupper()}
    call = json.loads(told["ENTRYPOINT"]) + json.loads(told["CMD"])
    help_text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    served = help_text.split("\n## bestk serve\n")[1].split("\n## ")[0]
    assert call[:2] == ["bestk", "serve"]
    assert all(f"`{word}" in served for word in call[2:] if word.startswith("--"))
    copied = {line.split()[1] for line in lines if line.startswith("COPY")}
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8")
    assert all(f"!{name}" in ignored for name in copied)


def test_workflows_are_read_and_name_the_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = {part.rpartition(":: ")[2] for part in project["classifiers"] if ":: 3." in part}
    flows = ROOT / ".github" / "workflows"
    check = yaml.safe_load((flows / "check.yml").read_text(encoding="utf-8"))
    tried = set(check["jobs"]["pythons"]["strategy"]["matrix"]["python"])
    assert tried | {"3.11"} == told
    publish = yaml.safe_load((flows / "publish.yml").read_text(encoding="utf-8"))
    assert publish["jobs"]["pypi"]["permissions"] == {"id-token": "write"}
