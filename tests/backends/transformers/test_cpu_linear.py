"""Products taken the other way round: the same numbers, and a model that stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bestk.backends.transformers import cpu_linear
from bestk.backends.transformers.cpu_linear import MOST_ROWS, SmallProducts, is_by_amd


@pytest.fixture(autouse=True)
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "is_by_amd", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 24, bias=False))


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 5), (1, 8), (4, 4)])
def test_the_same_numbers(shape: tuple[int, int]) -> None:
    plain, hidden = model(), torch.randn(*shape, 24)
    expected = plain(hidden)
    with SmallProducts(plain).applied(hidden[..., 0].numel()):
        assert "forward" in plain[0].__dict__, "a layer that widens its input gains"
        assert "forward" not in plain[2].__dict__, "one that narrows it does not"
        torch.testing.assert_close(plain(hidden), expected)
    assert "forward" not in plain[0].__dict__


def test_many_rows_are_multiplied_as_usual() -> None:
    plain = model()
    for rows in (MOST_ROWS, MOST_ROWS + 1):
        with SmallProducts(plain).applied(rows):
            assert ("forward" in plain[0].__dict__) == (rows == MOST_ROWS)


def test_one_thread_gains_with_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    plain = model()
    for rows in (8, 9):
        with SmallProducts(plain).applied(rows):
            assert ("forward" in plain[0].__dict__) == (rows == 8)


def test_other_dtypes_stay_as_they_are() -> None:
    assert SmallProducts(model().bfloat16()).layers == []


def test_weights_of_another_kind_stay_as_they_are() -> None:
    class Quantised(torch.Tensor):
        """Weights as torchao has them: float32 by name, and no product but its own."""

    layers = model()
    layers[0].weight = nn.Parameter(layers[0].weight.detach().as_subclass(Quantised))
    assert isinstance(layers[0].weight, Quantised)
    assert SmallProducts(layers).layers == []


def test_an_error_leaves_the_model_whole() -> None:
    plain = model()
    with pytest.raises(RuntimeError), SmallProducts(plain).applied(1):
        plain(torch.randn(1, 7))
    assert "forward" not in plain[0].__dict__


@pytest.mark.parametrize(("maker", "gains"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_the_maker_of_the_cpu_decides(
    maker: str, gains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(cpu_linear, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu_linear, "is_by_amd", is_by_amd)
    monkeypatch.setattr(cpu_linear, "_told", cpu_linear._told.__wrapped__)
    assert bool(SmallProducts(model()).layers) is gains
    (tmp_path / "cpuinfo").unlink()
    assert SmallProducts(model()).layers == [], "where nobody tells, nothing is changed"
