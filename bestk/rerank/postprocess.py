"""What happens to a result after the search: it is reranked, then the texts to show are chosen.

The settings are checked, and a reranker's model is loaded, before the search begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from bestk.config import DIVERSITY, SearchConfig
from bestk.rerank.select import Embed, check_embed, check_selection, narrow
from bestk.result import SearchResult, shortage

if TYPE_CHECKING:
    from bestk.rerank import Reranker


# Nats per token; chosen on CommonGen, where it costs the best text least.
_MUCH = 0.5


class Finish:
    """Reranks and chooses, as told; told nothing it returns results as they are."""

    def __init__(
        self,
        *,
        rerank: str | Reranker | Callable[[str, str], float] | None = None,
        select: str | None = None,
        diversity: float = DIVERSITY,
        embed: Embed | None = None,
    ) -> None:
        check_embed(embed)
        self.select, self.diversity, self.embed = select, diversity, embed
        self.reranker = None
        if rerank is not None:
            from bestk.rerank import reranker_of

            self.reranker = reranker_of(rerank)

    def check(self, config: SearchConfig) -> None:
        """Raise before a search if its texts cannot be chosen so."""
        check_selection(self.select, self.diversity, config.num_texts)

    def __call__(self, result: SearchResult) -> SearchResult:
        """Return the finished result."""
        return self.choose(self.order(result))

    def order(self, result: SearchResult) -> SearchResult:
        """Return the result in the reranker's order, if there is one."""
        if self.reranker is None:
            return result
        from bestk.rerank import rerank

        return rerank(result, self.reranker)

    def choose(self, result: SearchResult) -> SearchResult:
        """Return the result with the texts that were asked for, and why they are fewer."""
        if result.config.sample == "texts" and self.select is None:  # the sample is the choice
            return result
        n = result.config.num_texts
        chosen = narrow(result, n, self.select, diversity=self.diversity, embed=self.embed)
        if n is not None and not result.config.fill:
            return _likely(chosen)
        found = len(chosen.hypotheses)
        has_ended = result.stop_reason not in ("interrupted", "broken")
        if chosen.notice is None and has_ended and found < (n or 0):
            notice = shortage(result.config, result.stop_reason, found)
            chosen = dataclasses.replace(chosen, notice=notice)
        return chosen


def _likely(result: SearchResult) -> SearchResult:
    """Leave out texts that are much less likely, per token, than the likeliest of them."""
    each = [text.log_prob / text.num_tokens for text in result.hypotheses]
    pairs = zip(result.hypotheses, each, strict=True)
    kept = tuple(text for text, log_prob in pairs if log_prob >= max(each) - _MUCH)
    return dataclasses.replace(
        result, hypotheses=kept, certified=sum(text.is_certified for text in kept)
    )
