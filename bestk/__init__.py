"""bestk: a large set of good, different, ranked texts from any language model.

    >>> import bestk
    >>> lm = bestk.load("smollm2")                                      # doctest: +SKIP
    >>> result = bestk.search(lm, "The best thing about dogs is")      # doctest: +SKIP

Names are looked up at their first use, so `import bestk` loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bestk.config import SearchConfig
from bestk.errors import BestKError
from bestk.version import __version__

if TYPE_CHECKING:
    from bestk.api import Run, best_first, search, stream
    from bestk.backends.vllm.open import from_vllm, vllm_options
    from bestk.baselines import run_method
    from bestk.batch import run_batch
    from bestk.constraints.base import Constraint
    from bestk.constraints.trie import Trie
    from bestk.drop_in.generate import generate
    from bestk.engine.pool import kept_batches
    from bestk.lm.encoder_decoder import EncoderDecoderModel
    from bestk.lm.language_model import Features, LanguageModel, Prompt
    from bestk.lm.loading import from_transformers, load
    from bestk.result import Hypothesis, SearchResult

_HOMES = {
    "Constraint": "bestk.constraints.base",
    "EncoderDecoderModel": "bestk.lm.encoder_decoder",
    "Features": "bestk.lm.language_model",
    "Hypothesis": "bestk.result",
    "LanguageModel": "bestk.lm.language_model",
    "Prompt": "bestk.lm.language_model",
    "Run": "bestk.api",
    "SearchResult": "bestk.result",
    "Trie": "bestk.constraints.trie",
    "best_first": "bestk.api",
    "from_transformers": "bestk.lm.loading",
    "from_vllm": "bestk.backends.vllm.open",
    "generate": "bestk.drop_in.generate",
    "kept_batches": "bestk.engine.pool",
    "load": "bestk.lm.loading",
    "run_batch": "bestk.batch",
    "run_method": "bestk.baselines",
    "search": "bestk.api",
    "stream": "bestk.api",
    "vllm_options": "bestk.backends.vllm.open",
}

__all__ = [
    "BestKError",
    "Constraint",
    "EncoderDecoderModel",
    "Features",
    "Hypothesis",
    "LanguageModel",
    "Prompt",
    "Run",
    "SearchConfig",
    "SearchResult",
    "Trie",
    "__version__",
    "best_first",
    "from_transformers",
    "from_vllm",
    "generate",
    "kept_batches",
    "load",
    "run_batch",
    "run_method",
    "search",
    "stream",
    "vllm_options",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'bestk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
