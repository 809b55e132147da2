"""Finds WordNet: nltk's own copy, or the plain files of the WordNet distribution.

Debian's `wordnet-base` has those under /usr/share/wordnet, all that nltk reads but `lexnames`, the
names of the lexicographers' files, which neither METEOR nor lemmas look at.
"""

from __future__ import annotations

import io
import os
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

from bestk.errors import MissingDataError
from bestk_eval.extras import require

FOLDERS = ("/usr/share/wordnet", "/usr/local/share/wordnet")

_NUM_LEXNAMES = 45  # lexicographer files of WordNet 3.0, by lexnames(5WN)


@lru_cache(maxsize=1)
def wordnet() -> Any:
    """Return an nltk reader of WordNet."""
    nltk = require("nltk", "nltk")
    root = _find(nltk)
    if root is None:
        raise MissingDataError(
            "WordNet is not there: python -m nltk.downloader wordnet, or "
            "apt-get install wordnet-base, or set WNSEARCHDIR to its files"
        )
    if isinstance(root, str) and root not in nltk.data.path:
        nltk.data.path.append(root)  # nltk reads from registered folders only
    return _reader(root)


def _find(nltk: Any) -> Any:
    for name in ("corpora/wordnet", "corpora/wordnet.zip/wordnet/"):
        try:
            return nltk.data.find(name)
        except LookupError:
            continue
    told = os.environ.get("WNSEARCHDIR")
    for folder in ([told] if told else []) + list(FOLDERS):
        if (Path(folder) / "data.noun").exists():
            return folder
    return None


def _reader(root: Any) -> Any:
    base = require("nltk.corpus.reader.wordnet", "nltk").WordNetCorpusReader

    class Reader(base):  # type: ignore[misc,valid-type]
        """Stands in for `lexnames` where the files came without it."""

        def open(self, file: str) -> Any:
            try:
                return super().open(file)
            except OSError:
                if file != "lexnames":
                    raise
                return io.StringIO("".join(f"{i}\tfile.{i}\t0\n" for i in range(_NUM_LEXNAMES)))

        def map_wn(self, version: str = "wordnet") -> None:
            """Skip the map to the synsets of other languages, which needs nltk's own copy."""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are no other languages
        return Reader(root, None)
