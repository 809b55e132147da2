"""Which kind of server an address is, and which of its models is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bestk.backends.http.dialect import Dialect, Wording
from bestk.backends.http.llama_cpp import LlamaCppDialect
from bestk.backends.http.sglang import SglangDialect
from bestk.backends.http.transport import Refusal, Transport
from bestk.backends.http.vllm import VllmDialect
from bestk.errors import OptionError, ServerError, unknown

Card = Mapping[str, Any]

DIALECTS: dict[str, Callable[[Wording, Card], Dialect]] = {
    "vllm": VllmDialect,
    "sglang": SglangDialect,
    "llama.cpp": LlamaCppDialect,
}
# What servers put into `owned_by` of their models.
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
# An endpoint that only one kind has, and a field of its answer.
_MARKS = {
    "/props": ("default_generation_settings", "llama.cpp"),
    "/model_info": ("model_path", "sglang"),
    "/get_model_info": ("model_path", "sglang"),
}


def find_dialect(
    transport: Transport, model: str | None, server: str | None, extra_body: Mapping[str, Any]
) -> Dialect:
    """Find out how to speak to a server about one of its models."""
    if server is not None and server not in DIALECTS:
        raise OptionError(unknown("server", server, DIALECTS))
    card = _card(_cards(transport), model, transport.url)
    kind = server or _OWNERS.get(str(card.get("owned_by"))) or _marked(transport)
    wording = Wording(model=str(card["id"]), extra_body=dict(extra_body))
    return DIALECTS[kind](wording, card)


def _cards(transport: Transport) -> Sequence[Card]:
    try:
        answer = transport.get("/v1/models")
    except Refusal as refusal:
        if refusal.status in {401, 403}:
            raise
        raise ServerError(
            f"{transport.url} lists no models at /v1/models ({refusal.status}): give the address "
            "of a vLLM, SGLang or llama.cpp server, such as http://localhost:8000"
        ) from refusal
    listed = answer.get("data") if isinstance(answer, dict) else None
    cards = [card for card in listed or [] if isinstance(card, dict) and card.get("id")]
    if not cards:
        raise ServerError(f"{transport.url} serves no model: see what /v1/models answers")
    return cards


def _card(cards: Sequence[Card], model: str | None, url: str) -> Card:
    """Pick the card of the model that was asked for, or of the only one; adapters are no models."""
    by_name = {str(card["id"]): card for card in cards}
    if model is not None:
        if model not in by_name:
            raise OptionError(f"{url}: {unknown('model', model, by_name)}")
        return by_name[model]
    plain = [card for card in cards if not card.get("parent")] or list(cards)
    if len(plain) > 1:
        names = ", ".join(str(card["id"]) for card in plain)
        raise OptionError(f"{url} serves several models: choose one with model= ({names})")
    return plain[0]


def _marked(transport: Transport) -> str:
    """Look for what only one kind has; else it may be something that answers as vLLM does."""
    for path, (mark, kind) in _MARKS.items():
        try:
            answer = transport.get(path)
        except ServerError:
            continue
        if isinstance(answer, dict) and mark in answer:
            return kind
    return "vllm"
