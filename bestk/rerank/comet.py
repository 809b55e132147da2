"""COMET-QE, a judge of translations without references, in an environment of its own.

unbabel-comet wants older versions of packages that bestk uses newer, so it runs as a subprocess
with its own interpreter; `comet_worker.py` is the other end. `python -m bestk.rerank.comet` makes
that environment in the cache folder; nothing is installed unless asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bestk.errors import MissingExtraError, ModelError
from bestk.lm.cache import cache_folder
from bestk.rerank.base import Reranker

DEFAULT_MODEL = "wmt21-comet-qe-da"  # the paper's
REQUIREMENTS = ("unbabel-comet>=2.2,<3", "huggingface-hub<1", "numpy<2", "setuptools<81")
PYTHON_VARIABLE = "BESTK_COMET_PYTHON"

_WORKER = Path(__file__).with_name("comet_worker.py")
_INSTALL = "python -m bestk.rerank.comet"


class CometQE(Reranker):
    """Scores texts as translations of the source; the worker starts at the first call and stays."""

    def __init__(self, model: str = DEFAULT_MODEL, *, python: str | Path | None = None) -> None:
        self.model = model
        self.name = "comet-qe" if model == DEFAULT_MODEL else f"comet-qe:{model}"
        self.python = Path(python) if python is not None else interpreter()
        self._worker: subprocess.Popen[str] | None = None

    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        pairs = [{"src": source, "mt": text} for text in texts]
        return [float(score) for score in self._ask({"pairs": pairs}, "scores")]

    def close(self) -> None:
        """End the worker. May be called twice; the next call starts another."""
        if self._worker is not None:
            self._finalizer()
            self._worker = None

    def _ask(self, request: dict[str, Any], answer: str) -> Any:
        worker = self._start() if self._worker is None else self._worker
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise ModelError("the COMET worker has ended: its messages above say why") from None
        return self._read(worker, answer)

    def _start(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [str(self.python), str(_WORKER), self.model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._worker = worker
        self._finalizer = weakref.finalize(self, _end, worker)
        self._read(worker, "ready")
        return worker

    def _read(self, worker: subprocess.Popen[str], key: str) -> Any:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        try:
            message = json.loads(line)
        except json.JSONDecodeError:
            self.close()
            said = f"it said {line.strip()!r}" if line else "it ended without a word"
            raise ModelError(f"the COMET worker gave no answer ({said})") from None
        if key in message:
            return message[key]
        self.close()
        raise ModelError(f"COMET model {self.model} failed: {message.get('error', message)}")


def interpreter() -> Path:
    """Return the Python that has COMET: $BESTK_COMET_PYTHON, or the one in the cache folder."""
    if path := os.environ.get(PYTHON_VARIABLE):
        if not Path(path).is_file():
            raise MissingExtraError(f"${PYTHON_VARIABLE} must be a Python, found none at {path}")
        return Path(path)
    python = _python_of(cache_folder() / "comet")
    if not python.is_file():
        raise MissingExtraError(
            f"COMET-QE is not installed: {_INSTALL}, or set ${PYTHON_VARIABLE} to a Python that "
            "has unbabel-comet"
        )
    return python


def install() -> Path:
    """Make an environment with COMET in the cache folder, and return its Python.

    The folder appears whole or not at all: it is removed when the installation fails.
    """
    import shutil

    target = cache_folder() / "comet"
    target.parent.mkdir(parents=True, exist_ok=True)
    venv.create(target, with_pip=True, clear=True)
    python = _python_of(target)
    command = [str(python), "-m", "pip", "install", "--no-input", *REQUIREMENTS]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        shutil.rmtree(target, ignore_errors=True)
        raise ModelError("COMET could not be installed: pip's messages above say why")
    return python


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _end(worker: subprocess.Popen[str]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None and not pipe.closed:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
    try:
        worker.wait(timeout=5)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


if __name__ == "__main__":
    print(install())
