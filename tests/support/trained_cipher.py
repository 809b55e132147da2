"""A small BART that learns to write every letter as the next one, in seconds on one CPU core.

What it learns from has misprints, so that it knows more than one text for a word.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers as hf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LETTERS = "abcdefgh"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SHORTEST, LONGEST = 2, 6


def trained_cipher(steps: int = 90) -> tuple[Any, Any]:
    """Train the model, and return it with its tokenizer."""
    torch.manual_seed(0)
    source = random.Random(0)
    tokenizer = letter_tokenizer()
    model = hf.BartForConditionalGeneration(_config(len(tokenizer)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(steps):
        words = [word(source) for _ in range(32)]
        texts = [misprint(cipher(w), source) for w in words]
        inputs = tokenizer(words, padding=True, return_tensors="pt")
        labels = tokenizer(texts, padding=True, return_tensors="pt").input_ids
        labels = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval(), tokenizer


def word(source: random.Random) -> str:
    """Draw a word."""
    return "".join(source.choices(LETTERS, k=source.randint(SHORTEST, LONGEST)))


def cipher(text: str) -> str:
    """Write a word as the model should."""
    return "".join(LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)] for letter in text)


def misprint(text: str, source: random.Random) -> str:
    """Spoil one letter in eight."""
    return "".join(source.choice(LETTERS) if source.random() < 0.125 else c for c in text)


def letter_tokenizer() -> Any:
    """Make a tokenizer with a token for every letter, which ends each text with </s>."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocab["</s>"])]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def _config(vocab_size: int) -> Any:
    return hf.BartConfig(
        vocab_size=vocab_size,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=16,
        dropout=0.0,
        init_std=0.1,
        forced_eos_token_id=None,
    )
