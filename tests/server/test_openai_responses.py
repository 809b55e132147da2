"""`/v1/responses` with the official client, which checks every answer and every event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serving import Served, letters_lm, served

SETTINGS: dict[str, Any] = {"beam_size": 6, "k": 3, "scoring": "sum"}
TOOL: Any = {"type": "function", "name": "ab", "parameters": {"type": "object"}, "strict": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(letters_lm()) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=server.url + "/v1",
        api_key="-",
        max_retries=0,
        _strict_response_validation=True,
    ) as made:
        yield made


def ask(client: openai.OpenAI, what: Any = "hello", **options: Any) -> Any:
    settings = {**SETTINGS, **options.pop("settings", {})}
    given = {"max_output_tokens": 6, **options}
    return client.responses.create(model="letters", input=what, extra_body=settings, **given)


def chat(client: openai.OpenAI, messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(
        model="letters", messages=messages, max_tokens=6, extra_body=SETTINGS, **options
    )


def test_it_is_what_a_chat_answers(client: openai.OpenAI) -> None:
    answer = ask(client, instructions="be good", store=True, reasoning={"effort": "low"})
    messages = [{"role": "system", "content": "be good"}, {"role": "user", "content": "hello"}]
    same = chat(client, messages)
    assert answer.output_text == same.choices[0].message.content != ""
    assert (answer.object, answer.status, answer.tool_choice) == ("response", "completed", "auto")
    assert answer.usage.input_tokens == same.usage.prompt_tokens
    assert answer.usage.output_tokens == same.usage.completion_tokens
    back = [{"role": "user", "content": "hello"}, *answer.output]
    back += [{"role": "user", "content": [{"type": "input_text", "text": "on"}]}]
    said = {"role": "assistant", "content": answer.output_text}
    again = chat(client, [messages[1], said, {"role": "user", "content": "on"}])
    assert ask(client, back).output_text == again.choices[0].message.content


def test_n_texts_are_n_items(client: openai.OpenAI) -> None:
    answer = ask(client, settings={"n": 4})
    texts = [item.content[0].text for item in answer.output]
    same = chat(client, [{"role": "user", "content": "hello"}], n=4)
    assert texts == [choice.message.content for choice in same.choices]
    assert len(set(texts)) == 4
    assert answer.output[0].score >= answer.output[1].score


def test_a_stream_tells_the_same(client: openai.OpenAI) -> None:
    whole = ask(client, settings={"n": 2})
    told = list(ask(client, stream=True, settings={"n": 2}))
    kinds = [event.type for event in told]
    assert kinds[0] == "response.created"
    assert kinds[1:7] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in told] == list(range(len(told)))
    texts = [event.delta for event in told if event.type == "response.output_text.delta"]
    assert texts == [item.content[0].text for item in whole.output]
    assert told[-1].response.output_text == whole.output_text
    given: Any = {"input": "hello", "max_output_tokens": 6, "extra_body": SETTINGS}
    with client.responses.stream(model="letters", **given) as stream:
        assert stream.get_final_response().output_text


def test_log_probs_and_cut_texts(client: openai.OpenAI) -> None:
    include: Any = ["message.output_text.logprobs"]
    part = ask(client, include=include, top_logprobs=2).output[0].content[0]
    assert "".join(token.token for token in part.logprobs) == part.text
    assert {len(token.top_logprobs) for token in part.logprobs} == {2}
    cut = ask(client, max_output_tokens=3, settings={"suppress_tokens": [0]})
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"previous_response_id": "resp_1"}, "Nothing is stored"),
        ({"background": True}, "background=True is not supported: Answers are waited for"),
        ({"tools": [{"type": "web_search"}]}, 'tools are functions, got "web_search"'),
        ({"tools": [TOOL]}, "tools need a chat template"),
        ({"what": [{"role": "user", "content": [{"type": "input_file"}]}]}, "got 'input_file'"),
        ({"what": []}, "messages"),
    ],
)
def test_what_it_cannot_do(client: openai.OpenAI, given: Any, told: str) -> None:
    with pytest.raises(openai.BadRequestError, match=told):
        ask(client, **given)
