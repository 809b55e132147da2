"""Putting texts in another order: by agreement, by a reward model, by COMET-QE, by a function."""

from bestk.rerank.base import ByFunction, Reranker
from bestk.rerank.comet import CometQE
from bestk.rerank.mbr import MBR
from bestk.rerank.ordering import rerank, reranker_of
from bestk.rerank.reward import RewardModel

__all__ = [
    "MBR",
    "ByFunction",
    "CometQE",
    "Reranker",
    "RewardModel",
    "rerank",
    "reranker_of",
]
