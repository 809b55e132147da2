"""The bodies of answers, for the OpenAPI document: what a client can rely on finding in them.

Answers are written by the code that makes them; the tests hold them against these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """An answer may grow fields; those named here stay."""

    model_config = ConfigDict(extra="allow")


class HypothesisAnswer(Answer):
    """One text."""

    text: str
    score: float
    log_prob: float
    num_tokens: int
    token_ids: list[int]
    log_probs: list[float]
    step: int
    count: int
    is_certified: bool
    is_complete: bool
    rerank_score: float | None


class CostAnswer(Answer):
    """What a search spent."""

    expanded: int
    steps: int
    model_calls: int
    evaluated: int
    seconds: float


class SearchAnswer(Answer):
    """A result, as `SearchResult.to_json` writes it."""

    id: str
    model: str
    format: Literal["bestk.result"]
    version: int
    prompt: Any
    hypotheses: list[HypothesisAnswer]
    mass: dict[str, float] = Field(description="completed, frontier, pruned, truncated; sum 1.")
    cost: CostAnswer
    signature: str
    config: dict[str, Any]
    stop_reason: str
    num_completions: int
    num_truncated: int
    certified: int
    notice: str | None = Field(description="Why there is no text, where there is none.")
    graph: dict[str, Any] | None = Field(default=None, description="Where graph was asked for.")


class Usage(Answer):
    """What a request of the OpenAI kind cost."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    expansions: int = Field(description="Nodes expanded: the search's own cost.")


class CompletionChoice(Answer):
    """One text of a completion."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: dict[str, Any] | None
    score: float
    log_prob: float


class CompletionAnswer(Answer):
    """What `POST /v1/completions` answers."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    notice: str | None = Field(description="Why there is no complete text, where there is none.")


class ChatChoice(Answer):
    """One answer in a conversation."""

    index: int
    message: dict[str, Any]
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: dict[str, Any] | None
    score: float
    log_prob: float


class ChatAnswer(Answer):
    """What `POST /v1/chat/completions` answers."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    notice: str | None = Field(description="Why there is no complete text, where there is none.")


class ModelCard(Answer):
    """One model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "bestk"
    is_chat: bool = Field(description="Whether it takes messages.")
    max_length: int | None = Field(description="Tokens of prompt and text together.")


class ModelList(Answer):
    """All models; the first is the one searched where none is named."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class SettingAnswer(Answer):
    """One setting, for whoever draws controls."""

    name: str
    type: str = Field(description="integer, number or string; [] after it where it is a list.")
    default: Any
    help: str
    panel: str
    choices: list[str] | None = None
    min: float | None = None
    max: float | None = None


class SettingsAnswer(Answer):
    """All that a page needs to know of this server."""

    settings: list[SettingAnswer]
    methods: list[str]
    limits: dict[str, float]
    defaults: dict[str, Any]
    models: list[str]
    rerankers: list[str]
    selections: list[str]
    needs_token: bool
    version: str
