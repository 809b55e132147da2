"""The package as a whole: imports point one way, modules are short and say what they are."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import bestk

PACKAGE = Path(bestk.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module imports from its own layer or an earlier one. Packages stand for all that is in them.
LAYERS = [
    {"errors", "version", "kernels"},
    {"config", "durable"},
    {"backends.base"},
    {"core"},
    {"result", "engine.lanes", "engine.open_lanes", "settings"},
    {"backends", "lm", "constraints", "processors", "engine", "api", "rerank"},
    set(),  # everything that builds on the API, unless it is named above or below
    {"server", "cli", "__main__"},
]
BUILDS_ON_API = 6


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path): path for path in MODULES}

# `result.to_html()` is where users look for a picture; it imports the renderer when it is called.
UPWARD = {("result", "viz.html")}


def layer_of(name: str) -> int:
    for number, layer in enumerate(LAYERS):
        if any(name == known or name.startswith(known + ".") for known in layer):
            return number
    return BUILDS_ON_API


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run, at the top or inside functions; not those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from statements(node)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names of our own modules that a module imports, without the leading `bestk.`"""
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            if node.module == "bestk" or str(node.module).startswith("bestk."):
                base = str(node.module)[len("bestk.") :]
                for alias in node.names:
                    below = f"{base}.{alias.name}" if base else alias.name
                    yield below if below in NAMES else base
        else:
            for alias in node.names:
                if alias.name == "bestk" or alias.name.startswith("bestk."):
                    yield alias.name[len("bestk.") :]


def source(name: str) -> str:
    return NAMES[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in NAMES if name])
def test_imports_point_one_way(name: str) -> None:
    for other in imported(ast.parse(source(name))):
        if (name, other) in UPWARD:
            continue
        if name.startswith("backends") and not name.endswith(".open"):
            assert other in {"errors", "config", "kernels"} or other.startswith("backends"), (
                f"{name} imports {other}: a backend knows nothing of search"
            )
        else:
            assert other or layer_of(name) > BUILDS_ON_API, f"{name} imports the package itself"
            assert layer_of(other) <= layer_of(name), f"{name} imports {other}, which is above it"


def test_the_arrows_are_seen() -> None:
    assert {"core.frontier", "core.tree", "config"} <= set(
        imported(ast.parse(source("core.best_k")))
    )
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import bestk.api\n"
    assert list(imported(ast.parse(hidden))) == []
    inner = "def f():\n    from bestk.engine.run import Run\n"
    assert list(imported(ast.parse(inner))) == ["engine.run"]


def test_no_circles() -> None:
    graph = {
        name: {other for other in imported(ast.parse(source(name))) if (name, other) not in UPWARD}
        for name in NAMES
        if name
    }
    graph = {name: others - {name} for name, others in graph.items()}
    TopologicalSorter(graph).prepare()  # raises on a circle


def test_import_is_light() -> None:
    code = (
        "import sys, bestk; bestk.SearchConfig(k=3); "
        "heavy = {'torch', 'transformers', 'numpy', 'accelerate'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_public_names_resolve() -> None:
    assert len(set(bestk.__all__)) == len(bestk.__all__)
    for name in bestk.__all__:
        assert getattr(bestk, name) is not None
    assert dir(bestk) == sorted(bestk.__all__)
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        bestk.serach  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_modules_are_short_and_say_what_they_are(name: str) -> None:
    text = source(name)
    assert len(text.splitlines()) <= 450, "one idea per module"
    assert ast.get_docstring(ast.parse(text)) or not text.strip(), "a module says what it knows"


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
