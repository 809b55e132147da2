"""Scores and decay as pure tensor functions.

Lengths and ages are whole numbers, so powers of them are read from tables computed once, in Python
floats: every device then orders nodes by the same numbers. Knows nothing about trees.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.config import SearchConfig


def length_powers(config: SearchConfig, device: torch.device) -> Float[Tensor, " lengths"]:
    """Tabulate length^α for every length from 0 to T (index 0 is never a child's length)."""
    alpha = config.alpha if config.alpha is not None else 0.0
    powers = [1.0] + [float(length) ** alpha for length in range(1, config.max_new_tokens + 1)]
    return torch.tensor(powers, dtype=torch.float64, device=device)


def decays(config: SearchConfig, device: torch.device) -> Float[Tensor, " ages"]:
    """Tabulate the decay of every age in reach: a step expands one node at least."""
    ages = range(config.total_budget + 2)
    weight, power = config.decay_weight, config.decay_power  # κ, β
    if config.decay == "power":
        table = [weight * float(age) ** power for age in ages]
    elif config.decay == "log":
        table = [weight * math.log1p(age) for age in ages]
    else:
        table = [0.0 for _ in ages]
    return torch.tensor(table, dtype=torch.float64, device=device)


def length_normalised(
    log_prob: Float[Tensor, "*nodes"],
    length: Int[Tensor, "*nodes"],
    powers: Float[Tensor, " lengths"],
) -> Float[Tensor, "*nodes"]:
    """Divide the sum of log-probabilities by length^α."""
    return log_prob / powers[length]


def last_token(last_log_prob: Float[Tensor, "*nodes"]) -> Float[Tensor, "*nodes"]:
    """Score a node by its newest token alone: the memoryless score of BKS_last."""
    return last_log_prob


def priority(
    score: Float[Tensor, "batch open"],
    age: Int[Tensor, "batch open"],
    table: Float[Tensor, " ages"],
) -> Float[Tensor, "batch open"]:
    """Lower each score by the decay of its node's age."""
    return score - table[age]
