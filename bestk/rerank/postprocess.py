"""What happens to a result after the search: it is reranked, then the texts to show are chosen.

The settings are checked, and a reranker's model is loaded, before the search begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from bestk.config import DIVERSITY, SearchConfig
from bestk.rerank.ngrams import agreements_of, gram_sets, is_loop
from bestk.rerank.select import Embed, check_embed, check_selection, narrow
from bestk.result import Hypothesis, SearchResult, shortage

if TYPE_CHECKING:
    from bestk.rerank import Reranker


# How much worse than the best of those shown a text may be, in nats; docs/selection-study.md.
_MUCH = 0.6
_PER_TOKEN = 0.5  # weight of the mean log-probability
_FLATTENED = 4.0  # by which log-probabilities are divided, where texts count by them
_MOST = 1000  # texts that are compared with one another


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
            return _good(chosen, result.hypotheses)
        found = len(chosen.hypotheses)
        has_ended = result.stop_reason not in ("interrupted", "broken")
        if chosen.notice is None and has_ended and found < (n or 0):
            notice = shortage(result.config, result.stop_reason, found)
            chosen = dataclasses.replace(chosen, notice=notice)
        return chosen


def _good(chosen: SearchResult, pool: Sequence[Hypothesis]) -> SearchResult:
    """Leave out texts that are less likely than the best and agree less with the pool."""
    shown = chosen.hypotheses
    sound = [text for text in shown if not is_loop(text.text)] or list(shown)
    others = [text for text in pool[:_MOST] if text not in shown and not is_loop(text.text)]
    texts = [*sound, *others]
    log_probs = torch.tensor([text.log_prob for text in texts], dtype=torch.float64)
    lengths = torch.tensor([text.num_tokens for text in texts], dtype=torch.float64)
    agreements = agreements_of([gram_sets(text.text)[:1] for text in texts])
    agreed = agreements @ (log_probs / _FLATTENED).softmax(0)
    worth = (agreed.log() + _PER_TOKEN * log_probs / lengths)[: len(sound)].tolist()
    pairs = zip(sound, worth, strict=True)
    kept = tuple(text for text, own in pairs if own >= max(worth) - _MUCH)
    certified = sum(text.is_certified for text in kept)
    return dataclasses.replace(chosen, hypotheses=kept, certified=certified)
