"""Images over HTTP: in data URLs alone, within limits, with the answers of a direct search."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI
from serving import Served, facts, letters_lm, served
from tiny_vision import chat, data_url, image, made, png

import bestk
from bestk.server.limits import Limits

SHORT: dict[str, Any] = {"max_new_tokens": 4, "beam_size": 3, "k": 2, "min_children": 2}
PICTURE = image(1)


@pytest.fixture(scope="module")
def lm() -> Any:
    made_of = bestk.from_transformers(*made("qwen2_vl"))
    made_of.name = "pictures"
    return made_of


@pytest.fixture(scope="module")
def server(lm: Any) -> Iterator[Served]:
    limits = Limits(images=2, image_bytes=30_000, image_pixels=250_000)
    with served(lm, letters_lm(), limits=limits) as running:
        yield running


def content(*parts: str) -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": part}}
        if part.startswith(("data:", "http"))
        else {"type": "text", "text": part}
        for part in parts
    ]


def ask(server: Served, *parts: str, path: str = "search", **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": content(*parts)}]
    return httpx.post(
        f"{server.url}/v1/{path}", json={"messages": messages, **SHORT, **body}, timeout=120
    )


def test_an_answer_is_that_of_a_direct_search(server: Served, lm: Any) -> None:
    answer = ask(server, "what is", data_url(PICTURE), "tell me")
    direct = bestk.search(lm, chat("what is", PICTURE, "tell me"), **SHORT, timeout=120)
    told = facts(answer.json())
    assert told["hypotheses"] == facts(direct)["hypotheses"]
    assert told["prompt"][0]["content"][1] == {"type": "image", "image": "<20x12>"}


def test_openais_client_sends_pictures(server: Served, lm: Any) -> None:
    client = OpenAI(base_url=server.url + "/v1", api_key="-")
    parts: Any = content(data_url(PICTURE, "jpeg"), "what is this")
    parts[0]["image_url"]["detail"] = "low"
    answer = client.chat.completions.create(
        model="pictures",
        messages=[{"role": "user", "content": parts}],
        n=2,
        max_tokens=4,
        extra_body={"beam_size": 3, "k": 2, "min_children": 2},
    )
    assert answer.choices
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(lm.encode(chat(PICTURE, "what is this")))


def test_pictures_and_texts_share_the_server(server: Served, lm: Any) -> None:
    """A stream of a picture, a text beside it, each as if it were alone."""
    alone = [ask(server, "a cat", data_url(image(n, 8 * n, 24))).json() for n in (1, 2)]
    with httpx.Client(base_url=server.url, timeout=120) as client:
        body = {"messages": [{"role": "user", "content": content("a cat", data_url(PICTURE))}]}
        with client.stream("POST", "/v1/search", json={**body, **SHORT, "stream": True}) as stream:
            again = [ask(server, "a cat", data_url(image(n, 8 * n, 24))).json() for n in (1, 2)]
            events = [line for line in stream.iter_lines() if line.startswith("data:")]
    direct = bestk.search(lm, chat("a cat", PICTURE), **SHORT)
    for one, other in zip(alone, again, strict=True):  # in a batch sums round otherwise
        scores = [[text["score"] for text in told["hypotheses"]] for told in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    assert json.loads(events[-1][5:])["signature"] == direct.signature
    texts = [one["text"] for one in json.loads(events[-1][5:])["hypotheses"]]
    assert texts == direct.texts


def test_a_search_goes_on_from_the_beginning_of_a_text(server: Served, lm: Any) -> None:
    found = ask(server, "a cat", data_url(PICTURE), begin="a dog").json()
    begun = lm.encode_begun(chat("a cat", PICTURE), "a dog")
    assert len(begun) == len(lm.encode(chat("a cat", PICTURE))) + 2
    direct = bestk.search(lm, begun, **SHORT)
    assert [one["text"] for one in found["hypotheses"]] == direct.texts
    assert found["prompt"][0]["content"][1] == {"type": "image", "image": "<20x12>"}
    assert found["prompt"][1] == {"role": "assistant", "content": "a dog"}
    answer = ask(server, "a cat", data_url(PICTURE), begin="a <image>")
    assert answer.status_code == 400
    assert "stands for an image" in answer.text


NOISE = data_url(image(1, 200, 200))  # 120 kB
REFUSED: dict[str, tuple[list[str], str]] = {
    "address": (["http://127.0.0.1:9/cat.png"], "no address is fetched"),
    "text": (["data:text/html;base64,AA=="], "must be a data URL of png, jpeg, webp or gif"),
    "tiff": (["data:image/tiff;base64,AA=="], "must be a data URL of png, jpeg, webp or gif"),
    "no base64": (["data:image/png;base64,!"], "not base64"),
    "no image": (["data:image/png;base64,QUJD"], "cannot be read"),
    "bytes": ([NOISE], "an image has at most 30000 bytes on this server"),
    "pixels": ([png(501, 500)], "at most 250000 pixels on this server, got 501 x 500"),
    "bomb": ([png(65_000, 65_000)], "the image cannot be read"),
    "many": ([data_url(PICTURE)] * 3, "at most 2 images on this server, got 3"),
    "broken": ([data_url(image(1, 90, 90))[: 22 + 8000]], "the image cannot be read"),
    "placeholder": (["what is <image>", data_url(PICTURE)], "cannot take the messages"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("path", ["search", "chat/completions"])
def test_pictures_that_are_refused(server: Served, path: str, name: str) -> None:
    parts, told = REFUSED[name]
    body = {"select": "best"} if path == "search" else {}
    answer = ask(server, *parts, path=path, **body)
    assert answer.status_code == 400, answer.text[:300]
    message = answer.json()["error"]["message"]
    assert told in message
    assert "\n" not in message
    assert len(message) < 500, "what was sent is not sent back"


def test_a_model_of_texts_refuses_pictures(server: Served) -> None:
    answer = ask(server, "a", data_url(PICTURE), model="letters")
    assert answer.status_code == 400
    assert "reads text alone: leave the images out" in answer.text


def test_a_decompression_bomb_takes_no_memory(server: Served) -> None:
    tracemalloc.start()
    try:
        assert ask(server, png(13_000, 13_000)).status_code == 400
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_model_that_cannot_be_tried_out_ends_no_server(
    server: Served, lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory to try it out")

    with monkeypatch.context() as patched:
        patched.setattr(lm.backend, "kind", full)
        assert ask(server, "a cat", data_url(PICTURE)).status_code >= 500
    assert ask(server, "a cat", data_url(PICTURE)).status_code == 200
