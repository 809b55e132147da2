"""WordNet for tests: those that need it are skipped with a reason where it is missing."""

from __future__ import annotations

import pytest

from bestk.errors import MissingDataError, MissingExtraError
from bestk_eval.metrics.wordnet import wordnet


def has_wordnet() -> bool:
    """Say whether WordNet can be read."""
    try:
        wordnet()
    except (MissingDataError, MissingExtraError):
        return False
    return True


needs_wordnet = pytest.mark.skipif(
    not has_wordnet(), reason="needs WordNet: apt-get install wordnet-base"
)
