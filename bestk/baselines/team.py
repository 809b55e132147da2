"""One beam: the texts that run, the best that have finished, and when to stop.

The bookkeeping of `generate(num_beams=…)` in transformers 5, on columns of tree slots instead of
sequences. Knows scores and slots, no tokens' meaning and no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.core.policy import Plan
from bestk.core.tree import State


@dataclass
class Candidates:
    """The continuations that a beam may keep, best (or first drawn) first."""

    is_valid: Bool[Tensor, "batch candidates"]
    place: Int[Tensor, "batch candidates"]  # of the parent among the nodes
    parent: Int[Tensor, "batch candidates"]  # the parent's slot
    token: Int[Tensor, "batch candidates"]
    score: Float[Tensor, "batch candidates"]  # what the beam compares: sum of log p, less penalties
    log_prob: Float[Tensor, "batch candidates"]
    last_log_prob: Float[Tensor, "batch candidates"]

    @classmethod
    def of(
        cls,
        order: Int[Tensor, "batch picked"],
        places: Int[Tensor, "batch beams"],
        token: Int[Tensor, "batch beams tokens"],
        last_log_prob: Float[Tensor, "batch beams tokens"],
        score: Float[Tensor, "batch beams tokens"],
        plan: Plan,
        size: int,
    ) -> Candidates:
        """Gather picked continuations; where there are fewer than `size` the rest is invalid."""
        place = places.gather(1, order // token.shape[2])
        score = score.flatten(1).gather(1, order)
        last = last_log_prob.flatten(1).gather(1, order)
        columns = {
            "is_valid": plan.nodes.is_valid.gather(1, place) & (score > -math.inf),
            "place": place,
            "parent": plan.nodes.slot.gather(1, place),
            "token": token.flatten(1).gather(1, order),
            "score": score,
            "log_prob": plan.log_prob.gather(1, place) + last,
            "last_log_prob": last,
        }
        missing = (0, size - order.shape[1])
        return cls(**{n: torch.nn.functional.pad(x, missing) for n, x in columns.items()})


@dataclass
class KeptBeams:
    """Columns of continuations, by where they are in the tree."""

    is_valid: Bool[Tensor, "batch beams"]
    parent: Int[Tensor, "batch beams"]
    child: Int[Tensor, "batch beams"]
    token: Int[Tensor, "batch beams"]
    score: Float[Tensor, "batch beams"]  # −inf where there is none
    log_prob: Float[Tensor, "batch beams"]
    last_log_prob: Float[Tensor, "batch beams"]

    def take(self, index: Int[Tensor, "batch picked"]) -> KeptBeams:
        """Pick by position."""
        return KeptBeams(**{f.name: getattr(self, f.name).gather(1, index) for f in fields(self)})

    def join(self, other: KeptBeams) -> KeptBeams:
        """Put two sets of columns side by side."""
        return KeptBeams(
            **{
                f.name: torch.cat([getattr(self, f.name), getattr(other, f.name)], dim=1)
                for f in fields(self)
            }
        )


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
        whole = torch.zeros(batch, size, dtype=torch.int64, device=device)
        real = torch.full((batch, size), -math.inf, dtype=torch.float64, device=device)
        nothing = torch.zeros_like(whole, dtype=torch.bool)
        self.running = KeptBeams(nothing, whole, whole, whole, real, real, real)
        self.finished = KeptBeams(nothing, whole, whole, whole, real, real, real)
        self.is_running = torch.ones(batch, dtype=torch.bool, device=device)

    def scores(self, depth: int) -> Float[Tensor, "batch beams"]:
        """Return the scores that the running texts have, −inf where there is none.

        At depth 0 the one text is the prompt.
        """
        if depth == 0:
            return torch.zeros_like(self.running.score[:, :1])
        return self.running.score.masked_fill(~self.running.is_valid, -math.inf)

    def choose(
        self,
        candidates: Candidates,
        complete: Bool[Tensor, "batch candidates"],
        length: int,
        offset: int,
    ) -> Int[Tensor, "batch candidates"]:
        """Sort candidates into running and finished; return what became of each, as tree states.

        Candidate i is child `offset + i` of its parent.
        """
        valid = candidates.is_valid & self.is_running[:, None]
        ends = complete | (length >= self.max_new_tokens)
        number = torch.arange(valid.shape[1], device=valid.device).expand_as(valid)
        found = KeptBeams(
            is_valid=valid,
            parent=candidates.parent,
            child=number + offset,
            token=candidates.token,
            score=candidates.score.masked_fill(~valid, -math.inf),
            log_prob=candidates.log_prob,
            last_log_prob=candidates.last_log_prob,
        )
        runs = self._keep_running(found, valid & ~ends)
        # Candidates past the beam's size only stand in for texts that end.
        counts = valid & ends & (number < self.size)
        self._keep_finished(found, counts, length)
        self._stop(length)
        state = torch.where(valid, int(State.DROPPED), int(State.NONE))
        state = state.masked_fill(runs, int(State.OPEN))
        state = state.masked_fill(counts & ~complete, int(State.TRUNCATED))
        return state.masked_fill(counts & complete, int(State.COMPLETE))

    def _keep_running(
        self, found: KeptBeams, goes_on: Bool[Tensor, "batch candidates"]
    ) -> Bool[Tensor, "batch candidates"]:
        score = found.score.masked_fill(~goes_on, -math.inf)
        best = score.sort(dim=1, descending=True, stable=True).indices[:, : self.size]
        self.running = found.take(best)
        self.running.is_valid = goes_on.gather(1, best)
        self.running.score = score.gather(1, best)
        return torch.zeros_like(goes_on).scatter(1, best, self.running.is_valid)

    def _keep_finished(
        self, found: KeptBeams, counts: Bool[Tensor, "batch candidates"], length: int
    ) -> None:
        new = found.take(torch.arange(counts.shape[1], device=counts.device).expand_as(counts))
        new.is_valid = counts
        new.score = (found.score / length**self.length_penalty).masked_fill(~counts, -math.inf)
        pool = self.finished.join(new)
        best = pool.score.sort(dim=1, descending=True, stable=True).indices[:, : self.size]
        self.finished = pool.take(best)

    def _stop(self, length: int) -> None:
        """Stop where nothing runs, or where what runs can no longer beat what has finished."""
        longest = self.early_stopping == "never" and self.length_penalty > 0
        reach = self.max_new_tokens if longest else length
        attainable = self.running.score[:, 0] / reach**self.length_penalty
        is_full = self.finished.is_valid.all(dim=1)
        goes_on = ~is_full | (attainable > self.finished.score.amin(dim=1))
        if self.early_stopping is True:
            goes_on &= ~is_full
        self.is_running = self.is_running & goes_on & self.running.is_valid.any(dim=1)
        self.running.is_valid = self.running.is_valid & self.is_running[:, None]
