"""Compiles the kernels of evaluation ahead of time for a card that need not be there.

python tests/support/compile_ahead.py CAPABILITY
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bestk.ahead import kernels

FLAGS = ("is_valid", "group_valid", "timed_out", "is_active", "open_nodes", "is_stop")
REALS = ("known_log_prob", "kept_log_prob", "kept_score", "group_log_prob", "completed")
REALS += ("group_child_log_prob", "truncated", "pruned_prob", "pruned_frontier", "pruned_bound")
REALS += ("tree_real", "tree_log_prob", "tree_score", "open_real", "open_priority")
REALS += ("scratch_real", "powers", "decays", "reals")
BLOCKS = {"block_rows": 32, "block_depth": 32}
CHOOSE = {**BLOCKS, "block_open": 512, "block_slots": 1024}
SETTLE = {**BLOCKS, "block_children": 32, "block_group": 8, "block_found": 128, "block_pool": 1024}
SETTLE |= {"by_length": True, "lists_all": False}


def compiled(kernel: Any, constants: dict[str, Any], capability: int) -> str:
    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in kernels._SIZES:
            return "i32"
        if name == "child_log_prob":
            return "*fp32"
        return "*i1" if name in FLAGS else "*fp64" if name in REALS else "*i64"

    source = ASTSource(kernel, {name: kind(name) for name in kernel.arg_names}, constants)
    target = GPUTarget("cuda", capability, 32)
    ptx: str = triton.compile(source, target=target, options={"num_warps": 8}).asm["ptx"]
    return ptx


if __name__ == "__main__":
    for one, constants in ((kernels.choose, CHOOSE), (kernels.settle, SETTLE)):
        assert ".entry" in compiled(one, constants, int(sys.argv[1]))
