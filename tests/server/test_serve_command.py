"""`bestk serve`: its flags, its errors, and how it ends."""

from __future__ import annotations

import builtins
import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving
from serving import letters_lm

from bestk.errors import OptionError
from bestk.server import main
from bestk.server.limits import Limits
from bestk.server.main import ServeOptions, by_name
from bestk.server.security import LOOPBACK

SERVE = """
import sys
from collections.abc import Iterator
from pathlib import Path
sys.path.insert(0, {tests!r})
from serving import letters_lm
from bestk.server.main import ServeOptions, serve
lm = letters_lm()
import time
lm.backend.before_step = lambda: time.sleep(0.01)
serve([lm], ServeOptions(port=0, grace={grace}))
"""


def test_flags_become_options(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    loaded: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        "bestk.load", lambda name, **o: loaded.append((name, o)) or letters_lm(name)
    )
    monkeypatch.setattr(main, "serve", lambda models, options: given.append((models, options)))
    flags = "--model a -m b --dtype float32 --port 81 --host 0.0.0.0 --token t --grace 3"
    flags += " --cors-origin https://example.org --max-searches 2 --max-queue 3 --max-seconds 4"
    flags += " --max-prompt-tokens 5 --max-new-tokens 6 --max-budget 7"
    assert cli("serve", *flags.split())[0] == 0
    ((models, options),) = given
    assert [lm.name for lm in models] == ["a", "b"]
    assert loaded[0] == ("a", {"dtype": "float32"})
    assert (options.port, options.host, options.grace) == (81, "0.0.0.0", 3)
    limits = Limits(searches=2, queue=3, seconds=4, prompt_tokens=5, new_tokens=6, budget=7)
    assert options.limits == limits
    assert options.access.token == "t"
    assert options.access.cors_origins == ["https://example.org"]
    assert options.access.hosts == (), "who listens to all answers to any name"


def test_the_defaults_are_safe(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ServeOptions] = []
    monkeypatch.setattr("bestk.load", lambda name, **_: letters_lm(name))
    monkeypatch.setattr(main, "serve", lambda models, options: given.append(options))
    monkeypatch.setenv("BESTK_TOKEN", "from the environment\n")
    assert cli("serve")[0] == 0
    (options,) = given
    assert options == ServeOptions(limits=Limits(), rerankers=[], cors_origins=[], tries=[])
    assert options.host == "127.0.0.1"
    assert options.access.token == "from the environment"
    assert options.access.hosts == LOOPBACK
    assert not options.access.cors_origins


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--port", "70000"], "port goes from 0 to 65535, got 70000"),
        (["--grace", "-1"], "grace must be at least 0 seconds, got -1"),
        (["--token", " "], "the token must not be empty"),
        (["--max-budget", "0"], "the limit of budget must be at least 1, got 0"),
        (["--max-seconds", "0"], "the limit of seconds must be above 0, got 0"),
    ],
)
def test_bad_flags_are_one_line(
    cli: Any, monkeypatch: pytest.MonkeyPatch, flags: list[str], told: str
) -> None:
    monkeypatch.setattr("bestk.load", lambda name, **_: pytest.fail("loaded a model first"))
    code, _, err = cli("serve", *flags)
    assert code == 2
    assert told in err


def test_a_port_that_is_taken(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestk.load", lambda name, **_: letters_lm(name))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = cli("serve", "--port", port)
    assert code == 2
    assert err == f"Error: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def test_without_the_extra(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("bestk.server"):
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    code, _, err = cli("serve")
    assert (code, err) == (2, "Error: fastapi is not installed: pip install 'bestk[serve]'\n")


def test_models_have_names_of_their_own(tmp_path: Path) -> None:
    named = by_name([letters_lm("a"), letters_lm(str(tmp_path))])
    assert list(named) == ["a", tmp_path.name], "a folder's place is nobody's business"
    with pytest.raises(OptionError, match="two models are called 'a'"):
        by_name([letters_lm("a"), letters_lm("a")])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_what_runs_is_told(number: int) -> None:
    code = SERVE.format(tests=str(Path(serving.__file__).parent), grace=0.3)
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", code], **piped) as process,
        killed_at_last(process),
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        found = re.search(r"bestk serves letters on (http://\S+)", process.stdout.readline())
        assert found is not None
        body = {"prompt": "a", "budget": 2000, "max_new_tokens": 400, "k": 1, "stream": True}
        url = found[1] + "/v1/search"
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: start"
            process.send_signal(number)
            told = list(lines)
        assert process.wait(60) == 0
        error = process.stderr.read()
    assert "event: error" in told
    assert "shutting_down" in told[told.index("event: error") + 1]
    assert "Traceback" not in error


@contextlib.contextmanager
def killed_at_last(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process whatever happens: Popen's own exit waits for it, for ever if need be."""
    try:
        yield
    finally:
        process.kill()


def test_who_is_told_the_address_can_connect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(server: Any, sockets: list[socket.socket]) -> None:
        address = re.search(r"http://([\d.]+):(\d+)", capsys.readouterr().out)
        assert address is not None
        socket.create_connection((address[1], int(address[2])), timeout=5).close()
        sockets[0].close()

    monkeypatch.setattr(main.GracefulServer, "run", connect)
    main.serve([letters_lm()], ServeOptions(port=0, grace=0))
