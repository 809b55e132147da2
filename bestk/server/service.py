"""What the routes share: the models by name, the loop, the limits, the rerankers on offer.

Turns the parts of a request that are the same everywhere (model, choice of texts, settings) into
what the library takes. Knows bodies, no routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bestk.config import SearchConfig
from bestk.constraints.allowed import Allowed
from bestk.errors import OptionError, unknown
from bestk.lm.language_model import LanguageModel
from bestk.rerank import reranker_of
from bestk.rerank.mbr import UTILITIES
from bestk.rerank.postprocess import Finish
from bestk.server.errors import ApiError
from bestk.server.limits import Limits
from bestk.server.loop import SearchLoop
from bestk.server.schemas import Settings

# Rerankers that need no model of their own: on offer everywhere.
FREE_RERANKERS = tuple(
    f"mbr-{utility}{weights}" for utility in UTILITIES for weights in ("", ":prob", ":uniform")
)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One server's models and rules."""

    models: Mapping[str, LanguageModel]
    loop: SearchLoop
    rerankers: Mapping[str, Any] = field(default_factory=dict)  # by name, loaded already
    tries: Mapping[str, Allowed] = field(default_factory=dict)

    @property
    def limits(self) -> Limits:
        """What a request may ask for."""
        return self.loop.limits

    def model(self, name: str | None) -> tuple[str, LanguageModel]:
        """Find a model; the first one where none is named."""
        if name is None:
            return next(iter(self.models.items()))
        if name not in self.models:
            message = unknown("model", name, self.models)
            raise ApiError(404, message, param="model", code="model_not_found")
        return name, self.models[name]

    def finish(self, body: Settings, config: SearchConfig) -> Finish:
        """Make what chooses the texts; a client cannot make the server load models."""
        name = body.rerank
        if name is not None and name not in (*FREE_RERANKERS, *self.rerankers):
            offered = [*FREE_RERANKERS, *self.rerankers]
            raise OptionError(unknown("reranker", name, offered))
        reranker = None if name is None else self.rerankers.get(name) or reranker_of(name)
        finish = Finish(rerank=reranker, select=body.select, diversity=body.diversity)
        finish.check(config)
        return finish

    def check(self, config: SearchConfig, allowed: Allowed | None = None) -> SearchConfig:
        """Return the settings if they are within the limits."""
        config = config if allowed is None else allowed.settings(config)
        self.limits.check(config)
        return config

    def trie(self, name: str | None) -> Allowed | None:
        """Find a trie."""
        if name is not None and name not in self.tries:
            raise OptionError(unknown("trie", name, self.tries))
        return None if name is None else self.tries[name]
