"""Tiny random encoder-decoders of many families, weights so large that a wrong position shows."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

VOCAB = 48
SOURCES = [[7, 11, 23, 40, 9, 31, 2], [5, 2], [17, 8, 8, 30, 2]]
MEL, FRAMES = 8, 20

_BART = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "init_std": 0.3,
}
_PLACES = {"max_position_embeddings": 40}
_T5 = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "initializer_factor": 2.0,
    "decoder_start_token_id": 0,
}
_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
_PROPHET = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_encoder_attention_heads": 2,
    "num_decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 40,
    "init_std": 0.3,
    "ngram": 2,
}


def tiny(family: str, attention: str = "sdpa", **changes: Any) -> Any:
    """Make a model of a family, the same one every time; `changes` go into what makes it."""
    torch.manual_seed(3)
    model = _MAKERS[family](**changes).eval()
    if family in ("mt5", "flan-t5", "switch"):  # else one token would have all the probability
        model.decoder.final_layer_norm.weight.data *= 0.2
    if attention != "sdpa":
        model.set_attn_implementation(attention)
    for name, value in _GENERATION.get(family, {}).items():
        setattr(model.generation_config, name, value)
    return model


def source_options(source: Any) -> dict[str, Any]:
    """Return the arguments of `forward` for one source alone."""
    if isinstance(source, torch.Tensor):
        return {"input_features": source[None]}
    tokens = torch.tensor([source])
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def sources_for(family: str) -> list[Any]:
    """Return a batch for a family: texts of unequal lengths, or sounds."""
    if family != "whisper":
        return SOURCES
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(MEL, FRAMES, generator=generator) for _ in SOURCES]


def _bert2bert() -> Any:
    both = (hf.BertConfig(**_BERT), hf.BertConfig(**_BERT))
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(
        *both, decoder_start_token_id=1, eos_token_id=2, pad_token_id=0
    )
    return hf.EncoderDecoderModel(config)


def _switch(**changes: Any) -> Any:
    sparse = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 2}
    config = hf.SwitchTransformersConfig(**_T5, **sparse, num_decoder_layers=2, **changes)
    return hf.SwitchTransformersForConditionalGeneration(config)


def _t5gemma(**changes: Any) -> Any:
    part = {
        **changes,
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
    }
    config = hf.T5GemmaConfig(encoder=part, decoder=part, vocab_size=VOCAB, initializer_range=0.3)
    model = hf.T5GemmaForConditionalGeneration(config)
    model.generation_config.decoder_start_token_id = 2
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def _whisper() -> Any:
    config = hf.WhisperConfig(
        **_BART,
        num_mel_bins=MEL,
        max_source_positions=FRAMES // 2,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return hf.WhisperForConditionalGeneration(config)


def _marian() -> Any:
    last = VOCAB - 1
    config = hf.MarianConfig(
        **_BART, **_PLACES, pad_token_id=last, decoder_start_token_id=last, eos_token_id=0
    )
    return hf.MarianMTModel(config)


_MAKERS = {
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**_T5)),
    "mt5": lambda: hf.MT5ForConditionalGeneration(hf.MT5Config(**_T5)),
    "flan-t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(**_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    ),
    "switch": _switch,
    "umt5": lambda: hf.UMT5ForConditionalGeneration(hf.UMT5Config(**_T5)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_BART, **_PLACES)),
    "mbart": lambda: hf.MBartForConditionalGeneration(
        hf.MBartConfig(**_BART, **_PLACES, decoder_start_token_id=45)
    ),
    "mbart50": lambda: hf.MBartForConditionalGeneration(
        hf.MBartConfig(**_BART, **_PLACES, decoder_start_token_id=2)
    ),
    "marian": _marian,
    "pegasus": lambda: hf.PegasusForConditionalGeneration(hf.PegasusConfig(**_BART, **_PLACES)),
    "m2m100": lambda: hf.M2M100ForConditionalGeneration(hf.M2M100Config(**_BART, **_PLACES)),
    "whisper": _whisper,
    "blenderbot": lambda: hf.BlenderbotSmallForConditionalGeneration(
        hf.BlenderbotSmallConfig(**_BART, **_PLACES)
    ),
    "led": lambda: hf.LEDForConditionalGeneration(
        hf.LEDConfig(
            **_BART,
            max_encoder_position_embeddings=40,
            max_decoder_position_embeddings=40,
            attention_window=4,
        )
    ),
    "longt5": lambda: hf.LongT5ForConditionalGeneration(hf.LongT5Config(**_T5, local_radius=4)),
    "bigbird": lambda **changes: hf.BigBirdPegasusForConditionalGeneration(
        hf.BigBirdPegasusConfig(**_BART, **{**_PLACES, **changes})
    ),
    "nllb-moe": lambda: hf.NllbMoeForConditionalGeneration(
        hf.NllbMoeConfig(**_BART, **_PLACES, num_experts=2)
    ),
    "t5gemma": _t5gemma,
    "fsmt": lambda: hf.FSMTForConditionalGeneration(
        hf.FSMTConfig(
            langs=["a", "b"],
            src_vocab_size=VOCAB,
            tgt_vocab_size=VOCAB,
            **{name: value for name, value in _BART.items() if name != "vocab_size"},
            **_PLACES,
        )
    ),
    "prophetnet": lambda: hf.ProphetNetForConditionalGeneration(hf.ProphetNetConfig(**_PROPHET)),
    "bert2bert": _bert2bert,
}

_GENERATION: dict[str, dict[str, Any]] = {
    "mbart50": {"forced_bos_token_id": 45},
    "m2m100": {"forced_bos_token_id": 45},
    "marian": {"bad_words_ids": [[VOCAB - 1]]},
}

FALLBACK = ("fsmt", "prophetnet", "bert2bert")
TREE = tuple(family for family in _MAKERS if family not in FALLBACK)
