"""What one request may ask for, and how many may wait: the server's protection of its memory.

A request past a limit is refused before anything is searched. Knows settings, no HTTP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from bestk.config import SearchConfig
from bestk.errors import OptionError, PromptError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server; the first group has flags of `bestk serve`."""

    queue: int = 64  # searches that may wait
    searches: int = 8  # that run side by side
    prompt_tokens: int = 2048
    new_tokens: int = 512
    budget: int = 3000
    seconds: float = 120.0  # of one search, the waiting not counted
    body_bytes: int = 4_000_000

    k: int = 128
    frontier: int = 50_000
    children: int = 1000
    prompts: int = 32  # of one request
    graph_nodes: int = 200_000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "queue" else 1
            if field.name == "seconds":
                if not value > 0:
                    raise OptionError(f"the limit of seconds must be above 0, got {value:g}")
            elif value < least:
                raise OptionError(
                    f"the limit of {field.name} must be at least {least}, got {value}"
                )

    @classmethod
    def of(cls, given: Mapping[str, float | None]) -> Limits:
        """Make limits of those that are given; None is the default."""
        return cls(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

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
                raise OptionError(f"{name} is at most {limit:g} on this server, got {value:g}")
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

    def check_prompt(self, num_tokens: int) -> None:
        """Refuse a prompt that is too long."""
        if num_tokens > self.prompt_tokens:
            raise PromptError(
                f"the prompt has {num_tokens} tokens, at most {self.prompt_tokens} on this server: "
                "shorten it"
            )
