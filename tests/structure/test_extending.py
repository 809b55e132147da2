"""A policy, a constraint and a backend of one's own: a short file and one line each."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from conftest import random_toy
from toys import Words

import bestk
from bestk.core.methods import POLICIES
from bestk.lm.registry import OPENERS

ROOT = Path(bestk.__file__).parent.parent
FOLDER = ROOT / "examples" / "extending"
NAMES = ("own_policy", "own_constraint", "own_backend")


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Forget what the examples register."""
    before = [(registry, dict(registry)) for registry in (POLICIES, OPENERS)]
    yield
    for registry, known in before:
        registry.clear()
        registry.update(known)  # type: ignore[arg-type]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = bestk.LanguageModel(random_toy(5, 8))
    with pytest.raises(bestk.BestKError, match="policy"):
        bestk.search(lm, [1], policy="depth-first")
    load("own_policy", monkeypatch)
    options = {"budget": 12, "max_new_tokens": 8, "min_prob": 0.0, "k": 1}
    deep = bestk.search(lm, [1], policy="depth-first", scoring="sum", decay="none", **options)
    usual = bestk.search(lm, [1], scoring="sum", decay="none", **options)
    assert deep.tree is not None
    assert usual.tree is not None
    assert int(deep.tree.depth.sum()) > int(usual.tree.depth.sum()), "it does not go deeper"
    assert "policy:depth-first" in deep.signature
    assert abs(deep.mass.total - 1) < 1e-9


def test_a_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("own_constraint", monkeypatch)
    words = ("tea", "milk", "salt", "corn", "eggs", "rum", "figs")
    lm = bestk.LanguageModel(random_toy(5, 8), Words(*words))
    options = {"max_new_tokens": 4, "min_prob": 0.0}
    texts = module.search(lm, "milk", "e", **options)
    assert any(texts)
    assert not any("e" in text for text in texts)
    assert any("e" in text for text in bestk.search(lm, "milk", **options).texts)


def test_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    load("own_backend", monkeypatch)
    result = bestk.search(bestk.load("bigrams:"), [1], max_new_tokens=6)
    assert {h.token_ids for h in result.hypotheses[:2]} == {(2, 5, 0), (3, 5, 0)}


@pytest.mark.parametrize("name", NAMES)
def test_they_are_short_and_shown(name: str) -> None:
    lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80
    assert any("registers it" in line for line in lines)
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    assert f"examples/extending/{name}.py" in page
