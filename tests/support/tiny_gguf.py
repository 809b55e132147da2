"""Tiny GGUF files of random weights, beside the models that they should be read as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType

WORDS = 272
# What the package gguf can read and not write: random blocks, with these halves at these places.
UNWRITTEN = {"Q4_K": (slice(0, 4), (0.00005, 0.0004)), "Q6_K": (slice(208, 210), (0.00005,))}
CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def random_weights(kind: str, rows: int, inputs: int, seed: int) -> tuple[Any, Any]:
    """Return blocks, as bytes, and the weights that they stand for."""
    quant, rng = GGMLQuantizationType[kind], np.random.default_rng(seed)
    if kind in UNWRITTEN:
        size, num_bytes = gguf.GGML_QUANT_SIZES[quant]
        raw = rng.integers(0, 256, (rows * inputs // size, num_bytes), dtype=np.uint8)
        at, halves = UNWRITTEN[kind]
        raw[:, at] = np.array(halves, np.float16).view(np.uint8)
        raw = raw.reshape(rows, -1)
    else:
        weights = rng.standard_normal((rows, inputs)).astype(np.float32) * 0.05
        raw = gguf.quants.quantize(weights, quant)
    return raw, gguf.quants.dequantize(raw, quant)


def write(
    path: Path, kind: str, family: str = "llama", *, tied: bool = True, extra: str | None = None
) -> Any:
    """Write a file whose matrices are of one kind, and return the model that it holds."""
    hidden = 256 if kind.endswith("_K") else 64
    config = getattr(transformers, f"{CLASSES[family]}Config")(
        vocab_size=WORDS,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{CLASSES[family]}ForCausalLM")(config).eval()
    writer = gguf.GGUFWriter(str(path), family)
    _describe(writer, config)
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(arch, 2)
    for seed, (name, weight) in enumerate(model.named_parameters()):
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if weight.ndim == 1:
            raw = weight.detach().numpy()
            writer.add_tensor(own, raw)
            continue
        raw, dense = random_weights(kind, *weight.shape, seed)
        weight.data = torch.from_numpy(np.ascontiguousarray(dense))
        if family == "llama" and ("attn_q" in own or "attn_k" in own):
            heads = 4 if "attn_q" in own else 2
            raw = raw.reshape(heads, 2, -1, raw.shape[-1]).swapaxes(1, 2).reshape(raw.shape)
        writer.add_tensor(own, raw, raw_dtype=GGMLQuantizationType[kind])
    if extra is not None:
        writer.add_tensor(extra, np.full(hidden // 8, 2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _describe(writer: Any, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // 4)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(WORDS)
    letters = [chr(code) for code in range(33, 33 + WORDS - 5)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<s>", "</s>", "Ġ", *letters, "ab"])
    writer.add_token_types([3, 3, 3, *[1] * (WORDS - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
