"""The bodies that OpenAI's clients send, as pydantic models: what is taken, ignored, and refused.

Knows no routes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bestk.errors import OptionError
from bestk.server.schemas import Body, Message, Settings, ignored


class StreamOptions(Body):
    """What a stream of the OpenAI kind ends with."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


def refused(what: str) -> Any:
    """Describe a field that must ask for nothing."""
    return Field(default=None, description=f"{what} Anything but the neutral value is refused.")


# Values that other servers take for "not set", or for a certainty that a search has anyway.
NEUTRAL: dict[str, tuple[float, ...]] = {
    "temperature": (0,),
    "top_p": (0, 1),
    "top_k": (-1, 0),
    "min_p": (0,),
}


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
        default=None,
        description="Send each text as it completes, the first n that are found; of one, the best.",
    )
    stream_options: StreamOptions | None = None
    user: str | None = ignored()
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, description="Added to the logits of tokens, by their ids; −100 forbids one."
    )

    def refused(self) -> dict[str, Any]:
        """Name the fields that must be neutral, with the neutral values."""
        return {}

    def neutral(self) -> set[str]:
        """Name settings that are given and say nothing."""
        return {name for name, values in NEUTRAL.items() if getattr(self, name) in values}


class CompletionBody(OpenAIBody):
    """What `POST /v1/completions` takes."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="A text or its token ids, or a list of either."
    )
    logprobs: int | None = Field(
        default=None, description="Log-probabilities of the tokens, and of so many others, up to 5."
    )
    echo: bool | None = refused("The prompt is not repeated.")
    suffix: str | None = refused("There is no text after the completion.")
    best_of: int | None = refused("All texts come from one search: use n.")

    def refused(self) -> dict[str, Any]:
        return {"echo": (False,), "suffix": ("",), "best_of": (self.n or 1,)}


class JsonSchema(BaseModel):
    """A schema with a name, as OpenAI's clients send it."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(BaseModel):
    """The form of the answers: free text, any JSON object, or JSON of a schema."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def schema_(self) -> dict[str, Any] | None:
        """What every text is to be a document of."""
        if self.type == "json_schema" and self.json_schema is None:
            raise OptionError("response_format of type json_schema needs json_schema")
        if self.type == "json_schema" and self.json_schema is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


class Function(BaseModel):
    """A function that a model may call."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, description="A JSON schema that the arguments always meet."
    )


class Tool(BaseModel):
    """A tool: there are functions alone."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    type: Literal["function"] = "function"
    function: Function


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
    tools: list[Tool] | None = Field(
        default=None, description="Functions to call; the chat template must have a place for them."
    )
    tool_choice: str | dict[str, Any] | None = Field(
        default=None, description="none, auto, required, or one that must be called."
    )
    parallel_tool_calls: bool | None = Field(default=None, description="False: one call at most.")
    store: bool | None = Field(default=None, description="Accepted; nothing is stored.")
    metadata: dict[str, Any] | None = ignored()
    service_tier: str | None = ignored()
    reasoning_effort: str | None = ignored()
    verbosity: str | None = ignored()
    safety_identifier: str | None = ignored()
    prompt_cache_key: str | None = ignored()
    prompt_cache_options: dict[str, Any] | None = ignored()
    prompt_cache_retention: str | None = ignored()
    prediction: dict[str, Any] | None = ignored()
    modalities: list[str] | None = refused("Answers are text.")
    audio: Any | None = refused("Answers are text.")
    web_search_options: Any | None = refused("Nothing is looked up.")
    moderation: Any | None = refused("Nothing is moderated.")
    functions: list[Any] | None = refused("Functions are given as tools.")
    function_call: Any | None = refused("Functions are given as tools.")

    def refused(self) -> dict[str, Any]:
        named = ("audio", "web_search_options", "moderation", "function_call", "functions")
        neutral: dict[str, Any] = {name: ("none", []) for name in named}
        return neutral | {"modalities": (["text"],)}
