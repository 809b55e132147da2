"""A policy of your own: best-k search that prefers deep nodes, so that texts end sooner.

What a policy decides is which nodes come next and what becomes of their children. Override what
differs: `priority` ranks open nodes, `score` scores children as they are found, `fate` sorts them.
"""

from __future__ import annotations

from torch import Tensor

import bestk
from bestk.core.best_k import BestK
from bestk.core.frontier import Nodes
from bestk.core.methods import POLICIES


class DepthFirst(BestK):
    """Best-k search with a reward for depth: the paper's appendix tries it, and rejects it."""

    def priority(self, pool: Nodes, clock: Tensor) -> Tensor:
        """Rank open nodes: the usual priority, and 0.1 nats for every token of depth."""
        return super().priority(pool, clock) + 0.1 * pool.depth


POLICIES["depth-first"] = DepthFirst  # the line that registers it

if __name__ == "__main__":
    lm = bestk.load("smollm2")
    for policy in ("best-k", "depth-first"):
        result = bestk.search(
            lm, "The best thing about dogs is", raw=True, policy=policy, stop=["."]
        )
        print(policy, *result.texts[:3], sep="\n  ")
