"""The server over real HTTP: its own API, errors, limits, streams, clients that go away."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from serving import Served, facts, letters_lm, plain, served, until

import bestk
from bestk.config import SearchConfig
from bestk.server.app import Access
from bestk.server.events import Stream
from bestk.server.limits import Limits
from bestk.settings import every_setting
from bestk.viz.graph import difference, to_graph

SHORT: dict[str, Any] = {"max_new_tokens": 5, "beam_size": 3, "k": 2}
ENDLESS: dict[str, Any] = {"budget": 2000, "max_new_tokens": 400, "k": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    limits = Limits(searches=4, queue=8, prompt_tokens=200, body_bytes=400_000)
    with served(letters_lm(), letters_lm("other"), limits=limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Read server-sent events: their names and their data."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def message(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return str(response.json()["error"]["message"])


class TestSearch:
    def test_the_result_is_that_of_a_direct_search(self, client: httpx.Client) -> None:
        answer = client.post("/v1/search", json={"prompt": "hello", "raw": True, **SHORT})
        assert answer.status_code == 200
        assert facts(answer.json()) == facts(bestk.search(letters_lm(), "hello", raw=True, **SHORT))
        assert answer.json()["model"] == "letters"

    def test_a_prompt_is_formatted_for_chat_unless_raw(self, client: httpx.Client) -> None:
        messages = [{"role": "user", "content": "hello"}]
        wanted = facts(bestk.search(letters_lm(), messages, **SHORT))
        for body in ({"prompt": "hello"}, {"messages": messages}):
            assert facts(client.post("/v1/search", json=body | SHORT).json()) == wanted

    def test_a_search_goes_on_from_the_beginning_of_a_text(self, client: httpx.Client) -> None:
        lm = letters_lm()
        message = {"role": "user", "content": "hello"}
        ids = [*lm.encode([message]), *lm.spell("the cat")]
        wanted = facts(bestk.search(lm, ids, **SHORT))
        answer = client.post("/v1/search", json={"prompt": "hello", "begin": "the cat", **SHORT})
        begun = [message, {"role": "assistant", "content": "the cat"}]
        assert facts(answer.json()) == wanted | {"prompt": begun}, "it tells what was asked"
        raw = {"prompt": "hello", "raw": True, "begin": " the cat", "graph": True, **SHORT}
        answer = client.post("/v1/search", json=raw)
        wanted = facts(bestk.search(lm, "hello the cat", **SHORT))
        assert facts(answer.json()) == wanted
        assert answer.json()["graph"]["prompt"] == "hello the cat"

    def test_token_ids_models_and_methods(self, client: httpx.Client) -> None:
        body = {"prompt": [1, 2, 3], "model": "other", "method": "Ncls0.8", "seed": 4, **SHORT}
        answer = client.post("/v1/search", json=body).json()
        direct = bestk.run_method(letters_lm("other"), [1, 2, 3], "Ncls0.8", seed=4, **SHORT)
        assert facts(answer) == facts(direct)

    def test_texts_are_chosen_and_reranked(self, client: httpx.Client) -> None:
        choice = {"num_texts": 3, "select": "diverse", "diversity": 0.8, "rerank": "mbr-chrf"}
        body = {"prompt": "hello", "raw": True, **choice, **SHORT}
        answer = client.post("/v1/search", json=body).json()
        assert facts(answer) == facts(
            bestk.search(letters_lm(), "hello", raw=True, **choice, **SHORT)
        )

    def test_constraints(self, client: httpx.Client) -> None:
        settings = {"must_include": ["a"], "temperature": 1.5, "max_new_tokens": 8, "stop": "."}
        answer = client.post("/v1/search", json={"prompt": "hello", "raw": True, **settings})
        assert facts(answer.json()) == facts(
            bestk.search(letters_lm(), "hello", raw=True, **settings)
        )

    @pytest.mark.parametrize(
        ("body", "told"),
        [
            ({}, "give one of prompt and messages"),
            ({"prompt": "a", "beamsize": 3}, "unknown field 'beamsize': did you mean 'beam_size'?"),
            ({"prompt": "a", "k": 0}, "k must be at least 1, got 0"),
            ({"prompt": "a", "k": "5"}, "k: Input should be a valid integer"),
            (
                {"prompt": "a", "scoring": "meen"},
                "scoring: Input should be 'mean', 'sum' or 'last'",
            ),
            (
                {"prompt": "a", "budget": 5000},
                "the budget is at most 3000 expansions on this server",
            ),
            ({"prompt": "a", "timeout": 500}, "timeout is at most 120 on this server, got 500"),
            (
                {"prompt": "a", "max_frontier": 10**9},
                "max_frontier is at most 50000 on this server",
            ),
            (
                {
                    "prompt": "a",
                    "method": "BS",
                    "beam_size": 100,
                    "max_new_tokens": 40,
                    "budget": 50,
                },
                "beams cost at most 3000 expansions on this server",
            ),
            (
                {"prompt": "a", "method": "Ncls0.8", "beam_size": 10**6, "budget": 50},
                "beam_size is at most 128 on this server, got 1000000",
            ),
            ({"prompt": "a" * 300}, "the prompt has 305 tokens, at most 200 on this server"),
            ({"prompt": " "}, "the prompt is empty"),
            ({"prompt": "a", "method": "BSS"}, "unknown method 'BSS'"),
            ({"prompt": "a", "method": "BS", "top_p": 0.5}, "beam search takes no top_p"),
            (
                {"prompt": "a", "rerank": "reward:evil/model"},
                "unknown reranker 'reward:evil/model'",
            ),
            ({"prompt": "a", "regex": "("}, "need a tokenizer of transformers"),
            ({"prompt": "a", "messages": []}, "give one of prompt and messages"),
            ({"prompt": "a", "graph": True, "min_prob": 0, "budget": 3000}, "a graph may have"),
            ({"prompt": "\ud800"}, "text must be valid Unicode"),
        ],
    )
    def test_bad_input_is_one_line(
        self, client: httpx.Client, body: dict[str, Any], told: str
    ) -> None:
        # httpx would not write half a character: JSON can.
        answer = client.post(
            "/v1/search",
            content=json.dumps(body),
            headers={"Content-Type": "application/json"},
        )
        assert told in message(answer)
        assert answer.json()["error"]["type"] == "invalid_request_error"

    def test_bodies_that_are_none(self, client: httpx.Client) -> None:
        json_type = {"Content-Type": "application/json"}
        for content in (b"{", b"", b"[1]", b"\xff", b"[" * 10_000):
            assert message(client.post("/v1/search", content=content, headers=json_type))
        told = message(client.post("/v1/search", content=b"x" * 500_000, headers=json_type), 413)
        assert "at most 400000 bytes" in told

        def unannounced() -> Iterator[bytes]:
            for _ in range(30):
                yield b"x" * 20_000

        message(client.post("/v1/search", content=unannounced(), headers=json_type), 413)

    def test_what_is_not_there(self, client: httpx.Client) -> None:
        answer = client.post("/v1/search", json={"prompt": "a", "model": "lettres"})
        assert message(answer, 404) == "unknown model 'lettres': did you mean 'letters'?"
        assert answer.json()["error"]["code"] == "model_not_found"
        message(client.get("/v2"), 404)
        message(client.get("/v1/search"), 405)


class TestStream:
    def test_tells_start_steps_and_result(self, client: httpx.Client) -> None:
        body = {"prompt": "hello", "raw": True, "stream": True, **SHORT}
        with client.stream("POST", "/v1/search", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            told = list(events(response))
        direct = bestk.search(letters_lm(), "hello", raw=True, **SHORT)
        names = [name for name, _ in told]
        assert names[0] == "start"
        assert names[-1] == "result"
        assert set(names[1:-1]) <= {"queued", "step"}
        start = told[0][1]
        assert start["signature"] == direct.signature
        assert start["budget"] == direct.config.total_budget
        assert start["config"] == plain(dataclasses.asdict(direct.config))
        assert facts(told[-1][1]) == facts(direct)
        steps = [data for name, data in told if name == "step"]
        found = {text["text"] for step in steps for text in step["texts"]}
        assert found <= set(direct.texts)
        assert all(sum(step["mass"].values()) == pytest.approx(1) for step in steps)

    def test_parts_of_the_graph_add_up_to_the_whole(self, server: Served) -> None:
        body = {"prompt": "hello", "raw": True, "stream": True, "graph": True, **SHORT}
        with httpx.stream("POST", server.url + "/v1/search", json=body, timeout=60) as response:
            told = list(events(response))
        whole = told[-1][1]["graph"]
        direct = bestk.search(letters_lm(), "hello", raw=True, **SHORT)
        drawn = to_graph(direct, frontiers=False, pruned_prob=False)
        assert whole == json.loads(json.dumps(drawn))
        nodes: dict[int, Any] = {}
        steps = 0
        for name, data in told:
            if name == "step":
                nodes |= {node["id"]: node for node in data["graph"]["nodes"]}
                steps += len(data["graph"]["steps"])
        rest = difference({"nodes": list(nodes.values()), "steps": [0] * steps}, whole)
        nodes |= {node["id"]: node for node in rest["nodes"]}
        assert [nodes[number] for number in sorted(nodes)] == whole["nodes"]

    def test_other_methods_send_start_and_result(self, client: httpx.Client) -> None:
        body = {"prompt": "hello", "method": "BS", "stream": True, "graph": True, **SHORT}
        with client.stream("POST", "/v1/search", json=body) as response:
            told = list(events(response))
        assert [name for name, _ in told if name != "queued"] == ["start", "result"]
        assert "graph" not in told[-1][1]

    def test_bad_input_has_a_status_before_the_stream_begins(self, client: httpx.Client) -> None:
        body = {"prompt": "a" * 300, "stream": True}
        assert "at most 200" in message(client.post("/v1/search", json=body))

    def test_says_its_place_in_the_queue(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.01)
        with served(lm, limits=Limits(searches=1)) as running:
            url = running.url + "/v1/search"
            asked = {"prompt": "a", "raw": True, "stream": True}
            with httpx.stream("POST", url, json=asked | ENDLESS, timeout=60) as first:
                until(lambda: running.loop.num_running == 1)
                with httpx.stream("POST", url, json=asked | SHORT, timeout=60) as second:
                    told = events(second)
                    assert next(told)[0] == "start"
                    assert next(told) == ("queued", {"position": 0})
                    first.close()
                    assert [name for name, _ in told][-1] == "result"


class TestGoingAway:
    @pytest.mark.parametrize("is_stream", [True, False])
    @pytest.mark.parametrize("settings", [{}, {"temperature": 2.0}])
    def test_a_client_that_leaves_frees_its_search(
        self, is_stream: bool, settings: dict[str, Any]
    ) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.005)
        with served(lm) as running, httpx.Client(base_url=running.url) as client:
            body = {"prompt": "a", "raw": True, "stream": is_stream, **ENDLESS, **settings}
            if is_stream:
                with client.stream("POST", "/v1/search", json=body) as response:
                    told = events(response)  # kept: without a reader the connection is closed
                    assert next(told)[0] == "start"
                    until(lambda: running.loop.num_running == 1)
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/search", json=body, timeout=0.3)
            until(lambda: running.loop.num_running == 0)
            assert lm.backend.num_steps < 1500, "it was searched to its end"
            numbers = client.get("/metrics").text
        assert 'bestk_searches_total{model="letters",outcome="cancelled"} 1.0' in numbers

    def test_one_who_waits_and_leaves_is_not_searched(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.005)
        with served(lm, limits=Limits(searches=1)) as running:
            url = running.url + "/v1/search"
            asked = {"prompt": "a", "raw": True, **ENDLESS}
            with httpx.stream("POST", url, json=asked | {"stream": True}, timeout=60):
                until(lambda: running.loop.num_running == 1)
                with pytest.raises(httpx.ReadTimeout):
                    httpx.post(url, json=asked, timeout=0.2)
                until(lambda: running.loop.num_waiting == 0)


def test_a_stream_that_nobody_began_to_read_ends_its_search() -> None:
    """A client may leave between the acceptance of its search and the first event."""
    ended = []

    async def never_asked() -> AsyncIterator[str]:
        raise AssertionError("the client has gone")
        yield ""

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    answer = Stream(never_asked(), lambda: ended.append(True))
    asyncio.run(answer(scope, gone, send))
    assert ended


class TestLimits:
    def test_a_full_queue_says_when_to_come_back(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.01)
        with served(lm, limits=Limits(searches=1, queue=0)) as running:
            url = running.url + "/v1/search"
            asked = {"prompt": "a", "raw": True, "stream": True}
            with httpx.stream("POST", url, json=asked | ENDLESS, timeout=60) as first:
                assert first.status_code == 200, "there is no place to wait, but one to run"
                assert httpx.post(url, json=asked, timeout=60).status_code == 429
        with served(lm, limits=Limits(searches=1, queue=1)) as running:
            url = running.url + "/v1/search"
            with httpx.stream("POST", url, json=asked | ENDLESS, timeout=60):
                until(lambda: running.loop.num_running == 1)
                with httpx.stream("POST", url, json=asked | ENDLESS, timeout=60):
                    until(lambda: running.loop.num_waiting == 1)
                    refused = httpx.post(url, json=asked, timeout=60)
                    assert "1 searches run and 1 wait" in message(refused, 429)
                    assert 1 <= int(refused.headers["retry-after"]) <= 60
                    assert refused.json()["error"]["code"] == "queue_full"

    def test_time(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.005)
        with served(lm, limits=Limits(seconds=0.2)) as running:
            body = {"prompt": "a", "raw": True, **ENDLESS}
            result = httpx.post(running.url + "/v1/search", json=body, timeout=60).json()
            assert result["stop_reason"] == "timeout"
            assert result["config"]["timeout"] is None


class TestStopping:
    def test_searches_that_run_may_end(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.02)
        with served(lm) as running:
            body = {"prompt": "hello", "raw": True, "stream": True, **SHORT}
            with httpx.stream(
                "POST", running.url + "/v1/search", json=body, timeout=60
            ) as response:
                until(lambda: running.loop.num_running == 1)
                running.server.should_exit = True
                told = list(events(response))
        assert told[-1][0] == "result"
        assert facts(told[-1][1]) == facts(bestk.search(letters_lm(), "hello", raw=True, **SHORT))

    def test_what_does_not_end_is_told(self) -> None:
        lm = letters_lm()
        lm.backend.before_step = lambda: time.sleep(0.01)
        with served(lm, grace=0.2) as running:
            body = {"prompt": "hello", "raw": True, "stream": True, **ENDLESS}
            with httpx.stream(
                "POST", running.url + "/v1/search", json=body, timeout=60
            ) as response:
                until(lambda: running.loop.num_running == 1)
                running.server.should_exit = True
                told = list(events(response))
        name, data = told[-1]
        assert name == "error"
        assert data["error"]["code"] == "shutting_down"
        assert "of 2000 expansions were done" in data["error"]["message"]


class TestAccess:
    def test_a_token(self) -> None:
        access = Access(token="sésame")
        with served(letters_lm(), access=access) as running, httpx.Client() as client:
            client.base_url = running.url  # type: ignore[assignment]
            for path in ("/health", "/openapi.json"):
                assert client.get(path).status_code == 200
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sésame"}):
                raw = {name: value.encode() for name, value in headers.items()}
                refused = client.get("/v1/models", headers=raw)
                assert "bearer token" in message(refused, 401)
                assert refused.headers["www-authenticate"] == "Bearer"
            right = {"Authorization": "Bearer sésame".encode()}
            assert client.get("/v1/models", headers=right).status_code == 200
            assert client.get("/metrics").status_code == 401
            document = client.get("/openapi.json").json()
            assert document["security"] == [{"bearer": []}]

    def test_other_origins_are_not_let_in_unless_named(self, client: httpx.Client) -> None:
        origin = {"Origin": "https://example.org"}
        assert "access-control-allow-origin" not in client.get("/v1/models", headers=origin).headers
        access = Access(token="t", cors_origins=["https://example.org"])
        with served(letters_lm(), access=access) as running:
            asked = origin | {"Access-Control-Request-Method": "POST"}
            answer = httpx.options(running.url + "/v1/search", headers=asked)
            assert answer.headers["access-control-allow-origin"] == "https://example.org"
            elsewhere = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
            refused = httpx.options(running.url + "/v1/search", headers=elsewhere)
            assert "access-control-allow-origin" not in refused.headers

    def test_names_that_are_not_this_machines(self) -> None:
        access = Access(hosts=("127.0.0.1", "localhost"))
        with served(letters_lm(), access=access) as running:
            assert httpx.get(running.url + "/health").status_code == 200
            refused = httpx.get(running.url + "/health", headers={"Host": "evil.example"})
            assert "answers to 127.0.0.1, localhost" in message(refused)

    def test_a_page_elsewhere_cannot_post_without_asking(self, client: httpx.Client) -> None:
        """What browsers send without a preflight is no JSON, and is refused."""
        body = json.dumps({"prompt": "a", **SHORT})
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            answer = client.post("/v1/search", content=body, headers={"Content-Type": kind})
            assert answer.status_code == 400

    def test_headers_that_browsers_obey(self, client: httpx.Client) -> None:
        for path in ("/v1/models", "/static/viewer.js", "/nothing"):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
        assert (
            "script-src 'self'"
            in client.get("/static/viewer.js").headers["content-security-policy"]
        )


class TestFiles:
    def test_only_known_files(self, client: httpx.Client) -> None:
        assert client.get("/static/viewer.js").headers["content-type"].startswith("text/javascript")
        for name in ("nothing.js", "..%2fgraph.py", "%2e%2e/graph.py", "../../pyproject.toml", ""):
            assert client.get(f"/static/{name}").status_code == 404

    def test_render_gives_a_page_to_save(self, client: httpx.Client) -> None:
        body = {"prompt": "hello", "raw": True, "tree": True, **SHORT}
        saved = client.post("/v1/search", json=body).json()
        page = client.post("/v1/render", json=saved)
        assert page.status_code == 200
        assert page.headers["content-disposition"] == 'attachment; filename="bestk.html"'
        assert page.text == bestk.search(letters_lm(), "hello", raw=True, **SHORT).to_html()
        graph = client.post("/v1/search", json=body | {"tree": False, "graph": True}).json()[
            "graph"
        ]
        assert client.post("/v1/render", json={"graph": graph}).text.startswith("<!doctype html>")

    def test_markup_stays_text(self, client: httpx.Client) -> None:
        body = {"prompt": "</script><script>alert(1)</script>", "tree": True, **SHORT}
        saved = client.post("/v1/search", json=body).json()
        assert saved["prompt"][0]["content"] == body["prompt"]
        page = client.post("/v1/render", json=saved).text
        assert "<script>alert(1)" not in page

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"graph": 3},
            {"graph": {"format": "bestk.graph", "version": 1}},
            {"format": "bestk.result", "version": 1},
        ],
    )
    def test_render_refuses_what_is_no_result(
        self, client: httpx.Client, body: dict[str, Any]
    ) -> None:
        message(client.post("/v1/render", json=body))

    def test_render_refuses_spoilt_trees_and_huge_settings(self, client: httpx.Client) -> None:
        body = {"prompt": "hello", "raw": True, "tree": True, **SHORT}
        saved = client.post("/v1/search", json=body).json()
        spoilt = saved | {"tree": saved["tree"] | {"child_parent": [999] * 4}}
        message(client.post("/v1/render", json=spoilt))
        huge = saved | {"config": saved["config"] | {"budget": 10**12}}
        assert "the budget is at most" in message(client.post("/v1/render", json=huge))


class TestAbout:
    def test_settings(self, client: httpx.Client) -> None:
        told = client.get("/v1/settings").json()
        listed = {setting["name"]: setting for setting in told["settings"]}
        assert listed.keys() == {field.name for field in dataclasses.fields(bestk.SearchConfig)}
        assert listed["k"] == {
            "name": "k",
            "type": "integer",
            "default": 5,
            "help": "Nodes expanded in one model call: 5, or n where n texts are wanted.",
            "panel": "Search",
            "choices": None,
            "min": 1,
            "max": 128,
        }
        assert listed["scoring"]["choices"] == ["mean", "sum", "last"]
        assert listed["stop"]["type"] == "string[]"
        assert listed["min_prob"]["max"] == 1
        assert told["methods"][:2] == ["BKS", "BS"]
        assert told["limits"]["budget"] == 3000
        assert told["defaults"]["beam_size"] == 10
        usual = dataclasses.asdict(SearchConfig())  # also of those that follow from n
        for setting in every_setting(SearchConfig):
            assert listed[setting.name]["default"] == plain(usual[setting.name])

    def test_models_and_health(self, client: httpx.Client) -> None:
        models = client.get("/v1/models").json()
        assert [card["id"] for card in models["data"]] == ["letters", "other"]
        assert client.get("/v1/models/other").json()["id"] == "other"
        message(client.get("/v1/models/nothing"), 404)
        health = client.get("/health").json()
        assert health["status"] == "ok"
        assert health["models"] == ["letters", "other"]

    def test_metrics(self) -> None:
        with served(letters_lm()) as running, httpx.Client(base_url=running.url) as client:
            result = client.post("/v1/search", json={"prompt": "hello", **SHORT}).json()
            client.post("/v1/search", json={"prompt": ""})
            client.get("/made/up/by/clients")
            text = client.get("/metrics").text
        for line in (
            'bestk_requests_total{path="/v1/search",status="200"} 1.0',
            'bestk_requests_total{path="/v1/search",status="400"} 1.0',
            'bestk_requests_total{path="other",status="404"} 1.0',
            'bestk_request_seconds_count{path="/v1/search"} 2.0',
            f'bestk_expansions_total{{model="letters"}} {float(result["cost"]["expanded"])}',
            f'bestk_texts_total{{model="letters"}} {float(len(result["hypotheses"]))}',
            'bestk_searches_total{model="letters",outcome="done"} 1.0',
            "bestk_requests_in_flight 1.0",
            "bestk_queue_length 0.0",
            "bestk_searches_running 0.0",
        ):
            assert line in text.splitlines()

    def test_docs_are_a_page_that_loads_nothing(self, client: httpx.Client) -> None:
        page = client.get("/docs")
        assert page.status_code == 200
        for told in ("POST /v1/search", "GET /v1/models/{model}", "beam_size", "Retry-After"):
            assert told in page.text
        assert "http" not in page.text
        assert "<script" not in page.text

    def test_every_answer_is_documented(self, client: httpx.Client) -> None:
        document = client.get("/openapi.json").json()
        assert set(document["paths"]) >= {"/v1/search", "/v1/completions", "/v1/chat/completions"}
        for path, methods in document["paths"].items():
            for operation in methods.values():
                assert "422" not in operation["responses"], path
        search = document["paths"]["/v1/search"]["post"]["responses"]
        assert set(search) == {"200", "400", "401", "404", "413", "429", "500", "503"}
        assert set(search["200"]["content"]) == {"application/json", "text/event-stream"}
        assert re.search("Nodes expanded in one model call", json.dumps(document))
