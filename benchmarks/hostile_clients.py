"""Honest clients beside hostile ones: does anybody honest get a wrong answer, or wait longer?

    python benchmarks/hostile_clients.py --honest 16 --hostile 4 --seconds 120
    python benchmarks/hostile_clients.py --paced --round 60     # on a machine that is busy

Starts `bestk serve` as a process of its own. The honest clients are those of `server_load`, whose
answers are compared with direct searches. They come in rounds, in turns alone and beside clients
that send everything of docs/security.md, so that whatever else the machine does hits both alike.
With --paced the model is the toy, whose steps take time and no processor, so that the times are of
who waits for whom. Prints both reports, and exits with 1 if an answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import multiprocessing
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import torch
from server_load import Case, Report, cases_of, resident, run_load, server

import bestk
from bestk.backends.toy import ToyBackend, ToySession
from bestk.nodes import NodeBatch
from bestk.server.app import create_app
from bestk.server.main import ServeOptions, make_server

HUGE = 10**9
DEEP: dict[str, Any] = {}
for _ in range(400):
    DEEP = {"type": "array", "items": DEEP}
REPEATS = "(((([a-z]|b|c?){1,999}c?){1,99}d){1,999}e?){1,999}"
CHAT = [{"role": "user", "content": "x"}]
# What is sent in turns: a path, and a body.
ATTACKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("search", {"prompt": "x", "json_schema": {"enum": list(range(100_000))}}),
    ("search", {"prompt": "x", "json_schema": DEEP}),
    ("search", {"prompt": "x", "regex": REPEATS * 20}),
    ("search", {"prompt": "x", "regex": "(" * 5000 + ")" * 5000}),
    ("search", {"prompt": "x", "grammar": "root ::= root"}),
    ("search", {"prompt": "x", "json_schema": {"type": "string", "pattern": "(a+)+(?=b)"}}),
    ("search", {"prompt": "<image>" * 50_000}),
    ("search", {"prompt": "x", "budget": HUGE}),
    ("search", {"prompt": "x", "k": 10**400}),
    ("search", {"prompt": ""}),
    ("search", {"prompt": "x", "json_schema": {"$ref": "#"}}),
    ("search", {"prompt": "x", "method": "BS", "beam_size": 100, "max_new_tokens": 25}),
    ("search", {"prompt": "x", "beam_size": 50, "max_new_tokens": 60, "temperature": 1.1}),
    ("completions", {"prompt": "x", "n": HUGE}),
    ("completions", {"prompt": ["a"] * 1000}),
    ("completions", {"prompt": "x", "best_of": HUGE}),
    ("completions", {"prompt": [-1, HUGE]}),
    ("completions", {"prompt": "x", "prompt_embeds": "gASVAA=="}),
    ("completions", {"prompt": "x", "logit_bias": {str(HUGE): 1}}),
    ("chat/completions", {"messages": CHAT, "chat_template": "{{x}}"}),
    ("chat/completions", {"messages": CHAT, "tools": [{"function": {"name": "f"}}] * 500}),
    ("render", {"format": "bestk.result", "version": 1, "tree": {"expanded_at": [HUGE]}}),
    ("render", {"graph": {"format": "bestk.graph", "version": 1, "prompt": 3}}),
)


async def attack(url: str, seed: int, statuses: Counter[int]) -> None:
    """Send every attack in turns, and bodies that are none, for ever; count answers by status."""
    source = random.Random(seed)
    bodies = [(path, json.dumps(body).encode()) for path, body in ATTACKS]
    bodies += [("search", b"[" * 1_000_000), ("search", b"x" * 5_000_000)]
    bodies += [("search", gzip.compress(b" " * 50_000_000)), ("search", b'{"prompt": "\\ud800"}')]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            source.shuffle(bodies)
            for path, body in bodies:
                kind = {"Content-Type": "application/json"}
                wait = source.choice([60.0, 0.2])  # some do not wait for the answer
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.post(
                        f"/v1/{path}", content=body, headers=kind, timeout=wait
                    )
                    statuses[answer.status_code] += 1


async def round_of(
    url: str, pid: int, cases: list[Case], given: argparse.Namespace, seed: int, *, hostile: int
) -> tuple[Report, Counter[int]]:
    """Run the honest clients for a while, with so many hostile ones; wait until all is over."""
    statuses: Counter[int] = Counter()
    others = [asyncio.create_task(attack(url, seed * 100 + n, statuses)) for n in range(hostile)]
    report = await run_load(
        url,
        cases,
        clients=given.honest,
        seconds=given.round,
        memory=lambda: resident(pid),
        seed=seed,
    )
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while await _is_busy(client):
            await asyncio.sleep(0.1)
    return report, statuses


async def _is_busy(client: httpx.AsyncClient) -> bool:
    told = (await client.get("/health")).json()
    return bool(told["running"] or told["waiting"])


def joined(reports: list[Report]) -> Report:
    """Put the reports of some rounds together."""
    whole = Report()
    for report in reports:
        whole.seconds += report.seconds
        whole.outcomes += report.outcomes
        whole.wrong += report.wrong
        whole.memory += report.memory
    return whole


def serve_paced(told: Connection) -> None:
    """Serve the toy model: a step takes 20 ms, and 1 ms for every node."""
    torch.set_num_threads(1)

    class Paced(ToySession):
        def evaluate(self, nodes: NodeBatch, *, whole: bool) -> torch.Tensor:
            time.sleep(0.02 + 0.001 * nodes.token.numel())
            return super().evaluate(nodes, whole=whole)

    ToyBackend.start = lambda self, prompts, spec, prompt_size=0: Paced(  # type: ignore[method-assign]
        self, [tuple(prompt) for prompt in prompts]
    )
    app = create_app({"toy": bestk.load("toy")})
    listening = socket.create_server(("127.0.0.1", 0))
    app.state.loop.start()
    told.send(listening.getsockname()[1])
    make_server(app, ServeOptions(grace=1)).run(sockets=[listening])


@contextlib.contextmanager
def paced() -> Iterator[tuple[str, int]]:
    """Run such a server in a process of its own; yields its address and process id."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_paced, args=(there,))
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}", process.pid or 0
    finally:
        process.terminate()
        process.join(60)


def handles(pid: int) -> int:
    """Count the open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def run(
    url: str, pid: int, cases: list[Case], given: argparse.Namespace
) -> tuple[list[Report], list[Report], Counter[int]]:
    """Let rounds alone and beside hostile clients take turns."""
    alone, beside, statuses = [], [], Counter[int]()
    await round_of(url, pid, cases, given, 0, hostile=given.hostile)  # warms up
    for number in range(1, 1 + round(given.seconds / given.round)):
        # The same seed: the same requests in the same order.
        alone.append((await round_of(url, pid, cases, given, number, hostile=0))[0])
        report, counts = await round_of(url, pid, cases, given, number, hostile=given.hostile)
        beside.append(report)
        statuses += counts
    return alone, beside, statuses


def main() -> int:
    """Run both from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--honest", type=int, default=16)
    parser.add_argument("--hostile", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120, help="alone, and so long beside")
    parser.add_argument("--round", type=float, default=20, help="seconds of a round")
    parser.add_argument("--paced", action="store_true", help="the toy, whose steps take time alone")
    given = parser.parse_args()
    cases = cases_of(bestk.load("toy") if given.paced else bestk.load(given.model, dtype="float32"))
    with paced() if given.paced else server(given.model) as (url, pid):
        before = handles(pid)
        alone, beside, counts = asyncio.run(run(url, pid, cases, given))
        after = handles(pid)
    ratios = [b.percentile(0.95) / a.percentile(0.95) for a, b in zip(alone, beside, strict=True)]
    calm, disturbed = joined(alone), joined(beside)
    print("alone", *calm.lines(), sep="\n  ")
    print("beside hostile clients", *disturbed.lines(), sep="\n  ")
    told = ", ".join(f"{count} × {status}" for status, count in sorted(counts.items()))
    print(f"hostile     {counts.total()} answered: {told}")
    ratio = disturbed.percentile(0.95) / calm.percentile(0.95)
    each = ", ".join(f"{one:.2f}" for one in ratios)
    print(f"p95         {ratio:.2f} times that of clients alone; by rounds {each}")
    print(f"open files  {before} before, {after} after")
    return 1 if calm.wrong or disturbed.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
