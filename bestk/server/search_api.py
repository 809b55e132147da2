"""The server's own API: searches with everything they found, as a result or as a stream of steps.

Also what a page needs to know before it can ask: models, settings, methods, limits.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from bestk.baselines.beam import Beam
from bestk.baselines.methods import METHODS, method_of
from bestk.config import DIVERSITY, SELECTIONS, SearchConfig
from bestk.errors import OptionError
from bestk.lm.language_model import LanguageModel
from bestk.rerank.postprocess import Finish
from bestk.result import Hypothesis, SearchResult
from bestk.server import events
from bestk.server.answers import ModelCard, ModelList, SearchAnswer, SettingAnswer, SettingsAnswer
from bestk.server.errors import api_error, responses
from bestk.server.handle import BEST_K, Handle, SearchCall, SearchProgress
from bestk.server.limits import Limits
from bestk.server.messages import chat_of
from bestk.server.schemas import SearchBody, settings_of
from bestk.server.service import FREE_RERANKERS, Service
from bestk.server.subscription import StreamUpdate, Subscription, in_thread
from bestk.settings import every_setting
from bestk.version import __version__
from bestk.viz.graph import Graph, difference, to_graph

STREAM_EVENTS = (
    "With `stream` server-sent events: `start`, `queued`, `step`, `result`, `error`; each has JSON."
)


def router(service: Service, *, needs_token: bool = False) -> APIRouter:
    """Make the routes."""
    routes = APIRouter(prefix="/v1")
    started = int(time.time())

    @routes.get("/models", tags=["search"], response_model=ModelList, responses=responses(401))
    async def models() -> ModelList:
        """List the models."""
        return ModelList(data=[_card(name, lm, started) for name, lm in service.models.items()])

    @routes.get(
        "/models/{model:path}",
        tags=["search"],
        response_model=ModelCard,
        responses=responses(401, 404),
    )
    async def model(model: str) -> ModelCard:
        """Describe one model."""
        name, lm = service.model(model)
        return _card(name, lm, started)

    @routes.get(
        "/settings", tags=["search"], response_model=SettingsAnswer, responses=responses(401)
    )
    async def settings() -> SettingsAnswer:
        """List every setting of a search, with its default, its range and a line of help."""
        return _settings(service, needs_token)

    @routes.post(
        "/search",
        tags=["search"],
        response_class=Response,
        responses={
            200: {
                "description": "The result. " + STREAM_EVENTS,
                "model": SearchAnswer,
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            **responses(400, 401, 404, 413, 429, 500, 503),
        },
    )
    async def search(body: SearchBody, request: Request) -> Response:
        """Search one prompt with best-k search or another method."""
        asked = Asked(service, body)
        subscription = Subscription(service.loop, [asked.call])
        await subscription.accepted(request)
        if body.stream:
            return events.Stream(asked.events(subscription), subscription.cancel)
        (result,) = await subscription.results(request)
        (handle,) = subscription.handles
        return JSONResponse(await in_thread(lambda: asked.answer(handle.id, result)))

    return routes


class Asked:
    """One request for a search: what is asked, and how the answer is written."""

    def __init__(self, service: Service, body: SearchBody) -> None:
        self.body = body
        self.name, lm = service.model(body.model)
        allowed = service.trie(body.allowed)
        self.config = service.check(settings_of(body), allowed)
        self.finish: Finish = service.finish(body, self.config)
        call = SearchCall(
            lm=lm,
            prompt=_prompt(lm, body, service.limits),
            config=self.config,
            begin=body.begin,
            method=body.method,
            allowed=allowed,
            exclude=body.exclude,
            is_followed=body.stream,
            with_graph=body.graph,
            max_seconds=service.limits.seconds,
        )
        self.call, self.searched = call, call.search_config  # None: not a search of ours
        if self.searched is None:
            keeps_all = isinstance(method_of(body.method), Beam)
            service.limits.check_beams(self.config, keeps_all=keeps_all)
        elif body.graph:
            service.limits.check_graph(self.searched)
        self._graph: Graph | None = None  # as the client has it

    def answer(self, job_id: str, result: SearchResult) -> dict[str, Any]:
        """Write the result, its texts chosen, with its whole graph where that is wanted."""
        result = self._told(result)
        chosen = self.finish(result)
        written = {"id": job_id, "model": self.name, **chosen.to_json(tree=self.body.tree)}
        if self.body.graph and self.searched is not None:
            written["graph"] = self._draw(result)
        return written

    async def events(self, subscription: Subscription) -> AsyncIterator[str]:
        """Write what happens to the search, from its start to its result."""
        handle = subscription.handles[0]
        yield events.event("start", self._start(handle))
        async for update in subscription.updates():
            yield await self._event(handle.id, update)

    async def _event(self, job_id: str, update: StreamUpdate) -> str:
        if update.position is not None:
            return events.event("queued", {"position": update.position})
        if update.progress is not None:
            progress = update.progress
            return events.event("step", await in_thread(lambda: self._step(progress)))
        if update.error is not None:
            return events.event("error", api_error(update.error).body())
        if update.result is not None:
            return await self._result(job_id, update.result)
        return events.KEEP_ALIVE

    async def _result(self, job_id: str, result: SearchResult) -> str:
        try:
            return events.event("result", await in_thread(lambda: self.answer(job_id, result)))
        except Exception as error:  # the stream has begun: it is too late for a status
            return events.event("error", api_error(error).body())

    def _start(self, handle: Handle) -> dict[str, Any]:
        assert handle.request is not None
        return {
            "id": handle.id,
            "model": self.name,
            "method": self.call.method,
            "signature": handle.request.signature,
            "budget": self.config.total_budget,
            "config": dataclasses.asdict(self.searched or self.config),
        }

    def _step(self, progress: SearchProgress) -> dict[str, Any]:
        written: dict[str, Any] = {
            "step": progress.step,
            "expanded": progress.expanded,
            "num_texts": progress.num_texts,
            "mass": progress.mass.brief(),
            "texts": [_text(hypothesis) for hypothesis in progress.texts],
        }
        if progress.snapshot is not None:
            new = self._draw(progress.snapshot)
            written["graph"] = difference(self._graph, new)
            self._graph = new
        return written

    def _draw(self, result: SearchResult) -> Graph:
        return to_graph(self._told(result), frontiers=False, pruned_prob=False)

    def _told(self, result: SearchResult) -> SearchResult:
        """Tell what was asked, where the text was begun: what was searched are token ids."""
        prompt, begin = self.call.lm.told(self.call.prompt), self.call.begin
        if not begin:
            return result
        if isinstance(prompt, str):
            return dataclasses.replace(result, prompt=prompt + begin)
        if isinstance(prompt[0], dict):
            begun = {"role": "assistant", "content": begin}
            return dataclasses.replace(result, prompt=[*prompt, begun])
        return result


def _prompt(lm: LanguageModel, body: SearchBody, limits: Limits) -> Any:
    if (body.prompt is None) == (body.messages is None):
        raise OptionError("give one of prompt and messages")
    if body.messages is not None:
        if body.raw:
            raise OptionError("raw is for a prompt: messages need chat formatting")
        return chat_of(body.messages, limits)
    if isinstance(body.prompt, str) and not body.raw:
        return lm.chat_prompt(body.prompt)
    return body.prompt


def _text(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        "text": hypothesis.text,
        "score": hypothesis.score,
        "log_prob": hypothesis.log_prob,
        "num_tokens": hypothesis.num_tokens,
        "step": hypothesis.step,
    }


def _card(name: str, lm: LanguageModel, created: int) -> ModelCard:
    return ModelCard(
        id=name, created=created, is_chat=lm.is_chat, max_length=lm.backend.capabilities.max_length
    )


def _settings(service: Service, needs_token: bool) -> SettingsAnswer:
    limits = service.limits
    most: dict[str, float] = {
        "k": limits.k,
        "budget": limits.budget,
        "max_new_tokens": limits.new_tokens,
        "max_frontier": limits.frontier,
        "max_children": limits.children,
        "timeout": limits.seconds,
    }
    usual = dataclasses.asdict(SearchConfig())
    return SettingsAnswer(
        settings=[
            SettingAnswer(
                name=setting.name,
                type=setting.type_name,
                default=list(usual[setting.name]) if setting.is_list else usual[setting.name],
                help=setting.help,
                panel=setting.panel,
                choices=None if setting.choices is None else list(setting.choices),
                min=setting.minimum,
                max=most.get(setting.name, setting.maximum),
            )
            for setting in every_setting(SearchConfig)
        ],
        methods=[BEST_K, *METHODS],
        limits=dataclasses.asdict(limits),
        defaults={
            "model": next(iter(service.models)),
            "method": BEST_K,
            "select": None,
            "diversity": DIVERSITY,
            **usual,
        },
        models=list(service.models),
        rerankers=[*FREE_RERANKERS, *service.rerankers],
        selections=list(SELECTIONS),
        needs_token=needs_token,
        version=__version__,
    )
