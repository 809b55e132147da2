"""Files and answers of strangers, changed at random: each is read, or refused in one line."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
import tiny_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bestk
from bestk.backends.http.dialect import Wording
from bestk.backends.http.llama_cpp import LlamaCppDialect
from bestk.backends.http.sglang import SglangDialect
from bestk.backends.http.transport import MalformedAnswer, Refusal, _content, _NotNow, _understood
from bestk.backends.http.vllm import VllmDialect
from bestk.backends.prefix import TopLogprobs
from bestk.errors import BestKError, ModelError, SchemaError
from bestk.lm.gguf_header import check_header
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


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(*fields: bytes, tensors: int = 0, count: int | None = None) -> bytes:
    num_fields = len(fields) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, num_fields) + b"".join(fields)


def field(kind: int, value: bytes) -> bytes:
    return string(b"general.name") + struct.pack("<I", kind) + value


HUGE = 2**60
TENSOR = string(b"t") + struct.pack("<IQIQ", 1, 8, 0, 0)
# Headers that readers believe: each is refused, by these words, at once.
HEADERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot mmap an empty file"),
    "of others": (b"GGML" + bytes(60), "does not begin with GGUF"),
    "version": (b"GGUF" + struct.pack("<I", 99) + bytes(60), "version 99"),
    "cut off": (header(field(8, string(b"x")))[:-3], "leads out of the file"),
    "many fields": (header(count=HUGE), "leads out of the file"),
    "many tensors": (header(tensors=HUGE), "leads out of the file"),
    "long name": (header(struct.pack("<Q", HUGE), count=1), f"name of {HUGE} bytes"),
    "long text": (header(field(8, struct.pack("<Q", HUGE))), f"a text of {HUGE} bytes"),
    "long list": (header(field(9, struct.pack("<IQ", 0, HUGE))), f"a list of {HUGE} bytes"),
    "many texts": (header(field(9, struct.pack("<IQ", 8, HUGE))), "leads out of the file"),
    "overflow": (header(field(9, struct.pack("<IQ", 12, 2**61))), "leads out of the file"),
    "list of lists": (header(field(9, struct.pack("<IQ", 9, 1) * 5000)), "a list of lists"),
    "no type": (header(field(77, bytes(8))), "there is no type 77"),
    "dimensions": (
        header(string(b"t") + struct.pack("<I", 2**31), tensors=1, count=0),
        "2147483648 dimensions",
    ),
    "shape": (
        header(string(b"t") + struct.pack("<IQQIQ", 2, 2**32, 2**32, 0, 0), tensors=1, count=0),
        "outside of the file",
    ),
    "offset": (
        header(string(b"t") + struct.pack("<IQIQ", 1, 8, 0, HUGE), tensors=1, count=0),
        "outside of the file",
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_gguf_header_that_leads_nowhere_is_refused(name: str, tmp_path: Path) -> None:
    content, told = HEADERS[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    found = refusal(lambda: check_header(path), ModelError)
    assert told in found
    assert is_line(found)


@SHORT
@given(data=st.data())
def test_a_gguf_header_with_any_bytes_changed_ends(data: st.DataObject, tmp_path: Path) -> None:
    """Of a good one, it is read or refused; nothing else is raised, and it takes no time."""
    good = header(
        field(8, string(b"llama")),
        field(4, struct.pack("<I", 7)),
        field(9, struct.pack("<IQ", 8, 2) + string(b"a") + string(b"bc")),
        field(9, struct.pack("<IQ", 6, 3) + bytes(12)),
        TENSOR,
        tensors=1,
        count=4,
    )
    path = tmp_path / "model.gguf"
    path.write_bytes(good + bytes(64))
    assert refusal(lambda: check_header(path), ModelError) == "read"
    place = data.draw(st.integers(0, len(good) - 1))
    some = data.draw(st.binary(min_size=1, max_size=8))
    changed = (good[:place] + some + good[place + len(some) :])[: data.draw(st.integers(0, 400))]
    path.write_bytes(changed)
    assert is_line(refusal(lambda: check_header(path), ModelError))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A tiny model's folder, and what its weights' file holds."""
    folder = tmp_path_factory.mktemp("weights")
    tiny.model("llama").save_pretrained(folder)
    return folder, (folder / "model.safetensors").read_bytes()


@settings(SHORT, max_examples=15)
@given(data=st.data())
def test_weights_with_any_bytes_of_the_header_changed_are_refused_or_read(
    weights: tuple[Path, bytes], data: st.DataObject
) -> None:
    folder, good = weights
    length = struct.unpack("<Q", good[:8])[0]
    place = data.draw(st.integers(0, 7) | st.integers(8, length))
    some = data.draw(st.sampled_from([b"\xff" * 8, b"9" * 12, b"-", b"[", b'"', b"\0"]))
    (folder / "model.safetensors").write_bytes(good[:place] + some + good[place + len(some) :])
    # There is no tokenizer: a line says so where the weights are good.
    assert is_line(refusal(lambda: bestk.load(str(folder)), ModelError))


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A tiny model's GGUF file, and what it holds."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    tiny_gguf.write(path, "F16")
    return path, path.read_bytes()


def test_a_model_file_whose_header_leads_nowhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    for content, told in HEADERS.values():
        path.write_bytes(content)
        found = refusal(lambda: bestk.load(path), BestKError)
        assert told in found
        assert is_line(found)


@settings(SHORT, max_examples=12)
@given(data=st.data())
def test_a_model_file_with_any_bytes_of_its_header_changed_is_refused_or_read(
    model_file: tuple[Path, bytes],
    data: st.DataObject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BESTK_CACHE", str(tmp_path / "cache"))
    path, good = model_file
    place = data.draw(st.integers(0, good.find(b"token_embd")))
    some = data.draw(st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"\x07"]))
    path.write_bytes(good[:place] + some + good[place + len(some) :])
    assert is_line(refusal(lambda: bestk.load(path, device="cpu"), BestKError))
