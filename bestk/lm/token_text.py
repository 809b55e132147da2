"""How single tokens look to people: words, names of special tokens, loose bytes.

A tokenizer decodes texts, not pieces: alone, a token may be half a character, or lose the space
that it begins with. Knows tokenizers of `transformers`; knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

_BROKEN = "\N{REPLACEMENT CHARACTER}"
WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's mark of a leading space


def token_pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Show each token by itself; bytes that are no whole character come as `<0xE2>`."""
    if tokenizer is None:
        return [str(token) for token in tokens]
    if not tokens:
        return []
    texts = tokenizer.batch_decode([[token] for token in tokens], skip_special_tokens=False)
    names = getattr(tokenizer, "convert_ids_to_tokens", None)
    pieces = names(list(tokens)) if names is not None else texts
    return [_shown(str(t), str(p or "")) for t, p in zip(texts, pieces, strict=True)]


def show_bytes(data: bytes) -> str:
    r"""Decode UTF-8, with whatever is no whole character as `<0x..>`.

    >>> show_bytes(b" \xf0\x9f")
    ' <0xF0><0x9F>'
    """
    text = data.decode("utf-8", "surrogateescape")
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def _shown(text: str, piece: str) -> str:
    if _BROKEN in text:
        table = _byte_alphabet()
        if piece and all(c in table for c in piece):  # byte-level BPE
            return show_bytes(bytes(table[c] for c in piece))
        return piece or text  # byte fallback, already written <0xE2>
    if piece.startswith(WORD_START) and not text.startswith(" "):
        return " " + text
    return text


@cache
def _byte_alphabet() -> dict[str, int]:
    """Map the letters in which byte-level BPE writes its pieces to the bytes they stand for.

    Printable Latin-1 stands for itself; every other byte, in order, for a letter from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}
