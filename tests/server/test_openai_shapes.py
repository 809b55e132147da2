"""What OpenAI's clients send by themselves, and what they can be asked for: nothing is a 400."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from serving import Served, letters_lm, served
from test_constraints import tokenizer, writer

import bestk
from bestk.server.limits import Limits

__all__ = ["tokenizer"]  # the fixture
# A template as chat models have them: it tells of tools, of calls and of what came of them.
TEMPLATE = """{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{%- for message in messages %}{{ message.role }} {{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments.at }}{% endfor %}
{%- endfor %}"""
# Qwen's kind also says in which tags a call stands.
TAGGED = TEMPLATE + "{% if tools %} <tool_call> {% endif %}"
MESSAGES: Any = [{"role": "user", "content": "hello"}]
QUICK: dict[str, Any] = {"max_tokens": 6, "extra_body": {"beam_size": 6, "k": 3, "scoring": "sum"}}
PLACE = {"type": "object", "properties": {"at": {"enum": ["a", "b", "c"]}}, "required": ["at"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": PLACE}} for name in ("go", "see")
]


@pytest.fixture(scope="module")
def server(tokenizer: Any) -> Iterator[Served]:
    lm = bestk.LanguageModel(writer(0), tokenizer, "writer", chat_template=TEMPLATE)
    lines = copy.deepcopy(tokenizer)  # tags stand on lines of their own
    lines.add_tokens(["\n"])
    tagged = bestk.LanguageModel(writer(0), lines, "tagged", chat_template=TAGGED)
    plain = bestk.LanguageModel(writer(1), tokenizer, "task")
    with served(
        letters_lm(), lm, tagged, plain, limits=Limits(new_tokens=90, budget=300)
    ) as running:
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


def texts(answer: Any) -> list[str]:
    return [choice.message.content for choice in answer.choices]


def test_an_answer_of_its_own_is_sent_back(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="letters", messages=MESSAGES, **QUICK)
    message = first.choices[0].message
    told = {"role": "assistant", "content": message.content}
    wanted = client.chat.completions.create(
        model="letters", messages=[*MESSAGES, told, *MESSAGES], **QUICK
    )
    for sent in (message, message.model_dump(), {**told, "refusal": None, "parsed": None}):
        again: Any = [*MESSAGES, sent, *MESSAGES]
        answer = client.chat.completions.create(model="letters", messages=again, **QUICK)
        assert texts(answer) == texts(wanted)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0, "top_p": 1, "seed": 1234},  # lm-eval
        {"top_p": 0},
        {"presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "user": "me"},
        {"response_format": {"type": "text"}, "tools": [], "tool_choice": "none"},
        {"parallel_tool_calls": True, "store": False, "metadata": {"a": "b"}},
        {"service_tier": "auto", "reasoning_effort": "low", "verbosity": "low"},
        {"safety_identifier": "x", "prompt_cache_key": "y", "modalities": ["text"]},
        {"prediction": {"type": "content", "content": "hello"}, "prompt_cache_retention": "24h"},
        {"extra_body": {**QUICK["extra_body"], "top_k": -1, "min_p": 0, "unheard_of": None}},
    ],
)
def test_what_changes_nothing(client: openai.OpenAI, options: dict[str, Any]) -> None:
    wanted = client.chat.completions.create(model="letters", messages=MESSAGES, **QUICK)
    asked = {"model": "letters", "messages": MESSAGES, **QUICK, **options}
    assert texts(client.chat.completions.create(**asked)) == texts(wanted)


def test_a_request_of_lm_eval(server: Served) -> None:
    """As `local-chat-completions` of lm-eval 0.4 writes it."""
    body = {
        "messages": [{"role": "user", "content": "hello", "type": "text"}],
        "model": "letters",
        "max_tokens": 16,
        "temperature": 0,
        "stop": ["\n\n", "Question:"],
        "seed": 1234,
    }
    answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]


def test_a_chat_without_a_length_ends_where_the_model_ends_it(client: openai.OpenAI) -> None:
    """The letters' texts would go on for ever: only the server's limit ends them."""
    bias = {"logit_bias": {"0": -100}, "extra_body": {"stop_ids": []}}
    answer = client.chat.completions.create(model="letters", messages=MESSAGES, **bias)  # type: ignore[call-overload]
    assert answer.usage.completion_tokens == 90
    assert answer.choices[0].finish_reason == "length"
    ended = client.chat.completions.create(model="letters", messages=MESSAGES, n=3)
    assert [choice.finish_reason for choice in ended.choices] == ["stop"] * 3
    assert len(set(texts(ended))) == 3


def test_a_long_answer_is_within_the_budget(server: Served, client: openai.OpenAI) -> None:
    limits = server.loop.limits
    n = limits.budget // limits.new_tokens + 1
    answer = client.completions.create(
        model="letters", prompt="hello", n=n, max_tokens=limits.new_tokens
    )
    assert len({choice.text for choice in answer.choices}) == n
    with pytest.raises(openai.BadRequestError, match="the budget is at most 300 "):
        client.completions.create(model="letters", prompt="x", extra_body={"budget": 10_000})


@pytest.mark.parametrize("choice", [{}, {"rerank": "mbr-chrf"}])
def test_a_stream_of_one_sends_the_best(client: openai.OpenAI, choice: dict[str, Any]) -> None:
    asked = {"max_tokens": 6, "extra_body": QUICK["extra_body"] | choice}
    whole = client.completions.create(model="letters", prompt="hello", **asked)
    chunks = list(client.completions.create(model="letters", prompt="hello", stream=True, **asked))
    assert [c.choices[0].text for c in chunks] == [whole.choices[0].text]
    chat = client.chat.completions.create(model="letters", messages=MESSAGES, **asked)
    with client.chat.completions.stream(model="letters", messages=MESSAGES, **asked) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == texts(chat)[0]


def test_penalties_and_biases_change_what_is_written(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "letters", "prompt": "hello", "max_tokens": 6, "n": 5}
    plain = client.completions.create(**asked)
    common = max("abcdefghijklmnopqrstuvwxyz", key="".join(c.text for c in plain.choices).count)
    token = letters_lm().encode(common)[0]
    without = client.completions.create(**asked, logit_bias={str(token): -100})
    assert len(without.choices) == 5
    assert not any(common in choice.text for choice in without.choices)
    once = client.completions.create(**asked, presence_penalty=100)
    assert all(len(set(choice.text)) == len(choice.text) for choice in once.choices)
    again = client.completions.create(**asked, frequency_penalty=-100)
    assert all(len(set(choice.text)) <= 2 for choice in again.choices)


class Place(pydantic.BaseModel):
    at: int


def test_forms_of_answers(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "writer", "messages": MESSAGES, "max_tokens": 30}
    any_object: Any = {"type": "json_object"}
    answer = client.chat.completions.create(**asked, n=3, response_format=any_object)
    complete = [c.message.content for c in answer.choices if c.finish_reason == "stop"]
    assert complete
    assert all(isinstance(json.loads(text), dict) for text in complete)
    parsed = client.chat.completions.parse(**asked, response_format=Place)
    assert isinstance(parsed.choices[0].message.parsed, Place)


class TestTools:
    @pytest.mark.parametrize("model", ["writer", "tagged"])
    def test_one_that_is_needed_is_called_with_valid_arguments(
        self, client: openai.OpenAI, model: str
    ) -> None:
        answer = client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=90,
            n=3,
        )
        calls = [choice.message.tool_calls for choice in answer.choices]
        assert {choice.finish_reason for choice in answer.choices} == {"tool_calls"}
        told = [(call.function.name, call.function.arguments) for (call,) in map(list, calls)]  # type: ignore[arg-type, union-attr]
        assert len(set(told)) == 3
        assert all(name in ("go", "see") for name, _ in told)
        assert all(json.loads(arguments)["at"] in "abc" for _, arguments in told)
        message = answer.choices[0].message
        came: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "fine"}  # type: ignore[index]
        back: Any = [*MESSAGES, message, came]
        after = client.chat.completions.create(
            model=model, messages=back, tools=TOOLS, max_tokens=9
        )
        assert after.choices[0].message.role == "assistant"

    def test_one_is_named(self, client: openai.OpenAI) -> None:
        asked: dict[str, Any] = {"model": "writer", "messages": MESSAGES, "max_tokens": 45}
        choice: Any = {"type": "function", "function": {"name": "see"}}
        chunks = list(
            client.chat.completions.create(
                **asked, tools=TOOLS, tool_choice=choice, stream=True, parallel_tool_calls=False
            )
        )
        delta = chunks[0].choices[0].delta
        assert delta.tool_calls is not None
        (call,) = delta.tool_calls
        assert call.index == 0
        assert call.function is not None
        assert call.function.name == "see"
        unknown: Any = {"type": "function", "function": {"name": "sea"}}
        with pytest.raises(openai.BadRequestError, match="did you mean 'see'"):
            client.chat.completions.create(**asked, tools=TOOLS, tool_choice=unknown)

    def test_none_has_to_be_called(self, client: openai.OpenAI) -> None:
        asked: dict[str, Any] = {"model": "writer", "messages": MESSAGES, "max_tokens": 9}
        answer = client.chat.completions.create(**asked, tools=TOOLS)
        assert answer.choices[0].message.content
        assert not answer.choices[0].message.tool_calls

    def test_not_with_images(self, client: openai.OpenAI) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        seen: Any = [{"role": "user", "content": [image]}]
        with pytest.raises(openai.BadRequestError, match="tools and images do not go together"):
            client.chat.completions.create(model="writer", messages=seen, tools=TOOLS)


def test_a_task_model_says_why_it_does_not_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"task has no chat template.*/v1/completions"):
        client.chat.completions.create(model="task", messages=MESSAGES)
