"""`/v1/responses`: the newer form of a chat, which OpenAI's agents speak.

A request is made into one for a chat, and what that answers into items: a message or calls for each
text. Nothing is stored, so a conversation is sent whole. Knows no searches.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bestk.errors import OptionError
from bestk.result import SearchResult
from bestk.server import events
from bestk.server.answers import Answer
from bestk.server.errors import api_error
from bestk.server.openai_api import ChatRequest, answer_to, answers, refuse
from bestk.server.openai_schemas import ChatBody, OpenAIBody, refused
from bestk.server.schemas import ignored
from bestk.server.service import Service
from bestk.server.subscription import StreamUpdate, Subscription, in_thread

_LOGPROBS = "message.output_text.logprobs"
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


class Item(BaseModel):
    """One thing that was said or done; an answer's items may come back as they are."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[dict[str, Any]] = ""


class ResponsesBody(OpenAIBody):
    """What `POST /v1/responses` takes."""

    input: str | list[Item] = Field(description="A text, or the items of a conversation.")
    instructions: str | None = Field(default=None, description="The system's message.")
    max_output_tokens: int | None = Field(default=None, description="The same as max_new_tokens.")
    text: dict[str, Any] | None = Field(
        default=None, description="format: text, json_object, or json_schema with its schema."
    )
    tools: list[dict[str, Any]] | None = Field(
        default=None, description="Functions to call; the chat template must have a place for them."
    )
    tool_choice: str | dict[str, Any] | None = Field(
        default=None, description="none, auto, required, or one that must be called."
    )
    parallel_tool_calls: bool | None = Field(default=None, description="False: one call at most.")
    top_logprobs: int | None = Field(
        default=None, description=f"Likeliest tokens, up to 20; needs include: [{_LOGPROBS}]."
    )
    include: list[str] | None = Field(default=None, description=f"{_LOGPROBS}, or not looked at.")
    background: bool | None = refused("Answers are waited for.")
    conversation: Any | None = refused("Nothing is stored: send the conversation as input.")
    previous_response_id: str | None = refused("Nothing is stored: send it all as input.")
    prompt: Any | None = refused("No prompts are stored.")
    moderation: Any | None = refused("Nothing is moderated.")
    max_tool_calls: int | None = ignored()
    metadata: dict[str, Any] | None = ignored()
    prompt_cache_key: str | None = ignored()
    prompt_cache_options: dict[str, Any] | None = ignored()
    prompt_cache_retention: str | None = ignored()
    reasoning: dict[str, Any] | None = ignored()
    safety_identifier: str | None = ignored()
    service_tier: str | None = ignored()
    store: bool | None = ignored()
    truncation: str | None = ignored()

    def refused(self) -> dict[str, Any]:
        names = ("conversation", "previous_response_id", "prompt", "moderation")
        return {"background": (False,), **dict.fromkeys(names, ())}

    def chat(self) -> ChatBody:
        """Return the same request in the older form."""
        refuse(self)
        own = (type(self).model_fields.keys() - OpenAIBody.model_fields.keys()) | {"stream_options"}
        given: dict[str, Any] = {
            **self.model_dump(include=self.model_fields_set - own, exclude_none=True),
            "messages": list(self._messages()),
            "max_completion_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": _format((self.text or {}).get("format")),
            "tools": [_nested(tool) for tool in self.tools or ()],
            "tool_choice": _choice(self.tool_choice),
        }
        if _LOGPROBS in (self.include or ()):
            given |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        try:
            return ChatBody.model_validate(given)
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None

    def _messages(self) -> Iterator[dict[str, Any]]:
        if self.instructions:
            yield {"role": "system", "content": self.instructions}
        items = (
            [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        )
        for kind, group in itertools.groupby(items, lambda item: item.type):
            if kind == "function_call":
                calls = [_called(item) for item in group]
                yield {"role": "assistant", "content": None, "tool_calls": calls}
            elif kind != "reasoning":
                yield from map(_said, group)


class ResponsesAnswer(Answer):
    """What `POST /v1/responses` answers."""

    id: str
    object: Literal["response"]
    created_at: float
    model: str
    status: Literal["completed", "incomplete", "in_progress"]
    output: list[dict[str, Any]]
    notice: str | None = Field(default=None, description="Why there is no complete text.")


def router(service: Service) -> APIRouter:
    """Make the route."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])

    @routes.post(
        "/responses",
        response_class=Response,
        responses=answers(ResponsesAnswer, "The answer; with `stream` its events."),
    )
    async def respond(body: ResponsesBody, request: Request) -> Response:
        """Answer a conversation, in the shape of OpenAI's responses."""
        return await answer_to(service, ResponsesRequest(service, body), request)

    return routes


class ResponsesRequest(ChatRequest):
    """A request for a response."""

    prefix, is_followed = "resp", False

    def __init__(self, service: Service, body: ResponsesBody) -> None:
        self.told = body
        super().__init__(service, body.chat())

    def answer(self, results: list[SearchResult], prompt_tokens: list[int]) -> dict[str, Any]:
        """Write all texts as items."""
        found = super().answer(results, prompt_tokens)
        choices, spent = found["choices"], found["usage"]
        is_cut = any(choice["finish_reason"] == "length" for choice in choices[:1])
        return {
            **self._response("incomplete" if is_cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [item for choice in choices for item in _items(choice)],
            "usage": {
                "input_tokens": spent["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": spent["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": spent["total_tokens"],
                "expansions": spent["expansions"],
            },
            "notice": found["notice"],
        }

    async def events(self, subscription: Subscription) -> AsyncIterator[str]:
        """Send the answer item by item, once it is known."""
        number = itertools.count()

        def event(kind: str, **data: Any) -> str:
            return events.event(kind, {"type": kind, "sequence_number": next(number), **data})

        yield event("response.created", response=self._response("in_progress"))
        async for update in subscription.updates():
            if update.error is not None:
                told = api_error(update.error).detail
                yield event("error", code=told.code, message=told.message, param=told.param)
            if update == StreamUpdate(number=0):
                yield events.KEEP_ALIVE
            if update.result is not None:
                found, counts = [update.result], [subscription.handles[0].prompt_tokens]
                answer = await in_thread(lambda: self.answer(found, counts))  # noqa: B023
                for place, item in enumerate(answer["output"]):
                    for kind, data in _told(item):
                        yield event(kind, output_index=place, **data)
                yield event(f"response.{answer['status']}", response=answer)

    def _response(self, status: str) -> dict[str, Any]:
        body = self.told
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.name,
            "status": status,
            "output": [],
            "instructions": body.instructions,
            "tools": [{"parameters": None, "strict": None, **tool} for tool in body.tools or ()],
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
        }


def _items(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the message and the calls of one text."""
    message, scores = choice["message"], {name: choice[name] for name in ("score", "log_prob")}
    status = "incomplete" if choice["finish_reason"] == "length" else "completed"
    if message["content"] or not message.get("tool_calls"):
        logprobs = (choice["logprobs"] or {}).get("content") or []
        text: dict[str, Any] = {"type": "output_text", "text": message["content"] or ""}
        yield {
            **{"id": _name("msg"), "type": "message", "role": "assistant", "status": status},
            "content": [{**text, "annotations": [], "logprobs": logprobs}],
            **scores,
        }
    for call in message.get("tool_calls") or ():
        called = {"id": _name("fc"), "type": "function_call", "call_id": call["id"]}
        yield {**called, **call["function"], "status": status, **scores}


def _told(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of one item."""
    whose = {"item_id": item["id"]}
    begun = {**item, "status": "in_progress"}
    if item["type"] == "message":
        (part,) = item["content"]
        where = {**whose, "content_index": 0}
        text, logprobs = part["text"], part["logprobs"]
        yield "response.output_item.added", {"item": {**begun, "content": []}}
        yield "response.content_part.added", {**where, "part": {**part, "text": "", "logprobs": []}}
        yield "response.output_text.delta", {**where, "delta": text, "logprobs": logprobs}
        yield "response.output_text.done", {**where, "text": text, "logprobs": logprobs}
        yield "response.content_part.done", {**where, "part": part}
    else:
        name, arguments = item["name"], item["arguments"]
        yield "response.output_item.added", {"item": {**begun, "arguments": ""}}
        yield "response.function_call_arguments.delta", {**whose, "delta": arguments}
        done = {**whose, "name": name, "arguments": arguments}
        yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {"item": item}


def _said(item: Item) -> dict[str, Any]:
    """Return a message, or what a function gave, in the older form."""
    if item.type == "message":
        return {"role": item.role or "user", "content": _content(item.content)}
    return {"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)}


def _content(content: str | list[dict[str, Any]] | None) -> Any:
    """Return the content of a message in the older form."""
    if content is None or isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = str(part.get("type"))
        if kind == "input_image":
            image = {"url": part.get("image_url"), "detail": part.get("detail")}
            parts.append({"type": "image_url", "image_url": image})
        elif kind in _PARTS:
            name = _PARTS[kind]
            parts.append({"type": name, name: part.get(name)})
        else:
            raise OptionError(f"parts of a message are input_text or input_image, got {kind!r}")
    return parts


def _format(told: dict[str, Any] | None) -> dict[str, Any] | None:
    return told and {**told, "json_schema": told if told.get("type") == "json_schema" else None}


def _nested(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise OptionError(f"tools are functions, got {json.dumps(tool.get('type'))}: leave it out")
    return {"type": "function", "function": tool}


def _choice(told: Any) -> Any:
    """Return a choice of tools in the older form, where a function is an object of its own."""
    if not isinstance(told, dict):
        return told
    if told.get("type") == "allowed_tools" and isinstance(told.get("tools"), list):
        tools = [{"function": tool} for tool in told["tools"]]
        return {"type": "allowed_tools", "allowed_tools": {**told, "tools": tools}}
    return {"type": told.get("type"), "function": told}


def _called(item: Item) -> dict[str, Any]:
    called = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": called}


def _name(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:24]}"
