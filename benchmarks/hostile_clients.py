"""Honest clients beside hostile ones: does anybody honest get a wrong answer, or wait longer?

    python benchmarks/hostile_clients.py --honest 16 --hostile 4 --seconds 120
    python benchmarks/hostile_clients.py --honest 8 --hostile 2 --seconds 3600 --faults

Starts `bestk serve` as a process of its own. The honest clients are those of `server_load`, whose
answers are compared with direct searches; first alone, then beside clients that send everything of
docs/security.md in turns. With --faults its compiler of grammars is killed too, at random moments.
Prints both reports, and exits with 1 if an answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from server_load import Case, Report, cases_of, resident, run_load, server

import bestk

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


async def attack(url: str, seconds: float, seed: int) -> Counter[int]:
    """Send every attack in turns, and bodies that are none; count the answers by status."""
    statuses: Counter[int] = Counter()
    source, end = random.Random(seed), time.monotonic() + seconds
    bodies = [(path, json.dumps(body).encode()) for path, body in ATTACKS]
    bodies += [("search", b"[" * 1_000_000), ("search", b"x" * 5_000_000)]
    bodies += [("search", gzip.compress(b" " * 50_000_000)), ("search", b'{"prompt": "\\ud800"}')]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while time.monotonic() < end:
            path, body = source.choice(bodies)
            kind = {"Content-Type": "application/json"}
            wait = source.choice([60.0, 0.2])  # some do not wait for the answer
            with contextlib.suppress(httpx.TransportError):
                answer = await client.post(f"/v1/{path}", content=body, headers=kind, timeout=wait)
                statuses[answer.status_code] += 1
    return statuses


async def disturb(pid: int, seconds: float) -> Counter[int]:
    """Kill the server's compiler of grammars at random moments; count how often."""
    source, end, kills = random.Random(0), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        await asyncio.sleep(source.uniform(1, 10))
        found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
        for child in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(_handle(int(child)), signal.SIGKILL)
                kills += 1
    return Counter({-9: kills})


def _handle(pid: int) -> int:
    import os

    return os.pidfd_open(pid)


async def side_by_side(
    url: str, pid: int, cases: list[Case], given: argparse.Namespace, *, is_disturbed: bool
) -> tuple[Report, Counter[int]]:
    """Run the honest clients, and the hostile ones where they are wanted."""

    def memory() -> float:
        return resident(pid)

    load = run_load(url, cases, clients=given.honest, seconds=given.seconds, memory=memory)
    others = []
    if is_disturbed:
        others = [attack(url, given.seconds, seed) for seed in range(given.hostile)]
        if given.faults:
            others.append(disturb(pid, given.seconds))
    report, *counts = await asyncio.gather(load, *others)
    return report, sum(counts, Counter())


def handles(pid: int) -> int:
    """Count the open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main() -> int:
    """Run both from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--honest", type=int, default=16)
    parser.add_argument("--hostile", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--faults", action="store_true")
    given = parser.parse_args()
    cases = cases_of(bestk.load(given.model))
    times: Callable[[Report], str] = lambda report: f"{report.percentile(0.95):.2f} s"  # noqa: E731
    with server(given.model) as (url, pid):
        asyncio.run(run_load(url, cases, clients=given.honest, seconds=given.seconds / 4))
        alone, _ = asyncio.run(side_by_side(url, pid, cases, given, is_disturbed=False))
        before = handles(pid)
        beside, counts = asyncio.run(side_by_side(url, pid, cases, given, is_disturbed=True))
        time.sleep(2)
        left, after = httpx.get(url + "/health").json(), handles(pid)
    print("alone", *alone.lines(), sep="\n  ")
    print("beside hostile clients", *beside.lines(), sep="\n  ")
    told = ", ".join(f"{count} × {status}" for status, count in sorted(counts.items()))
    print(f"hostile     {counts.total()} answered: {told}")
    print(f"p95         {times(alone)} alone, {times(beside)} beside")
    print(f"open files  {before} before, {after} after; {left['running']} searches left over")
    return 1 if alone.wrong or beside.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
