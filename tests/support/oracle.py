"""Algorithm 2 with a heap and Python numbers: the tensor core must agree with it node for node."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from bestk.backends.toy import ToyBackend
from bestk.config import SearchConfig


@dataclass
class Trace:
    groups: list[list[tuple[int, ...]]] = field(default_factory=list)  # the prefixes of each step
    frontiers: list[set[tuple[int, ...]]] = field(default_factory=list)
    completions: dict[tuple[int, ...], float] = field(default_factory=dict)
    mass: list[dict[str, float]] = field(default_factory=list)
    bound: float = -math.inf  # no text that is neither found nor open is likelier


def best_k(model: ToyBackend, prompt: tuple[int, ...], config: SearchConfig) -> Trace:
    trace = Trace()
    log_gamma = math.log(config.min_prob) if config.min_prob > 0 else -math.inf
    ends = {*model.eos_ids, *config.stop_ids}
    mass = {"completed": 0.0, "truncated": 0.0, "pruned_prob": 0.0, "pruned_frontier": 0.0}
    frontier: list[tuple] = []  # (prefix, log_prob, score, step, last_log_prob, parent slot)

    def priority(node: tuple, clock: int) -> float:
        age = clock - node[3]
        decays = {
            "power": lambda: config.decay_weight * float(age) ** config.decay_power,
            "log": lambda: config.decay_weight * math.log1p(age),
            "none": lambda: 0.0,
        }
        return node[2] + config.depth_bonus * len(node[0]) - decays[config.decay]()

    def heap(clock: int) -> list[tuple]:
        keyed = [((-priority(n, clock), n[3], -n[4], n[0][-1], n[5]), n) for n in frontier]
        heapq.heapify(keyed)
        return keyed

    def expand(prefix: tuple[int, ...], log_prob: float, step: int, slot: int) -> None:
        scored = sorted(enumerate(model.log_probs(prompt + prefix)), key=lambda c: (-c[1], c[0]))
        left, rank = math.exp(log_prob), 0
        listed = scored[: config.num_children(model.vocab_size)]
        if len(listed) < len(scored):
            unlisted = 1 - sum(math.exp(last) for _, last in listed)
            likeliest = math.log(unlisted) if unlisted > 0 else -math.inf
            trace.bound = max(trace.bound, log_prob + min(likeliest, listed[-1][1]))
        for token, last in listed:
            length = len(prefix) + 1
            if last == -math.inf or (token in ends and length < config.min_new_tokens):
                continue
            rank += 1
            if last < log_gamma and rank > config.min_children:
                trace.bound = max(trace.bound, log_prob + last)
                continue
            child, total = (*prefix, token), log_prob + last
            left -= math.exp(total)
            if token in ends:
                trace.completions[child] = total
                mass["completed"] += math.exp(total)
            elif length >= config.max_new_tokens:
                mass["truncated"] += math.exp(total)
            else:
                score = last if config.alpha is None else total / float(length) ** config.alpha
                frontier.append((child, total, score, step, last, slot))
        mass["pruned_prob"] += left

    def drop(nodes: list[tuple]) -> None:
        mass["pruned_frontier"] += sum(math.exp(node[1]) for node in nodes)
        trace.bound = max([trace.bound, *(node[1] for node in nodes)])

    def prune(clock: int) -> None:
        if config.prune_margin is not None and len(frontier) >= config.k:
            least = sorted((node[2] for node in frontier), reverse=True)[config.k - 1]
            drop([node for node in frontier if node[2] < least - config.prune_margin])
            frontier[:] = [node for node in frontier if node[2] >= least - config.prune_margin]
        keyed = heap(clock)
        kept = [heapq.heappop(keyed)[1] for _ in range(min(config.max_frontier, len(keyed)))]
        drop([node for _, node in keyed])
        frontier[:] = kept
        trace.frontiers.append({node[0] for node in frontier})
        trace.mass.append({**mass, "frontier": sum(math.exp(node[1]) for node in frontier)})

    def is_enough() -> bool:
        bound = max([trace.bound, *(node[1] for node in frontier)])
        proven = sum(total >= bound for total in trace.completions.values())
        return proven >= (config.certify or math.inf) or len(trace.completions) >= (
            config.max_completions or math.inf
        )

    expand((), 0.0, 0, 0)
    prune(1)
    expanded, step = 1, 1
    while expanded < config.total_budget and frontier and not is_enough():
        keyed = heap(step)
        width = min(config.k, len(keyed), config.total_budget - expanded)
        group = [heapq.heappop(keyed)[1] for _ in range(width)]
        frontier[:] = [node for _, node in keyed]
        trace.groups.append([node[0] for node in group])
        for node in group:
            expand(node[0], node[1], step, expanded)
            expanded += 1
        prune(step + 1)
        step += 1
    return trace
