"""GGUF files: every kind of block is read as what it stands for, packed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import tiny_gguf
import torch

import bestk
from bestk.backends.transformers.four_bit import FourBitLinear
from bestk.errors import ModelError, OptionError
from bestk.lm import checkpoint, gguf_blocks, loading

KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "F16", "BF16", "F32")
TOKENS = torch.tensor([[5, 17, 100, 3, 250, 8, 9]])


@pytest.fixture(autouse=True)
def machine(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and a CPU that multiplies in bfloat16, whatever runs the test."""
    if request.node.get_closest_marker("model") is None:
        monkeypatch.setenv("BESTK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checkpoint, "multiplies_bfloat16", lambda: True)


def log_probs(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(TOKENS).logits.float().log_softmax(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_what_others_read(kind: str) -> None:
    raw, expected = tiny_gguf.random_weights(kind, 6, 512, seed=0)
    found = gguf_blocks.dense(torch.from_numpy(raw).view(torch.uint8), kind)
    assert torch.equal(found.float(), torch.from_numpy(expected))


@pytest.mark.parametrize(
    ("kind", "family", "tied"),
    [
        *[(kind, "llama", True) for kind in KINDS],
        ("Q4_1", "qwen2", False),
        ("Q8_0", "qwen3", True),
    ],
)
def test_a_file_is_the_model_that_it_holds(
    kind: str, family: str, tied: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    expected = log_probs(tiny_gguf.write(path, kind, family, tied=tied))
    lm = bestk.load(path, dtype="float32", device="cpu")
    torch.testing.assert_close(log_probs(lm.backend.network), expected)
    assert lm.backend.facts()["dtype"] == "float32"
    assert lm.decode([lm.encode("ab !")]) == ["ab !"], "the tokenizer is in the file too"
    assert lm.backend.eos_ids == (2,)


@pytest.mark.parametrize("kind", sorted(gguf_blocks.FOUR_BITS))
def test_four_bits_stay_four_bits(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, kind, "qwen2", tied=False)
    lm = bestk.load(path, device="cpu")
    assert lm.backend.facts()["dtype"] == "4bit"
    network = lm.backend.network
    packed = [module for module in network.modules() if isinstance(module, FourBitLinear)]
    assert len(packed) == 2 * 7 + 1
    dense = bestk.load(path, dtype="bfloat16", device="cpu").backend.network
    found, expected = log_probs(network), log_probs(dense)
    assert (found - expected).abs().max() < 2e-2, "bfloat16 rounds logits of 1 to 0.004"
    result = bestk.search(lm, "ab", num_texts=3, max_new_tokens=4, raw=True)
    assert len(result) == 3


def test_what_auto_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dtype(kind: str, **options: Any) -> str:
        path = tmp_path / f"{kind}.gguf"
        if not path.exists():
            tiny_gguf.write(path, kind)
        return str(bestk.load(path, device="cpu", **options).backend.facts()["dtype"])

    assert dtype("Q4_1") == "4bit"
    assert dtype("Q8_0") == dtype("F16") == "bfloat16"
    assert dtype("F32") == "float32", "nothing is rounded that was stored unrounded"
    with pytest.raises(OptionError, match='"4bit" is for GGUF files of 4 bits'):
        dtype("F32", dtype="4bit")
    monkeypatch.setattr(checkpoint, "multiplies_bfloat16", lambda: False)
    assert dtype("Q4_1") == dtype("F16") == "float32"
    assert dtype("Q4_1", dtype="4bit") == "4bit", "who asks for it gets it"


def test_positions_that_the_file_stretches(tmp_path: Path) -> None:
    model = tiny_gguf.write(tmp_path / "model.gguf", "Q8_0", extra="rope_freqs.weight")
    model.model.rotary_emb.inv_freq /= 2
    lm = bestk.load(tmp_path / "model.gguf", dtype="float32", device="cpu")
    torch.testing.assert_close(log_probs(lm.backend.network), log_probs(model))


def test_files_that_are_not_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, "Q8_0", extra="blk.0.attn_gate.weight")
    with pytest.raises(ModelError, match=r"a tensor blk\.0\.attn_gate\.weight, which no llama"):
        bestk.load(path)
    path.write_bytes(b"GGUF and no more")
    with pytest.raises(ModelError, match="no whole GGUF file"):
        bestk.load(path)
    writer = gguf.GGUFWriter(str(path), "martian")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="martian"):
        bestk.load(path)
    with pytest.raises(ModelError, match="does not exist"):
        bestk.load(tmp_path / "other.gguf")
    assert [one for one in (tmp_path / "cache").iterdir() if one.is_dir()] == []


def test_options_that_files_do_not_take(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, "Q4_0")
    for options in ({"device_map": "auto"}, {"quantization": "4bit"}):
        with pytest.raises(OptionError, match="takes dtype and device"):
            bestk.load(path, **options)
    with pytest.raises(ModelError, match="give a folder or a hub name"):
        loading.source_of(str(path))


@pytest.mark.model
def test_the_embedded_model_stays_as_it_is_stored(smollm2: bestk.LanguageModel) -> None:
    lm = bestk.load("smollm2", dtype="4bit", device="cpu")
    ids = torch.tensor([smollm2.encode("The quick brown fox jumps over the lazy dog.")])
    with torch.inference_mode():
        found, expected = (
            one.backend.network(ids).logits.float().log_softmax(-1) for one in (lm, smollm2)
        )
    divergence = (expected.exp() * (expected - found)).sum(-1)
    assert divergence.max() < 2e-2
