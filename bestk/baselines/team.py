"""One beam: the texts that run, the best that have finished, and when to stop.

The bookkeeping of `generate(num_beams=…)` in transformers 5, on columns of tree slots instead of
sequences. Knows scores and slots, no tokens' meaning and no model.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.core.frontier import Nodes
from bestk.core.tree import State


class Team:
    """The running and the finished texts of one beam, for every prompt of a batch."""

    def __init__(
        self,
        batch: int,
        size: int,
        *,
        length_penalty: float,
        early_stopping: bool | str,
        max_new_tokens: int,
        device: torch.device,
    ) -> None:
        self.size = size
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.max_new_tokens = max_new_tokens
        nothing = Nodes.empty(batch, size, device)
        self.running = self.finished = _scored(nothing, nothing.is_open, nothing.score)
        self.is_running = torch.ones(batch, dtype=torch.bool, device=device)

    def scores(self, depth: int) -> Float[Tensor, "batch beams"]:
        """Return the scores that the running texts have, −inf where there is none.

        At depth 0 the one text is the prompt.
        """
        if depth == 0:
            return torch.zeros_like(self.running.score[:, :1])
        return self.running.score.masked_fill(~self.running.is_open, -math.inf)

    def choose(
        self, candidates: Nodes, complete: Bool[Tensor, "batch candidates"], length: int
    ) -> Int[Tensor, "batch candidates"]:
        """Sort candidates into running and finished; return what became of each, as tree states.

        They come best (or first drawn) first.
        """
        valid = candidates.is_open & self.is_running[:, None]
        ends = complete | (length >= self.max_new_tokens)
        number = torch.arange(valid.shape[1], device=valid.device).expand_as(valid)
        runs = self._keep_running(candidates, valid & ~ends)
        # Candidates past the beam's size only stand in for texts that end.
        counts = valid & ends & (number < self.size)
        self._keep_finished(candidates, counts, length)
        self._stop(length)
        state = torch.where(valid, int(State.DROPPED), int(State.NONE))
        state = state.masked_fill(runs, int(State.OPEN))
        state = state.masked_fill(counts & ~complete, int(State.TRUNCATED))
        return state.masked_fill(counts & complete, int(State.COMPLETE))

    def _keep_running(
        self, found: Nodes, goes_on: Bool[Tensor, "batch candidates"]
    ) -> Bool[Tensor, "batch candidates"]:
        best = self._best(pool := _scored(found, goes_on, found.score))
        self.running = pool.take(best)
        return torch.zeros_like(goes_on).scatter(1, best, self.running.is_open)

    def _keep_finished(
        self, found: Nodes, counts: Bool[Tensor, "batch candidates"], length: int
    ) -> None:
        new = _scored(found, counts, found.score / length**self.length_penalty)
        pool = Nodes.joined(self.finished, new)
        self.finished = pool.take(self._best(pool))

    def _best(self, pool: Nodes) -> Int[Tensor, "batch beams"]:
        return pool.score.sort(dim=1, descending=True, stable=True).indices[:, : self.size]

    def _stop(self, length: int) -> None:
        """Stop where nothing runs, or where what runs can no longer beat what has finished."""
        longest = self.early_stopping == "never" and self.length_penalty > 0
        reach = self.max_new_tokens if longest else length
        attainable = self.running.score[:, 0] / reach**self.length_penalty
        is_full = self.finished.is_open.all(dim=1)
        goes_on = ~is_full | (attainable > self.finished.score.amin(dim=1))
        if self.early_stopping is True:
            goes_on &= ~is_full
        self.is_running = self.is_running & goes_on & self.running.is_open.any(dim=1)
        self.running.is_open = self.running.is_open & self.is_running[:, None]


def _scored(
    nodes: Nodes, is_open: Bool[Tensor, "batch nodes"], score: Float[Tensor, "batch nodes"]
) -> Nodes:
    """Return some of the nodes with other scores; the places of the rest have −inf."""
    score = score.masked_fill(~is_open, -math.inf)
    return Nodes(is_open, nodes.whole, torch.cat([score[:, None], nodes.real[:, 1:]], dim=1))
