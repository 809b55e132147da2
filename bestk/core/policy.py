"""What a policy is: which nodes come next, and what becomes of their children.

A policy holds the state of a batch of searches and works on tensors alone: it knows no model, no
text and no requests. A pass is `next`, the model, `step`; a search is not changed before its nodes
are evaluated, so nothing ever has to be undone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.core.frontier import Nodes
from bestk.core.record import Finding, Standing
from bestk.nodes import BatchSpec, Children, Gate, NodeBatch


@dataclass(frozen=True)
class Plan:
    """Nodes that a policy wants evaluated, and what it must remember of them until they are."""

    nodes: NodeBatch
    log_prob: Float[Tensor, "batch nodes"]
    is_begin: bool = False  # these are roots, in no frontier
    taken: Nodes | None = None  # what the frontier says of them, where tensors do the step
    priority: Float[Tensor, "batch nodes"] | None = None


# Returns which of the children asked about complete a text, by what they read as.
Judge = Callable[[NodeBatch, Children, Tensor], Tensor]
# Returns the tokens that rules name for nodes and how likely they must be; None without rules.
Named = Callable[[NodeBatch], tuple[Tensor, Tensor] | None]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a policy is made for: a model's vocabulary, a number of searches."""

    batch: int
    vocab_size: int
    stop_ids: tuple[int, ...]
    device: torch.device
    num_forced: int = 0
    is_judged: bool = False  # text has a say in what opens: no kernels


class Policy(ABC):
    """The searches of one batch."""

    is_static = False  # `next` and `step` are fixed series of kernels: a CUDA graph can hold them
    can_refill = False  # a search can begin while others run
    draws = False  # children are drawn, by `draw`
    spec: BatchSpec
    judge: Judge  # for policies that choose among children by themselves; set by the batch
    named: Named  # for the same
    # Children of the planned nodes below this, log-probability and bonus, need not be listed.
    floor: Float[Tensor, "batch nodes"] | None = None
    is_active: Bool[Tensor, " batch"]

    @abstractmethod
    def begin(self, rows: Int[Tensor, " begun"], keys: Sequence[int]) -> Plan:
        """Start these searches anew, and return their roots; `keys` seed what is random."""

    @abstractmethod
    def next(self) -> Plan:
        """Return the nodes of the next step; nothing is changed."""

    def gate(self, nodes: NodeBatch, children: Children) -> Gate | None:
        """Return which children could be opened; None where a policy asks `judge` by itself."""
        return None

    def draw(
        self,
        nodes: NodeBatch,
        log_probs: Float[Tensor, "batch nodes vocab"],
        rows: Int[Tensor, " some"] | None,
    ) -> Children:
        """Draw the children of nodes, of these rows or of all, from whole distributions."""
        raise AssertionError("only policies that declare it draw")

    @abstractmethod
    def step(self, plan: Plan, children: Children) -> None:
        """Take the planned step, now that the children of its nodes are known."""

    @abstractmethod
    def time_out(self, rows: Iterable[int]) -> None:
        """Stop these searches where they are."""

    @abstractmethod
    def findings(self, rows: Sequence[int], *, keep_tree: bool = True) -> list[Finding]:
        """Return what these searches have found so far."""

    def standing(self, row: int) -> Standing:
        """Return where a search stands."""
        (finding,) = self.findings([row], keep_tree=False)
        return Standing(
            step=finding.steps - 1,
            expanded=finding.expanded,
            num_completions=sum(text.is_complete for text in finding.texts),
            mass=finding.mass,
        )

    def ended(self) -> list[int]:
        """Name the searches that are over. The one place where the host waits for the device."""
        return [row for row, active in enumerate(self.is_active.tolist()) if not active]

    def resized(self, rows: Sequence[int], batch: int) -> Policy:
        """Return a batch of another size that goes on with these searches, in its first rows."""
        raise AssertionError("only policies that can refill are resized")

    @property
    def look_every(self) -> int:
        """Count the passes between two looks at who has ended, where a look waits for a GPU."""
        return 8

    @property
    def nodes_per_pass(self) -> int:
        """Count the places for nodes of the next pass."""
        return self.spec.width

    def spent(self, row: int) -> tuple[int, int] | None:
        """Return a search's passes and evaluated nodes, where these are not steps and popped."""
        return None

    @property
    def most_steps(self) -> int:
        """Count the steps of a search that never runs short of nodes, the root's aside."""
        return -(-(self.spec.slots - 1) // self.spec.width)


def spec_of(config: SearchConfig, vocab_size: int, num_forced: int = 0) -> BatchSpec:
    """Derive from the settings how much a search needs."""
    return BatchSpec(
        width=min(config.k, config.max_frontier),
        slots=config.total_budget,
        depth=config.max_new_tokens,
        num_children=config.num_children(vocab_size),
        num_forced=num_forced,
    )


# Lengths and ages are whole numbers: powers of them are read from tables computed once, in Python
# floats: every device then orders nodes by the same numbers.


def length_table(config: SearchConfig, device: torch.device) -> Float[Tensor, " lengths"]:
    """Tabulate length^α for every length from 0 to T (index 0 is never a child's length)."""
    alpha = config.alpha if config.alpha is not None else 0.0
    powers = [1.0] + [float(length) ** alpha for length in range(1, config.max_new_tokens + 1)]
    return torch.tensor(powers, dtype=torch.float64, device=device)


def age_table(config: SearchConfig, device: torch.device) -> Float[Tensor, " ages"]:
    """Tabulate the decay of every age in reach: a step expands one node at least."""
    ages = range(config.total_budget + 2)
    weight, power = config.decay_weight, config.decay_power  # κ, β
    if config.policy == "diverse":  # knows no ages
        table = [0.0 for _ in ages]
    elif config.decay == "power":
        table = [weight * float(age) ** power for age in ages]
    elif config.decay == "log":
        table = [weight * math.log1p(age) for age in ages]
    else:
        table = [0.0 for _ in ages]
    return torch.tensor(table, dtype=torch.float64, device=device)
