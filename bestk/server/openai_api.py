"""`/v1/completions` and `/v1/chat/completions`: best-k search for whoever speaks OpenAI's API.

`n` texts come from one search: the best n, or in a stream the first n that are found. What has no
meaning here is refused by name. Knows requests; how results are written is in `openai_format`.
"""

from __future__ import annotations

import functools
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bestk.core.record import TreeRecord
from bestk.errors import OptionError
from bestk.result import Hypothesis, SearchResult
from bestk.server import events
from bestk.server.answers import ChatAnswer, CompletionAnswer
from bestk.server.errors import api_error, responses
from bestk.server.handle import SearchCall
from bestk.server.messages import chat_of
from bestk.server.openai_format import Choice, chat_choice, completion_choice, filled_up, usage
from bestk.server.schemas import ChatBody, CompletionBody, OpenAIBody, settings_of
from bestk.server.service import Service
from bestk.server.subscription import StreamUpdate, Subscription, in_thread

_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
_ERRORS = responses(400, 401, 404, 413, 429, 500, 503)
_MOST_LOGPROBS = 5  # of a completion
_MOST_TOP_LOGPROBS = 20  # of a chat


def router(service: Service) -> APIRouter:
    """Make the routes."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])

    def answers(model: Any, description: str) -> dict[int | str, dict[str, Any]]:
        ok = {"model": model, "description": description, "content": dict(_STREAM)}
        return {200: ok, **_ERRORS}

    @routes.post(
        "/completions",
        response_class=Response,
        responses=answers(CompletionAnswer, "The texts; with `stream` one event for each."),
    )
    async def complete(body: CompletionBody, request: Request) -> Response:
        """Continue a prompt, or several, in the shape of OpenAI's completions."""
        return await _answer(service, CompletionRequest(service, body), request)

    @routes.post(
        "/chat/completions",
        response_class=Response,
        responses=answers(ChatAnswer, "The texts; with `stream` one event for each."),
    )
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answer a conversation, in the shape of OpenAI's chat completions."""
        return await _answer(service, ChatRequest(service, body), request)

    return routes


async def _answer(service: Service, asked: OpenAIRequest, request: Request) -> Response:
    subscription = Subscription(service.loop, asked.calls)
    await subscription.accepted(request)
    if asked.body.stream:
        return events.Stream(asked.events(subscription), subscription.cancel)
    results = await subscription.results(request)
    counts = [handle.prompt_tokens for handle in subscription.handles]
    return JSONResponse(await in_thread(lambda: asked.answer(results, counts)))


class OpenAIRequest(ABC):
    """One request of either kind: what is asked, and how the answer is written."""

    prefix: str
    kind: str
    chunk_kind: str

    def __init__(self, service: Service, body: OpenAIBody, prompts: list[Any]) -> None:
        self.body = body
        _refuse(body)
        n = _one_of(body, "n", "num_texts")
        self.n = 1 if n is None else n
        if self.n < 1:
            raise OptionError(f"n must be at least 1, got {self.n}")
        if len(prompts) > service.limits.prompts:
            raise OptionError(
                f"a request has at most {service.limits.prompts} prompts, got {len(prompts)}"
            )
        if body.stream and (body.rerank or body.select):
            raise OptionError("a stream sends texts as they come: leave rerank and select out")
        if body.stream_options is not None and not body.stream:
            raise OptionError("stream_options are for a stream: set stream, or leave them out")
        self.name, self.lm = service.model(body.model)
        self.top = self._top()
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        config = service.check(settings_of(body, self._given(), without=self._neutral()))
        self.finish = service.finish(body, config)
        self.calls = [
            SearchCall(
                lm=self.lm,
                prompt=prompt,
                config=config,
                is_followed=bool(body.stream),
                with_graph=bool(body.stream) and bool(self.top),
                max_seconds=service.limits.seconds,
            )
            for prompt in prompts
        ]

    def answer(self, results: list[SearchResult], prompt_tokens: list[int]) -> dict[str, Any]:
        """Write all texts of all prompts."""
        choices: list[Choice] = []
        texts: list[Hypothesis] = []
        for number, result in enumerate(results):
            found = filled_up(self.lm, self.finish(result), result, self.n)
            choices += self._choices(number, 0, found, result.tree)
            texts += found
        expansions = sum(result.cost.expanded for result in results)
        notices = [result.notice for result in results if result.notice is not None]
        return {
            **self._frame(self.kind),
            "choices": choices,
            "usage": usage(sum(prompt_tokens), texts, expansions),
            "notice": notices[0] if notices else None,
        }

    async def events(self, subscription: Subscription) -> AsyncIterator[str]:
        """Send each text as it completes, n for each prompt, then what it cost."""
        sent: list[list[Hypothesis]] = [[] for _ in subscription.handles]
        async for update in subscription.updates():
            if update.error is not None:
                yield events.event(None, api_error(update.error).body())
                return
            fresh, record = await in_thread(functools.partial(self._fresh, update, sent))
            for text in fresh:
                (choice,) = self._choices(
                    update.number, len(sent[update.number]), [text], record, is_chunk=True
                )
                sent[update.number].append(text)
                yield events.event(None, self._chunk([choice]))
            if len(sent[update.number]) >= self.n:
                subscription.drop(update.number)
            if update == StreamUpdate(number=0):
                yield events.KEEP_ALIVE
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            handles = subscription.handles
            cost = usage(
                sum(handle.prompt_tokens for handle in handles),
                [text for texts in sent for text in texts],
                sum(handle.expanded for handle in handles),
            )
            yield events.event(None, self._chunk([]) | {"usage": cost})
        yield events.DONE

    def _fresh(
        self, update: StreamUpdate, sent: list[list[Hypothesis]]
    ) -> tuple[list[Hypothesis], TreeRecord | None]:
        """Return the texts of an update that are still wanted, and the tree they are in."""
        known = {text.text for text in sent[update.number]}
        room = self.n - len(known)
        if update.progress is not None:
            snapshot = update.progress.snapshot
            return list(update.progress.texts)[:room], None if snapshot is None else snapshot.tree
        if update.result is not None:
            # Texts that nobody has heard of, then what was cut off.
            every = filled_up(self.lm, update.result, update.result, self.n + len(known))
            fresh = [text for text in every if text.text not in known]
            return fresh[:room], update.result.tree
        return [], None

    def _choices(
        self,
        number: int,
        first: int,
        texts: list[Hypothesis],
        record: TreeRecord | None,
        *,
        is_chunk: bool = False,
    ) -> list[Choice]:
        write = self._writer(is_chunk)
        start = number * self.n + first
        return [
            write(self.lm, record, start + place, text, self.top)
            for place, text in enumerate(texts)
        ]

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.name}

    def _chunk(self, choices: list[Choice]) -> dict[str, Any]:
        return {**self._frame(self.chunk_kind), "choices": choices}

    def _given(self) -> dict[str, Any]:
        """Return the settings that OpenAI has other names for."""
        length = _one_of(self.body, "max_tokens", "max_completion_tokens", "max_new_tokens")
        given = {"num_texts": _one_of(self.body, "n", "num_texts"), "max_new_tokens": length}
        return {name: value for name, value in given.items() if value is not None}

    def _neutral(self) -> set[str]:
        """Name settings that are given, and say nothing: OpenAI's clients send top_p=1."""
        return {"top_p"} if getattr(self.body, "top_p", None) == 1 else set()

    @abstractmethod
    def _top(self) -> int | None:
        """Return how many likeliest tokens are wanted beside each one; None for no log-probs."""

    @abstractmethod
    def _writer(self, is_chunk: bool) -> Callable[..., Choice]:
        """Return the function that words a choice."""


class CompletionRequest(OpenAIRequest):
    """A request for completions."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"
    body: CompletionBody

    def __init__(self, service: Service, body: CompletionBody) -> None:
        prompt = body.prompt
        is_many = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        super().__init__(service, body, list(prompt) if is_many else [prompt])

    def _top(self) -> int | None:
        return _within("logprobs", self.body.logprobs, _MOST_LOGPROBS)

    def _writer(self, is_chunk: bool) -> Callable[..., Choice]:
        return completion_choice


class ChatRequest(OpenAIRequest):
    """A request for answers to a conversation."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"
    body: ChatBody

    def __init__(self, service: Service, body: ChatBody) -> None:
        super().__init__(service, body, [chat_of(body.messages, service.limits)])

    def _top(self) -> int | None:
        top = _within("top_logprobs", self.body.top_logprobs, _MOST_TOP_LOGPROBS)
        if top and not self.body.logprobs:
            raise OptionError("top_logprobs needs logprobs: set it to true")
        return (top or 0) if self.body.logprobs else None

    def _given(self) -> dict[str, Any]:
        given, form = super()._given(), self.body.response_format
        if form is not None and form.type == "json_schema":
            if form.json_schema is None:
                raise OptionError("response_format of type json_schema needs json_schema")
            given["json_schema"] = form.json_schema.schema_
        return given

    def _writer(self, is_chunk: bool) -> Callable[..., Choice]:
        return functools.partial(chat_choice, name="delta" if is_chunk else "message")


def _refuse(body: OpenAIBody) -> None:
    """Refuse fields of OpenAI's that have no meaning here, unless they ask for nothing."""
    for name, neutral in body.refused().items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            about = type(body).model_fields[name].description or ""
            raise OptionError(f"{name}={value!r} is not supported: {about.partition('.')[0]}")


def _one_of(body: OpenAIBody, *names: str) -> int | None:
    """Return what is given under one of several names."""
    given = {name: value for name in names if (value := getattr(body, name, None)) is not None}
    if len(set(given.values())) > 1:
        told = " and ".join(f"{name}={value}" for name, value in given.items())
        raise OptionError(f"{told} are names of one setting: give one of them")
    return next(iter(given.values()), None)


def _within(name: str, value: int | None, most: int) -> int | None:
    if value is not None and not 0 <= value <= most:
        raise OptionError(f"{name} goes from 0 to {most}, got {value}")
    return value
