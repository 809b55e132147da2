"""Turns single speed-ups of encoder-decoders off, to measure or to suspect them one by one.

    BESTK_OFF=layers,read python benchmarks/gpu_beam.py --shapes bart-large

`read`: reading sources as a captured graph. `layers`: fused decoder layers, and all below.
`products`: our own products of few rows. `head`: logits in whole lines of memory. `split`: sharing
a long source out. Results do not depend on any of them, beyond rounding.
"""

from __future__ import annotations

import os


def is_off(name: str) -> bool:
    """Say whether the environment turns a speed-up off."""
    return name in os.environ.get("BESTK_OFF", "").split(",")
