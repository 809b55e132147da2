"""When the search's kernels are taken; what they do is compared in `test_kernels.py`."""

from __future__ import annotations

import importlib.util
import logging
import sys
from typing import Any

import pytest
import torch

from bestk.config import SearchConfig
from bestk.core import stepper as quick_steps
from bestk.core.best_k import Rule, Searches
from bestk.kernels import may_run

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the package triton"
)


def searches(*rules: Rule, **options: Any) -> Searches:
    return Searches(
        SearchConfig(**options),
        batch=2,
        vocab_size=9,
        eos_ids=(0,),
        device=torch.device("cpu"),
        rules=rules,
    )


def test_a_cpu_takes_tensor_operations() -> None:
    assert searches().kernels is None


@pytest.mark.parametrize(
    ("device", "asked", "is_interpreted", "wanted"),
    [
        ("cuda", None, False, True),
        ("cuda", "layers,search", False, True),
        ("cuda", "layers", False, False),
        ("cuda", "none", False, False),
        ("cpu", "all", False, False),
        ("cpu", "search", True, True),
    ],
)
def test_a_gpu_takes_kernels_unless_told(
    device: str,
    asked: str | None,
    is_interpreted: bool,
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("BESTK_KERNELS", asked), ("TRITON_INTERPRET", "1" * is_interpreted)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    assert may_run("search", torch.device(device)) == wanted


@needs_triton
class TestWithTriton:
    @pytest.fixture(autouse=True)
    def interpreter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setenv("BESTK_KERNELS", "search")
        monkeypatch.setattr(quick_steps, "_TRIED", {})

    def test_only_where_they_fit(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(quick_steps, "_do_run", lambda kernels, searches: True)
        assert searches().kernels is not None
        assert searches(Rule()).kernels is None
        assert not caplog.records
        assert searches(max_frontier=10_000).kernels is None
        caplog.clear()
        assert searches(k=300).kernels is None
        assert searches(k=300).kernels is None
        assert "no search kernels hold the shape (512," in caplog.text
        assert len(caplog.records) == 1, "they were asked for: told, but once"
        monkeypatch.setenv("BESTK_KERNELS", "none")
        assert searches().kernels is None

    def test_a_triton_that_cannot_be_loaded_is_left_alone(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setitem(sys.modules, "bestk.core.kernels", None)
        assert searches().kernels is None
        assert "cannot be loaded" in caplog.text

    def test_kernels_that_do_not_run_are_left_alone(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from bestk.core.kernels import StepKernels

        tried = []

        def pop(self: StepKernels, searches: Searches) -> None:
            tried.append(self)
            searches.clock += 1
            raise RuntimeError("no compiler")

        monkeypatch.setattr(StepKernels, "pop", pop)
        found = [searches(), searches()]
        assert [one.kernels for one in found] == [None, None]
        assert len(tried) == 1, "a second look at the same shape tells nothing new"
        assert "no compiler" in caplog.text, "they were asked for"
        assert found[0].clock.tolist() == [0, 0]
        assert found[0].is_active.tolist() == [True, True]
        caplog.clear()
        monkeypatch.delenv("BESTK_KERNELS")
        assert searches(k=7).kernels is None
        assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
