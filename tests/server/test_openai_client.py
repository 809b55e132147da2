"""The official `openai` client against a real running server, unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from serving import Served, letters_lm, served

import bestk
from bestk.server.app import Access
from bestk.server.limits import Limits

MESSAGES: Any = [{"role": "user", "content": "hello"}]
SETTINGS: dict[str, Any] = {"beam_size": 6, "k": 3, "scoring": "sum"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    limits = Limits(prompt_tokens=100, queue=64)
    with served(letters_lm(), limits=limits, access=Access(token="secret")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    """A client that checks the type of every answer."""
    with openai.OpenAI(
        base_url=server.url + "/v1",
        api_key="secret",
        max_retries=0,
        _strict_response_validation=True,
    ) as made:
        yield made


def direct(prompt: Any, **options: Any) -> bestk.SearchResult:
    return bestk.search(letters_lm(), prompt, raw=True, **SETTINGS | options)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="letters", prompt="hello", n=20, max_tokens=6, extra_body=SETTINGS
    )
    result = direct("hello", max_new_tokens=6)
    complete = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    assert [choice.text for choice in complete] == result.texts[:20]
    assert [choice.index for choice in answer.choices] == list(range(20))
    assert len({choice.text for choice in answer.choices}) == 20
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.total_tokens == 5 + answer.usage.completion_tokens
    assert answer.usage.expansions == result.cost.expanded  # type: ignore[attr-defined]
    assert answer.choices[0].score == result.hypotheses[0].score  # type: ignore[attr-defined]


def test_the_fields_that_clients_send_by_habit(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="letters",
        prompt="hello",
        max_tokens=6,
        temperature=1,
        top_p=1,
        presence_penalty=0,
        frequency_penalty=0,
        logit_bias={},
        echo=False,
        best_of=1,
        seed=7,
        user="me",
        extra_body=SETTINGS,
    )
    assert [choice.text for choice in answer.choices] == direct("hello", max_new_tokens=6).texts[:1]


def test_several_prompts_and_stop(client: openai.OpenAI) -> None:
    prompts = ["hello", "world"]
    answer = client.completions.create(
        model="letters", prompt=prompts, n=2, max_tokens=8, stop=["e"], extra_body=SETTINGS
    )
    wanted = [t for p in prompts for t in direct(p, max_new_tokens=8, stop="e").texts[:2]]
    assert [choice.text for choice in answer.choices] == wanted
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    ids = letters_lm().encode("hello")
    by_ids = client.completions.create(
        model="letters", prompt=ids, n=2, max_tokens=8, stop="e", extra_body=SETTINGS
    )
    assert [choice.text for choice in by_ids.choices] == wanted[:2]


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="letters", prompt="hello", n=3, max_tokens=6, logprobs=2, extra_body=SETTINGS
    )
    result = direct("hello", max_new_tokens=6)
    model = letters_lm().backend
    for choice, hypothesis in zip(answer.choices, result.hypotheses, strict=False):
        told: Any = choice.logprobs
        assert "".join(told.tokens) == choice.text
        assert told.token_logprobs == list(hypothesis.log_probs[:-1]), "but for the end"
        assert told.text_offset == list(range(len(choice.text)))
        prefix = tuple(letters_lm().encode("hello"))
        for token, others in zip(hypothesis.token_ids, told.top_logprobs, strict=False):
            true = sorted(model.log_probs(prefix), reverse=True)[:2]  # type: ignore[attr-defined]
            assert sorted(others.values(), reverse=True) == pytest.approx(true)
            prefix += (token,)


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="letters",
        messages=MESSAGES,
        n=20,
        max_completion_tokens=6,
        logprobs=True,
        top_logprobs=3,
        extra_body=SETTINGS,
    )
    result = direct(MESSAGES, max_new_tokens=6)
    texts = [c.message.content for c in answer.choices if c.finish_reason == "stop"]
    assert texts == result.texts[:20]
    assert len(answer.choices) == 20
    assert answer.choices[0].message.role == "assistant"
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert "".join(token.token for token in told.content) == texts[0]
    assert all(len(token.top_logprobs) == 3 for token in told.content)
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    same = client.chat.completions.create(
        model="letters", messages=parts, max_tokens=6, extra_body=SETTINGS
    )
    assert same.choices[0].message.content == texts[0]


def test_texts_that_were_cut_off_fill_up(client: openai.OpenAI) -> None:
    """A client that takes choices[0] gets a text even where none is complete."""
    answer = client.completions.create(
        model="letters", prompt="hello", n=4, max_tokens=3, extra_body={"suppress_tokens": [0]}
    )
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 4
    assert all(len(choice.text) == 3 for choice in answer.choices)
    assert "no text was complete" in str(answer.notice)  # type: ignore[attr-defined]
    tiny = client.completions.create(
        model="letters",
        prompt="hello",
        max_tokens=9,
        extra_body={"suppress_tokens": [0], "budget": 3, "k": 1},
    )
    assert [choice.finish_reason for choice in tiny.choices] == ["length"]
    assert tiny.choices[0].text


class TestStreams:
    def test_completions_come_as_they_are_found(self, client: openai.OpenAI) -> None:
        stream = client.completions.create(
            model="letters",
            prompt="hello",
            n=5,
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=SETTINGS,
        )
        *chunks, last = list(stream)
        options = SETTINGS | {"max_new_tokens": 6}
        found = [h.text for h in bestk.stream(letters_lm(), "hello", raw=True, **options)]
        assert [chunk.choices[0].text for chunk in chunks] == found[:5]
        assert [chunk.choices[0].index for chunk in chunks] == list(range(5))
        assert {chunk.choices[0].finish_reason for chunk in chunks} == {"stop"}
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.expansions > 0  # type: ignore[attr-defined]

    def test_chat_with_logprobs(self, client: openai.OpenAI) -> None:
        stream = client.chat.completions.create(
            model="letters",
            messages=MESSAGES,
            n=20,
            max_tokens=6,
            stream=True,
            logprobs=True,
            top_logprobs=2,
            extra_body=SETTINGS,
        )
        chunks = list(stream)
        texts = [chunk.choices[0].delta.content for chunk in chunks]
        assert len(texts) == len(set(texts)) == 20
        complete = [
            c.choices[0].delta.content for c in chunks if c.choices[0].finish_reason == "stop"
        ]
        assert set(complete) <= set(direct(MESSAGES, max_new_tokens=6).texts)
        for chunk in chunks:
            told = chunk.choices[0].logprobs
            assert told is not None
            assert told.content is not None
            assert "".join(token.token for token in told.content) == chunk.choices[0].delta.content
            assert all(len(token.top_logprobs) == 2 for token in told.content)

    def test_several_prompts(self, client: openai.OpenAI) -> None:
        stream = client.completions.create(
            model="letters",
            prompt=["hello", "world"],
            n=3,
            max_tokens=6,
            stream=True,
            extra_body=SETTINGS,
        )
        found: dict[int, str] = {c.choices[0].index: c.choices[0].text for c in stream}
        assert sorted(found) == list(range(6))
        for number, prompt in enumerate(["hello", "world"]):
            options = SETTINGS | {"max_new_tokens": 6}
            texts = [h.text for h in bestk.stream(letters_lm(), prompt, raw=True, **options)][:3]
            assert [found[number * 3 + place] for place in range(3)] == texts


class TestErrors:
    def test_each_is_the_clients_own_kind(self, server: Served, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="unknown model 'gpt-4'"):
            client.completions.create(model="gpt-4", prompt="hello")
        with pytest.raises(openai.BadRequestError, match="at most 100 on this server") as caught:
            client.completions.create(model="letters", prompt="x" * 200)
        assert caught.value.type == "invalid_request_error"
        other = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
        with other, pytest.raises(openai.AuthenticationError, match="bearer token"):
            other.models.list()

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"echo": True}, "echo=True is not supported: The prompt is not repeated"),
            ({"best_of": 7}, "best_of=7 is not supported: All texts come from one search"),
            ({"presence_penalty": 1000}, "presence_penalty goes from -100 to 100, got 1000"),
            ({"logit_bias": {"99": 1}}, "logit_bias: token ids go from 0 to 29, got 99"),
            ({"logit_bias": {"3": 101}}, "logit_bias.3: "),
            ({"logprobs": 9}, "logprobs goes from 0 to 5, got 9"),
            ({"n": 0}, "n must be at least 1, got 0"),
            ({"temperature": -1}, "temperature goes from 0.0001 to 10000, got -1"),
            ({"extra_body": {"num_texts": 3}, "n": 2}, "n=2 and num_texts=3 are names of one"),
            ({"extra_body": {"beem_size": 3}}, "did you mean 'beam_size'?"),
            (
                {"extra_body": {"rerank": "mbr-chrf"}, "stream": True, "n": 2},
                "leave rerank and select out",
            ),
            ({"stream_options": {"include_usage": True}}, "stream_options are for a stream"),
            ({"prompt": ["a"] * 40}, "at most 32 prompts, got 40"),
            ({"prompt": []}, "a prompt must be text"),
        ],
    )
    def test_what_has_no_meaning_here(
        self, client: openai.OpenAI, options: dict[str, Any], told: str
    ) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(**{"model": "letters", "prompt": "hello"} | options)
        assert told in caught.value.message

    def test_what_a_chat_cannot_do(self, client: openai.OpenAI) -> None:
        tools: Any = [{"type": "function", "function": {"name": "f"}}]
        for options, told in (
            ({"tools": tools}, "tools need a chat template that tells the model of them"),
            ({"functions": [{"name": "f"}]}, "Functions are given as tools"),
            ({"modalities": ["text", "audio"]}, "Answers are text"),
            ({"web_search_options": {}}, "Nothing is looked up"),
        ):
            asked: dict[str, Any] = {"model": "letters", "messages": MESSAGES, **options}
            with pytest.raises(openai.BadRequestError, match=told):
                client.chat.completions.create(**asked)
        with pytest.raises(openai.BadRequestError, match="top_logprobs needs logprobs"):
            client.chat.completions.create(model="letters", messages=MESSAGES, top_logprobs=3)

    def test_a_full_queue_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client obeys Retry-After by itself."""
        statuses: list[int] = []
        with served(letters_lm(), limits=Limits(queue=1)) as running:
            limits = running.loop.limits
            num_refused = 2

            def waiting(self: Any) -> int:
                nonlocal num_refused
                num_refused -= 1
                return limits.searches + limits.queue if num_refused >= 0 else 0

            monkeypatch.setattr(type(running.loop), "num_waiting", property(waiting))
            hooks = {"response": [lambda response: statuses.append(response.status_code)]}
            transport = httpx.Client(event_hooks=hooks)
            with openai.OpenAI(
                base_url=running.url + "/v1", api_key="-", max_retries=3, http_client=transport
            ) as client:
                answer = client.completions.create(model="letters", prompt="hello", max_tokens=4)
        assert answer.choices
        assert statuses[0] == 429
        assert statuses[-1] == 200


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["letters"]
    assert client.models.retrieve("letters").owned_by == "bestk"


@pytest.mark.model
def test_the_embedded_model(smollm2: bestk.LanguageModel) -> None:
    """Completions, chat with n=20, JSON of a schema: on a real model."""
    with (
        served(smollm2) as running,
        openai.OpenAI(base_url=running.url + "/v1", api_key="-", max_retries=0) as client,
    ):
        prompt, settings = "The best thing about dogs is", {"scoring": "sum", "beam_size": 4}
        answer = client.completions.create(
            model="smollm2", prompt=prompt, n=5, max_tokens=12, stop=["."], extra_body=settings
        )
        result = bestk.search(smollm2, prompt, raw=True, max_new_tokens=12, stop=".", **settings)
        assert [choice.text for choice in answer.choices] == result.texts[:5]
        messages: Any = [{"role": "user", "content": "Name a colour."}]
        chat = client.chat.completions.create(
            model="smollm2", messages=messages, n=20, max_tokens=8, extra_body={"stop": "."}
        )
        told = bestk.search(smollm2, messages, max_new_tokens=8, stop=".", num_texts=20)
        complete = [c.message.content for c in chat.choices if c.finish_reason == "stop"]
        assert complete == [h.text for h in told.hypotheses if h.is_complete]
        assert len(chat.choices) == 20
        schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
        form: Any = {"type": "json_schema", "json_schema": {"name": "age", "schema": schema}}
        typed = client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=12, response_format=form
        )
        assert str(typed.choices[0].message.content).startswith('{"age": ')
