"""What strangers send to a server, by classes of docs/security.md: they learn why."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import hmac
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served, letters_lm, served, until
from test_constraints import SIZE, tokenizer, writer

import bestk
from bestk.config import SearchConfig
from bestk.constraints import compiling
from bestk.server.limits import Limits
from bestk.server.security import LOOPBACK, Guarded, HostChecked
from bestk.settings import every_setting

__all__ = ["tokenizer"]  # the fixture
SHORT: dict[str, Any] = {"max_new_tokens": 5, "beam_size": 3, "k": 2}


@pytest.fixture(scope="module")
def server(tokenizer: Any) -> Iterator[Served]:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}"
    lm = bestk.LanguageModel(writer(0), tokenizer, "writer", chat_template=template)
    limits = Limits(body_bytes=3_000_000, grammar_seconds=1, grammar_characters=20_000)
    with served(lm, letters_lm(), limits=limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as made:
        yield made


def ask(client: httpx.Client, body: dict[str, Any], path: str = "/v1/search") -> httpx.Response:
    return client.post(
        path,
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
    )


def refusal(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text[:300]
    return str(answer.json()["error"]["message"])


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


REPEATS = "(((([a-z]|b|c?){1,999}c?){1,99}d){1,999}e?){1,999}"
RULES = [f"r{number}" for number in range(300)]
OPTIONAL = "root ::= " + " ".join(f"{rule}?" for rule in RULES)
OPTIONAL += "".join(f"\n{rule} ::= [a-z]? [0-9]?" for rule in RULES)
# Each is refused by what is said; the first ones before anything is compiled.
GRAMMARS: dict[str, tuple[dict[str, Any], str]] = {
    "many values": ({"json_schema": {"enum": list(range(60_000))}}, "at most 20000 here"),
    "deep": ({"json_schema": nested(400)}, "brackets in one another, at most 64 here"),
    "many alternatives": ({"regex": "|" * 19_000}, "commas and bars, at most 10000 here"),
    "deep groups": ({"regex": "(" * 5000 + "a" + ")" * 5000}, "at most 64 here"),
    "repeats": ({"regex": REPEATS * 20}, "took more than 1 s or 512 MB"),
    "optional": ({"grammar": OPTIONAL}, "took more than 1 s or 512 MB"),
    "broken": ({"regex": "(a"}, "regex '(a' cannot be used"),
    "no schema": ({"json_schema": {"type": "foo"}}, "json_schema is not a schema"),
    "no rule": ({"grammar": "root ::= foo"}, "EBNF parser error"),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars_that_cost_too_much_are_refused(client: httpx.Client, name: str) -> None:
    body, told = GRAMMARS[name]
    assert told in refusal(ask(client, {"prompt": "x", **SHORT, **body}))


def test_others_are_answered_while_a_grammar_compiles(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is held until ten others have their answers."""
    opened = threading.Event()
    compile_, held = compiling.CompilerProcess.compile, threading.Event()

    def hold(*arguments: Any) -> str:
        held.set()
        assert opened.wait(60)
        return compile_(*arguments)

    monkeypatch.setattr(compiling.CompilerProcess, "compile", hold)
    answers: list[httpx.Response] = []
    body = {"prompt": "x", "regex": "[abt]{2,7}", **SHORT}
    waiting = [threading.Thread(target=lambda: answers.append(ask(client, body))) for _ in range(3)]
    for one in waiting:
        one.start()
    assert held.wait(60)
    for _ in range(10):
        assert ask(client, {"prompt": "x", **SHORT}).status_code == 200
    assert client.get("/health").status_code == 200
    assert not answers
    opened.set()
    for one in waiting:
        one.join(60)
    assert [answer.status_code for answer in answers] == [200] * 3


def test_a_compiler_that_dies_is_started_again(client: httpx.Client) -> None:
    assert ask(client, {"prompt": "x", "regex": "[ab]{1,3}", **SHORT}).status_code == 200
    process = compiling._process()._process
    assert process is not None
    process.kill()
    process.wait()
    refusal(ask(client, {"prompt": "x", "regex": "[ab]{1,4}", **SHORT}), 500)
    assert ask(client, {"prompt": "x", "regex": "[ab]{1,4}", **SHORT}).status_code == 200


def test_compiled_grammars_are_kept_by_their_text_and_few(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = compiling.compiler_of(bestk.LanguageModel(writer(1), tokenizer), (0, SIZE - 1))
    one = compiling.GrammarText("regex", "[ab]+c")
    assert compiler(one) is compiler(one)
    monkeypatch.setattr(compiling, "_KEPT_BYTES", 100_000)
    for number in range(1, 200):
        compiler(compiling.GrammarText("regex", f"[ab]{{{number}}}"))
    kept = list(compiler._kept.values())
    assert 0 < len(kept) < 200
    assert sum(found.memory_size_bytes for found in kept) <= 100_000
    assert compiler.compiler.get_cache_size_bytes() == 0, "xgrammar keeps none beside"


def test_every_limit_is_told_with_its_flag_and_default() -> None:
    told = (Path(bestk.__file__).parents[1] / "docs" / "server.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(Limits):
        flag = "--max-" + field.name.replace("_", "-")
        assert re.search(rf"^\| `{flag}` \| {field.default} \| \S", told, re.M), flag


# Bodies within the bytes that are allowed, and what each would have others wait for.
BODIES = {
    "values of a wrong kind": b'{"prompt": [' + b"[]," * 900_000 + b"1]}",
    "messages": b'{"messages": [' + b'{"role": "u", "content": "x"},' * 90_000 + b"1]}",
    "stop strings": b'{"prompt": "x", "stop": [' + b'"a",' * 700_000 + b'"a"]}',
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_many_values_are_not_read(client: httpx.Client, name: str) -> None:
    kind = {"Content-Type": "application/json"}
    answer = client.post("/v1/search", content=BODIES[name], headers=kind)
    assert "at most 70000 commas" in refusal(answer, 413)


def test_many_entries_are_refused_before_they_cost_anything(client: httpx.Client) -> None:
    for name, entry in (("stop", "a"), ("must_include", "a"), ("suppress_tokens", 1)):
        told = refusal(ask(client, {"prompt": "x", name: [entry] * 257}))
        assert f"{name} has at most 256 entries on this server, got 257" in told
    for body in ({"stop": ["a" * 200_001]}, {"must_include": ["a" * 200_001]}):
        assert "200001 characters" in refusal(ask(client, {"prompt": "x", **body}))
    role = {"messages": [{"role": "a" * 200_000, "content": "x"}]}
    assert "200001 characters" in refusal(ask(client, role))


def test_saved_results_and_graphs_of_strangers(client: httpx.Client) -> None:
    saved = ask(client, {"prompt": "x", "tree": True, **SHORT}).json()
    assert client.post("/v1/render", json=saved).status_code == 200
    saved["tree"]["expanded_at"][-1] = 2_000_000_000
    assert "no such expanded_at" in refusal(client.post("/v1/render", json=saved))
    saved["tree"]["expanded_at"][-1] = 1
    saved["config"]["budget"] = 10**12
    assert "the budget is at most" in refusal(client.post("/v1/render", json=saved))
    graph = {"format": "bestk.graph", "version": 1}
    for wrong in ({}, {"prompt": 3}, {"prompt": [1]}):
        assert "cannot be drawn" in refusal(
            client.post("/v1/render", json={"graph": graph | wrong})
        )


@pytest.mark.parametrize(
    ("host", "is_let_in"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8000", True),
        ("LOCALHOST:1", True),
        ("[::1]:99", True),
        ("127.0.0.1:99@evil.com", False),
        ("127.0.0.1@evil.com", False),
        ("127.0.0.1:80.evil.com", False),
        ("127.0.0.1 .evil.com", False),
        ("127.0.0.1/evil.com", False),
        ("[::1].evil.com", False),
        ("evil.com", False),
        ("", False),
    ],
)
def test_names_that_are_made_to_look_like_this_machine(host: str, is_let_in: bool) -> None:
    asked: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 400

    def scope(*hosts: str) -> dict[str, Any]:
        return {"type": "http", "headers": [(b"host", host.encode()) for host in hosts]}

    checked = HostChecked(app, LOOPBACK)
    asyncio.run(checked(scope(host), None, send))  # type: ignore[arg-type]
    assert bool(asked) is is_let_in
    asked.clear()
    asyncio.run(checked(scope(host, "evil.com"), None, send))  # type: ignore[arg-type]
    assert not asked, "of two names one is not this machine's"


HUGE = 10**9


def tool(pattern: str, name: str = "f") -> dict[str, Any]:
    value = {"type": "string", "pattern": pattern}
    parameters = {"type": "object", "properties": {"x": value}, "required": ["x"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


DEEP = {"name": "f", "arguments": "[" * 50_000 + "]" * 50_000}
CALL = {"id": "1", "type": "function", "function": DEEP}
IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/secret"}}
# What took other servers down, and what is answered here: path, body, status, part of the answer.
REQUESTS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "huge n": ("completions", {"n": HUGE}, 200, '"choices"'),
    "huge best_of": ("completions", {"best_of": HUGE}, 400, "best_of=1000000000 is not supported"),
    "many prompts": ("completions", {"prompt": ["a"] * 1000}, 400, "at most 32 prompts"),
    "empty prompt": ("completions", {"prompt": ""}, 400, "the prompt is empty"),
    "empty list": ("completions", {"prompt": []}, 400, "prompt"),
    "empty ids": ("completions", {"prompt": [[]]}, 400, "prompt"),
    "ids that are none": ("completions", {"prompt": [-1, HUGE]}, 400, "token ids go from 0"),
    "huge logprobs": ("completions", {"logprobs": HUGE}, 400, "logprobs goes from 0 to 5"),
    "tool": ("chat/completions", {"tools": [{"pattern": "("}]}, 400, "tools.0"),
    "pattern of a tool": ("chat/completions", {"tools": [tool("(")]}, 400, "cannot be used"),
    "name of a tool": ("chat/completions", {"tools": [tool("a", name="<|x|>")]}, 400, "name"),
    "huge bias": ("completions", {"logit_bias": {str(HUGE): 1}}, 400, "token ids go from 0"),
    "many biases": (
        "completions",
        {"logit_bias": dict.fromkeys(map(str, range(60_000)), 1)},
        400,
        "token ids go from 0",
    ),
    "no schema": (
        "chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}}},
        400,
        "json_schema is not a schema",
    ),
    "recursive grammar": ("search", {"grammar": "root ::= root"}, 200, "no text can meet grammar"),
    "left recursion": ("search", {"grammar": 'root ::= root "a" | "a"'}, 200, '"hypotheses"'),
    "schema of itself": ("search", {"json_schema": {"$ref": "#"}}, 200, '"hypotheses"'),
    "schema elsewhere": ("search", {"json_schema": {"$ref": "http://127.0.0.1:9/"}}, 200, "[]"),
    "many placeholders": ("search", {"prompt": "<image>" * 50_000}, 400, "350004 characters"),
    "template": ("chat/completions", {"chat_template": "{{x}}"}, 400, "unknown field"),
    "template settings": ("chat/completions", {"chat_template_kwargs": {}}, 400, "unknown field"),
    "tensor": ("completions", {"prompt_embeds": "gASVAA=="}, 400, "unknown field"),
    "pickled processor": ("completions", {"custom_logit_processor": "gAS"}, 400, "unknown field"),
    "context shift": ("completions", {"n_discard": -1}, 400, "unknown field"),
    "image elsewhere": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        400,
        "no address is fetched",
    ),
    "prompt_logprobs": ("completions", {"prompt_logprobs": HUGE}, 400, "unknown field"),
    "echo": ("completions", {"echo": True, "max_tokens": HUGE}, 400, "echo=True is not supported"),
    "huge max_tokens": ("completions", {"max_tokens": HUGE}, 400, "are names of one setting"),
    "penalties": (
        "completions",
        {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 2},
        200,
        '"choices"',
    ),
    "deep arguments": (
        "chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
        200,
        '"choices"',
    ),
    "model elsewhere": ("search", {"model": "../../etc/passwd"}, 404, "unknown model"),
    "reranker elsewhere": ("search", {"rerank": "reward:evil/model"}, 400, "unknown reranker"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_that_took_other_servers_down(client: httpx.Client, name: str) -> None:
    path, body, status, told = REQUESTS[name]
    asked = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    answer = ask(client, {**asked, **SHORT, **body}, f"/v1/{path}")
    assert answer.status_code == status, answer.text[:300]
    assert told in answer.text
    assert client.get("/health").status_code == 200


# Bodies that JSON's readers disagree about, and part of the answer.
TEXTS = {
    "NaN": ('{"prompt": "x", "temperature": NaN}', "temperature"),
    "Infinity": ('{"prompt": "x", "decay_power": Infinity}', "decay_power"),
    "too large": ('{"prompt": "x", "decay_power": 1e999}', "decay_power"),
    "the last of two": ('{"prompt": "x", "k": 2, "k": -1}', "k must be at least 1"),
    "a half character": ('{"prompt": "\\ud800"}', "valid Unicode"),
    "a half name": ('{"prompt": "x", "\\ud800": 1}', "valid Unicode"),
    "deep": ('{"prompt": ' + "[" * 100_000, "body"),
    "no object": ('"prompt"', "dictionary"),
    "a long number": ('{"prompt": "x", "k": ' + "1" * 100_000 + "}", "body"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_bodies_that_readers_disagree_about(client: httpx.Client, name: str) -> None:
    body, told = TEXTS[name]
    kind = {"Content-Type": "application/json"}
    assert told in refusal(client.post("/v1/search", content=body.encode(), headers=kind))


def test_clients_that_send_or_read_nothing_hold_up_nobody(
    server: Served, client: httpx.Client
) -> None:
    """Heads, chunks and streams that are begun and left."""
    head = b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    body = json.dumps({"prompt": "x", "stream": True, "graph": True, **SHORT}).encode()
    begun = [
        head,
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        head + b"Content-Length: 1000000\r\n\r\n{",
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
    ]
    with contextlib.ExitStack() as stack:
        for text in begun * 10:
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            stack.enter_context(connection).sendall(text)
        assert ask(client, {"prompt": "x", **SHORT}).status_code == 200
        assert client.get("/health").status_code == 200
    until(lambda: server.loop.num_running == server.loop.num_waiting == 0)


def test_a_template_of_a_model_runs_no_code(tokenizer: Any) -> None:
    """It comes with the weights, and is run without what reaches the interpreter."""
    hostile = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ messages.append(1) }}"
    lm = bestk.LanguageModel(writer(0), tokenizer, "writer", chat_template=hostile)
    with served(lm) as running, httpx.Client(base_url=running.url) as client:
        body = {"messages": [{"role": "user", "content": "x"}], **SHORT}
        answer = ask(client, body, "/v1/chat/completions")
    assert answer.status_code in (400, 500)
    assert "subclass" not in answer.text


def test_no_setting_takes_numbers_that_it_should_not(client: httpx.Client) -> None:
    numbers = [one for one in every_setting(SearchConfig) if one.kind in (int, float)]
    assert len(numbers) > 15
    for setting in numbers:
        for value in (-1, -(2**63), 2**63, 10**400, 1e308):
            answer = ask(client, {"prompt": "x", **SHORT, setting.name: value})
            assert answer.status_code in (200, 400), f"{setting.name}={value}: {answer.text}"
            assert answer.status_code == 400 or setting.maximum is None or value <= setting.maximum


def test_headers_have_an_end(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        with contextlib.suppress(ConnectionError):  # the server need not read on
            for _ in range(200):
                connection.sendall(b"X: " + b"a" * 8000 + b"\r\n")
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(1000)
            assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert httpx.get(server.url + "/health").status_code == 200


def test_bodies_are_not_unpacked(client: httpx.Client) -> None:
    packed = gzip.compress(b'{"prompt": "' + b" " * 50_000_000 + b'"}')
    assert len(packed) < 100_000
    kind = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refusal(client.post("/v1/search", content=packed, headers=kind))


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    plain = hmac.compare_digest

    def noted(given: bytes, token: bytes) -> bool:
        compared.append((given, token))
        return plain(given, token)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    guarded = Guarded(lambda *_: None, "token")  # type: ignore[arg-type, return-value]
    for given, passes in (("token", True), ("tokem", False), ("\xff", False)):
        headers = [(b"authorization", b"Bearer " + given.encode("latin-1"))]
        scope = {"type": "http", "path": "/v1/search", "headers": headers}
        assert guarded._may_pass(scope) is passes
    assert len(compared) == 3


# Advisories of other servers, each of whose classes the table must have.
ADVISORIES = """2024-8768 2024-8939 2025-29770 2025-32381 2025-46560 2025-48887 2025-48942
2025-48943 2025-48944 2025-48956 2025-57809 2025-59425 2025-61620 2025-62164 2025-6242 2025-62426
2026-21869 2026-22773 2026-34756 2024-34359 2025-53630 2026-27940 2026-44223
2026-5760"""


def test_the_table_is_whole() -> None:
    told = (Path(bestk.__file__).parents[1] / "docs" / "security.md").read_text(encoding="utf-8")
    assert [
        one for one in ADVISORIES.split() if f"CVE-{one} " not in f"{told.replace(',', ' ')} "
    ] == []
    rows = [line for line in told.splitlines() if line.startswith("| ") and "`test_" in line]
    assert len(rows) > 30
    assert all(row.count("|") == 5 for row in rows), "class, there, here, tests"


def test_workflows_say_what_they_may() -> None:
    workflows = sorted((Path(bestk.__file__).parents[1] / ".github" / "workflows").glob("*.yml"))
    assert workflows
    for path in workflows:
        assert re.search(r"^permissions:\n  contents: read$", path.read_text(), re.M), path.name


def test_every_test_that_the_table_names_is_there() -> None:
    root = Path(bestk.__file__).parents[1]
    told = (root / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", told))
    tests = "".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*.py"))
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []
