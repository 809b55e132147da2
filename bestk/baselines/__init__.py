"""The methods that best-k search is compared with, through one interface with it.

>>> from bestk.baselines import METHODS
>>> list(METHODS)[:3]
['BS', 'DBS', 'DBS+']
"""

from bestk.baselines.beam import Beam
from bestk.baselines.filters import Nucleus, Typical
from bestk.baselines.methods import (
    METHODS,
    AnyMethod,
    BestFirst,
    Scored,
    check_method,
    method_of,
    run_method,
)
from bestk.baselines.sampling import Sampling
from bestk.core.methods import Method

__all__ = [
    "METHODS",
    "AnyMethod",
    "Beam",
    "BestFirst",
    "Method",
    "Nucleus",
    "Sampling",
    "Scored",
    "Typical",
    "check_method",
    "method_of",
    "run_method",
]
