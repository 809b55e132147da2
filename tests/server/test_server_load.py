"""The load test of benchmarks/server_load.py, short and on a toy: no answer is wrong or crossed."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import httpx
from serving import letters_lm, served, until

import bestk
from bestk.server.limits import Limits

SCRIPT = Path(bestk.__file__).parent.parent / "benchmarks" / "server_load.py"


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("server_load", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["server_load"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_no_answer_is_wrong_under_load() -> None:
    script = load_script()
    cases = script.cases_of(letters_lm())
    assert len({case.texts for case in cases}) == len(cases), "a crossed answer would not show"
    with served(letters_lm(), limits=Limits(searches=6)) as running:
        report = asyncio.run(script.run_load(running.url, cases, clients=12, seconds=10))
        until(lambda: running.loop.num_running == 0 and running.loop.num_waiting == 0)
        numbers = httpx.get(running.url + "/metrics").text
    assert report.wrong == []
    assert report.outcomes["answered"] >= 20
    assert report.outcomes["bad input"] >= 2
    assert report.outcomes["disconnected"] >= 2
    assert 'status="500"' not in numbers


def test_a_wrong_answer_would_be_seen() -> None:
    script = load_script()
    (case, other, *_) = script.cases_of(letters_lm(), ["hello", "world"])
    found = [
        {"text": text, "log_prob": log_prob}
        for text, log_prob in zip(case.texts, case.log_probs, strict=True)
    ]
    assert script._compare(case, found) is None
    assert "in place of" in script._compare(other, found)
    assert "in place of" in script._compare(case, found[:-1])
    found[0]["log_prob"] -= 0.1
    assert "differ" in script._compare(case, found)
