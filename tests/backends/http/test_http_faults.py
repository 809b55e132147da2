"""A server in trouble costs time, not results."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_servers
import pytest
from conftest import random_toy
from fake_servers import Fake, WordList, serving, vllm
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from flaky_proxy import FlakyProxy
from ports import free_port

import bestk
from bestk.backends.http import transport
from bestk.errors import SearchInterrupted, ServerError

PROMPTS = [[1], [2, 3], [4, 4, 4], [5], [3, 1]]
SETTINGS: dict[str, Any] = {"max_new_tokens": 8, "beam_size": 6, "k": 4}
TOY = random_toy(11, vocab_size=8)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(transport, "_LONGEST_PAUSE", 0.1)


@pytest.fixture
def fake() -> Fake:
    return Fake(TOY)


@pytest.fixture
def url(fake: Fake) -> Iterator[str]:
    with serving(vllm(fake)) as address:
        yield address


_OPEN: list[Any] = []


def load(url: str, **options: Any) -> bestk.LanguageModel:
    options = {"prefixes_per_request": 3, "patience": 30, **options}
    lm = bestk.load(url, tokenizer=WordList(8), **options)
    _OPEN.append(lm.backend)
    return lm


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


def found(results: list[bestk.SearchResult]) -> list[Any]:
    return [
        ([(h.token_ids, h.log_probs, h.step) for h in r.hypotheses], r.mass, r.cost.expanded)
        for r in results
    ]


@pytest.fixture(scope="module")
def undisturbed() -> list[Any]:
    with serving(vllm(Fake(TOY))) as address:
        return found(bestk.search(load(address), PROMPTS, **SETTINGS))


def test_the_undisturbed_run_finds_what_the_model_itself_does(undisturbed: list[Any]) -> None:
    plain = bestk.search(bestk.LanguageModel(TOY), PROMPTS, **SETTINGS)
    assert [texts for texts, _, _ in undisturbed] == [texts for texts, _, _ in found(plain)]
    assert all(len(texts) > 3 for texts, _, _ in undisturbed)


def storm(chance: random.Random) -> Response | float | None:
    """429 for most requests, with or without a word on when to come back."""
    if chance.random() < 0.6:
        headers = {"Retry-After": "0.02"} if chance.random() < 0.5 else {}
        return JSONResponse({"error": "too many requests"}, 429, headers=headers)
    return None


def down_at_times(chance: random.Random) -> Response | float | None:
    status = chance.choice([500, 502, 503, 504])
    return Response("upstream is down", status) if chance.random() < 0.4 else None


def nonsense(chance: random.Random) -> Response | float | None:
    """Malformed answers of all kinds."""
    answers = [
        Response('{"choices": [', 200),
        Response("<html>busy</html>", 200),
        JSONResponse([]),
        JSONResponse({"choices": []}),
        JSONResponse({"choices": [{"index": 0}]}),
        JSONResponse({"choices": [{"index": 0, "logprobs": None}]}),
        JSONResponse({"choices": "none"}),
    ]
    return chance.choice(answers) if chance.random() < 0.25 else None


def slow(chance: random.Random) -> Response | float | None:
    """Answers that take longer than the client waits."""
    return 5.0 if chance.random() < 0.1 else None


@pytest.mark.parametrize("trouble", [storm, down_at_times, nonsense, slow])
def test_trouble_changes_nothing(
    fake: Fake,
    url: str,
    undisturbed: list[Any],
    trouble: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Chance may befall one request many times.
    monkeypatch.setattr(transport, "_MALFORMED_TRIES", 1000)
    lm = load(url, timeout=0.4 if trouble is slow else 30.0)
    chance, befallen = random.Random(5), []

    def befalls(number: int) -> Response | float | None:
        what = trouble(chance)
        befallen.append(what is not None)
        return what

    fake.trouble = befalls
    assert found(bestk.search(lm, PROMPTS, **SETTINGS)) == undisturbed
    assert sum(befallen) > 3, "nothing went wrong: the test tests nothing"


def test_connections_that_are_reset_change_nothing(url: str, undisturbed: list[Any]) -> None:
    with FlakyProxy(url).running() as proxy:
        lm = load(proxy.url)
        proxy.resets = 0.3
        assert found(bestk.search(lm, PROMPTS, **SETTINGS)) == undisturbed
        assert proxy.num_resets > 5, "nothing went wrong: the test tests nothing"


def test_a_server_that_dies_and_comes_back_changes_nothing(
    fake: Fake, url: str, undisturbed: list[Any]
) -> None:
    with FlakyProxy(url).running() as proxy:
        lm = load(proxy.url)
        deaths: list[threading.Thread] = []

        def die_a_while() -> None:
            proxy.die()
            time.sleep(0.3)
            proxy.listen()

        def befalls(number: int) -> Response | float | None:
            if number in {4, 17, 33}:
                deaths.append(threading.Thread(target=die_a_while))
                deaths[-1].start()
                return 0.2  # so that the request is under way when its server dies
            return None

        fake.trouble = befalls
        assert found(bestk.search(lm, PROMPTS, **SETTINGS)) == undisturbed
        assert len(deaths) == 3
        for death in deaths:
            death.join()


_PROCESS = """
import sys, uvicorn
sys.path.insert(0, {tests!r})
from fake_servers import Fake, vllm
from light_toy import LightToy
app = vllm(Fake(LightToy(11, vocab_size=8)))
assert "torch" not in sys.modules
uvicorn.run(app, host="127.0.0.1", port={port}, log_level="error", ws="none", lifespan="off")
"""


def test_a_process_killed_and_started_again_changes_nothing(undisturbed: list[Any]) -> None:
    port = free_port()
    code = _PROCESS.format(tests=str(Path(fake_servers.__file__).parent), port=port)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code])

    server = start()
    try:
        wait_for(port)
        lm = load(f"http://127.0.0.1:{port}", patience=120)
        run = bestk.Run(lm, PROMPTS, bestk.SearchConfig(**SETTINGS))
        is_killed = False
        for update in run:
            assert update.row is not None
            if update.row.standing.step == 2 and not is_killed:
                is_killed = True
                server.send_signal(signal.SIGKILL)
                server.wait()
                server = start()
        assert is_killed
        assert found(run.results()) == undisturbed
    finally:
        server.kill()
        server.wait()


def wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the server did not start")


def test_a_server_that_does_not_return_keeps_what_was_found(
    fake: Fake, url: str, undisturbed: list[Any]
) -> None:
    with FlakyProxy(url).running() as proxy:
        lm = load(proxy.url, patience=0.3)

        def befalls(number: int) -> Response | float | None:
            if number == 40:
                proxy.die()
            return None

        fake.trouble = befalls
        with pytest.raises(SearchInterrupted, match=r"times and gave no answer for 0.3 s"):
            bestk.search(lm, PROMPTS, **SETTINGS)
        with pytest.raises(SearchInterrupted) as caught:
            bestk.search(lm, PROMPTS, **SETTINGS)
        assert all(not result.hypotheses for result in caught.value.partial)


def test_partial_results_are_part_of_the_whole(
    fake: Fake, url: str, undisturbed: list[Any]
) -> None:
    lm = load(url, patience=0.2)
    fake.trouble = lambda number: Response("gone", 503) if number > 25 else None
    with pytest.raises(SearchInterrupted, match=r"503, gone.*wait longer with patience=") as caught:
        bestk.search(lm, PROMPTS, **SETTINGS)
    assert isinstance(caught.value.__cause__, ServerError)
    partial = caught.value.partial
    assert len(partial) == len(PROMPTS)
    assert any(result.hypotheses for result in partial), "something was found until then"
    for result, (whole, _, expanded) in zip(partial, undisturbed, strict=True):
        assert result.cost.expanded <= expanded
        assert {h.token_ids for h in result.hypotheses} <= {ids for ids, _, _ in whole}


def test_a_stream_keeps_what_it_gave(fake: Fake, url: str) -> None:
    lm = load(url, patience=0.2)
    fake.trouble = lambda number: Response("gone", 503) if number > 6 else None
    given = []
    with pytest.raises(SearchInterrupted) as caught:
        given.extend(bestk.stream(lm, [1], **SETTINGS))
    assert given
    assert {h.token_ids for h in given} <= {h.token_ids for h in caught.value.partial[0].hypotheses}


def test_the_server_says_when_to_come_back(
    fake: Fake, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = load(url)
    pauses: list[float] = []
    pause = transport._Trouble.pause

    def note(*arguments: Any) -> float:
        pauses.append(pause(*arguments))
        return 0.0

    monkeypatch.setattr(transport._Trouble, "pause", note)
    soon = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 20))
    answers = {1: "7", 2: soon, 3: "never"}

    def befalls(number: int) -> Response | float | None:
        if number in answers:
            return Response("later", 429, {"Retry-After": answers[number]})
        return None

    fake.trouble = befalls
    lm.backend.ask([[1]], 3)
    assert pauses[0] == 7
    assert 1 < pauses[1] <= 20
    assert pauses[2] < 1, "what cannot be read is no word on when"
    fake.trouble = lambda number: Response("later", 429, {"Retry-After": "3600"})
    with pytest.raises(ServerError, match="429, later"):
        lm.backend.ask([[1]], 3)
    assert len(pauses) == 3, "an hour is past all patience: no reason to begin waiting"


def test_pauses_grow_and_differ() -> None:
    connection = transport.Connection()
    error = transport.MalformedAnswer("x")

    def pauses() -> list[float]:
        trouble = transport._Trouble("http://x", connection)
        trouble.malformed = -100
        return [trouble.pause(error, 1000.0) for _ in range(8)]

    first, second = pauses(), pauses()
    assert first != second, "requests that failed together must not come back together"
    for index, pause in enumerate(first):
        longest = min(transport._FIRST_PAUSE * 2**index, transport._LONGEST_PAUSE)
        assert longest / 2 <= pause <= longest


def test_no_more_requests_at_once_than_connections(fake: Fake, url: str) -> None:
    lm = load(url, num_connections=3, prefixes_per_request=1)
    fake.trouble = lambda number: 0.02
    bestk.search(lm, PROMPTS, **SETTINGS)
    assert fake.busiest == 3


def test_ctrl_c_ends_the_waiting_and_nothing_else(fake: Fake, url: str) -> None:
    lm = load(url)

    def press(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    fake.trouble = lambda number: 60.0 if number <= 2 else None
    before = signal.signal(signal.SIGALRM, press)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            lm.backend.ask([[token] for token in range(1, 7)], 3)  # two requests of three
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(lm.backend.ask([[1]], 3)) == 1


def test_a_step_is_asked_in_few_requests(fake: Fake, url: str) -> None:
    lm = load(url, prefixes_per_request=16)
    fake.requests.clear()
    result = bestk.search(lm, [1], **SETTINGS)
    sizes = [len(body["prompt"]) for _, body in fake.requests]
    assert len(sizes) == result.cost.model_calls
    assert sum(sizes) == result.cost.expanded


def test_nonsense_for_ever_is_told_and_soon(fake: Fake, url: str) -> None:
    lm = load(url, patience=3600)
    fake.trouble = lambda number: JSONResponse({"choices": [{"index": 0}]})
    with pytest.raises(ServerError, match=r"answers without logprobs.top_logprobs.*--max-logprobs"):
        lm.backend.ask([[1]], 3)
    fake.trouble = lambda number: Response("hello", 200)
    with pytest.raises(ServerError, match="answers with no JSON: 'hello'"):
        lm.backend.ask([[1]], 3)


def test_a_timeout_is_told_as_one(fake: Fake, url: str) -> None:
    lm = load(url, timeout=0.1, patience=0.05)
    fake.trouble = lambda number: 2.0
    with pytest.raises(ServerError, match=r"did not answer within timeout=0.1 seconds: raise it"):
        lm.backend.ask([[1]], 3)


def test_an_address_that_redirects_for_ever_is_one_line() -> None:
    app = FastAPI()

    @app.get("/{path:path}")
    def again(path: str) -> RedirectResponse:
        return RedirectResponse(f"/{path}")

    with serving(app) as address, pytest.raises(ServerError, match="redirects in a circle"):
        load(address)


def test_another_server_gets_neither_prompt_nor_headers(fake: Fake) -> None:
    """A redirect is followed where it stays with the server, and told of where it does not."""
    seen: list[Any] = []

    def app(target: str) -> FastAPI:
        made = FastAPI()

        @made.api_route("/{path:path}", methods=["GET", "POST"])
        def anything(path: str, request: Request) -> Response:
            if target:
                return RedirectResponse(f"{target}/{path}", 308)
            seen.append(request)
            return JSONResponse({})

        return made

    options = {"api_key": "secret", "headers": {"X-Own": "secret"}}
    with serving(app("")) as other, serving(app(other)) as address:
        with pytest.raises(ServerError, match=f"{address} redirects to {other}, another server"):
            load(address, **options)
        assert not seen
    inner = vllm(fake)

    @inner.get("/before/v1/models")
    def moved() -> RedirectResponse:
        return RedirectResponse("/v1/models")

    with serving(inner) as address:
        assert transport.Transport(f"{address}/before", transport.Connection()).get("/v1/models")
