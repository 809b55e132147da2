"""What one request may ask for, and how many may wait: the server's protection of its memory.

A request past a limit is refused before anything is searched. Knows settings, no HTTP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bestk.config import GrammarLimits, SearchConfig
from bestk.errors import OptionError, PromptError
from bestk.lm.images import ImageLimits
from bestk.settings import every_setting

_LISTS = tuple(setting.name for setting in every_setting(SearchConfig) if setting.is_list)


def _limit(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server; every one has a flag of `bestk serve`, `--max-` and its name."""

    searches: int = _limit(8, "Searches that run side by side.")
    queue: int = _limit(64, "Searches that may wait; more are refused.")
    seconds: float = _limit(120.0, "Time of one search, the waiting not counted.")
    prompts: int = _limit(32, "Prompts of one request.")
    prompt_tokens: int = _limit(2048, "Longest prompt.")
    prompt_characters: int = _limit(200_000, "Longest prompt before it is encoded.")
    new_tokens: int = _limit(512, "Longest text.")
    budget: int = _limit(3000, "Node expansions of one search.")
    k: int = _limit(128, "Nodes of one model call, and beams of other methods.")
    frontier: int = _limit(50_000, "Open nodes.")
    children: int = _limit(1000, "Tokens looked at per node.")
    graph_nodes: int = _limit(200_000, "Nodes of a graph.")
    body_bytes: int = _limit(4_000_000, "Size of a request's body.")
    body_commas: int = _limit(70_000, "Commas in it, which bound its values; not of /v1/render.")
    list_entries: int = _limit(256, "Entries of one setting: stop strings, words, ids.")
    images: int = _limit(4, "Images of one conversation.")
    image_bytes: int = _limit(2_000_000, "Size of an image's file.")
    image_pixels: int = _limit(16_000_000, "Width times height of an image.")
    grammar_characters: int = _limit(GrammarLimits.characters, "Longest regex, schema or grammar.")
    grammar_depth: int = _limit(GrammarLimits.depth, "Brackets in brackets of it.")
    grammar_items: int = _limit(GrammarLimits.items, "Commas and bars in it.")
    grammar_seconds: float = _limit(GrammarLimits.seconds, "Time to compile it and to try it out.")
    grammar_megabytes: int = _limit(GrammarLimits.megabytes, "Memory for that.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("queue", "images") else 1
            if field.type == "float":
                if not value > 0:
                    raise OptionError(f"the limit of {field.name} must be above 0, got {value:g}")
            elif value < least:
                raise OptionError(
                    f"the limit of {field.name} must be at least {least}, got {value}"
                )

    @property
    def grammar(self) -> GrammarLimits:
        """What a grammar may be and take."""
        fields = dataclasses.fields(GrammarLimits)
        return GrammarLimits(**{f.name: getattr(self, f"grammar_{f.name}") for f in fields})

    @property
    def image(self) -> ImageLimits:
        """What an image may be."""
        return ImageLimits(bytes=self.image_bytes, pixels=self.image_pixels)

    def check(self, config: SearchConfig) -> None:
        """Refuse settings that this server does not run."""
        most = {
            "max_new_tokens": self.new_tokens,
            "k": self.k,
            "max_frontier": self.frontier,
            "max_children": self.children,
            "min_children": self.children,
            "timeout": self.seconds,
        }
        for name, limit in most.items():
            value = getattr(config, name)
            if value is not None and value > limit:
                shown = f"{value:g}" if isinstance(value, float) else value
                raise OptionError(f"{name} is at most {limit:g} on this server, got {shown}")
        for name in _LISTS:
            count = len(getattr(config, name) or ())
            if count > self.list_entries:
                raise OptionError(
                    f"{name} has at most {self.list_entries} entries on this server, got {count}"
                )
        if config.total_budget > self.budget:
            raise OptionError(
                f"the budget is at most {self.budget} expansions on this server, got "
                f"{config.total_budget}: lower budget, or beam_size or max_new_tokens"
            )

    def check_beams(self, config: SearchConfig, *, keeps_all: bool) -> None:
        """Refuse beams of another method that are too many, or (`keeps_all`) too many and too long.

        A budget bounds best-k search and samplers; beam search pays for all its beams regardless.
        """
        if config.beam_size > self.k:
            raise OptionError(
                f"beam_size is at most {self.k} on this server, got {config.beam_size}"
            )
        cost = config.beam_size * config.max_new_tokens
        if keeps_all and cost > self.budget:
            raise OptionError(
                f"beams cost at most {self.budget} expansions on this server, beam_size times "
                f"max_new_tokens are {cost}: lower either"
            )

    def check_graph(self, config: SearchConfig) -> None:
        """Refuse to draw a search whose graph could be too large to send."""
        nodes = config.total_budget * config.num_children(self.children)
        if nodes > self.graph_nodes:
            raise OptionError(
                f"a graph may have {self.graph_nodes} nodes on this server, these settings could "
                f"make {nodes}: leave graph out, lower the budget or raise min_prob"
            )

    def check_text(self, prompt: Any, tools: Sequence[Any] = ()) -> None:
        """Refuse a prompt that would take long to encode."""
        parts = [*(prompt if isinstance(prompt, list) else [prompt]), *tools]
        size = sum(_num_characters(one) for one in parts)
        if size > self.prompt_characters:
            raise PromptError(
                f"the prompt has {size} characters, at most {self.prompt_characters} on this "
                "server: shorten it"
            )

    def check_images(self, count: int) -> None:
        """Refuse more images than are read."""
        if count > self.images:
            raise PromptError(
                f"a conversation has at most {self.images} images on this server, got {count}"
            )

    def check_prompt(self, num_tokens: int) -> None:
        """Refuse a prompt that is too long."""
        if num_tokens > self.prompt_tokens:
            raise PromptError(
                f"the prompt has {num_tokens} tokens, at most {self.prompt_tokens} on this server: "
                "shorten it"
            )


def _num_characters(part: Any) -> int:
    """Count the characters of a message, or of what else a prompt holds; not of images."""
    if not isinstance(part, dict):
        return len(str(part))
    content = part.get("content")
    if not isinstance(content, list):  # of texts and images
        return sum(len(str(value)) for value in part.values())
    size = sum(len(str(value)) for name, value in part.items() if name != "content")
    return size + sum(len(one.get("text", "")) for one in content)
