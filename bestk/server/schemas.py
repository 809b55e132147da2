"""The bodies of requests, as pydantic models: what is accepted, and what the OpenAPI document says.

The settings of a search come from `bestk.settings`; an unknown field is an error that names the
nearest known one. Rules between settings are `SearchConfig`'s. Knows no routes.
"""

from __future__ import annotations

import contextlib
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
    """A body: no field is guessed at, none that says something is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if isinstance(data, dict):
            _check_text(data)
            unasked = {name for name in data if name not in cls.model_fields}
            for name in unasked:
                if data[name] is not None:
                    raise OptionError(unknown("field", str(name), cls.model_fields))
            data = {name: value for name, value in data.items() if name not in unasked}
        return data


def _check_text(data: Any) -> None:
    """Refuse halves of characters, which JSON can write and no tokenizer can read."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"text must be valid Unicode, got {error.object[error.start]!r}"
        ) from None


def ignored() -> Any:
    """Describe a field that changes nothing."""
    return Field(default=None, description="Accepted, not looked at.")


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


class RefusalPart(Body):
    """A part of a message that says why there is no answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What it says."""
        return self.refusal


class CalledFunction(Body):
    """Which function a model called, with which arguments."""

    name: str
    arguments: str = Field(description="JSON.")


class ToolCall(Body):
    """A call of a tool, as an answer had it."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return the call as a chat template takes it: its arguments are data."""
        arguments: Any = self.function.arguments
        with contextlib.suppress(ValueError, RecursionError):  # models write what they like
            arguments = json.loads(arguments)
        called = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": called}


class Message(Body):
    """One message of a conversation; an answer's message may come back as it is."""

    role: Annotated[str, Field(min_length=1, examples=["user"])]
    content: (
        str
        | list[Annotated[TextPart | RefusalPart | ImagePart, Field(discriminator="type")]]
        | None
    ) = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    type: Literal["text", "message"] | None = ignored()
    annotations: list[Any] | None = ignored()
    reasoning_content: str | None = ignored()
    provider_specific_fields: dict[str, Any] | None = ignored()

    @property
    def has_images(self) -> bool:
        """Whether any part of it is an image."""
        return any(isinstance(part, ImagePart) for part in self.content or ())

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not self.refusal and not self.tool_calls:
            raise OptionError("a message needs content: a text, or a list of text parts")
        return self


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
