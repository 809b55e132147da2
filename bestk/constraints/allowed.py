"""`allowed=`: every text is an item of a trie, by lookups on the device that searches.

The children of a node are the trie's, with the model's own probabilities, or renormalised among
them; a leaf ends its text. Which trie node a search's node stands for is kept by slot, so a lookup
is a binary search among its siblings. What is barred is by row: searches share a pass.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.backends.children import normalised
from bestk.config import GRAMMARS, SearchConfig
from bestk.constraints.trie import Trie
from bestk.errors import OptionError
from bestk.nodes import Children, NodeBatch, Verdict

if TYPE_CHECKING:
    from bestk.lm.language_model import LanguageModel

# What an exact search is: the best open prefix comes next, and none that could be needed is lost.
_EXACT: dict[str, Any] = {
    "policy": "uniform-cost",
    "scoring": "sum",
    "decay": "none",
    "min_prob": 0.0,
    "rank_by": "sum",
    "end_prob": None,
}
_K, _BUDGET, _MOST_CHILDREN = 128, 1500, 512
# Settings that end texts, or say what they must be: an item of the trie is all that.
_REFUSED = (
    *("length_alpha", "min_new_tokens", "stop", "stop_ids", "must_include", "sample"),
    *GRAMMARS,
)


class _Tables(NamedTuple):
    """A trie's arrays on a device; tokens may be 16 bits without a sign, which torch cannot add."""

    token: Tensor
    first: Tensor
    item: Tensor

    def tokens(self, nodes: Tensor) -> Int[Tensor, "..."]:
        token = self.token[nodes].long()
        return token & 0xFFFF if self.token.dtype == torch.int16 else token


def of_trie(trie: Any, item_bias: Any = None, renormalize: bool | None = None) -> dict[str, Any]:
    """Return what the hooks of a search are told of a trie, and of renormalising without one."""
    if trie is None and item_bias is not None:
        raise OptionError("item_bias is of the items of a trie: give allowed= too")
    if trie is not None and not isinstance(trie, Trie):
        raise OptionError(f"allowed must be a bestk.Trie, got {type(trie).__name__}")
    allowed = None if trie is None else Allowed(trie, item_bias, bool(renormalize))
    return {"allowed": allowed, "renormalize": renormalize is not False}


@dataclass(frozen=True, eq=False)
class Allowed:
    """The items that texts may be, what is added to their log p, and which p that is."""

    trie: Trie
    item_bias: Any = None  # one for each row, added to log p; −inf bars an item
    renormalize: bool = False

    def __post_init__(self) -> None:
        if self.item_bias is None:
            return
        bias = np.asarray(self.item_bias)
        if bias.shape != (self.trie.num_rows,) or bias.dtype.kind not in "iuf":
            raise OptionError(
                f"item_bias must be one number for each of {self.trie.num_rows} rows, got an "
                f"array of {bias.dtype} of shape {bias.shape}"
            )
        bad = np.isnan(bias) | np.isposinf(bias)
        if bad.any():
            raise OptionError(
                f"item_bias must be finite, or −inf, got {bias[bad.argmax()]} in row {bad.argmax()}"
            )
        if np.isneginf(bias).any():
            trie = self.trie.without_rows(np.isneginf(bias).nonzero()[0])
            object.__setattr__(self, "trie", trie)

    def __str__(self) -> str:
        """Name it for signatures."""
        told = f"allowed({len(self.trie)} items,{self.trie.digest}"
        told += ",renormalized" if self.renormalize else ""
        return told + (",biased)" if self.item_bias is not None else ")")

    def check(self, lm: LanguageModel) -> None:
        """Refuse a trie of another tokenizer's ids."""
        self.trie.check_vocabulary(lm.backend.vocab_size)
        text, ids = self.trie.facts.get("spelt") or ("", [])
        if text and lm.tokenizer is not None and lm.spell(text) != ids:
            raise OptionError(
                f"the trie is of another tokenizer: {lm.name} spells its first text otherwise, so "
                "build it with this model's"
            )

    def settings(self, config: SearchConfig) -> SearchConfig:
        """Return the settings with which a search of the trie is exact; others are refused."""
        usual = SearchConfig(num_texts=config.num_texts)
        for name in _REFUSED:
            if getattr(config, name) != getattr(usual, name):
                raise OptionError(f"allowed= says which texts there are: leave {name} out")
        for name, value in _EXACT.items():
            if name == "policy" and config.policy in ("best-k", "diverse"):
                continue  # which of them is no choice of the caller's, but follows from n
            if getattr(config, name) not in (getattr(usual, name), value):
                given = getattr(config, name)
                raise OptionError(
                    f"allowed= searches with {name}={value!r}, to be exact, got {given!r}: leave "
                    f"{name} out"
                )
        depth, length = self.trie.depth, config.max_new_tokens
        if length == usual.max_new_tokens:
            length = -(-depth // 4) * 4  # tries of nearly one depth share a batch
        elif length < depth:
            raise OptionError(
                f"max_new_tokens must be at least {depth}, as long as the longest item, got "
                f"{length}: leave it out"
            )
        has_beams = config.beam_size != usual.beam_size
        budget = config.budget or (config.beam_size * length if has_beams else _BUDGET)
        # One more than there are: then nobody wonders what a node's list left out.
        widest = min(1 << self.trie.fan_outs[0].bit_length(), _MOST_CHILDREN)
        derived = {"k": min(_K, budget), "max_frontier": budget, "max_children": widest}
        left = {
            name: v for name, v in derived.items() if getattr(config, name) == getattr(usual, name)
        }
        return SearchConfig.of(
            {**_EXACT, **left, "max_new_tokens": length, "budget": budget}, config
        )

    def children(
        self,
        nodes: NodeBatch,
        states: Int[Tensor, "batch slots"],
        barred: Int[Tensor, "batch barred"],
        scores: Float[Tensor, "batch nodes vocab"],
        *,
        places: int,
        repeats: int,
        is_normalised: bool,
        floor: Float[Tensor, "batch nodes"] | None = None,
    ) -> Children:
        """List the children of nodes, best first, and after them, for items that begin others,
        their ends. Those below the `floor` may be left out.
        """
        tables = self.tables(scores.device)
        here = self._enter(nodes, states, tables)
        start = tables.first[here].long()
        count = (tables.first[here + 1] - start) * nodes.is_valid
        place = torch.arange(self._width(nodes, count), device=scores.device)
        is_child = place < count[..., None]
        child = (start[..., None] + place).where(is_child, 0)
        mark = _marks(barred, child)  # 1: dead, 0: ends no item
        if mark is not None:
            is_child = is_child & (mark != 1)
        value = self._values(scores, tables.tokens(child), is_child, is_normalised=is_normalised)
        worth = value
        if self.item_bias is not None:
            worth = value + self.worth(scores.device)[1][child]
        order, best, rest = _ranked(worth, is_child, floor, places)

        def listed(column: Tensor) -> Tensor:
            return column.gather(2, order)

        child, value = listed(child), listed(value).masked_fill(best == -torch.inf, -torch.inf)
        is_end = tables.item[child] >= 0
        if mark is not None:
            is_end &= listed(mark) != 0
        return self._judged(nodes, tables, child, value, is_end, repeats)._replace(rest=rest)

    def _values(
        self,
        scores: Float[Tensor, "batch nodes vocab"],
        token: Int[Tensor, "batch nodes children"],
        is_child: Bool[Tensor, "batch nodes children"],
        *,
        is_normalised: bool,
    ) -> Float[Tensor, "batch nodes children"]:
        """Return the log-probabilities of children."""
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if self.renormalize:
            return normalised(scores.gather(2, token).masked_fill(~is_child, -torch.inf))
        scores = scores if is_normalised else scores.log_softmax(dim=-1)
        return scores.gather(2, token).masked_fill(~is_child, -torch.inf)

    def _judged(
        self,
        nodes: NodeBatch,
        tables: _Tables,
        child: Int[Tensor, "batch nodes children"],
        value: Float[Tensor, "batch nodes children"],
        is_end: Bool[Tensor, "batch nodes children"],
        repeats: int,
    ) -> Children:
        """Say which listed children end a text and which go on; those that do both come twice."""
        token, goes_on = tables.tokens(child), tables.first[child + 1] > tables.first[child]
        may_open = nodes.is_valid[..., None] & (value > -torch.inf) & (value < torch.inf)
        opens, ends = may_open & (goes_on | is_end), may_open & is_end
        told = own = None
        if self.item_bias is not None:
            rows, below = self.worth(value.device)
            told = below[child].double()
            own = rows[tables.item[child].clamp(min=0).long()].double()
        if not repeats:
            return Children(token, value, Verdict(opens, opens, ends & ~goes_on, told))
        again, nothing = ends & goes_on, torch.zeros_like(ends)
        opens = torch.cat([opens, again], dim=2)
        verdict = Verdict(
            opens,
            opens,
            torch.cat([ends & ~goes_on, again], dim=2),
            None if told is None or own is None else torch.cat([told, own], dim=2),
            torch.cat([nothing, again], dim=2),
        )
        twice = torch.cat([value, value.masked_fill(~again, -torch.inf)], dim=2)
        return Children(torch.cat([token, token], dim=2), twice, verdict)

    def tables(self, device: torch.device) -> _Tables:
        """Return the trie's arrays on a device, copied there once."""
        known = self.trie.tensors
        if device not in known:
            token = self.trie.token
            signed = token.view(np.int16) if token.dtype == np.uint16 else token
            arrays = (signed, self.trie.first, self.trie.item)
            known[device] = _Tables(*(torch.from_numpy(a).to(device) for a in arrays))
        return _Tables(*known[device])

    def worth(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the bias of every row, and the highest at or below every node."""
        if device not in self._worth:
            rows, nodes = (torch.from_numpy(bias).to(device) for bias in self._biases)
            self._worth[device] = (rows, nodes)
        return self._worth[device]

    @cached_property
    def evaluations(self) -> weakref.WeakKeyDictionary[Any, Any]:
        """What is kept for models that search it, by whoever does."""
        return weakref.WeakKeyDictionary()

    @cached_property
    def _worth(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    @cached_property
    def _biases(self) -> tuple[Any, Any]:
        trie, rows = self.trie, np.asarray(self.item_bias).astype(np.float32)
        best = np.where(trie.item >= 0, rows[trie.item], np.float32(-np.inf))
        for start, end in reversed(trie.levels[:-1]):
            first = trie.first[start : end + 1]
            parents = start + (np.diff(first) > 0).nonzero()[0]
            below = np.maximum.reduceat(best[first[0] : first[-1]], trie.first[parents] - first[0])
            best[parents] = np.maximum(best[parents], below)
        return rows, best

    def _enter(
        self, nodes: NodeBatch, states: Int[Tensor, "batch slots"], tables: _Tables
    ) -> Int[Tensor, "batch nodes"]:
        """Return the trie node of every node, and keep it by slot."""
        back = nodes.path.gather(2, (nodes.depth - 2).clamp(min=0)[..., None])[..., 0]
        parent = states.gather(1, back.where(nodes.depth > 1, 0).clamp(min=0))
        low, high = tables.first[parent].long(), tables.first[parent + 1].long() - 1
        widest = self.trie.fan_outs[0]
        if low.device.type == "cpu":
            widest = max(1, int((high - low).max()) + 1)
        for _ in range(widest.bit_length()):
            middle = (low + high) >> 1
            is_past = tables.tokens(middle) < nodes.token
            low, high = torch.where(is_past, middle + 1, low), torch.where(is_past, high, middle)
            low = torch.minimum(low, high)
        here = low.where((nodes.depth > 0) & nodes.is_valid, 0)
        states.scatter_(1, nodes.slot, here)
        return here

    def _width(self, nodes: NodeBatch, count: Tensor) -> int:
        """Return how many children there may be: what is known without waiting for a device."""
        if count.device.type == "cpu":
            return max(1, int(count.max()))
        return self.trie.fan_outs[0 if nodes.token.shape[1] == 1 else 1] or 1


def _marks(
    barred: Int[Tensor, "batch barred"], child: Int[Tensor, "batch nodes children"]
) -> Int[Tensor, "batch nodes children"] | None:
    """Return 1 for children that are barred, 0 for those that end no item; others are neither."""
    if not barred.shape[1]:
        return None
    wanted = 2 * child.flatten(1)
    at = torch.searchsorted(barred, wanted).clamp(max=barred.shape[1] - 1)
    return (barred.gather(1, at) - wanted).view_as(child)


def _ranked(
    worth: Float[Tensor, "batch nodes children"],
    is_child: Bool[Tensor, "batch nodes children"],
    floor: Float[Tensor, "batch nodes"] | None,
    most: int,
) -> tuple[
    Int[Tensor, "batch nodes listed"],
    Float[Tensor, "batch nodes listed"],
    Float[Tensor, "batch nodes"],
]:
    """Rank children, best first, in `most` places, with their worth; and that of the best left out.

    A CPU moves those that are wanted together first, and has no more places than they need.
    """
    wanted = is_child if floor is None else is_child & ~(worth < floor[..., None])  # NaN stays
    size = worth.shape[2]
    if worth.device.type == "cpu":
        size = max(1, int(wanted.sum(dim=2).max()))
    place = None
    if size < worth.shape[2]:
        target = (wanted.cumsum(dim=2) - 1).where(wanted, size)
        every = torch.arange(worth.shape[2], device=worth.device).expand_as(target)
        place = target.new_zeros(*target.shape[:2], size + 1).scatter_(2, target, every)
        place = place[..., :size]
    known = worth.masked_fill(~wanted, -torch.inf)
    few = known if place is None else known.gather(2, place)
    if place is not None:  # where there are fewer, place 0 was not written over
        few = few.masked_fill(
            torch.arange(size, device=few.device) >= wanted.sum(dim=2)[..., None], -torch.inf
        )
    best, order = few.sort(dim=-1, descending=True, stable=True)
    rest = worth.masked_fill(wanted | ~is_child, -torch.inf).amax(dim=2)
    if size > most:
        rest = torch.maximum(rest, best[..., most])
        order, best = order[..., :most], best[..., :most]
    return order if place is None else place.gather(2, order), best, rest
