"""Best-k search against beam search on one GPU: same model, same budget, same process.

    python benchmarks/gpu_beam.py --shapes llama-135m llama-1b llama-8b | tee llama.jsonl
    python benchmarks/table.py llama.jsonl

Random weights in the shapes of known models, bfloat16, b = 10, T = 30, prompts of 300 tokens;
median of 5 after warm-up, prefill included. Every method spends its whole budget: beam search may
not end early, and best-k search opens the 20 likeliest children of every node.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

import bestk
from bestk.engine import pool
from bestk_eval.benchmark.instruments import peak, weight_bytes

SEARCH = {"beam_size": 10, "max_new_tokens": 30, "min_prob": 0.0, "max_children": 20}
WARM_UP = 1.0  # seconds
LLAMA = {"max_position_embeddings": 4096, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}


def llama(layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocab: int) -> Any:
    return transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        tie_word_embeddings=vocab < 100_000 or hidden < 4096,
        **LLAMA,
    )


SHAPES: dict[str, Callable[[], Any]] = {
    "llama-135m": lambda: llama(30, 576, 1536, 9, 3, 49152),
    "llama-1b": lambda: llama(16, 2048, 8192, 32, 8, 128256),
    "llama-8b": lambda: llama(32, 4096, 14336, 32, 8, 128256),
    "bart-large": lambda: transformers.BartConfig(
        d_model=1024,
        encoder_layers=12,
        decoder_layers=12,
        encoder_ffn_dim=4096,
        decoder_ffn_dim=4096,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
        vocab_size=50265,
        max_position_embeddings=1024,
        forced_eos_token_id=None,
    ),
    "t5-large": lambda: transformers.T5Config(
        d_model=1024,
        d_ff=4096,
        d_kv=64,
        num_layers=24,
        num_decoder_layers=24,
        num_heads=16,
        vocab_size=32128,
        decoder_start_token_id=0,
    ),
}


def build(shape: str, dtype: torch.dtype) -> Any:
    config = SHAPES[shape]()
    kind = (
        transformers.AutoModelForSeq2SeqLM
        if config.is_encoder_decoder
        else transformers.AutoModelForCausalLM
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        return kind.from_config(config, dtype=dtype).eval()


def prompts(batch: int, length: int, vocab: int) -> list[list[int]]:
    source = torch.Generator().manual_seed(1)
    return torch.randint(5, vocab - 5, (batch, length), generator=source).tolist()


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the seconds of the first call and the median of those after warm-up.

    The warm-up lasts a second and more: while kernels are built a card slows its clocks down, and
    it takes its time to speed them up again.
    """
    first = clocked(work)
    begun = time.perf_counter()
    clocked(work)
    while time.perf_counter() - begun < WARM_UP:
        clocked(work)
    return first, statistics.median(clocked(work) for _ in range(repeats))


def clocked(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def beam(model: Any, ids: list[list[int]]) -> Callable[[], Any]:
    inputs = torch.tensor(ids, device="cuda")
    mask = torch.ones_like(inputs)

    def work() -> Any:
        return model.generate(
            input_ids=inputs,
            attention_mask=mask,
            num_beams=10,
            num_return_sequences=10,
            do_sample=False,
            max_new_tokens=30,
            min_new_tokens=30,
        )

    return work


def search(
    lm: Any,
    ids: list[list[int]],
    k: int,
    batch: int,
    results: list[Any],
    options: dict[str, Any] = SEARCH,
) -> None:
    results[:] = bestk.search(lm, ids, k=k, batch_size=batch, **options)


def measure(shape: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    model = build(shape, getattr(torch, args.dtype))
    step_bytes, _ = weight_bytes(model)
    rows = []
    beams: dict[int, tuple[float, int]] = {}
    # One for all cases: the first call of a later case is what a new shape costs.
    lm = bestk.from_transformers(model)
    for k, batch in [tuple(map(int, case.split("x"))) for case in args.cases]:
        ids = prompts(batch, args.length, model.config.get_text_config().vocab_size)
        if batch not in beams:
            work = beam(model, ids)
            _, seconds = timed(work, args.repeats)
            beams[batch] = seconds, peak(work)
        results: list[Any] = []
        work = functools.partial(search, lm, ids, k, batch, results)
        first, seconds = timed(work, args.repeats)
        steps = -(-(300 - 1) // k)
        floor = step_bytes * steps / (args.bandwidth * 1e12)
        pool.clear(lm.backend)
        memory = peak(work)
        pool.clear(lm.backend)
        rows.append(
            {
                "shape": shape,
                "k": k,
                "batch": batch,
                "beam_s": beams[batch][0],
                "bestk_s": seconds,
                "ratio": seconds / beams[batch][0],
                "first_call_s": first,
                "floor_s": floor,
                "over_floor": seconds / floor,
                "expanded": results[0].cost.expanded,
                "texts": statistics.mean(len(r.hypotheses) for r in results),
                "beam_peak_mb": beams[batch][1] / 1e6,
                "bestk_peak_mb": memory / 1e6,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--cases", nargs="+", default=["10x1", "5x1", "10x32"], help="k x batch")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s, for the floor")
    parser.add_argument("--json")
    args = parser.parse_args()
    logging.getLogger("bestk").setLevel(logging.ERROR)  # random weights complete no text
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps(machine), flush=True)
    rows = []
    for shape in args.shapes:
        rows += measure(shape, args)
        gc.collect()
        torch.cuda.empty_cache()
    if args.json:
        with open(args.json, "w") as file:  # noqa: PTH123
            json.dump({**machine, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
