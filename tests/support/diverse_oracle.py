"""Best-k search with diverse completion in Python numbers: the policy must agree node for node.

Written from the algorithm, with sets of n-grams instead of buckets, one node at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from bestk.backends.toy import ToyBackend
from bestk.config import SearchConfig

UNIT = 1 << 20
FAR = 1e9

Prefix = tuple[int, ...]


@dataclass
class Node:
    prefix: Prefix
    log_prob: float
    last: float
    step: int
    slot: int  # of its parent
    is_reserve: bool
    is_lane: bool = False


@dataclass
class DiverseTrace:
    groups: list[list[Prefix]] = field(default_factory=list)
    completions: dict[Prefix, float] = field(default_factory=dict)
    cut: list[Prefix] = field(default_factory=list)
    num_ended: int = 0


class Search:
    def __init__(self, model: ToyBackend, prompt: Prefix, config: SearchConfig) -> None:
        self.model, self.prompt, self.config = model, prompt, config
        self.trace = DiverseTrace()
        self.said: Counter[tuple[int, ...]] = Counter()
        self.open: list[Node] = []
        self.slots: dict[Prefix, int] = {}
        self.num_taken, self.taken, self.ended_length = 0, 0.0, 0

    def fresh(self, prefix: Prefix) -> int:
        """How new the n-grams are that end with a prefix's last token."""
        told = 0
        for weight, gram in ((0.3, prefix[-1:]), (0.7, (*(-1,), *prefix)[-2:])):
            told += round(weight * math.exp(-min(self.said[gram], 32)) * UNIT)
        return told

    def say(self, prefix: Prefix) -> None:
        self.said[prefix[-1:]] += 1
        self.said[(-1, *prefix)[-2:]] += 1

    def length(self) -> float:
        if self.trace.num_ended:
            return self.ended_length / self.trace.num_ended
        return 0.6 * self.config.max_new_tokens

    def worth(self, node: Node) -> float:
        config, length = self.config, len(node.prefix)
        novelty = sum(self.fresh(node.prefix[:i]) for i in range(1, length + 1))
        each = self.taken / self.num_taken if self.num_taken else -0.4
        rest = max(self.length() - length, 1.0) * (each + config.novelty * 0.6)
        return node.log_prob + novelty * (config.novelty / UNIT) + rest

    def need(self, node: Node) -> int:
        longest = self.config.max_new_tokens
        if self.trace.num_ended >= (self.config.num_texts or 0):
            longest = min(math.ceil(1.3 * self.length()), longest)
        return max(longest - len(node.prefix), 1)

    def expand(self, prefix: Prefix, log_prob: float, step: int, slot: int) -> None:
        config, model = self.config, self.model
        log_gamma = math.log(config.min_prob) if config.min_prob > 0 else -math.inf
        ends, length = {*model.eos_ids, *config.stop_ids}, len(prefix) + 1
        listed = sorted(
            enumerate(model.log_probs(self.prompt + prefix)), key=lambda c: (-c[1], c[0])
        )[: config.num_children(model.vocab_size)]
        rank, found, best = 0, [], None
        for child, (token, last) in enumerate(listed):
            if last == -math.inf or (token in ends and length < config.min_new_tokens):
                continue
            rank += 1
            passes = last >= log_gamma or rank <= config.min_children
            if not passes and token in ends:
                continue
            at, value = (*prefix, token), log_prob + last
            if passes:
                paid = (UNIT - self.fresh(at)) * (config.novelty / UNIT)
                value = log_prob + last - (0.0 if token in ends else paid)
                if best is None or value > best[0]:
                    best = (value, at, last)
            is_reserve = last < log_gamma and child >= config.min_children
            found.append((Node(at, log_prob + last, last, step, slot, is_reserve), passes))
        for node, passes in found:
            if node.prefix[-1] in ends:
                self.trace.completions[node.prefix] = node.log_prob
            elif length < config.max_new_tokens:
                self.open.append(node)
            elif passes:
                self.trace.cut.append(node.prefix)
        if best is None:
            return
        _, at, last = best
        self.num_taken += 1
        self.taken += last
        if at[-1] in ends or length >= config.max_new_tokens:
            self.trace.num_ended += 1
            self.ended_length += length
            return
        self.say(at)
        next(node for node in self.open if node.prefix == at).is_lane = True

    def begin_lanes(self, left: int) -> None:
        width = min(self.config.k, self.config.max_frontier)
        self.open.sort(key=lambda n: (n.step, -n.last, n.prefix[-1], n.slot))
        is_idle = not any(node.is_lane for node in self.open)
        is_idle = is_idle and all(self.need(node) > left for node in self.open)
        for _ in range(width):
            lanes = [node for node in self.open if node.is_lane]
            room = left - sum(map(self.need, lanes))
            may = [n for n in self.open if not n.is_lane]
            if len(lanes) >= width or left <= len(lanes):
                break
            if any(not node.is_reserve for node in may):
                may = [node for node in may if not node.is_reserve]
            elif self.trace.num_ended + len(lanes) >= (self.config.num_texts or 0):
                may = []
            has_all = self.trace.num_ended >= (self.config.num_texts or 0)
            is_spare = is_idle or (has_all and 2 * len(lanes) < width)
            may = [node for node in may if self.need(node) <= room or is_spare]
            if not may:
                break
            chosen = max(may, key=self.worth)  # the first of equals
            chosen.is_lane = True
            for i in range(1, len(chosen.prefix) + 1):
                self.say(chosen.prefix[:i])
        worths = {node.prefix: self.worth(node) for node in self.open}
        self.open.sort(key=lambda n: -(worths[n.prefix] - FAR * n.is_reserve + FAR * n.is_lane))
        del self.open[self.config.max_frontier :]


def diverse(model: ToyBackend, prompt: Prefix, config: SearchConfig) -> DiverseTrace:
    """Run one search."""
    search = Search(model, prompt, config)
    search.expand((), 0.0, 0, 0)
    expanded, step = 1, 1
    search.begin_lanes(config.total_budget - expanded)
    while expanded < config.total_budget:
        group = [node for node in search.open if node.is_lane]
        group = group[: config.total_budget - expanded]
        if not group:
            break
        search.trace.groups.append([node.prefix for node in group])
        search.open = [node for node in search.open if node not in group]
        for node in group:
            search.expand(node.prefix, node.log_prob, step, expanded)
            expanded += 1
        step += 1
        search.begin_lanes(config.total_budget - expanded)
    return search.trace
