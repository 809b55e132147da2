"""What a search returns: ranked, merged texts, the mass ledger, the cost, and JSON of them."""

from bestk.result.notices import emptiness, shortage, unproven
from bestk.result.search_result import SearchResult, not_started, signature
from bestk.result.texts import Cost, Hypothesis, merge, rank, ranking_score

__all__ = [
    "Cost",
    "Hypothesis",
    "SearchResult",
    "emptiness",
    "merge",
    "not_started",
    "rank",
    "ranking_score",
    "shortage",
    "signature",
    "unproven",
]
