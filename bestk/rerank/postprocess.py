"""What happens to a result after the search: it is reranked, then the texts to show are chosen.

The settings are checked, and a reranker's model is loaded, before the search begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bestk.config import DIVERSITY
from bestk.rerank.select import Embed, check_selection, narrow
from bestk.result import SearchResult

if TYPE_CHECKING:
    from bestk.rerank import Reranker


class Finish:
    """Reranks and chooses, as told; told nothing it returns results as they are."""

    def __init__(
        self,
        *,
        rerank: str | Reranker | Callable[[str, str], float] | None = None,
        num_texts: int | None = None,
        select: str = "best",
        diversity: float = DIVERSITY,
        embed: Embed | None = None,
    ) -> None:
        check_selection(num_texts, select, diversity)
        self.num_texts, self.select = num_texts, select
        self.diversity, self.embed = diversity, embed
        self.reranker = None
        if rerank is not None:
            from bestk.rerank import reranker_of

            self.reranker = reranker_of(rerank)

    def __call__(self, result: SearchResult) -> SearchResult:
        """Return the finished result."""
        if self.reranker is not None:
            from bestk.rerank import rerank

            result = rerank(result, self.reranker)
        return narrow(
            result, self.num_texts, self.select, diversity=self.diversity, embed=self.embed
        )
