"""The bodies of requests, as pydantic models: what is accepted, and what the OpenAPI document says.

The settings of a search come from `bestk.settings`; an unknown field is an error that names the
nearest known one. Rules between settings are `SearchConfig`'s. Knows no routes.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Set
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from bestk.config import DIVERSITY, SELECTIONS, SearchConfig
from bestk.errors import OptionError, unknown
from bestk.server.handle import BEST_K
from bestk.settings import Setting, every_setting


class Body(BaseModel):
    """A body: no field is guessed at, none is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if isinstance(data, dict):
            _check_text(data)
            for name in data:
                if name not in cls.model_fields:
                    raise OptionError(unknown("field", str(name), cls.model_fields))
        return data


def _check_text(data: Any) -> None:
    """Refuse halves of characters, which JSON can write and no tokenizer can read."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"text must be valid Unicode, got {error.object[error.start]!r}"
        ) from None


# A list of one may be given without the brackets.
_LISTS: dict[str, Any] = {
    "integer[]": int | list[int],
    "string[]": str | list[str],
    "integer[][]": list[list[int]],
}


def _field(setting: Setting) -> tuple[Any, Any]:
    kind: Any = setting.kind
    if setting.is_list:
        kind = _LISTS[setting.type_name]
    if setting.name == "json_schema":
        kind = str | dict[str, Any]
    if setting.choices is not None:
        kind = Literal[setting.choices]
    told: dict[str, Any] = {}
    if setting.kind in (int, float):
        told |= {"minimum": setting.minimum} if setting.minimum is not None else {}
        told |= {"maximum": setting.maximum} if setting.maximum is not None else {}
    default = list(setting.default) if setting.is_list else setting.default
    text = setting.help if default is None else f"{setting.help} Default: {default}."
    return kind | None, Field(default=None, description=text, json_schema_extra=told)


class Choice(Body):
    """Which of the texts are returned, and in which order."""

    select: Literal[SELECTIONS] | None = Field(  # type: ignore[valid-type]
        default=None, description="Of n texts good ones that differ, as is usual, or the best."
    )
    diversity: float = Field(
        default=DIVERSITY, description="How much diverse texts differ: 0, quality alone, to 1."
    )
    rerank: str | None = Field(
        default=None, description="Another order of the texts: mbr-chrf or mbr-bleu."
    )


if typing.TYPE_CHECKING:
    Settings = Choice
else:
    Settings = create_model(
        "Settings", __base__=Choice, **{s.name: _field(s) for s in every_setting(SearchConfig)}
    )

SETTING_NAMES = frozenset(setting.name for setting in every_setting(SearchConfig))


class TextPart(Body):
    """A part of a message that is text."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """Where an image is: in the URL itself."""

    url: Annotated[str, Field(description="data:image/png;base64,… (or jpeg, webp, gif).")]
    detail: Literal["auto", "low", "high"] | None = Field(
        default=None, description="Accepted; the model's processor chooses the size."
    )


class ImagePart(Body):
    """A part of a message that is an image."""

    type: Literal["image_url"]
    image_url: ImageUrl


class Message(Body):
    """One message of a conversation."""

    role: Annotated[str, Field(min_length=1, examples=["user"])]
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]
    name: str | None = None


class SearchBody(Settings):
    """What `POST /v1/search` takes: a prompt, and any setting of a search."""

    model: str | None = Field(
        default=None, description="One of /v1/models; the first unless given."
    )
    prompt: str | list[int] | None = Field(
        default=None, description="The text to continue or answer, or its token ids."
    )
    messages: list[Message] | None = Field(
        default=None, description="A conversation, in place of a prompt."
    )
    raw: bool = Field(
        default=False, description="Continue the prompt as it is, without chat formatting."
    )
    begin: str = Field(
        default="",
        description="How every text begins: the search goes on from there, and its texts hold what "
        "comes after it.",
    )
    method: str = Field(
        default=BEST_K, description="BKS for best-k search, or a name of /v1/settings' methods."
    )
    allowed: str | None = Field(
        default=None, description="A trie of this server: every text is one of its items."
    )
    exclude: list[int | str] = Field(
        default=[], description="Items of it that are left out, as results name them."
    )
    stream: bool = Field(default=False, description="Send events while the search runs.")
    graph: bool = Field(default=False, description="Send the search tree too.")
    tree: bool = Field(
        default=False, description="Put the whole tree into the result, for /v1/render."
    )


class StreamOptions(Body):
    """What a stream of the OpenAI kind ends with."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


def _refused(what: str) -> Any:
    return Field(default=None, description=f"{what} Anything but the neutral value is refused.")


class OpenAIBody(Settings):
    """The fields that both OpenAI endpoints share, and any setting of a search."""

    model: str | None = Field(
        default=None, description="One of /v1/models; the first unless given."
    )
    n: int | None = Field(
        default=None, description="Texts to return, the best ones; 1 unless given."
    )
    max_tokens: int | None = Field(default=None, description="The same as max_new_tokens.")
    stream: bool | None = Field(
        default=None, description="Send each text as it completes: the first n that are found."
    )
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, description="Accepted, not looked at.")
    presence_penalty: float | None = _refused("No such penalty is here.")
    frequency_penalty: float | None = _refused("No such penalty is here.")
    logit_bias: dict[str, float] | None = _refused("Tokens cannot be weighed.")

    def refused(self) -> dict[str, Any]:
        """Name the fields that must be neutral, with the neutral values."""
        return {"presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},)}


class CompletionBody(OpenAIBody):
    """What `POST /v1/completions` takes."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="A text or its token ids, or a list of either."
    )
    logprobs: int | None = Field(
        default=None, description="Log-probabilities of the tokens, and of so many others, up to 5."
    )
    echo: bool | None = _refused("The prompt is not repeated.")
    suffix: str | None = _refused("There is no text after the completion.")
    best_of: int | None = _refused("All texts come from one search: use n.")

    def refused(self) -> dict[str, Any]:
        return super().refused() | {"echo": (False,), "suffix": ("",), "best_of": (self.n or 1,)}


class JsonSchema(BaseModel):
    """A schema with a name, as OpenAI's clients send it."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """The form of the answers: free text, or JSON of a schema."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    type: Literal["text", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatBody(OpenAIBody):
    """What `POST /v1/chat/completions` takes."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = Field(
        default=None, description="The same as max_new_tokens."
    )
    logprobs: bool | None = Field(default=None, description="Log-probabilities of the tokens.")
    top_logprobs: int | None = Field(
        default=None, description="And of so many others, up to 20; needs logprobs."
    )
    response_format: ResponseFormat | None = None
    store: bool | None = Field(default=None, description="Accepted; nothing is stored.")
    metadata: dict[str, str] | None = Field(default=None, description="Accepted, not looked at.")
    tools: list[Any] | None = _refused("There are no tools.")
    tool_choice: Any | None = _refused("There are no tools.")
    functions: list[Any] | None = _refused("There are no functions.")
    function_call: Any | None = _refused("There are no functions.")

    def refused(self) -> dict[str, Any]:
        none: dict[str, Any] = {"tools": ([],), "functions": ([],)}
        return super().refused() | none | {"tool_choice": ("none",), "function_call": ("none",)}


def settings_of(
    body: Settings, given: dict[str, Any] | None = None, *, without: Set[str] = frozenset()
) -> SearchConfig:
    """Make a config of the settings in a body; a field that is null counts as not given."""
    options = {
        name: value
        for name in (body.model_fields_set & SETTING_NAMES) - without
        if (value := getattr(body, name)) is not None
    }
    return SearchConfig.of(options | (given or {}))
