"""`end_prob`: a text may end where the model is ready to, at the end of a sentence.

Models go on past good endings: the end is likely enough, and something else is likelier. A child
that ends a text is opened here though its probability is below γ: from two fifths of
max_new_tokens on, behind a sentence, its closing marks or a code fence, and not inside a loop.
Tables over the vocabulary say what tokens read as, so nothing is decoded while a search runs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.constraints.base import Constraint
from bestk.nodes import NodeBatch

if TYPE_CHECKING:
    from bestk.lm.language_model import LanguageModel

_EARLIEST = 0.4  # of max_new_tokens
_WINDOW = 8  # tokens which came before, in the same order, are a loop
_ENDS = (".", "!", "?", "…", "。", "！", "？", "```")
_CLOSERS = "\"'”’»)]}*_`」』）】 \n"


class Endings(Constraint):
    """Has the tokens that end a text listed behind whole sentences."""

    is_static = True

    def __init__(self, config: SearchConfig, lm: LanguageModel) -> None:
        assert config.end_prob is not None
        backend = lm.backend
        self.least_log_prob = math.log(config.end_prob)
        self.num_forced = len(backend.eos_ids)
        self.eos = torch.tensor(backend.eos_ids, device=backend.device)
        self.earliest = math.ceil(_EARLIEST * config.max_new_tokens)
        self.ends, self.closes, self.counts = _tables(lm).unbind()

    def forced(self, nodes: NodeBatch) -> Int[Tensor, "batch nodes forced"]:
        """Name the tokens that end a text where it may end."""
        may_end = (nodes.depth >= self.earliest) & self._ends(nodes) & ~_repeats(nodes)
        return torch.where(may_end[..., None], self.eos, -1)

    def _ends(self, nodes: NodeBatch) -> Bool[Tensor, "batch nodes"]:
        """Return which nodes' texts end with a sentence, whatever closes it behind."""
        last, before, first = (_token(nodes, back) for back in (1, 2, 3))
        # A number and a full stop begin an entry of a list.
        is_end = self.ends[last] & ~self.counts[before]
        return is_end | (self.closes[last] & self.ends[before] & ~self.counts[first])


def _token(nodes: NodeBatch, back: int) -> Int[Tensor, "batch nodes"]:
    """Return the tokens so many places before the next one; 0 where there is none."""
    at = (nodes.depth - back).clamp(min=0)[..., None]
    token = nodes.prefix.gather(-1, at)[..., 0]
    return token.where(nodes.depth >= back, 0).clamp(min=0)


def _repeats(nodes: NodeBatch) -> Bool[Tensor, "batch nodes"]:
    """Return which nodes' last tokens came before, in the same order."""
    prefix = nodes.prefix
    if prefix.shape[-1] < 2 * _WINDOW:
        return torch.zeros_like(nodes.is_valid)
    runs = prefix.unfold(-1, _WINDOW, 1)  # [batch, nodes, runs, window]
    starts = torch.arange(runs.shape[2], device=prefix.device)
    latest = (nodes.depth - _WINDOW)[..., None]
    last = runs.gather(2, latest.clamp(min=0)[..., None].expand(-1, -1, 1, _WINDOW))
    return ((runs == last).all(dim=-1) & (starts < latest)).any(dim=-1)


def _tables(lm: LanguageModel) -> Bool[Tensor, "kinds vocab"]:
    """Return which tokens end a sentence, which only close something, and which are numbers."""
    size = lm.backend.vocab_size
    texts = lm.token_texts(range(size))
    ends, closes, counts = [], [], []
    for token in range(size):
        text = texts[token].strip()
        open_end = text.rstrip(_CLOSERS)
        ends.append(open_end.endswith(_ENDS) or text.endswith("```"))
        closes.append(not open_end and token not in lm.backend.eos_ids)
        counts.append(text.isdecimal())
    return torch.tensor([ends, closes, counts], device=lm.backend.device)
