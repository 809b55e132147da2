"""Single tokens as people see them."""

from __future__ import annotations

from typing import Any

import pytest

import bestk
from bestk.lm.token_text import show_bytes, token_pieces


class Pieces:
    """A tokenizer reduced to what showing tokens needs."""

    def __init__(self, pieces: list[str], texts: list[str]) -> None:
        self.pieces, self.texts = pieces, texts

    def batch_decode(self, ids: list[list[int]], **options: Any) -> list[str]:
        return ["".join(self.texts[i] for i in row) for row in ids]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.pieces[i] for i in ids]


def test_bytes_that_are_no_character_are_spelled_out() -> None:
    assert show_bytes("né".encode()) == "né"
    assert show_bytes(b" \xf0\x9f") == " <0xF0><0x9F>"
    assert show_bytes(b"\x98") == "<0x98>"


def test_byte_level_pieces() -> None:
    tokenizer = Pieces(["Ġdog", "ĠðŁ", "ĺ", "Ċ"], [" dog", " \ufffd", "\ufffd", "\n"])
    assert token_pieces(tokenizer, [0, 1, 2, 3]) == [" dog", " <0xF0><0x9F>", "<0x98>", "\n"]


def test_sentencepiece_pieces() -> None:
    tokenizer = Pieces(["▁dog", "s", "<0xE2>", "</s>"], ["dog", "s", "\ufffd", "</s>"])
    assert token_pieces(tokenizer, [0, 1, 2, 3]) == [" dog", "s", "<0xE2>", "</s>"]


def test_without_a_tokenizer_tokens_are_their_ids() -> None:
    assert token_pieces(None, [7, 3]) == ["7", "3"]
    assert token_pieces(Pieces([], []), []) == []


@pytest.mark.model
def test_real_tokens_join_to_the_text(smollm2: bestk.LanguageModel) -> None:
    text = "Dogs 🐶 are naïve — 犬"
    ids = smollm2.encode(text)
    pieces = [smollm2.token_text(token) for token in ids]
    assert any("<0x" in piece for piece in pieces), "the emoji should come in loose bytes"
    assert "\ufffd" not in "".join(pieces)
    result = bestk.search(smollm2, text, raw=True, k=1, budget=2, max_new_tokens=2)
    assert set(result.token_texts) == set(result.tree.child_token.tolist())
    assert smollm2.token_text(smollm2.backend.eos_ids[0]) == "<|im_end|>"
