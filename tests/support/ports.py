"""Ports that stay free while their server is away."""

from __future__ import annotations

import os
import random
import socket

_chance = random.Random(os.getpid())


def free_port() -> int:
    """Choose a free port below those that systems hand out by themselves.

    A client that knocks at a closed port of that range can be given the very port to call from, and
    so connect to itself: its server could not come back.
    """
    while True:
        port = _chance.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
