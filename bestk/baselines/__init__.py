"""The methods that best-k search is compared with, through one interface with it.

>>> from bestk.baselines import METHODS
>>> list(METHODS)[:3]
['BS', 'DBS', 'DBS+']
"""

from bestk.baselines.base import Method
from bestk.baselines.beam import Beam
from bestk.baselines.filters import Nucleus, Typical
from bestk.baselines.methods import (
    METHODS,
    BestFirst,
    BestK,
    check_method,
    method_of,
    run_method,
)
from bestk.baselines.sampling import Sampling

__all__ = [
    "METHODS",
    "Beam",
    "BestFirst",
    "BestK",
    "Method",
    "Nucleus",
    "Sampling",
    "Typical",
    "check_method",
    "method_of",
    "run_method",
]
