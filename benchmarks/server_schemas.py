"""Clients with a JSON schema each, all different, on one server: what a text costs its processor.

    git worktree add ../old 307e4ef
    python benchmarks/server_schemas.py --against ../old

Starts `bestk serve` of this checkout and of another one, and asks both the same in turns. What
counts is the processor time of the server with its children, which other programs do not change.
Round 0 compiles the schemas, and is shown apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

HERE = Path(__file__).parent.parent
FIELDS = ("colour", "animal", "city", "fruit", "tool", "game", "song", "river")


def body(number: int, round_: int, options: argparse.Namespace) -> dict[str, Any]:
    """Word one client's request: a schema of its own, another prompt every round."""
    name = FIELDS[number % len(FIELDS)]
    kind = {"type": "string", "maxLength": 12 + number}
    schema = {"type": "object", "properties": {name: kind}, "required": [name]}
    return {
        "prompt": f"Item {round_ * 100 + number} of the list, with its {name}, as JSON:",
        "raw": True,
        "json_schema": {**schema, "additionalProperties": False},
        "k": options.k,
        "beam_size": options.beam_size,
        "max_new_tokens": options.max_new_tokens,
    }


class Server:
    """`bestk serve` of one checkout."""

    def __init__(self, name: str, checkout: Path, options: argparse.Namespace) -> None:
        self.name = name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        clients = str(options.clients)
        limits = ["--max-searches", clients, "--max-queue", clients, "--max-seconds", "3600"]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bestk", "serve", "--port", str(port), *limits],
            env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
            cwd=checkout,
        )
        self.url = f"http://127.0.0.1:{port}"

    def wait(self) -> None:
        """Wait until it answers."""
        while True:
            try:
                httpx.get(f"{self.url}/health")
                return
            except httpx.TransportError:
                assert self.process.poll() is None, f"{self.name} did not start"
                time.sleep(0.5)

    def seconds(self) -> float:
        """Return the processor time of the server and its children."""
        server = psutil.Process(self.process.pid)
        every = [server.cpu_times(), *(child.cpu_times() for child in server.children(True))]
        gone = every[0].children_user + every[0].children_system
        return float(sum(one.user + one.system for one in every) + gone)

    def round(self, number: int, options: argparse.Namespace) -> tuple[float, list[list[str]]]:
        """Ask for all clients at once; return the processor time, and every client's texts."""

        async def ask() -> list[list[str]]:
            async with httpx.AsyncClient(base_url=self.url, timeout=3600) as client:
                bodies = [body(one, number, options) for one in range(options.clients)]
                asked = (client.post("/v1/search", json=one) for one in bodies)
                answers = await asyncio.gather(*asked)
            for answer in answers:
                answer.raise_for_status()
            return [[text["text"] for text in one.json()["hypotheses"]] for one in answers]

        before = self.seconds()
        texts = asyncio.run(ask())
        return self.seconds() - before, texts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, required=True, help="another checkout of bestk")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3, help="after the one that compiles")
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    checkouts = {"this": HERE, "other": options.against.resolve()}
    servers = [Server(name, checkout, options) for name, checkout in checkouts.items()]
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    same = total = 0
    try:
        for server in servers:
            server.wait()
        for number in range(options.rounds + 1):
            found = []
            for server in servers:
                seconds, texts = server.round(number, options)
                spent[server.name].append(seconds)
                found.append(texts)
            same += sum(one == other for one, other in zip(*found, strict=True))
            total += options.clients
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait()
    each = {name: statistics.median(rounds[1:]) for name, rounds in spent.items()}
    report = {
        "clients": options.clients,
        "settings": f"k={options.k}, b={options.beam_size}, T={options.max_new_tokens}",
        "cpu_seconds": spent,
        "median": each,
        "throughput": each["other"] / each["this"],
        "same_texts": f"{same} of {total}",
    }
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{report['clients']} clients, {report['settings']}: processor seconds of a round")
    for name, rounds in spent.items():
        told = " ".join(f"{seconds:.1f}" for seconds in rounds[1:])
        print(f"{name:6} {each[name]:7.1f}  (rounds {told}; the one that compiles {rounds[0]:.1f})")
    told = f"{report['throughput']:.2f} times the other's throughput"
    print(f"{told}; same texts {report['same_texts']}")


if __name__ == "__main__":
    main()
