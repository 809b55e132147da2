"""Files and answers of strangers, changed at random: each is read, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bestk
from bestk.backends.http.dialect import Wording
from bestk.backends.http.llama_cpp import LlamaCppDialect
from bestk.backends.http.sglang import SglangDialect
from bestk.backends.http.transport import MalformedAnswer, Refusal, _content, _NotNow, _understood
from bestk.backends.http.vllm import VllmDialect
from bestk.backends.prefix import TopLogprobs
from bestk.errors import BestKError, SchemaError
from bestk.lm.task_models import CARD, FORMAT, FORMAT_VERSION, Card

SHORT = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
DEEP = b"[" * 100_000


def refusal(read: Callable[[], Any], *kinds: type[Exception]) -> str:
    """Return why something is refused; a line that says nothing where it is not."""
    try:
        read()
    except kinds as error:
        return str(error)
    return "read"


def is_line(told: str) -> bool:
    return bool(told) and "\n" not in told


CARDS = st.fixed_dictionaries(
    {
        "format": st.just(FORMAT) | VALUES,
        "version": st.just(FORMAT_VERSION) | VALUES,
        "base": st.text(max_size=5) | VALUES,
        "prompt_end": st.text(max_size=5) | VALUES,
        "task": st.text(max_size=5) | VALUES,
    },
    optional={"text_end": VALUES, "gives": st.just("labels") | VALUES, "x": VALUES},
)


@SHORT
@given(card=CARDS.map(json.dumps).map(str.encode) | st.binary(max_size=40) | st.just(DEEP))
def test_any_card_is_read_or_refused(card: bytes, tmp_path: Path) -> None:
    (tmp_path / CARD).write_bytes(card)
    assert is_line(refusal(lambda: Card.read(tmp_path), SchemaError))


@pytest.fixture(scope="module")
def saved_trie(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("trie") / "items.trie"
    bestk.Trie.from_sequences([[1, 2, 3], [1, 4], [5]]).save(path)
    return path.read_bytes()


@SHORT
@given(data=st.data())
@pytest.mark.parametrize("mmap", [False, True])
def test_a_trie_with_any_byte_changed_is_refused(
    saved_trie: bytes, tmp_path: Path, data: st.DataObject, mmap: bool
) -> None:
    place = data.draw(st.integers(0, len(saved_trie) - 1))
    some = data.draw(st.binary(max_size=4))
    changed = saved_trie[:place] + some + saved_trie[place + len(some) :]
    path = tmp_path / "changed.trie"
    path.write_bytes(changed[: data.draw(st.integers(0, len(changed)))])
    assert is_line(refusal(lambda: bestk.Trie.load(path, mmap=mmap), BestKError))


DIALECTS = {"llama.cpp": LlamaCppDialect, "sglang": SglangDialect, "vllm": VllmDialect}
KNOWN = st.sampled_from(
    ["choices", "logprobs", "top_logprobs", "id", "logprob", "token", "bytes", "index", "content"]
)
ANSWERS: Any = st.recursive(
    VALUES | st.sampled_from([0, 1, -1.5, 1e400, -1e400]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(KNOWN, inner, max_size=5)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("name", DIALECTS)
@SHORT
@given(answer=ANSWERS)
def test_any_answer_of_an_engine_is_read_or_malformed(name: str, answer: Any) -> None:
    dialect: Any = DIALECTS[name](Wording(model="m"), {})

    def read() -> None:
        for one in _understood(lambda told: dialect.read(told, 1), answer):
            assert one is None or isinstance(one, TopLogprobs)

    assert refusal(read, MalformedAnswer)


@SHORT
@given(status=st.sampled_from([200, 400, 429, 500, 503]), body=st.binary(max_size=60))
@pytest.mark.parametrize("start", [b"", DEEP, b'{"error": ', b"data: {"])
def test_any_body_of_an_engine_is_read_or_malformed(start: bytes, status: int, body: bytes) -> None:
    answer = httpx.Response(status, content=start + body)
    told = refusal(lambda: _content("http://engine", answer), MalformedAnswer, Refusal, _NotNow)
    assert len(told) < 10_000
