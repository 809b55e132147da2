"""Reads GGUF files, the form that llama.cpp's models come in: the weights as they are stored.

What is slow to read of such a file is text: settings, words, merges. They are kept in the cache
folder as transformers' own files, with a table that says which part of the file is which weight.
The weights themselves are mapped from the file, and those of four bits stay so if asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from bestk.backends.transformers.four_bit import FourBitLinear, can_pack
from bestk.errors import ModelError
from bestk.lm import cache, gguf_blocks
from bestk.lm.gguf_header import check_header

# Architectures whose weights are transformers' own but for their names, and in Llama's for the
# order of rows; files of others are read by transformers, if it knows them.
_PERMUTED, _AS_THEY_ARE = "llama", ("qwen2", "qwen3")
_TABLE = "weights.json"
_ROPE = "rope_freqs.weight"  # what positions are divided by, which is no weight of the model


def is_gguf(source: str | Path) -> bool:
    """Return whether a name is that of a GGUF file."""
    return str(source).endswith(".gguf")


def described(path: Path) -> Path:
    """Return a folder with a file's config and tokenizer, written when the file is first read."""
    import transformers

    about = path.resolve().stat()
    told = f"{path.resolve()} {about.st_size} {about.st_mtime_ns} {transformers.__version__}"
    name = f"gguf-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    return cache.made(name, lambda folder: _describe(path, folder))


def stored_dtype(path: Path) -> Any:
    """Return what a file keeps its weights in: "4bit", or the narrowest format that holds them."""
    kinds = {entry["kind"] for entry in _table(path).values()}
    if kinds & gguf_blocks.FOUR_BITS:
        return "4bit"
    narrow = kinds - {"F32"}
    if kinds and not narrow:
        return torch.float32
    return torch.float16 if narrow == {"F16"} else torch.bfloat16


def read_gguf(path: Path, dtype: Any) -> tuple[Any, Any]:
    """Read the model and the tokenizer; `dtype` "4bit" leaves weights of four bits as they are."""
    from transformers import AutoTokenizer

    folder, table = described(path), _table(path)
    within = torch.bfloat16 if dtype == "4bit" else dtype
    model = _model(path, folder, table, dtype) if table else _dense(path, within)
    return model.to(within), AutoTokenizer.from_pretrained(folder)


def _describe(path: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoTokenizer

    check_header(path)
    place = {"gguf_file": path.name}
    config = AutoConfig.from_pretrained(path.parent, **place)
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, **place).save_pretrained(folder)
    reader = GGUFReader(path)
    kind = reader.fields["general.architecture"].contents()
    told = {}
    if kind == _PERMUTED or kind in _AS_THEY_ARE:
        found = {
            one.name: {
                "kind": one.tensor_type.name,
                "shape": [int(size) for size in reversed(one.shape)],
                "at": int(one.data_offset),
                "bytes": int(one.n_bytes),
            }
            for one in reader.tensors
        }
        told = _named(path, config, kind, found)
    (folder / _TABLE).write_text(json.dumps(told))


def _named(path: Path, config: Any, kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """Say which tensor of the file is which of the model's, and how its rows are ordered."""
    import gguf

    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    told = {}
    for name in _empty(config).state_dict():
        own = names.get_name(name, try_suffixes=(".weight", ".bias")) or ""
        if entry := found.pop(own, None):
            part = own.split(".")[-2]
            told[name] = entry | {"heads": heads.get(part) if kind == _PERMUTED else None}
        elif name != "lm_head.weight" or not config.tie_word_embeddings:
            raise ModelError(f"{path} has no tensor for {name}: it is of no known form of {kind}")
    if _ROPE in found:
        told[_ROPE] = found.pop(_ROPE)
    if found:
        raise ModelError(f"{path} has a tensor {next(iter(found))}, which no {kind} model has")
    return told


def _table(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((described(path) / _TABLE).read_text())
    return table


def _empty(config: Any) -> Any:
    """Make a model without weights; what it computes by itself, such as angles, is there."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        return AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]


def _model(path: Path, folder: Path, table: Mapping[str, Any], dtype: Any) -> Any:
    from transformers import AutoConfig

    model = _empty(AutoConfig.from_pretrained(folder))
    # Copied when it is written to, which nobody does: torch warns of memory that cannot be.
    mapped = torch.from_numpy(np.memmap(path, np.uint8, "c"))
    weights = {}
    for name, entry in table.items():
        raw = _rows(mapped, entry)
        layer = model.get_submodule(name.rpartition(".")[0]) if name != _ROPE else model
        if dtype == "4bit" and entry["kind"] in gguf_blocks.FOUR_BITS and can_pack(layer):
            model.set_submodule(name.rpartition(".")[0], _four_bit(raw, entry, layer))
        else:
            narrow = torch.bfloat16 if dtype == "4bit" else dtype
            weights[name] = gguf_blocks.dense(raw, entry["kind"]).view(entry["shape"]).to(narrow)
    if _ROPE in weights:
        rotary = model.base_model.rotary_emb
        for angles in (rotary.inv_freq, rotary.original_inv_freq):
            angles /= weights[_ROPE]
        del weights[_ROPE]
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model


def _rows(mapped: Tensor, entry: Mapping[str, Any]) -> Shaped[Tensor, "rows bytes"]:
    """Return the bytes of a weight, a row of the layer each, in transformers' order."""
    raw = mapped[entry["at"] : entry["at"] + entry["bytes"]]
    if not entry.get("heads"):
        return raw.view(entry["shape"][0] if len(entry["shape"]) > 1 else 1, -1)
    # llama.cpp turns pairs of neighbours, transformers the two halves of a head.
    raw = raw.view(entry["heads"], -1, 2, len(raw) // entry["shape"][0])
    return raw.transpose(1, 2).reshape(entry["shape"][0], -1)


def _four_bit(raw: Tensor, entry: Mapping[str, Any], layer: Any) -> nn.Module:
    numbers = gguf_blocks.numbers_of(raw, entry["kind"])
    outputs, inputs = entry["shape"]
    assert numbers.minimum is not None
    return FourBitLinear(
        numbers.number.view(outputs, inputs),
        numbers.scale.view(outputs, -1),
        numbers.minimum.view(outputs, -1),
        layer.bias,
    )


def _dense(path: Path, dtype: torch.dtype) -> Any:
    """Let transformers read a file of another architecture, and make plain weights of it."""
    from transformers import AutoModelForCausalLM, GgufConfig

    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=dtype,
    )
