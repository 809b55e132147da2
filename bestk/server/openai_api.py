"""`/v1/completions` and `/v1/chat/completions`: best-k search for whoever speaks OpenAI's API.

`n` texts come from one search: the best n, or in a stream the first n that are found. What has no
meaning here is refused by name. Knows requests; how results are written is in `openai_format`.
"""

from __future__ import annotations

import functools
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bestk.config import SearchConfig
from bestk.core.record import TreeRecord
from bestk.errors import OptionError
from bestk.result import Hypothesis, SearchResult, emptiness
from bestk.server import events
from bestk.server.answers import ChatAnswer, CompletionAnswer
from bestk.server.errors import api_error, responses
from bestk.server.handle import SearchCall
from bestk.server.limits import Limits
from bestk.server.messages import chat_of
from bestk.server.openai_format import Choice, chat_choice, completion_choice, filled_up, usage
from bestk.server.openai_schemas import ChatBody, CompletionBody, OpenAIBody
from bestk.server.schemas import settings_of
from bestk.server.service import Service
from bestk.server.subscription import StreamUpdate, Subscription, in_thread
from bestk.server.tools import tools_of

_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
_ERRORS = responses(400, 401, 404, 413, 429, 500, 503)
_MOST_LOGPROBS = 5  # of a completion
_MOST_TOP_LOGPROBS = 20  # of a chat


def router(service: Service) -> APIRouter:
    """Make the routes."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])

    @routes.post(
        "/completions",
        response_class=Response,
        responses=answers(CompletionAnswer, "The texts; with `stream` one event for each."),
    )
    async def complete(body: CompletionBody, request: Request) -> Response:
        """Continue a prompt, or several, in the shape of OpenAI's completions."""
        return await answer_to(service, CompletionRequest(service, body), request)

    @routes.post(
        "/chat/completions",
        response_class=Response,
        responses=answers(ChatAnswer, "The texts; with `stream` one event for each."),
    )
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answer a conversation, in the shape of OpenAI's chat completions."""
        return await answer_to(service, ChatRequest(service, body), request)

    return routes


def answers(model: Any, description: str) -> dict[int | str, dict[str, Any]]:
    """Describe what a route may answer."""
    ok = {"model": model, "description": description, "content": dict(_STREAM)}
    return {200: ok, **_ERRORS}


async def answer_to(service: Service, asked: OpenAIRequest, request: Request) -> Response:
    """Search, and answer at the end or by a stream."""
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
        refuse(body)
        n = _one_of(body, "n", "num_texts")
        self.n = 1 if n is None else n
        if self.n < 1:
            raise OptionError(f"n must be at least 1, got {self.n}")
        if len(prompts) > service.limits.prompts:
            raise OptionError(
                f"a request has at most {service.limits.prompts} prompts, got {len(prompts)}"
            )
        if body.stream and self.n > 1 and (body.rerank or body.select):
            raise OptionError("a stream sends texts as they come: leave rerank and select out")
        if body.stream_options is not None and not body.stream:
            raise OptionError("stream_options are for a stream: set stream, or leave them out")
        self.name, self.lm = service.model(body.model)
        self.top = self._top()
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        config = service.check(self._settings(service.limits))
        self.finish = service.finish(body, config)
        self.calls = [
            SearchCall(
                lm=self.lm,
                prompt=prompt,
                config=config,
                processors=_biases(body.logit_bias, self.lm.backend.vocab_size),
                is_followed=self.is_followed,
                with_graph=self.is_followed and bool(self.top),
                max_seconds=service.limits.seconds,
                **self._asked(),
            )
            for prompt in prompts
        ]

    @property
    def is_followed(self) -> bool:
        """Whether texts are sent as they complete; the best one is known at the end."""
        return bool(self.body.stream) and self.n > 1

    def answer(self, results: list[SearchResult], prompt_tokens: list[int]) -> dict[str, Any]:
        """Write all texts of all prompts."""
        choices: list[Choice] = []
        texts: list[Hypothesis] = []
        for number, result in enumerate(results):
            found = self._best(result)
            choices += self._choices(number, 0, found, result.tree)
            texts += found
        expansions = sum(result.cost.expanded for result in results)
        notices = [told for result in results if (told := _notice(result)) is not None]
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

    def _best(self, result: SearchResult) -> list[Hypothesis]:
        return filled_up(self.lm, self.finish(result), result, self.n)

    def _fresh(
        self, update: StreamUpdate, sent: list[list[Hypothesis]]
    ) -> tuple[list[Hypothesis], TreeRecord | None]:
        """Return the texts of an update that are still wanted, and the tree they are in."""
        known = {text.text for text in sent[update.number]}
        room = self.n - len(known)
        if update.progress is not None:
            snapshot = update.progress.snapshot
            return list(update.progress.texts)[:room], None if snapshot is None else snapshot.tree
        if update.result is not None and not self.is_followed:
            return self._best(update.result), update.result.tree
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

    def _settings(self, limits: Limits) -> SearchConfig:
        """Make the settings; a budget that nobody asked for stays within the limit."""
        body, given = self.body, self._given(limits)
        config = settings_of(body, given, without=body.neutral())
        if config.total_budget > limits.budget and not _tells(body, "budget", "beam_size"):
            given["budget"] = limits.budget
            config = settings_of(body, given, without=body.neutral())
        return config

    @property
    def length(self) -> int | None:
        """How long a text may be, if that is said."""
        return _one_of(self.body, "max_tokens", "max_completion_tokens", "max_new_tokens")

    def _given(self, limits: Limits) -> dict[str, Any]:
        """Return the settings that OpenAI has other names for."""
        n = _one_of(self.body, "n", "num_texts")
        given = {"num_texts": n, "max_new_tokens": self.length}
        return {name: value for name, value in given.items() if value is not None}

    def _asked(self) -> dict[str, Any]:
        """Return what is asked of the search besides its settings."""
        return {}

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
        name, lm = service.model(body.model)
        if not lm.is_chat:
            raise OptionError(
                f"model {name} has no chat template, it continues plain prompts: "
                "send the text to /v1/completions, or to /v1/search as prompt"
            )
        functions = [tool.function.model_dump(exclude_none=True) for tool in body.tools or ()]
        self.tools = tools_of(
            functions,
            body.tool_choice,
            lm.tool_template,
            is_single=body.parallel_tool_calls is False,
        )
        if self.tools is not None and any(message.has_images for message in body.messages):
            raise OptionError("tools and images do not go together here: leave out either")
        super().__init__(service, body, [chat_of(body.messages, service.limits)])

    def _top(self) -> int | None:
        top = _within("top_logprobs", self.body.top_logprobs, _MOST_TOP_LOGPROBS)
        if top and not self.body.logprobs:
            raise OptionError("top_logprobs needs logprobs: set it to true")
        return (top or 0) if self.body.logprobs else None

    def _given(self, limits: Limits) -> dict[str, Any]:
        given, form = super()._given(limits), self.body.response_format
        schema = None if form is None else form.schema_
        if schema is not None:
            given["json_schema"] = schema
        if self.tools is not None:
            given["grammar"] = self.tools.grammar
        if self.length is None:  # an answer is as long as the model makes it
            given |= {"num_texts": self.n, "max_new_tokens": limits.new_tokens}
            if not _tells(self.body, "max_completions"):
                given["max_completions"] = self.n
        return given

    def _asked(self) -> dict[str, Any]:
        tools = () if self.tools is None else self.tools.specs
        return {"tools": tools, "fills_context": self.length is None}

    def _writer(self, is_chunk: bool) -> Callable[..., Choice]:
        return functools.partial(chat_choice, tools=self.tools, is_chunk=is_chunk)


def refuse(body: OpenAIBody) -> None:
    """Refuse fields of OpenAI's that have no meaning here, unless they ask for nothing."""
    for name, neutral in body.refused().items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            about = type(body).model_fields[name].description or ""
            raise OptionError(f"{name}={value!r} is not supported: {about.partition('.')[0]}")


def _notice(result: SearchResult) -> str | None:
    """Return what there is to say of a result: also why every text was cut off."""
    if result.notice is not None or any(text.is_complete for text in result.hypotheses):
        return result.notice
    bound = 0.0 if result.bound is None else result.bound
    return emptiness(result.config, result.stop_reason, result.num_truncated, bound)


def _biases(biases: dict[str, float] | None, vocab_size: int) -> list[Any]:
    """Turn OpenAI's logit_bias into a processor; what it forbids is never written."""
    if not biases:
        return []
    from transformers import SequenceBiasLogitsProcessor

    for token in biases:
        if not (token.isdecimal() and int(token) < vocab_size):
            raise OptionError(f"logit_bias: token ids go from 0 to {vocab_size - 1}, got {token}")
    by_id = {int(token): -math.inf if v == -100 else v for token, v in biases.items()}
    return [SequenceBiasLogitsProcessor([[[token], value] for token, value in by_id.items()])]


def _tells(body: OpenAIBody, *names: str) -> bool:
    """Return whether any of these settings is given."""
    return any(getattr(body, name) is not None for name in names)


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
