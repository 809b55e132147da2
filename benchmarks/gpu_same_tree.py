"""Shows that no speed-up changes a result: every way of running gives the same trees in float32.

    python benchmarks/gpu_same_tree.py [--quick] [FAMILY ...]

Compares, on one GPU: masks and plain steps, the tree kernel and plain steps, the captured graph, a
captured batch with refilled lanes, nodes evaluated ahead of time; decoder-only and encoder-decoder;
Algorithm 2 and the policy that is told how many texts are wanted, which is compared with a CPU too.
With --quick eight prompts, and of the ways with masks and plain steps none.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from typing import Any

import torch
import transformers

import bestk

COMMON = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "eos_token_id": 2,
}


def families() -> dict[str, Any]:
    t = transformers
    return {
        "llama": t.LlamaConfig(**COMMON, num_key_value_heads=2),
        "qwen3": t.Qwen3Config(**COMMON, num_key_value_heads=4, head_dim=16),
        "gpt2": t.GPT2Config(
            vocab_size=1000, n_embd=128, n_layer=4, n_head=8, initializer_range=0.15, eos_token_id=2
        ),
        "gemma2": t.Gemma2Config(**COMMON, num_key_value_heads=2, head_dim=16, sliding_window=256),
        "neox": t.GPTNeoXConfig(**COMMON),
        "bart": t.BartConfig(
            vocab_size=1000,
            d_model=128,
            encoder_layers=3,
            decoder_layers=3,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            max_position_embeddings=512,
            init_std=0.15,
            forced_eos_token_id=None,
        ),
        "t5": t.T5Config(
            vocab_size=1000,
            d_model=128,
            d_ff=256,
            d_kv=16,
            num_layers=3,
            num_heads=8,
            initializer_factor=1.0,
            decoder_start_token_id=0,
        ),
    }


def tree(result: Any) -> list[tuple[int, int]]:
    return list(zip(result.tree.parent.tolist(), result.tree.token.tolist(), strict=True))


POLICIES: dict[str, dict[str, Any]] = {
    "best-k": {"k": 5},
    "diverse": {"num_texts": 10, "end_prob": 1.0},
    "diverse, rule": {"num_texts": 10, "k": 5, "novelty": 2.0},
}


def compare(name: str, config: Any, policy: str, *, is_quick: bool) -> None:
    torch.manual_seed(0)
    auto = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    model = auto.from_config(config).eval().cuda().float()
    source = random.Random(0)
    prompts = [
        [source.randrange(3, 1000) for _ in range(source.randint(5, 300))]
        for _ in range(8 if is_quick else 24)
    ]
    options: dict[str, Any] = {"max_new_tokens": 20, "min_prob": 0.035, **POLICIES[policy]}

    def plain(with_kernel: bool) -> list[Any]:
        lm = bestk.from_transformers(model)
        lm.backend.__dict__["_with_kernel"] = with_kernel
        found = []
        for prompt in prompts:
            under_way = bestk.Run(lm, [prompt], bestk.SearchConfig(**options))
            for _ in under_way:
                pass
            found += under_way.results()
        return found

    lm = bestk.from_transformers(model)
    ways = {}
    if not is_quick:
        asked = dict(os.environ)
        # What is compared with has no kernels at all.
        os.environ["BESTK_KERNELS"] = "none"
        ways["masks"] = plain(False)
        os.environ.clear()
        os.environ.update(asked)
        bestk.search(lm, prompts[0], **options)  # tries the model out
        if getattr(lm.backend, "_with_kernel", False):
            ways["kernel"] = plain(True)
        ways["one by one"] = [bestk.search(lm, prompt, **options) for prompt in prompts]
        ways["again"] = [bestk.search(lm, prompt, **options) for prompt in prompts]
        ways["24 lanes"] = bestk.search(lm, prompts, batch_size=24, **options)
    ways["8 lanes"] = bestk.search(lm, prompts, batch_size=8, **options)
    if "num_texts" not in options:
        ways["8 lanes, not ahead"] = bestk.search(lm, prompts, batch_size=8, prefetch=0, **options)
        ways["3 lanes, ahead"] = bestk.search(lm, prompts, batch_size=3, prefetch=24, **options)
        ways["one by one, ahead"] = [bestk.search(lm, x, prefetch=32, **options) for x in prompts]
    ways["cpu"] = bestk.search(bestk.from_transformers(model.cpu()), prompts, **options)
    truth = next(iter(ways.values()))
    for way, results in ways.items():
        told(f"{name} {policy}", way, truth, results)


def told(name: str, way: str, truth: list[Any], results: list[Any]) -> None:
    """Print how many trees are equal."""
    pairs = list(zip(truth, results, strict=True))
    equal = [(a.tree.log_prob - b.tree.log_prob) for a, b in pairs if tree(a) == tree(b)]
    off = max((float(one.abs().max()) for one in equal), default=float("nan"))
    nodes = sum(len(result.tree) for result in results)
    print(
        f"{name:20} {way:20} {len(equal)}/{len(truth)} trees equal, {nodes} nodes, "
        f"largest difference in log-probability {off:.1e}",
        flush=True,
    )


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    logging.getLogger("bestk").setLevel(logging.ERROR)  # random weights complete few texts
    is_quick = "--quick" in sys.argv
    for name in [name for name in sys.argv[1:] if name != "--quick"] or families():
        for policy in POLICIES:
            compare(name, families()[name], policy, is_quick=is_quick)


if __name__ == "__main__":
    main()
