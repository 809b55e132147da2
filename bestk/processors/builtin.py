"""The processors that bestk has itself, each a few tensor operations over a whole group of nodes.

They compute what the classes of the same purpose in transformers compute, on log-probabilities as
beam search does. Only seen tokens are touched where that is enough; the vocabulary is not copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.processors.base import NodeContext

Scores = Float[Tensor, "batch nodes vocab"]

# On a CPU a full sort of the vocabulary costs more than all the rest, and the likeliest few tokens
# nearly always hold the mass that top-p asks for.
_FIRST_WIDTHS = (256, 4096)


class _Static:
    """A fixed series of tensor operations; top-p is one on a GPU, where it sorts all tokens."""

    is_static = True


class Temperature(_Static):
    """Divides the scores."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        return scores.div_(self.temperature)


class TopK(_Static):
    """Keeps the k likeliest tokens."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        least = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1:]
        return scores.masked_fill_(scores < least, -math.inf)


class TopP(_Static):
    """Keeps the smallest set of likeliest tokens that holds a share p of the probability."""

    def __init__(self, top_p: float, min_tokens: int = 1) -> None:
        self.top_p = top_p
        self.min_tokens = min_tokens

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        vocab = scores.shape[-1]
        total = scores.logsumexp(dim=-1, keepdim=True)
        total = total.masked_fill(total == -math.inf, 0.0)
        widths = _FIRST_WIDTHS if scores.device.type == "cpu" else ()
        for width in [*(width for width in widths if width < vocab), vocab]:
            best = scores.topk(width).values
            prob = (best - total).exp()
            mass = prob.cumsum(dim=-1)
            if width == vocab or self._is_enough(best, mass):
                break
        is_kept = mass - prob < self.top_p
        is_kept[..., : self.min_tokens] = True
        least = best.masked_fill(~is_kept, math.inf).amin(dim=-1, keepdim=True)
        return scores.masked_fill_(scores < least, -math.inf)

    def _is_enough(self, best: Tensor, mass: Tensor) -> bool:
        is_whole = best[..., -1] == -math.inf
        return bool(((mass[..., -1] >= self.top_p) | is_whole).all())


class MinP(_Static):
    """Keeps tokens of at least a share of the likeliest one's probability."""

    def __init__(self, min_p: float, min_tokens: int = 1) -> None:
        self.log_share = math.log(min_p) if min_p > 0 else -math.inf
        self.min_tokens = min_tokens

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        best = scores.topk(min(self.min_tokens, scores.shape[-1])).values
        least = torch.minimum(best[..., :1] + self.log_share, best[..., -1:])
        return scores.masked_fill_(scores < least, -math.inf)


class TypicalP(_Static):
    """Keeps the tokens whose surprise is nearest the entropy, up to a share p."""

    def __init__(self, typical_p: float, min_tokens: int = 1) -> None:
        self.typical_p = typical_p
        self.min_tokens = min_tokens

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        log_probs = scores.log_softmax(dim=-1)
        entropy = -(log_probs.exp() * log_probs).nansum(dim=-1, keepdim=True)  # 0·log 0 is 0
        order = (-log_probs - entropy).abs().sort(dim=-1, stable=True).indices
        prob = log_probs.exp().gather(-1, order)
        is_kept = prob.cumsum(dim=-1) - prob < self.typical_p
        is_kept[..., : self.min_tokens] = True
        return scores.masked_fill_(~is_kept.scatter(-1, order, is_kept), -math.inf)


class RepetitionPenalty(_Static):
    """Makes every token that the context or the node's own text holds less likely."""

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        return _penalise(scores, context.seen, self.penalty)


class SourcePenalty(_Static):
    """Makes every token of the source likelier, by `encoder_repetition_penalty`."""

    def __init__(self, penalty: float) -> None:
        self.penalty = 1 / penalty

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        source = context.contexts.sources
        source = source.where(source >= 0, source[:, -1:])
        seen = source[:, None].expand(-1, scores.shape[1], -1)
        return _penalise(scores, seen, self.penalty)


class Occurrences(_Static):
    """Takes `presence` off the tokens of a node's text, and `frequency` for each time they come."""

    def __init__(self, presence: float, frequency: float) -> None:
        self.presence = presence
        self.frequency = frequency

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        prefix = context.nodes.prefix
        token = prefix.clamp(min=0)  # what stands for a gap is counted as any other token
        count = (token[..., None] == prefix[:, :, None]).sum(dim=-1)
        taken = self.presence * (count > 0) + self.frequency * count
        return scores.scatter_(2, token, scores.gather(2, token) - taken.to(scores.dtype))


class NoRepeatNGram(_Static):
    """Forbids tokens that would repeat an n-gram of the node's own prefix, or of its source."""

    def __init__(self, size: int, *, of_source: bool = False) -> None:
        self.size = size
        self.of_source = of_source

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        ids = context.contexts.sources[:, None] if self.of_source else context.ids
        if ids.shape[2] < self.size:
            return scores
        windows = ids.unfold(2, self.size, 1)  # [batch, nodes, windows, size]
        first, last = windows[..., 0], windows[..., -1]
        tail = context.tail(self.size - 1)
        repeats = (windows[..., :-1] == tail[:, :, None]).all(dim=-1) & (first >= 0) & (last >= 0)
        ban = scores.new_zeros(repeats.shape).masked_fill_(repeats, -math.inf)
        return scores.scatter_add_(2, last.clamp(min=0).expand(repeats.shape), ban)


class SequenceBias(_Static):
    """Adds to the score of a token that completes one of some sequences; −inf forbids them."""

    def __init__(self, biases: Mapping[tuple[int, ...], float], device: torch.device) -> None:
        single = {ids[0]: bias for ids, bias in biases.items() if len(ids) == 1}
        longer = {ids: bias for ids, bias in biases.items() if len(ids) > 1}
        self.single_ids = torch.tensor(list(single), dtype=torch.int64, device=device)
        self.single_bias = torch.tensor(list(single.values()), device=device)
        self.size = max((len(ids) - 1 for ids in longer), default=0)
        # −2 stands for any token: shorter sequences do not look that far back.
        heads = [[-2] * (self.size + 1 - len(ids)) + list(ids[:-1]) for ids in longer]
        self.heads = torch.tensor(heads, dtype=torch.int64, device=device)
        self.last = torch.tensor([ids[-1] for ids in longer], dtype=torch.int64, device=device)
        self.bias = torch.tensor(list(longer.values()), device=device)

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        if len(self.single_ids):
            scores[..., self.single_ids] += self.single_bias.to(scores.dtype)
        if self.size:
            tail = context.tail(self.size)[:, :, None]
            fits = ((tail == self.heads) | (self.heads == -2)).all(dim=-1)  # [batch, nodes, heads]
            bias = torch.where(fits, self.bias.to(scores.dtype), 0.0)
            scores.scatter_add_(2, self.last.expand(fits.shape), bias)
        return scores


class _AtPlace(_Static):
    """Some tokens, and the length of the context or the depth of the node at which they matter."""

    def __init__(
        self,
        ids: Sequence[int],
        device: torch.device,
        *,
        at_length: int | None = None,
        at_depth: int | None = None,
    ) -> None:
        self.ids = torch.tensor(list(ids), dtype=torch.int64, device=device)
        self.at_length = at_length
        self.at_depth = at_depth

    def is_here(self, context: NodeContext) -> Bool[Tensor, "batch nodes 1"]:
        """Mark the nodes that are at the place."""
        if self.at_length is not None:
            return (context.length == self.at_length)[..., None]
        assert self.at_depth is not None
        return (context.depth == self.at_depth)[..., None]


class Suppress(_AtPlace):
    """Forbids some tokens: always, or at one length only."""

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        if self.at_length is None and self.at_depth is None:
            return scores.index_fill_(2, self.ids, -math.inf)
        here = self.is_here(context)
        scores[..., self.ids] = scores[..., self.ids].masked_fill(here, -math.inf)
        return scores


class Force(_AtPlace):
    """Allows only some tokens, equally likely, at one length."""

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        here = self.is_here(context)
        scores.masked_fill_(here, -math.inf)
        scores[..., self.ids] = scores[..., self.ids].masked_fill(here, 0.0)
        return scores


class MinLength(_Static):
    """Forbids the ids that end a text before a length, context included, is reached."""

    def __init__(self, length: int, eos_ids: Sequence[int], device: torch.device) -> None:
        self.min_length = length
        self.ids = torch.tensor(list(eos_ids), dtype=torch.int64, device=device)

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        short = (context.length < self.min_length)[..., None]
        scores[..., self.ids] = scores[..., self.ids].masked_fill(short, -math.inf)
        return scores


class ExponentialDecayLength(_Static):
    """Raises the ids that end a text, ever more from a length on."""

    def __init__(
        self, start: int, factor: float, eos_ids: Sequence[int], device: torch.device
    ) -> None:
        self.start = start
        self.factor = factor
        self.ids = torch.tensor(list(eos_ids), dtype=torch.int64, device=device)

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        late = (context.length - self.start).clamp(min=0)[..., None]
        old = scores[..., self.ids]
        raised = old + old.abs() * (torch.pow(self.factor, late.to(scores.dtype)) - 1)
        scores[..., self.ids] = torch.where(old.isfinite(), raised, old)
        return scores


class Normalise(_Static):
    """Makes the scores log-probabilities again."""

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        total = scores.logsumexp(dim=-1, keepdim=True)
        return scores.sub_(total.masked_fill(total == -math.inf, 0.0))


class RemoveInvalid(_Static):
    """Makes NaN 0 and infinite scores finite, by `remove_invalid_values`."""

    def __call__(self, context: NodeContext, scores: Scores) -> Scores:
        return scores.nan_to_num_(nan=0.0)


def _penalise(scores: Scores, seen: Int[Tensor, "batch nodes seen"], penalty: float) -> Scores:
    value = scores.gather(2, seen)
    return scores.scatter_(2, seen, torch.where(value < 0, value * penalty, value / penalty))
