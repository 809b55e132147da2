"""When the search's kernels are taken; what they do is compared in `test_kernels.py`."""

from __future__ import annotations

import importlib.util
import logging
import sys
from typing import Any

import pytest
import torch

from bestk.config import SearchConfig
from bestk.core import stepper
from bestk.core.best_k import BestK
from bestk.core.policy import Shape
from bestk.kernels import may_run

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the package triton"
)


def policy(*, is_judged: bool = False, **options: Any) -> BestK:
    cpu = torch.device("cpu")
    shape = Shape(batch=2, vocab_size=9, stop_ids=(0,), device=cpu, is_judged=is_judged)
    return BestK(SearchConfig(**options), shape)


def test_a_cpu_takes_tensor_operations() -> None:
    assert policy().kernels is None


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
        monkeypatch.setattr(stepper, "_TRIED", {})

    def test_only_where_they_fit(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(stepper, "_do_run", lambda kernels, policy: True)
        assert policy().kernels is not None
        assert policy(is_judged=True).kernels is None
        assert not caplog.records
        assert policy(max_frontier=10_000).kernels is None
        caplog.clear()
        assert policy(k=300).kernels is None
        assert policy(k=300).kernels is None
        assert "no search kernels hold the shape (512," in caplog.text
        assert len(caplog.records) == 1, "they were asked for: told, but once"
        monkeypatch.setenv("BESTK_KERNELS", "none")
        assert policy().kernels is None

    def test_a_triton_that_cannot_be_loaded_is_left_alone(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setitem(sys.modules, "bestk.core.kernels", None)
        assert policy().kernels is None
        assert "cannot be loaded" in caplog.text

    def test_kernels_that_do_not_run_are_left_alone(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from bestk.core.kernels import StepKernels

        tried = []

        def look(self: StepKernels, policy: BestK) -> None:
            tried.append(self)
            policy.search.clock += 1
            raise RuntimeError("no compiler")

        monkeypatch.setattr(StepKernels, "next", look)
        found = [policy(), policy()]
        assert [one.kernels for one in found] == [None, None]
        assert len(tried) == 1, "a second look at the same shape tells nothing new"
        assert "no compiler" in caplog.text, "they were asked for"
        assert found[0].search.clock.tolist() == [0, 0]
        assert found[0].search.is_active.tolist() == [True, True]
        caplog.clear()
        monkeypatch.delenv("BESTK_KERNELS")
        assert policy(k=7).kernels is None
        assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
