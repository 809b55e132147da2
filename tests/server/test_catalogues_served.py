"""Searches of a server's tries: named in a request, with what each client leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from serving import ALPHABET, Served, letters_lm, served

import bestk

WORDS = [a + b for a in "aeiou" for b in ALPHABET[:26]]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    lm = letters_lm()
    ids = [lm.tokenizer(word)["input_ids"] for word in WORDS]
    tries = {"words": bestk.Trie.from_sequences(ids, items=WORDS)}
    with served(lm, tries=tries) as running:
        yield running


def ask(server: Served, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/search", json={"prompt": "hello", **body}, timeout=60)


def test_items_come_with_their_names(server: Served) -> None:
    answer = ask(server, allowed="words", certify=5, num_texts=5).json()
    items = [hypothesis["item"] for hypothesis in answer["hypotheses"]]
    assert len(items) == 5
    assert items == [hypothesis["text"] for hypothesis in answer["hypotheses"]]
    assert answer["certified"] >= 5
    assert answer["bound"] is None or answer["bound"] <= answer["hypotheses"][4]["log_prob"]
    rest = ask(server, allowed="words", certify=5, num_texts=5, exclude=items[:2]).json()
    assert [h["item"] for h in rest["hypotheses"]][:3] == items[2:]


def test_a_stream_tells_of_items(server: Served) -> None:
    text = ask(server, allowed="words", certify=5, stream=True).text
    assert "event: result" in text
    assert '"item"' in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"allowed": "word"}, "did you mean 'words'"),
        ({"allowed": "words", "exclude": ["xyz"]}, "unknown item 'xyz'"),
        ({"exclude": ["aa"]}, "give allowed= too"),
        ({"allowed": "words", "regex": "a"}, "leave regex out"),
        ({"allowed": "words", "method": "BS"}, "not for other methods"),
        ({"allowed": "words", "budget": 4000}, "budget is at most"),
    ],
)
def test_what_cannot_be_asked(server: Served, body: dict[str, Any], message: str) -> None:
    answer = ask(server, **body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
