"""Encoder-decoders as users meet them: a trained one, languages, loading from a folder."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tiny_seq2seq import tiny
from trained_cipher import cipher, letter_tokenizer, trained_cipher, word

import bestk
from bestk.backends.transformers.encoder_decoder import EncoderDecoderBackend
from bestk.errors import OptionError, PromptError

LONGEST = 8  # a word of six letters and its end fit


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    return trained_cipher()


def words(count: int) -> list[str]:
    source = random.Random(99)
    return [word(source) for _ in range(count)]


def test_a_trained_model_finds_the_reference(trained: tuple[Any, Any]) -> None:
    lm = bestk.from_transformers(*trained)
    sources = words(24)
    results = bestk.search(lm, sources, max_new_tokens=LONGEST, batch_size=8)
    for source, result in zip(sources, results, strict=True):
        assert cipher(source) in result.texts
        assert len(set(result.texts)) == len(result.texts)
    best = sum(r.texts[0] == cipher(s) for s, r in zip(sources, results, strict=True))
    assert best >= 20, "a model this well trained should mostly rank the reference first"


def test_beam_search_never_beats_a_certified_result(trained: tuple[Any, Any]) -> None:
    """At an equal budget of node expansions, by the sum of log-probabilities."""
    model, tokenizer = trained
    lm = bestk.from_transformers(model, tokenizer)
    num_beams, certified = 5, 0
    for source in words(16):
        result = bestk.search(
            lm,
            source,
            scoring="sum",
            rank_by="sum",
            decay="none",
            min_prob=0.0,
            beam_size=num_beams,
            max_new_tokens=LONGEST,
            max_frontier=1000,
            certify=1,
        )
        beams = model.generate(
            **tokenizer(source, return_tensors="pt"),
            num_beams=num_beams,
            num_return_sequences=num_beams,
            max_new_tokens=LONGEST,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        ended = (beams.sequences == tokenizer.eos_token_id).any(dim=1)
        beam_best = float(beams.sequences_scores[ended].max())
        assert result.cost.expanded <= num_beams * LONGEST
        if result.certified:
            certified += 1
            assert result.hypotheses[0].log_prob >= beam_best - 1e-4
    assert certified >= 12, "too few certified results to say anything"


def test_a_batch_of_texts_equals_one_by_one(trained: tuple[Any, Any]) -> None:
    lm = bestk.from_transformers(*trained)
    sources = words(6)
    together = bestk.search(lm, sources, max_new_tokens=LONGEST)
    in_pairs = bestk.search(lm, sources, max_new_tokens=LONGEST, batch_size=2)
    for source, batched, paired in zip(sources, together, in_pairs, strict=True):
        alone = bestk.search(lm, source, max_new_tokens=LONGEST)
        assert alone.texts == batched.texts == paired.texts
        assert [h.token_ids for h in alone.hypotheses] == [h.token_ids for h in batched.hypotheses]


def test_a_folder_is_loaded_as_what_its_config_says(tmp_path: Path) -> None:
    model, tokenizer = hf.T5ForConditionalGeneration(_letter_config()), letter_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lm = bestk.load(str(tmp_path), device="cpu")
    assert isinstance(lm, bestk.EncoderDecoderModel)
    assert isinstance(lm.backend, EncoderDecoderBackend)
    one = bestk.search(lm, "abc", budget=20, max_new_tokens=5)
    other = bestk.search(
        bestk.from_transformers(model, tokenizer), "abc", budget=20, max_new_tokens=5
    )
    assert one.texts == other.texts
    assert not any("<" in text for text in one.texts)
    with pytest.raises(PromptError, match="the prompt is empty"):
        bestk.search(lm, "  ")


def test_a_speech_folder_is_loaded_for_speech(tmp_path: Path) -> None:
    tiny("whisper").save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    lm = bestk.load(str(tmp_path), device="cpu", decoder_prompt=[3, 7])
    assert not lm.reads_text
    assert lm.backend.decoder_prompt == (3, 7)


def test_options_of_encoder_decoders_are_refused_for_others() -> None:
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(OptionError, match="tgt_lang is for encoder-decoders"):
        bestk.from_transformers(model, tgt_lang="ro_RO")


# Languages


def nllb() -> Any:
    vocab = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcde"])}
    return hf.NllbTokenizer(vocab=vocab, merges=[])


def mbart50() -> Any:
    pieces = [(token, -1.0) for token in ["<unk>", "<s>", "</s>", "▁", *"abcde"]]
    return hf.MBart50Tokenizer(vocab=pieces)


def m2m100(folder: Path) -> Any:
    import sentencepiece

    text = folder / "text.txt"
    text.write_text("abc abd\nabe bca\ncab\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "spm"), vocab_size=11, minloglevel=2
    )
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcde"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    return hf.M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "spm.model"))


def translator(tokenizer: Any, start: int | None = 2) -> Any:
    torch.manual_seed(0)
    config = hf.M2M100Config(
        vocab_size=len(tokenizer) + 150,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=40,
        init_std=0.3,
        decoder_start_token_id=start,
    )
    return hf.M2M100ForConditionalGeneration(config).eval()


CASES = [("nllb", "ron_Latn", "fra_Latn"), ("mbart50", "ro_RO", "fr_XX"), ("m2m100", "ro", "fr")]


def make(kind: str, folder: Path) -> Any:
    return m2m100(folder) if kind == "m2m100" else {"nllb": nllb, "mbart50": mbart50}[kind]()


@pytest.mark.parametrize(("kind", "source", "target"), CASES)
def test_languages_are_marked_in_source_and_text(
    kind: str, source: str, target: str, tmp_path: Path
) -> None:
    tokenizer = make(kind, tmp_path)
    model = translator(tokenizer)
    before = tokenizer.src_lang, tokenizer("abc").input_ids
    lm = bestk.from_transformers(model, tokenizer, src_lang=source, tgt_lang=target)
    ids = {code: _language_id(tokenizer, code) for code in (source, target)}
    assert lm.encode("abc")[0] == ids[source]
    assert lm.backend.decoder_prompt == (2, ids[target])
    assert (tokenizer.src_lang, tokenizer("abc").input_ids) == before
    result = bestk.search(lm, "abc", budget=10, max_new_tokens=4, min_prob=0.0, max_children=3)
    tokenizer.src_lang = source
    greedy = model.generate(
        **tokenizer("abc", return_tensors="pt"), forced_bos_token_id=ids[target], max_new_tokens=2
    )
    assert greedy[0].tolist() == [2, ids[target], int(result.tree.child_token[0])]


@pytest.mark.parametrize(("kind", "source", "target"), CASES)
def test_wrong_languages_are_refused(kind: str, source: str, target: str, tmp_path: Path) -> None:
    tokenizer = make(kind, tmp_path)
    model = translator(tokenizer)
    with pytest.raises(OptionError, match="languages: choose one with tgt_lang"):
        bestk.from_transformers(model, tokenizer, src_lang=source)
    with pytest.raises(
        OptionError, match=rf"unknown tgt_lang '{target}x': did you mean '{target}'"
    ):
        bestk.from_transformers(model, tokenizer, tgt_lang=target + "x")
    with pytest.raises(
        OptionError, match=rf"unknown src_lang '{source}x': did you mean '{source}'"
    ):
        bestk.from_transformers(model, tokenizer, src_lang=source + "x", tgt_lang=target)
    with pytest.raises(OptionError, match="knows no language codes: leave tgt_lang out"):
        bestk.from_transformers(model, None, tgt_lang=target)
    # What the checkpoint or the tokenizer settles need not be said again.
    token = _language_id(tokenizer, target)
    model.generation_config.forced_bos_token_id = token
    assert bestk.from_transformers(model, tokenizer).backend.decoder_prompt == (2, token)
    model.generation_config.forced_bos_token_id = None
    tokenizer.tgt_lang = target
    assert bestk.from_transformers(model, tokenizer).backend.decoder_prompt == (2, token)


def test_a_start_token_that_is_a_language_is_replaced() -> None:
    """mBART's texts start with the code itself, mBART-50's with </s> and the code."""
    tokenizer = mbart50()
    romanian, french = (_language_id(tokenizer, code) for code in ("ro_RO", "fr_XX"))
    model = translator(tokenizer, start=romanian)
    assert bestk.from_transformers(model, tokenizer).backend.decoder_prompt == (romanian,)
    lm = bestk.from_transformers(model, tokenizer, tgt_lang="fr_XX")
    assert lm.backend.decoder_prompt == (french,)


def test_whisper_takes_a_language_by_its_code() -> None:
    model = tiny("whisper")
    model.generation_config.lang_to_id = {"<|en|>": 40, "<|fr|>": 41}
    model.generation_config.task_to_id = {"transcribe": 44}
    assert bestk.from_transformers(model).backend.decoder_prompt == (3, None)
    lm = bestk.from_transformers(model, tgt_lang="fr")
    assert lm.backend.decoder_prompt == (3, 41, 44)
    with pytest.raises(OptionError, match="unknown tgt_lang 'fx': did you mean 'fr'"):
        bestk.from_transformers(model, tgt_lang="fx")


def _language_id(tokenizer: Any, code: str) -> int:
    name = f"__{code}__" if isinstance(tokenizer, hf.M2M100Tokenizer) else code
    return int(tokenizer.convert_tokens_to_ids(name))


def _letter_config() -> Any:
    torch.manual_seed(0)
    return hf.T5Config(
        vocab_size=len(letter_tokenizer()),
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        initializer_factor=2.0,
    )
