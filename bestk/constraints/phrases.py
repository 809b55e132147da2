"""Words and phrases in a text: what counts as holding one.

A phrase is looked for in the text without regard to case, as whole words, with any white space
between them: "dog" is in "The Dog, they say" and not in "dogma" or "dogs". Several forms of which
any will do are written "run|runs|ran". Phrases may overlap, and one that contains another holds
both. Pure functions of strings; knows no tokens.
"""

from __future__ import annotations

import re
import unicodedata

# Scripts written without spaces between words have no word boundaries to look for.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)


class Phrase:
    """One thing that a text must hold, in any of its forms.

    >>> Phrase("dog").is_in("A dog's life"), Phrase("dog").is_in("dogma")
    (True, False)
    >>> Phrase("ran|runs").is_in("He RAN away.")
    True
    """

    def __init__(self, written: str) -> None:
        self.forms = tuple(form.strip() for form in written.split("|"))
        self._pattern = re.compile("|".join(_pattern(fold(form)) for form in self.forms))

    def is_in(self, text: str) -> bool:
        """Return whether the text holds the phrase; its end counts as the end of a word."""
        return self._pattern.search(fold(text)) is not None


def fold(text: str) -> str:
    """Write a text so that texts which differ only in case or encoding are equal."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def spellings(form: str, text: str) -> list[str]:
    """List how the form could go on a text: after a space or not, with a capital or not."""
    shown = {form: None}
    if not text or text.rstrip(" \"'“‘(")[-1:] in {"", ".", "!", "?", "\n", ":"}:
        shown[form[:1].upper() + form[1:]] = None
    if not text:
        return [*shown, *(" " + spelling for spelling in shown)]
    is_apart = not text[-1].isalnum() and text[-1] not in ",.;:!?)"
    return [*shown] if is_apart else [" " + spelling for spelling in shown]


def _pattern(form: str) -> str:
    words = r"\s+".join(map(re.escape, form.split()))
    before = r"(?<!\w)" if _has_boundary(form[0]) else ""
    after = r"(?!\w)" if _has_boundary(form[-1]) else ""
    return f"{before}{words}{after}"


def _has_boundary(character: str) -> bool:
    is_word = character.isalnum() or character == "_"
    return is_word and not _UNSPACED.match(character)
