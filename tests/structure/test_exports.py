"""What the package shows to the outside: names, examples, no trace of one machine."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest
from test_layers import NAMES, ROOT

import bestk


def source(name: str) -> str:
    return NAMES[name].read_text(encoding="utf-8")


def test_public_names_resolve() -> None:
    assert len(set(bestk.__all__)) == len(bestk.__all__)
    for name in bestk.__all__:
        assert getattr(bestk, name) is not None
    assert dir(bestk) == sorted(bestk.__all__)
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        bestk.serach  # noqa: B018


@pytest.mark.parametrize("name", [name for name in NAMES if ">>>" in source(name)])
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(f"bestk.{name}" if name else "bestk")
    outcome = doctest.testmod(module)
    assert outcome.attempted or "+SKIP" in source(name), "no example was found"
    assert not outcome.failed


def test_no_paths_of_one_machine() -> None:
    folders = ("bestk", "tests", "docs", "examples", "recipes", "benchmarks", ".ci")
    files = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file()]
    files += [p for p in ROOT.glob("*") if p.is_file()]
    machine = re.compile(r"(?<![\w.~])/(?:work|root|Users|home/(?!you\b|user\b))[/\w]")
    for path in files:
        if "__pycache__" in path.parts or path.name == ".git":
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or the like
        match = machine.search(text)
        assert match is None, f"{path.relative_to(ROOT)} holds {match[0] if match else ''}"
