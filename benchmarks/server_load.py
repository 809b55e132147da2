"""Many clients on one server: are all answers right, does memory stay flat, how long do they wait?

    python benchmarks/server_load.py --clients 32 --seconds 120

Starts `bestk serve` as a process of its own. Every answer is compared with a direct search that was
run before; a tenth of the clients' requests are broken off midway, a tenth are bad input. Prints a
report, and exits with 1 if any answer was wrong. `run_load` does the same to a server that runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import bestk

DISCONNECTS = 0.1  # of all requests
BAD_INPUTS = 0.1
PROMPTS = (
    "The best thing about dogs is",
    "When I grow up I want to be",
    "In the middle of the night",
    "My favourite colour is",
    "The train to the city",
    "She opened the old book and",
    "Once upon a time in a small village by the sea there lived",
    "Good morning",
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"scoring": "sum", "beam_size": 3, "max_new_tokens": 12, "stop": ["."]},
    {"beam_size": 2, "max_new_tokens": 10, "stop": [".", ","], "k": 3},
    {"beam_size": 2, "max_new_tokens": 8, "temperature": 1.3, "stop": ["."]},
)
BAD_BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": ""},
    {"prompt": "a", "k": -1},
    {"prompt": "a", "beem_size": 3},
    {"prompt": "a", "model": "no such model"},
    {"prompt": "a", "budget": 10**9},
    {"prompt": 3},
    {},
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request, and the texts that a direct search found for it, best first."""

    prompt: str
    settings: dict[str, Any]
    texts: tuple[str, ...]
    log_probs: tuple[float, ...]


@dataclass
class Report:
    """What happened."""

    seconds: list[float] = field(default_factory=list)  # of answers that were waited for
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # MiB, once a second

    def percentile(self, share: float) -> float:
        """Return a time that this share of all answers did not exceed."""
        times = sorted(self.seconds)
        return times[min(int(len(times) * share), len(times) - 1)] if times else 0.0

    @property
    def growth(self) -> float:
        """Compare the memory of the last quarter with that of the second: 1 is flat."""
        quarter = max(len(self.memory) // 4, 1)
        before, after = self.memory[quarter : 2 * quarter], self.memory[-quarter:]
        return sum(after) / len(after) / (sum(before) / len(before)) if before else 1.0

    def lines(self) -> list[str]:
        """Write the report."""
        told = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        memory = self.memory or [0.0]
        return [
            f"requests    {self.outcomes.total()}: {told}",
            f"wrong       {len(self.wrong)}",
            f"latency     p50 {self.percentile(0.5):.2f} s, p95 {self.percentile(0.95):.2f} s, "
            f"max {self.percentile(1):.2f} s",
            f"memory      {memory[0]:.0f} MiB at the start, {max(memory):.0f} at most, "
            f"{memory[-1]:.0f} at the end; last quarter / second quarter {self.growth:.3f}",
            *(f"WRONG: {line}" for line in self.wrong[:10]),
        ]


def cases_of(lm: bestk.LanguageModel, prompts: Sequence[str] = PROMPTS) -> list[Case]:
    """Search every prompt with every setting, directly."""
    cases = []
    for settings in SETTINGS:
        for prompt in prompts:
            result = bestk.search(lm, prompt, raw=True, keep_tree=False, **settings)
            log_probs = tuple(h.log_prob for h in result.hypotheses)
            cases.append(
                Case(
                    prompt=prompt, settings=settings, texts=tuple(result.texts), log_probs=log_probs
                )
            )
    return cases


async def run_load(
    url: str,
    cases: Sequence[Case],
    *,
    clients: int,
    seconds: float,
    memory: Callable[[], float] | None = None,
    seed: int = 0,
) -> Report:
    """Let clients ask for random cases, one after another, until the time is up."""
    report, end = Report(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:

        async def one(number: int) -> None:
            source = random.Random(seed * 1000 + number)
            while time.monotonic() < end:
                await _request(client, source, cases, report)

        async def watch() -> None:
            while memory is not None and time.monotonic() < end:
                report.memory.append(memory())
                await asyncio.sleep(1)

        await asyncio.gather(watch(), *(one(number) for number in range(clients)))
    return report


async def _request(
    client: httpx.AsyncClient, source: random.Random, cases: Sequence[Case], report: Report
) -> None:
    case, draw = source.choice(cases), source.random()
    if draw < BAD_INPUTS:
        await _bad(client, source, report)
    elif draw < BAD_INPUTS + DISCONNECTS:
        await _leave(client, source, case, report)
    else:
        ask = source.choice([_search, _stream, _complete])
        started = time.monotonic()
        wrong = await ask(client, source, case)
        report.seconds.append(time.monotonic() - started)
        report.outcomes["answered"] += 1
        if wrong is not None:
            report.wrong.append(f"{ask.__name__} {case.prompt!r} {case.settings}: {wrong}")


async def _search(client: httpx.AsyncClient, source: random.Random, case: Case) -> str | None:
    body = {"prompt": case.prompt, "raw": True, **case.settings}
    answer = await client.post("/v1/search", json=body)
    return _compare(case, answer.json()["hypotheses"]) if answer.is_success else answer.text


async def _stream(client: httpx.AsyncClient, source: random.Random, case: Case) -> str | None:
    body = {"prompt": case.prompt, "raw": True, "stream": True, "graph": True, **case.settings}
    told: set[str] = set()
    async with client.stream("POST", "/v1/search", json=body) as response:
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: ") and name in ("step", "result", "error"):
                data = json.loads(line.removeprefix("data: "))
                if name == "step":
                    told |= {text["text"] for text in data["texts"]}
                    continue
                if name == "error":
                    return str(data)
                if not told <= set(case.texts):
                    return f"a stranger's texts {told - set(case.texts)}"
                return _compare(case, data["hypotheses"])
    return f"the stream ended without a result, status {response.status_code}"


async def _complete(client: httpx.AsyncClient, source: random.Random, case: Case) -> str | None:
    n = source.choice([1, 5])
    # The first n of what a search finds that knows no n.
    body = {
        "prompt": case.prompt,
        "n": n,
        "policy": "best-k",
        "k": 5,
        "beam_size": 10,
        **case.settings,
    }
    answer = await client.post("/v1/completions", json=body)
    if not answer.is_success:
        return answer.text
    choices = [c for c in answer.json()["choices"] if c["finish_reason"] == "stop"]
    short = Case(
        prompt=case.prompt,
        settings=case.settings,
        texts=case.texts[:n],
        log_probs=case.log_probs[:n],
    )
    return _compare(short, choices)


def _compare(case: Case, found: list[dict[str, Any]]) -> str | None:
    texts = tuple(entry["text"] for entry in found)
    if texts != case.texts:
        return f"found {texts[:5]} in place of {case.texts[:5]}"
    far = [
        abs(entry["log_prob"] - log_prob)
        for entry, log_prob in zip(found, case.log_probs, strict=True)
        if abs(entry["log_prob"] - log_prob) > 1e-3
    ]
    return f"log-probabilities differ by {max(far)}" if far else None


async def _bad(client: httpx.AsyncClient, source: random.Random, report: Report) -> None:
    body = source.choice(BAD_BODIES)
    path = source.choice(["/v1/search", "/v1/completions"])
    answer = await client.post(path, json=body)
    report.outcomes["bad input"] += 1
    if answer.status_code not in (400, 404) or "error" not in answer.json():
        report.wrong.append(f"{path} {body}: {answer.status_code} {answer.text[:200]}")


async def _leave(
    client: httpx.AsyncClient, source: random.Random, case: Case, report: Report
) -> None:
    """Ask, and go away: after some events of a stream, or while an answer is waited for."""
    body = {"prompt": case.prompt, "raw": True, **case.settings}
    report.outcomes["disconnected"] += 1
    if source.random() < 0.5:
        wanted = source.randrange(1, 8)
        async with client.stream("POST", "/v1/search", json=body | {"stream": True}) as response:
            async for line in response.aiter_lines():
                wanted -= line.startswith("data: ")
                if wanted <= 0:
                    return
    else:
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/v1/search", json=body, timeout=source.uniform(0.01, 1.0))


@contextlib.contextmanager
def server(model: str) -> Iterator[tuple[str, int]]:
    """Run `bestk serve` on a free port; yields its address and process id."""
    command = [sys.executable, "-m", "bestk", "serve", "--model", model, "--port", "0"]
    command += ["--dtype", "float32"]  # in others an answer depends on who else is there
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, f"the server said {line!r}"
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait(60)


def resident(pid: int) -> float:
    """Return the memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096 / 2**20


def main() -> int:
    """Run the load test from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    cases = cases_of(bestk.load(given.model, dtype="float32"))
    print(f"{len(cases)} cases, {sum(len(case.texts) for case in cases)} texts", flush=True)
    with server(given.model) as (url, pid):
        load = run_load(
            url, cases, clients=given.clients, seconds=given.seconds, memory=lambda: resident(pid)
        )
        report = asyncio.run(load)
        left = httpx.get(url + "/health").json()
        numbers = httpx.get(url + "/metrics").text
    print("\n".join(report.lines()))
    print(f"left over   {left['running']} running, {left['waiting']} waiting")
    kept = re.findall(r"^bestk_(?:searches|expansions)_total.*$", numbers, re.MULTILINE)
    print("\n".join(kept))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
