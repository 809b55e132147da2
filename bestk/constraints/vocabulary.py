"""How a tokenizer's tokens read, as grammars must know it: the bytes of each, and the first space.

SentencePiece writes a space as `▁` inside its tokens and drops the one that a text begins with.
Knows tokenizers of `transformers` and xgrammar's view of them; knows no grammar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bestk.lm.token_text import WORD_START

if TYPE_CHECKING:
    from xgrammar import TokenizerInfo

    from bestk.lm.language_model import LanguageModel


def tokenizer_info(lm: LanguageModel, ends: tuple[int, ...]) -> TokenizerInfo:
    """Describe a model's tokens to xgrammar; `ends` are the ids that end a text."""
    import xgrammar

    size = lm.backend.vocab_size
    info = xgrammar.TokenizerInfo.from_huggingface(
        lm.tokenizer, vocab_size=size, stop_token_ids=list(ends)
    )
    if info.vocab_type != xgrammar.VocabType.RAW:
        return info
    # Taken as they are written: right unless that is SentencePiece without bytes, as T5's is.
    ids = range(min(size, len(lm.tokenizer)))
    pieces = [piece or "" for piece in lm.tokenizer.convert_ids_to_tokens(list(ids))]
    if not any(piece.startswith(WORD_START) for piece in pieces):
        return info
    return xgrammar.TokenizerInfo(
        [piece.replace(WORD_START, " ") for piece in pieces],
        vocab_size=size,
        stop_token_ids=list(ends),
    )


def drops_first_space(lm: LanguageModel) -> bool:
    """Return whether a text that begins with the token of " a" reads "a"."""
    first = lm.spell("a")[:1]
    return bool(first) and lm.token_text(first[0]) == " " + lm.decode([first])[0]
