"""What is evaluated: an example of a task, and the texts that a method found for it.

Plain data. Knows neither models nor metrics.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bestk.errors import SchemaError, unknown
from bestk.rerank.select import diverse

VIEWS = ("all", "unique", "top", "diverse")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One input with what people wrote for it."""

    id: str
    input: str  # what the metrics and rerankers call the source
    references: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)  # what the prompt is made of

    def to_json(self) -> dict[str, Any]:
        """Return the example as plain data."""
        return {
            "id": self.id,
            "input": self.input,
            "references": list(self.references),
            "fields": dict(self.fields),
        }

    @classmethod
    def from_json(cls, data: Any, place: str = "an example") -> Example:
        """Read an example; `place` names it in an error."""
        try:
            references = data["references"]
            if isinstance(references, str):
                references = [references]
            found = cls(
                id=str(data["id"]),
                input=data["input"],
                references=tuple(references),
                fields=dict(data.get("fields") or {}),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"{place} needs id, input and references: {error!r}") from None
        if not isinstance(found.input, str) or not found.input.strip():
            raise SchemaError(f"{place} has no input: give at least one word")
        if not all(isinstance(text, str) for text in found.references):
            raise SchemaError(f"{place}: references must be a list of texts")
        return found


def digest(examples: Sequence[Example]) -> str:
    """Name a list of examples by what is in them."""
    data = json.dumps([example.to_json() for example in examples], sort_keys=True)
    return hashlib.sha256(data.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The texts of one method for one example: unique, best first, with how often each came."""

    example: Example
    texts: tuple[str, ...]
    counts: tuple[int, ...]
    scores: tuple[float, ...]  # what the texts are ranked by
    log_probs: tuple[float, ...] | None = None  # the model's; runs of old have none
    is_reranked: bool = False
    seconds: float | None = None
    expanded: int = 0
    model_calls: int = 0

    @property
    def num_texts(self) -> int:
        """Count the completed texts, duplicates included: the paper's S."""
        return sum(self.counts)

    def weights(self, view: str, top: int) -> list[int]:
        """Return how often each text counts.

        `all`: as often as it was completed. `unique`: once. `top`: once, for the first `top` texts.
        `diverse`: once, for the `top` texts that `select="diverse"` chooses.
        """
        if view == "all":
            return list(self.counts)
        if view == "unique":
            return [1] * len(self.texts)
        if view == "top":
            return [int(place < top) for place in range(len(self.texts))]
        if view == "diverse":
            # A run that has no probabilities has its ranking to go by.
            scores = self.scores if self.is_reranked or self.log_probs is None else None
            chosen = _diverse(self.texts, self.log_probs, scores, top)
            return [int(place in chosen) for place in range(len(self.texts))]
        raise SchemaError(unknown("view", view, VIEWS))

    def chosen(self, view: str, top: int) -> list[str]:
        """List the texts of a view, a text that counts twice twice."""
        weights = self.weights(view, top)
        return [
            text for text, weight in zip(self.texts, weights, strict=True) for _ in range(weight)
        ]

    def reordered(self, scores: Sequence[float]) -> Pool:
        """Put the texts in the order of new scores, highest first; equal ones keep their order."""
        if len(scores) != len(self.texts):
            raise SchemaError(f"{len(self.texts)} texts need as many scores, got {len(scores)}")
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        log_probs = self.log_probs and tuple(self.log_probs[place] for place in order)
        return dataclasses.replace(
            self,
            texts=tuple(self.texts[place] for place in order),
            counts=tuple(self.counts[place] for place in order),
            scores=tuple(scores[place] for place in order),
            log_probs=log_probs,
            is_reranked=True,
        )


@functools.lru_cache(maxsize=100_000)  # several metrics look at the same texts
def _diverse(
    texts: tuple[str, ...],
    log_probs: tuple[float, ...] | None,
    scores: tuple[float, ...] | None,
    top: int,
) -> frozenset[int]:
    return frozenset(diverse(texts, log_probs, top, scores=scores))
