"""Runs a server until it is told to stop: loads the models, listens, shuts down gracefully.

On a signal no new search is taken; those that run may end within the grace period, and what is left
then is told so. Knows uvicorn and files of models, no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from bestk.constraints.trie import Trie
from bestk.errors import OptionError
from bestk.lm.language_model import LanguageModel
from bestk.rerank import reranker_of
from bestk.server.app import Access, create_app
from bestk.server.limits import Limits
from bestk.server.loop import SearchLoop
from bestk.server.security import LOOPBACK

TOKEN_VARIABLE = "BESTK_TOKEN"

# Seconds that uvicorn gets, after the grace period, to send what the loop had to say.
_LAST_WORDS = 5
_BACKLOG = 2048  # uvicorn's own
_HEADER_BYTES = 65_536


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where a server listens, and how it ends."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    cors_origins: Sequence[str] = ()
    grace: float = 30.0
    limits: Limits = field(default_factory=Limits)
    rerankers: Sequence[str] = ()
    tries: Sequence[str] = ()  # name=file

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise OptionError(f"port goes from 0 to 65535, got {self.port}")
        if self.grace < 0:
            raise OptionError(f"grace must be at least 0 seconds, got {self.grace:g}")
        if self.token is not None and not self.token.strip():
            raise OptionError("the token must not be empty: leave it out for a server without one")

    @property
    def access(self) -> Access:
        """Who may use the server; one on this machine alone answers to this machine's names."""
        # Of a file or a variable it may come with a line's end, which no header can hold.
        token = (self.token or os.environ.get(TOKEN_VARIABLE) or "").strip() or None
        hosts = LOOPBACK if self.host in LOOPBACK else ()
        return Access(token=token, cors_origins=self.cors_origins, hosts=hosts)


def serve(models: Sequence[LanguageModel], options: ServeOptions) -> None:
    """Serve until a signal comes."""
    rerankers = {name: reranker_of(name) for name in options.rerankers}
    tries = {}
    for given in options.tries:
        name, _, path = given.partition("=")
        if not name or not path or name in tries:
            raise OptionError(f"a trie is given as name=file, each name once, got {given!r}")
        tries[name] = Trie.load(path, mmap=True)
    app = create_app(by_name(models), options.limits, options.access, rerankers, tries)
    listening = _listen(options.host, options.port)
    server = make_server(app, options)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"bestk serves {', '.join(by_name(models))} on http://{shown}:{port}", flush=True)
    if options.host not in LOOPBACK and options.access.token is None:
        print(
            "anyone who reaches this address may search: a --token keeps others out",
            file=sys.stderr,
            flush=True,
        )
    loop: SearchLoop = app.state.loop
    loop.start()
    try:
        server.run(sockets=[listening])
    finally:
        loop.drain(0)
        loop.join(_LAST_WORDS)


def make_server(app: FastAPI, options: ServeOptions) -> GracefulServer:
    """Make the web server of an application."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(options.grace) + _LAST_WORDS,
        server_header=False,
        http="h11",  # the one whose headers are bounded
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    return GracefulServer(config, options.grace)


class GracefulServer(uvicorn.Server):
    """A web server that lets the loop's searches end before it does."""

    def __init__(self, config: uvicorn.Config, grace: float) -> None:
        super().__init__(config)
        self.grace = grace

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server, and nothing after it: to be told to stop is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs end, then close."""
        app: Any = self.config.app
        await asyncio.to_thread(app.state.loop.drain, self.grace)
        await super().shutdown(sockets)


def by_name(models: Sequence[LanguageModel]) -> dict[str, LanguageModel]:
    """Name models for clients: a folder by its last part."""
    named: dict[str, LanguageModel] = {}
    for lm in models:
        name = Path(lm.name).name if Path(lm.name).exists() else lm.name
        if name in named:
            raise OptionError(f"two models are called {name!r}: give each once")
        named[name] = lm
    if not named:
        raise OptionError("a server needs a model: give one with --model")
    return named


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)  # before the address is told: who comes at once waits, not fails
    except OSError as error:
        listening.close()
        why = error.strerror or str(error)
        raise OptionError(f"cannot listen on {host} port {port}: {why}") from None
    return listening
