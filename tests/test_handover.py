"""Kernels that start early: nothing is touched before the kernel that went before is done.

No CPU can show a race, so the rule is read from the source; a GPU compares whole searches
(`benchmarks/gpu_same_tree.py handover`).
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bestk

KERNELS = sorted((Path(bestk.__file__).parent / "backends" / "transformers").glob("*_kernels.py"))
KERNELS.append(KERNELS[0].with_name("kernels.py"))
TOUCHING = {"load", "store", "atomic_add", "atomic_max", "atomic_cas", "make_block_ptr"}

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the package triton"
)


def early_kernels() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in KERNELS:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(
                argument.arg == "is_early" for argument in node.args.args
            ):
                yield f"{path.stem}.{node.name}", node


def called(node: ast.AST) -> list[str]:
    """Name what a statement calls, in the order of the source."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return [ast.unparse(call.func).removeprefix("tl.") for call in calls]


def test_the_kernels_of_a_step_are_looked_at() -> None:
    names = {name for name, _ in early_kernels()}
    assert {"product_kernels._product", "tree_kernels._path_attention"} <= names
    assert len(names) >= 14


@pytest.mark.parametrize("name", [name for name, _ in early_kernels()])
def test_nothing_is_touched_before_the_handover(name: str) -> None:
    calls = called(dict(early_kernels())[name])
    assert "take_over" in calls, f"{name} never waits for the kernel before it"
    before = set(calls[: calls.index("take_over")])
    assert not before & TOUCHING, f"{name} touches memory that may not be written yet"
    # What prefetches is in functions of its own, which may do nothing else.
    assert not any("load" in call or "summed" in call for call in before)


@needs_triton
def test_only_recent_cards_launch_early(monkeypatch: pytest.MonkeyPatch) -> None:
    from bestk.backends.transformers import handover

    class OnGpu(torch.Tensor):
        is_cuda = True
        device = torch.device("cuda", 0)

    def options(capability: tuple[int, int]) -> dict[str, bool]:
        handover._can_hand_over.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        found: dict[str, bool] = handover.handover(torch.zeros(1).as_subclass(OnGpu))
        handover._can_hand_over.cache_clear()
        return found

    assert options((9, 0)) == {"is_early": True, "launch_pdl": True}
    assert options((8, 0)) == {"is_early": False}
    assert handover.handover(torch.zeros(1)) == {"is_early": False}
    for name, value in (("BESTK_HANDOVER", "plain"), ("TRITON_INTERPRET", "1")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert options((9, 0)) == {"is_early": False}
