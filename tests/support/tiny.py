"""Tiny random checkpoints of many families, with weights large enough that mistakes show."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers

VOCAB = 61
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = SHAPE | {"num_key_value_heads": 2}

# family: (name of the classes, settings beside SHAPE)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", SHAPE | {"n_inner": 48}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", GROUPED | {"head_dim": 8}),
    "mistral": ("MistralConfig", "MistralForCausalLM", GROUPED | {"sliding_window": 32}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        GROUPED
        | {
            "head_dim": 8,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        GROUPED | {"head_dim": 8, "sliding_window": 32, "query_pre_attn_scalar": 8},
    ),
    "opt": ("OPTConfig", "OPTForCausalLM", SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", SHAPE),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", SHAPE | {"rotary_dim": 4, "n_inner": 48}),
    "phi": ("PhiConfig", "PhiForCausalLM", SHAPE),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", GROUPED),
    "cohere": ("CohereConfig", "CohereForCausalLM", GROUPED),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "falcon": ("FalconConfig", "FalconForCausalLM", SHAPE | {"alibi": False}),
    "falcon_alibi": ("FalconConfig", "FalconForCausalLM", SHAPE | {"alibi": True}),
    "bloom": ("BloomConfig", "BloomForCausalLM", SHAPE),
    "mpt": (
        "MptConfig",
        "MptForCausalLM",
        SHAPE | {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64},
    ),
    "gpt_neo": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        SHAPE | {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 4},
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", GROUPED | {"original_max_position_embeddings": 64}),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        GROUPED
        | {
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 32,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        GROUPED | {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
    ),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM", GROUPED | {"sliding_window": 32}),
    "starcoder2": (
        "Starcoder2Config",
        "Starcoder2ForCausalLM",
        GROUPED | {"sliding_window": 32},
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        GROUPED
        | {
            "intermediate_size": [48] * 3,
            "head_dim": 8,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "num_kv_shared_layers": 0,
            "activation_sparsity_pattern": [0.0] * 3,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "llama4": (
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        GROUPED
        | {
            "intermediate_size_mlp": 48,
            "head_dim": 8,
            "num_local_experts": 2,
            "attention_chunk_size": 32,
            "floor_scale": 8,
        },
    ),
    "bert": ("BertConfig", "BertLMHeadModel", SHAPE | {"is_decoder": True}),
    "roberta": ("RobertaConfig", "RobertaForCausalLM", SHAPE | {"is_decoder": True}),
    "mamba": ("MambaConfig", "MambaForCausalLM", SHAPE | {"state_size": 8}),
}


@functools.cache
def model(family: str, **changes: Any) -> Any:
    """Build a model with fixed random weights; `changes` go into its config."""
    return fresh(family, **changes)


def fresh(family: str, seed: int = 0, **changes: Any) -> Any:
    """Build a model that nobody else holds."""
    config_name, model_name, settings = FAMILIES[family]
    attention = changes.pop("attn_implementation", None)
    known = settings | changes
    if family == "gpt_neo":
        known = {name: value for name, value in known.items() if name != "num_hidden_layers"}
    config = getattr(transformers, config_name)(**known)
    torch.manual_seed(seed)
    made = getattr(transformers, model_name)._from_config(config, attn_implementation=attention)
    return made.eval()
