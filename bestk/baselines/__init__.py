"""The methods that best-k search is compared with, through one interface with it.

`run_method` runs any of them; who has a loop of his own gives a `Scheduler` the requests.

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
    requests_for,
    results_of,
    run_method,
)
from bestk.baselines.sampling import Sampling
from bestk.core.methods import Method
from bestk.engine.request import Request
from bestk.engine.scheduler import Scheduler

__all__ = [
    "METHODS",
    "AnyMethod",
    "Beam",
    "BestFirst",
    "Method",
    "Nucleus",
    "Request",
    "Sampling",
    "Scheduler",
    "Scored",
    "Typical",
    "check_method",
    "method_of",
    "requests_for",
    "results_of",
    "run_method",
]
