"""A server and jobs with faults at random moments: is every answer the usual one?

    python benchmarks/faults.py --minutes 10

On the toy model, so that much happens. A server's model runs out of memory and gives NaN, clocks
jump, clients go away or read slowly. Batch jobs and evaluations are killed, run out of disk and
memory, and are begun again until they are done. Every answer and every file is compared with the
undisturbed one. Prints counts, memory and open files; exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import torch
from server_load import PROMPTS, cases_of, resident, run_load

import bestk
from bestk.backends.toy import Prefix, ToyBackend, ToySession
from bestk.nodes import NodeBatch

BROKEN = "well well well"  # a prompt that the model gives NaN for
DAY = 86_400.0
SLOWLY: dict[str, Any] = {"raw": True, "max_new_tokens": 6, "beam_size": 3}
WORDS = ("the", "old", "dog", "near", "a", "quiet", "house", "every", "bird")
FAULTS = ("kill", "kill", "kill", "disk", "disk", "memory", "clock")


class Faulty(ToySession):
    """Runs out of memory now and then, if several searches are under way."""

    chance, source = 0.0, random.Random(0)

    def evaluate(self, nodes: NodeBatch, *, whole: bool) -> torch.Tensor:
        """Look the nodes up, or fail."""
        if len(self.prompts) > 1 and self.source.random() < self.chance:
            NUM["memory"] += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().evaluate(nodes, whole=whole)


NUM: Counter[str] = Counter()  # faults of this process


def disturb(seed: int, *, memory: float, clock: bool) -> None:
    """Make this process's models and clock fail."""
    torch.set_num_threads(1)
    Faulty.chance, Faulty.source = memory, random.Random(seed)
    ToyBackend.start = lambda self, prompts, spec, prompt_size=0: Faulty(  # type: ignore[method-assign]
        self, [tuple(prompt) for prompt in prompts]
    )
    log_probs = ToyBackend.log_probs
    broken = tuple(toy().encode(BROKEN))

    def maybe_nan(self: ToyBackend, prefix: Prefix) -> list[float]:
        if prefix[: len(broken)] == broken and len(prefix) > len(broken):
            return [float("nan")] * self.vocab_size
        return log_probs(self, prefix)

    ToyBackend.log_probs = maybe_nan  # type: ignore[method-assign]
    if clock:
        now, source = time.time, random.Random(seed)
        time.time = lambda: now() + source.choice([-DAY, 0.0, 3600.0])


def toy() -> bestk.LanguageModel:
    """Load the toy model."""
    return bestk.load("toy")


def serve(told: Connection, seed: int) -> None:
    """Serve the toy model, with faults: what the server's process does."""
    from bestk.server.app import create_app
    from bestk.server.main import ServeOptions, _listen, make_server

    disturb(seed, memory=0.01, clock=True)
    app = create_app({"toy": toy()})
    listening = _listen("127.0.0.1", 0)
    app.state.loop.start()
    told.send(listening.getsockname()[1])
    make_server(app, ServeOptions(grace=5)).run(sockets=[listening])
    told.send(NUM["memory"])


async def misuse(url: str, end: float, seed: int, counts: Counter[str], wrong: list[str]) -> None:
    """Ask for what fails, and read slowly; what comes is as it should be."""
    source = random.Random(seed)
    usual = list(bestk.search(toy(), "the dog", **SLOWLY).texts)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        while time.monotonic() < end:
            kind = source.choice(["NaN", "slow reader"])
            counts[kind] += 1
            if kind == "NaN":
                body = {"prompt": BROKEN, "raw": True, "max_new_tokens": 5}
                answer = await client.post("/v1/search", json=body)
                if answer.status_code != 500 or "NaN" not in answer.text:
                    wrong.append(f"NaN: {answer.text[:200]}")
            else:
                wrong += await read_slowly(client, source, usual)


async def read_slowly(
    client: httpx.AsyncClient, source: random.Random, usual: list[str]
) -> list[str]:
    """Read a stream with pauses: its result is the usual one."""
    body = SLOWLY | {"prompt": "the dog", "stream": True, "graph": True}
    async with client.stream("POST", "/v1/search", json=body) as response:
        last = ""
        async for line in response.aiter_lines():
            await asyncio.sleep(source.uniform(0, 0.1))
            last = line if line.startswith("data: ") else last
    data = json.loads(last.removeprefix("data: "))
    found = [one["text"] for one in data.get("hypotheses", ())]
    return [] if found == usual else [f"a slow reader got {last[:200]}"]


def try_server(minutes: float, seed: int) -> tuple[list[str], list[str]]:
    """Disturb a server for a while; returns what there is to report, and what was wrong."""
    here, there = multiprocessing.Pipe()
    process = context().Process(target=serve, args=(there, seed))
    process.start()
    url, counts, wrong = f"http://127.0.0.1:{here.recv()}", Counter[str](), list[str]()
    cases = cases_of(toy(), PROMPTS[:4])

    async def both(seconds: float) -> Any:
        load = run_load(
            url, cases, clients=8, seconds=seconds, memory=lambda: resident(process.pid or 0)
        )
        end = time.monotonic() + seconds
        return (await asyncio.gather(load, misuse(url, end, seed, counts, wrong)))[0]

    asyncio.run(both(min(10.0, minutes * 10)))  # warms up
    before = open_files(process.pid)
    report = asyncio.run(both(minutes * 60))
    time.sleep(1)
    after, left = open_files(process.pid), httpx.get(url + "/health").json()
    os.kill(process.pid or 0, signal.SIGTERM)
    process.join(60)
    counts["out of memory"] = here.recv()
    wrong += report.wrong
    if report.growth > 1.1:
        wrong.append(f"memory grew: {report.growth:.3f}")
    if after > before + 8 or left["running"] or left["waiting"]:
        wrong.append(f"left over: {after - before} files, {left}")
    lines = [*report.lines()[:4], f"faults      {told(counts)}"]
    return [*lines, f"open files  {before} before, {after} after"], wrong


def open_files(pid: int | None) -> int:
    """Count the open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def told(counts: Counter[str]) -> str:
    """Word counts."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def run(job: Callable[[Path], int], folder: Path, seed: int, fault: str, out: Connection) -> None:
    """Run a job with a fault, and tell what it said: what its process does."""
    sys.stderr = io.StringIO()
    disturb(seed, memory=0.05 if fault == "memory" else 0.0, clock=fault == "clock")
    if fault == "disk":
        # As much may be written to a file as there is, and a little more.
        largest = max((one.stat().st_size for one in folder.rglob("*") if one.is_file()), default=0)
        most = largest + random.Random(seed).randrange(1, 3000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    code = job(folder)
    out.send(sys.stderr.getvalue())
    os._exit(code)


def batch(folder: Path) -> int:
    """Run a batch job."""
    from bestk.cli import main

    options = ["--model", "toy", "--beam-size", "3", "--max-new-tokens", "6", "-n", "2", "--raw"]
    sizes = ["--batch-size", "4", "--window", "8"]
    source, output = folder.parent / "in.jsonl", folder / "out.jsonl"
    return main(["batch", str(source), "-o", str(output), *options, *sizes])


def evaluation(folder: Path) -> int:
    """Run an evaluation."""
    from bestk_eval.examples import Example
    from bestk_eval.runner import Settings, evaluate
    from bestk_eval.tasks import Task

    words = random.Random(7)
    texts = [" ".join(words.choices(WORDS, k=4)) for _ in range(24)]
    examples = [Example(id=f"e{i}", input=text, references=(text,)) for i, text in enumerate(texts)]
    task = Task(
        name="toy", plain="{input}", chat="{input}", max_new_tokens=6, examples=lambda: examples
    )
    methods = ("BS", "Ncls0.8", "BKS_mean", "BKS_last:k=3")
    settings = Settings(task=task, methods=methods, beam_size=5, batch_size=5)
    try:
        for _ in evaluate(toy(), settings, folder):
            pass
    except OSError as error:  # as the command line does
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


class Tried:
    """A job that is disturbed until it is done, again and again."""

    def __init__(self, job: Callable[[Path], int], folder: Path, good: int) -> None:
        self.job, self.name, self.good = job, job.__name__, good
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: list[float] = []
        self.folder, self.whole = folder / self.name, folder / f"{self.name}-whole"
        self.here, self.there = multiprocessing.Pipe()
        self.begin(self.whole, 0, "").join()
        assert files_of(self.whole), "the undisturbed run wrote nothing"

    def begin(self, folder: Path, seed: int, fault: str) -> Any:
        """Start the process."""
        folder.mkdir(exist_ok=True)
        arguments = (self.job, folder, seed, fault, self.there)
        process = context().Process(target=run, args=arguments)
        process.start()
        return process

    def once(self, source: random.Random) -> None:
        """Begin or go on with one fault; compare what is there when it is done."""
        fault = source.choice(FAULTS)
        process = self.begin(self.folder, source.randrange(10**9), fault)
        if fault == "kill":
            self.kill(process, source)
        while process.is_alive():
            with contextlib.suppress(OSError, ValueError):
                self.memory.append(resident(process.pid or 0))
            process.join(0.05)
        code, said = process.exitcode, ""
        while self.here.poll():
            said = self.here.recv()
        if code == -signal.SIGKILL:
            self.counts["killed"] += 1
        elif code == 2 and fault == "disk":
            self.counts["disk full"] += 1
            if said.count("\n") != 1 or "File too large" not in said:
                self.wrong.append(f"{self.name}: a full disk said {said[:300]!r}")
        elif code == self.good:
            self.counts[f"done ({fault})"] += 1
            if files_of(self.folder) != files_of(self.whole):
                self.wrong.append(f"{self.name}: other bytes than undisturbed")
            shutil.rmtree(self.folder)
        else:
            self.wrong.append(f"{self.name}: {fault} gave exit code {code}: {said[-300:]!r}")
            shutil.rmtree(self.folder)

    def kill(self, process: Any, source: random.Random) -> None:
        """Kill it a random while after it has written something, or before."""
        before, end = sizes_of(self.folder), time.monotonic() + source.choice([0.01, 60, 60, 60])
        while process.is_alive() and time.monotonic() < end and sizes_of(self.folder) == before:
            time.sleep(0.0005)
        time.sleep(source.uniform(0, 0.03))
        process.kill()

    def lines(self) -> list[str]:
        """Report."""
        memory = f"{min(self.memory):.0f} to {max(self.memory):.0f} MiB" if self.memory else "none"
        return [f"faults      {told(self.counts)}", f"memory      {memory}"]


def files_of(folder: Path) -> dict[str, bytes]:
    """Read what a job leaves that matters: results, errors, examples and settings."""
    kept = {"out.jsonl", "out.jsonl.errors.jsonl", "results.jsonl", "examples.jsonl"}
    return {one.name: one.read_bytes() for one in sorted(folder.iterdir()) if one.name in kept}


def sizes_of(folder: Path) -> list[int]:
    """Return how large the files of a job are."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found.append(path.stat().st_size)
    return found


def context() -> multiprocessing.context.ForkServerContext:
    """Fork processes from one that has imported everything already: starting one is cheap."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["bestk.batch", "bestk.cli.batch", "bestk_eval.runner"])
    return made


def main() -> int:
    """Run everything from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10, help="half for the server")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    source, wrong = random.Random(given.seed), list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts = [" ".join(source.choices(WORDS, k=source.choice([1, 3, 9]))) for _ in range(60)]
        rows = [{"prompt": prompt} for prompt in [*prompts, BROKEN, *prompts[::-1]]]
        (folder / "in.jsonl").write_text("bad\n" + "\n".join(map(json.dumps, rows)) + "\n")
        jobs = [Tried(batch, folder, 1), Tried(evaluation, folder, 0)]
        end = time.monotonic() + given.minutes * 30
        while time.monotonic() < end:
            for job in jobs:
                job.once(source)
    for job in jobs:
        print(job.name, *job.lines(), sep="\n  ", flush=True)
        wrong += job.wrong
    lines, failures = try_server(given.minutes / 2, given.seed)
    wrong += failures
    print("server", *lines, sep="\n  ")
    print(f"wrong  {len(wrong)}", *wrong[:10], sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
