"""The metrics that look words up in WordNet: METEOR, and the coverage of concepts.

METEOR is nltk's: exact, stemmed and synonym matches, best reference. Tokens are nltk's word tokens
of the whole text as one line, lower-cased: no sentence model needed.

Coverage is the share of the words asked for that a text has, as in CommonGen. A concept is there
when a word of the text has it as a base form by WordNet's `morphy` (noun, verb or adjective: "ran"
has run, "leaves" has leaf and leave), or is the concept itself.

WordNet is nltk's own copy, or the plain files of the WordNet distribution. Debian's `wordnet-base`
has those under /usr/share/wordnet, all that nltk reads but `lexnames`, the names of the
lexicographers' files, which neither METEOR nor lemmas look at.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bestk.errors import MissingDataError
from bestk.rerank.ngrams import words
from bestk_eval.examples import Example
from bestk_eval.extras import require
from bestk_eval.metrics.base import Column, TextMetric

FOLDERS = ("/usr/share/wordnet", "/usr/local/share/wordnet")

_NUM_LEXNAMES = 45  # lexicographer files of WordNet 3.0, by lexnames(5WN)


class Meteor(TextMetric):
    """Mean METEOR of a set."""

    family = "meteor"
    is_slow = True
    columns = (
        Column(key="MTR", title="METEOR, mean", group="Quality"),
        Column(key="OMTR", title="METEOR, best text", group="Oracle", latex="MTR"),
    )

    def __init__(self) -> None:
        self._meteor = require("nltk.translate.meteor_score", "nltk").meteor_score
        self._tokenize = require("nltk.tokenize", "nltk").word_tokenize
        self._wordnet = wordnet()
        self.signature = (
            f"meteor|tok:nltk-words|case:lower|refs:best|wordnet:{self._wordnet.get_version()}"
            f"|nltk:{version('nltk')}"
        )

    def score(self, texts: Sequence[str], example: Example) -> Sequence[Sequence[float]]:
        references = [self._tokens(text) for text in example.references]
        return [
            [100 * self._meteor(references, self._tokens(text), wordnet=self._wordnet)]
            for text in texts
        ]

    def _tokens(self, text: str) -> Any:
        return self._tokenize(text, preserve_line=True)


class Coverage(TextMetric):
    """Share of an example's `concepts` in a text; other tasks have none and no such number."""

    family = "coverage"
    columns = (
        Column(key="COV", title="% of concepts covered, mean", group="Quality"),
        Column(key="OCOV", title="% of concepts covered, best text", group="Oracle", latex="COV"),
    )
    is_needed: Callable[[Example], bool] = staticmethod(
        lambda example: bool(example.fields.get("concepts"))
    )

    def __init__(self) -> None:
        self.signature = f"coverage|lemmas:morphy-nva|wordnet:{wordnet().get_version()}"

    def score(self, texts: Sequence[str], example: Example) -> Sequence[Sequence[float]]:
        concepts = [str(concept) for concept in example.fields["concepts"]]
        return [[100 * coverage(text, concepts)] for text in texts]


def coverage(text: str, concepts: Sequence[str]) -> float:
    """Return the share of concepts that a text has."""
    there = {form for word in words(text) for form in base_forms(word)}
    return sum(bool(base_forms(concept.lower()) & there) for concept in concepts) / len(concepts)


@lru_cache(maxsize=100_000)
def base_forms(word: str) -> frozenset[str]:
    """Return a word with its base forms."""
    found = (form for pos in "nva" for form in wordnet()._morphy(word, pos))
    return frozenset([word, *found])


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
