"""`bestk models` and `bestk doctor`: what this machine has, and what it lacks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bestk.lm import health, inventory


class Answers(BaseHTTPRequestHandler):
    """A server of one model."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "tiny"}]}).encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_models(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int) -> None:
    cache = tmp_path / "hub" / "models--owner--small"
    (cache / "snapshots" / "abc").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    (cache / "snapshots" / "abc" / "model.safetensors").write_bytes(b"0" * 2_000_000)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "hub"))
    unused = 1  # nobody listens there
    monkeypatch.setattr(inventory, "_served", lambda _, ask=inventory._served: ask([unused, port]))
    code, out, err = cli("models")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert next(line for line in lines if line[0] == "toy")[:2] == ["toy", "embedded"]
    assert ["owner/small", "cached", "2", "MB"] in lines
    assert [f"http://127.0.0.1:{port}", "served", "tiny"] in lines
    named = [model["name"] for model in json.loads(cli("models", "--json")[1])]
    assert named == [line[0] for line in lines]


def test_no_cache_is_no_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "none"))
    assert list(inventory._cached()) == []


def test_doctor_says_what_is_missing(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [
        "torch>=2",
        "transformers>=99",
        'no-such-package; extra == "serve"',
        'rich; extra == "eval"',
        'neither-here; python_version < "3"',
    ]
    monkeypatch.setattr(health.metadata, "requires", lambda _: needs)
    code, out, err = cli("doctor")
    assert (code, err) == (1, "")
    told = {" ".join(line.split()[:3]): " ".join(line.split()) for line in out.splitlines()}
    assert " is not >=99 pip install --upgrade bestk" in told["– needed packages"]
    serve = next(line for line in out.splitlines() if "bestk[serve]" in line)
    assert serve.startswith("–")
    assert "no-such-package is not installed" in serve
    assert serve.endswith("pip install 'bestk[serve]'")
    assert next(line for line in out.splitlines() if "bestk[eval]" in line).startswith("✔")
    assert "neither-here" not in out
    names = [check["name"] for check in json.loads(cli("doctor", "--json")[1])]
    assert {"Python", "device", "embedded model", "converted models"} <= {*names}


def test_doctor_is_content_here(cli: Any) -> None:
    code, out, _ = cli("doctor")
    assert (code, "needed packages") == (0, "needed packages"), out
