"""Benchmarks: best-k search against beam search and sampling, on any model of transformers.

Light to import: torch and transformers are imported by what measures.

The floor is the time in which the device could read the weights once for every model call, at the
bandwidth that a large copy reaches in the same run. A mixture of experts reads less than that.
"""

from bestk_eval.benchmark.prompts import TEXT
from bestk_eval.benchmark.report import BenchReport, BenchRow, BenchSettings, table
from bestk_eval.benchmark.runner import BEAM, bench

__all__ = ["BEAM", "TEXT", "BenchReport", "BenchRow", "BenchSettings", "bench", "table"]
