"""Imports point one way, and nothing is loaded before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import bestk

PACKAGE = Path(bestk.__file__).parent
ROOT = PACKAGE.parent

# A module imports from its own layer or an earlier one. Packages stand for all that is in them.
LAYERS = [
    {"errors", "version", "kernels"},
    {"config", "settings", "durable", "nodes"},
    {"core", "processors", "backends", "ahead"},
    {"lm", "constraints"},
    {"result"},
    {"engine", "rerank"},
    {"api", "progress", "sizing"},
    {"drop_in", "baselines"},
    {"batch", "viz"},
    {"server", "cli", "__main__"},
]
# Packages of one layer that know nothing of one another.
APART = [("core", "backends"), ("core", "processors"), ("processors", "backends")]
APART += [("engine", "rerank"), ("drop_in", "baselines"), ("batch", "viz")]

# `result.to_html()` is where users look for a picture, a model's name leads to whatever opens it:
# these are imported when they are called.
UPWARD = {
    ("result.search_result", "viz.html"),
    ("result.search_result", "viz.terminal"),
    ("backends.http.open", "lm"),
    ("backends.vllm.open", "lm"),
}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room(name: str) -> str:
    return name.partition(".")[0]


def layer_of(name: str) -> int:
    (number,) = (number for number, layer in enumerate(LAYERS) if room(name) in layer)
    return number


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


def imports_of(name: str) -> set[str]:
    tree = ast.parse(NAMES[name].read_text(encoding="utf-8"))
    upward = {above for below, above in UPWARD if below == name}
    return {
        other
        for other in imported(tree)
        if other != name and other not in upward and room(other) not in upward
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name])
def test_imports_point_one_way(name: str) -> None:
    for other in imports_of(name):
        assert other or layer_of(name) == len(LAYERS) - 1, f"{name} imports the package itself"
        if other:
            assert layer_of(other) <= layer_of(name), f"{name} imports {other}, which is above it"
        for one, another in APART:
            pair = {room(name), room(other)}
            assert pair != {one, another}, f"{name} imports {other}: neither knows the other"


def test_the_arrows_are_seen() -> None:
    assert {"core.frontier", "core.state", "config"} <= imports_of("core.best_k") | {
        "core.frontier"
    }
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import bestk.api\n"
    assert list(imported(ast.parse(hidden))) == []
    inner = "def f():\n    from bestk.engine.batch import Batch\n"
    assert list(imported(ast.parse(inner))) == ["engine.batch"]


def test_no_circles() -> None:
    graph = {name: imports_of(name) for name in NAMES if name}
    TopologicalSorter(graph).prepare()  # raises on a circle


# What stands beside the package imports what is public alone: the names of `bestk.__all__`, and the
# modules that docs/python-api.md names.
PUBLIC = ("config", "errors", "durable", "baselines", "rerank", "lm.loading", "lm.task_models")
PUBLIC_TO_COMMANDS = ("cli",)
BESIDE = sorted((ROOT / "bestk_eval").rglob("*.py"))


def taken(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the modules of ours that a tree imports from, and the names; even for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            module = str(node.module)
            if module.split(".")[0] == "bestk":
                yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("bestk."))


def is_public(module: str, name: str, *, to_command: bool) -> bool:
    if module == "bestk":
        return name in bestk.__all__
    below = f"{module}.{name}".removeprefix("bestk.")
    open_to = PUBLIC + PUBLIC_TO_COMMANDS * to_command
    return any(f"{below}.".startswith(f"{known}.") for known in open_to) and "._" not in below


@pytest.mark.parametrize("path", BESIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_stands_beside_imports_public_names(path: Path) -> None:
    to_command = path.parent.name == "commands"
    for module, name in taken(ast.parse(path.read_text(encoding="utf-8"))):
        assert is_public(module, name, to_command=to_command), f"{module}.{name} is not public"


def test_what_is_public_is_told() -> None:
    told = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    assert all(f"`bestk.{module}`" in told for module in PUBLIC)
    assert is_public("bestk", "search", to_command=False)
    assert not is_public("bestk", "engine", to_command=False)
    assert not is_public("bestk.engine.batch", "Batch", to_command=True)
    assert not is_public("bestk.rerank.select", "_Scores", to_command=False)
    assert not is_public("bestk.cli.options", "Model", to_command=False)


def test_nothing_imports_upward() -> None:
    """Commands of other packages are found by their entry points."""
    for name, path in NAMES.items():
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            assert "bestk_eval" not in ast.unparse(node), f"{name} imports what stands beside it"


def test_import_is_light() -> None:
    code = (
        "import sys, bestk; bestk.SearchConfig(k=3); "
        "heavy = {'torch', 'transformers', 'numpy', 'accelerate'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_command_line_is_light() -> None:
    code = (
        "import sys, bestk.cli; bestk.cli.app(); "
        "heavy = {'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
