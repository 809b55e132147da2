"""Other people's clients of OpenAI's API, unchanged: they get n different texts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Served, letters_lm, served

QUICK: dict[str, Any] = {"beam_size": 6, "k": 3, "scoring": "sum"}
# They warn of what is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(letters_lm()) as running:
        yield running


# Slow: the import alone takes seconds.
@pytest.mark.slow
def test_langchain(server: Served) -> None:
    clients = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    from langchain_core.messages import HumanMessage
    from pydantic import SecretStr

    chat = clients.ChatOpenAI(
        model="letters",
        base_url=server.url + "/v1",
        api_key=SecretStr("-"),
        n=4,
        temperature=0,
        max_tokens=6,
        extra_body=QUICK,
    )
    messages = [HumanMessage("hello")]
    (found,) = chat.generate([messages]).generations
    assert len({one.text for one in found}) == 4
    first = found[0].message
    (again,) = chat.generate([[*messages, first, *messages]]).generations
    assert len({one.text for one in again}) == 4
    one = clients.ChatOpenAI(
        model="letters", base_url=server.url + "/v1", api_key=SecretStr("-"), max_tokens=6
    )
    assert "".join(str(chunk.content) for chunk in one.stream("hello")) == one.invoke("hello").text
    plain = clients.OpenAI(
        model="letters",
        base_url=server.url + "/v1",
        api_key=SecretStr("-"),
        n=3,
        best_of=3,
        max_tokens=6,
    )
    assert len({one.text for one in plain.generate(["hello"]).generations[0]}) == 3


# Slow: the import alone takes seconds.
@pytest.mark.slow
def test_litellm(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    asked: dict[str, Any] = {
        "model": "openai/letters",
        "api_base": server.url + "/v1",
        "api_key": "-",
        "max_tokens": 6,
        "temperature": 0,
    }
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    answer = litellm.completion(messages=messages, n=4, extra_body=QUICK, **asked)
    assert len({choice.message.content for choice in answer.choices}) == 4
    back: list[Any] = [*messages, answer.choices[0].message.model_dump(), *messages]
    again = litellm.completion(messages=back, **asked)
    chunks = litellm.completion(messages=back, stream=True, **asked)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == again.choices[0].message.content


LLAMA_INDEX = """
import sys
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

asked = {"n": 4, "extra_body": {"beam_size": 6, "k": 3, "scoring": "sum"}}
given = {"model": "letters", "api_base": sys.argv[1] + "/v1", "api_key": "-", "max_tokens": 6}
several = OpenAILike(**given, is_chat_model=True, temperature=0, additional_kwargs=asked)
hello = ChatMessage(role="user", content="hello")
answer = several.chat([hello])
print(len({choice.message.content for choice in answer.raw.choices}))
one = OpenAILike(**given, is_chat_model=True)
talk = [hello, answer.message, hello]
print("".join(part.delta or "" for part in one.stream_chat(talk)) == one.chat(talk).message.content)
print(OpenAILike(**given).complete("hello").text != "")
"""


# Slow: the import alone takes seconds. In a process of its own: it wants an older openai than ours.
@pytest.mark.slow
def test_llama_index(server: Served) -> None:
    packages = Path(sys.prefix) / "llama-index"
    if not packages.exists():
        pytest.skip("LlamaIndex is not installed")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LLAMA_INDEX, server.url],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout.split() == ["4", "True", "True"], run.stderr
