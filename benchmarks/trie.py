"""Exact top n of a catalogue against beam search: time, model calls, and how much beams miss.

    python benchmarks/trie.py --items 1000000 --seconds 240          # ids of four levels
    python benchmarks/trie.py --titles titles.txt --prompts questions.txt --model smollm2

Ids: a small Llama is trained on histories in which the next item shares ids with the last.
All methods run in one process, in turns, on one thread; times are CPU seconds, so read the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

import bestk

LEVEL, WORDS, BUDGET = 4, 1024, 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=WORDS, help="ids in each level")
    parser.add_argument("--seconds", type=float, default=240, help="of training")
    parser.add_argument("--model", help="a name that bestk.load knows, or a trained folder")
    parser.add_argument("--keep", help="folder for the trained model")
    parser.add_argument("--titles", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--queries", type=int, default=30)
    parser.add_argument("--beams", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--hf-queries", type=int, default=5, help="of them also by transformers")
    parser.add_argument("--renormalize", action="store_true")
    parser.add_argument(
        "--sharpen", type=float, default=1.0, help="times the logits: as if trained for longer"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    if args.titles:
        lm = bestk.load(args.model or "smollm2", device="cpu", dtype="float32")
        trie = bestk.Trie.from_texts(args.titles.read_text().splitlines(), lm.tokenizer)
        prompts = [lm.encode(line) for line in args.prompts.read_text().splitlines()]
    else:
        ids = catalogue(args.items, args.words)
        if args.model:
            network = LlamaForCausalLM.from_pretrained(args.model)
        else:
            network = trained(ids, args.words, args.seconds)
        if args.keep:
            network.save_pretrained(args.keep)
        network.model.norm.weight.data *= args.sharpen
        lm = bestk.from_transformers(network.eval())
        begun = time.process_time()
        trie = bestk.Trie.from_sequences(ids + tokens_of(args.words))
        prompts = histories(ids, args.words, args.queries, 5, np.random.default_rng(1)).tolist()
    print(f"# {trie.describe()}, built in {time.process_time() - begun:.2f} s")
    compare(lm, trie, prompts[: args.queries], args)


def compare(lm: Any, trie: bestk.Trie, prompts: list[list[int]], args: Any) -> None:
    """Run all methods on every prompt, and print a line of each method."""

    def exact(prompt: list[int]) -> bestk.SearchResult:
        return bestk.search(
            lm,
            prompt,
            allowed=trie,
            num_texts=10,
            certify=10,
            budget=BUDGET,
            renormalize=args.renormalize,
            keep_tree=False,
        )

    exact(prompts[0])  # what a model is tried out for once
    rows: dict[str, list[dict[str, float]]] = {"exact": []}
    for number, prompt in enumerate(prompts):
        result, seconds = timed(lambda prompt=prompt: exact(prompt))
        ten = {h.token_ids for h in result.hypotheses}
        cost = {"calls": result.cost.model_calls, "expanded": result.cost.expanded}
        tenth = result.hypotheses[-1].log_prob
        row = {"seconds": seconds, "proven": result.certified >= 10, "tenth": tenth, **cost}
        rows["exact"].append(row)
        for width in args.beams:
            methods: dict[str, Callable[[], Any]] = {
                f"beam {width}, vectorised": lambda w=width, p=prompt: beam(lm, trie, p, w, args)
            }
            if number < args.hf_queries:
                methods[f"beam {width}, transformers"] = lambda w=width, p=prompt: hf_beam(
                    lm, trie, p, w, args
                )
            for name, method in methods.items():
                found, took = timed(method)
                best = {tuple(ids) for ids in found[:10]}
                told = {"seconds": took, "ratio": seconds / took, "of the exact": len(ten & best)}
                rows.setdefault(name, []).append(told)
    for name, columns in rows.items():
        medians = {
            key: round(statistics.median(row[key] for row in columns), 3) for key in columns[0]
        }
        if "of the exact" in medians:
            medians["of the exact"] = round(statistics.fmean(r["of the exact"] for r in columns), 2)
        else:
            medians["proven"] = sum(row["proven"] for row in columns)
        print(json.dumps({"method": name, "queries": len(columns)} | medians))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    return work(), time.process_time() - begun


@torch.inference_mode()
def beam(lm: Any, trie: bestk.Trie, prompt: list[int], width: int, args: Any) -> list[list[int]]:
    """Beam search whose children come from the trie's arrays; complete ones leave the beam."""
    network = lm.backend.network
    output = network(torch.tensor([prompt]), past_key_values=DynamicCache(), use_cache=True)
    cache, logits = output.past_key_values, output.logits[:, -1]
    nodes, scores, texts = np.zeros(1, np.int64), torch.zeros(1), [[]]
    done: list[tuple[float, list[int]]] = []
    first = trie.first.astype(np.int64)
    while True:
        count = first[nodes + 1] - first[nodes]
        place = np.arange(count.max())
        is_child = torch.from_numpy(place < count[:, None])
        child = np.where(is_child, first[nodes][:, None] + place, 0)
        tokens = torch.from_numpy(trie.token[child].astype(np.int64))
        value = logits.gather(1, tokens)
        if args.renormalize:
            value = value.masked_fill(~is_child, -torch.inf).log_softmax(-1)
        else:
            value = value - logits.logsumexp(-1, keepdim=True)
        value = (scores[:, None] + value).masked_fill(~is_child, -torch.inf).flatten()
        best, index = value.topk(min(width, int(is_child.sum())))
        rows, columns = index // child.shape[1], index % child.shape[1]
        chosen = child[rows.numpy(), columns.numpy()]
        texts = [
            [*texts[r], int(trie.token[c])] for r, c in zip(rows.tolist(), chosen, strict=True)
        ]
        ends = trie.item[chosen] >= 0
        done += [(s, t) for s, t, e in zip(best.tolist(), texts, ends, strict=True) if e]
        goes_on = (first[chosen + 1] > first[chosen]).nonzero()[0]
        done.sort(key=lambda pair: -pair[0])
        enough = len(done) >= width and len(goes_on) and done[width - 1][0] >= best[goes_on].max()
        if not len(goes_on) or enough:
            return [ids for _, ids in done]
        nodes, scores, texts = chosen[goes_on], best[goes_on], [texts[i] for i in goes_on]
        cache.reorder_cache(rows[goes_on])
        last = torch.tensor([[ids[-1]] for ids in texts])
        logits = network(last, past_key_values=cache, use_cache=True).logits[:, -1]


@torch.inference_mode()
def hf_beam(lm: Any, trie: bestk.Trie, prompt: list[int], width: int, args: Any) -> list[list[int]]:
    """Beam search of transformers, with a dict for a trie, as people write it."""
    root, length = nested(trie), len(prompt)

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        node = root
        for token in ids[length:].tolist():
            node = node.get(token, {})
        return list(node) or [ends]

    # Titles end with one token; ids have a length of their own, and an end that is never written.
    ends = int(trie.token[trie.levels[-1][0]]) if args.titles else 1
    exactly = {} if args.titles else {"min_new_tokens": trie.depth}
    output = lm.backend.network.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, length, dtype=torch.int64),
        num_beams=width,
        num_return_sequences=10,
        prefix_allowed_tokens_fn=allowed,
        renormalize_logits=args.renormalize,
        length_penalty=0.0,
        do_sample=False,
        max_new_tokens=trie.depth,
        eos_token_id=ends,
        pad_token_id=0,
        **exactly,
    )
    found = []
    for ids in output[:, length:].tolist():
        size = next((n for n in range(1, len(ids) + 1) if trie.find(ids[:n]) < 0), len(ids) + 1)
        found.append(ids[: size - 1])
    return found


_NESTED: dict[int, Any] = {}


def nested(trie: bestk.Trie) -> dict[int, Any]:
    """Write a trie as dicts; not timed twice."""
    if id(trie) not in _NESTED:
        below: list[dict[int, Any]] = [{} for _ in range(trie.num_nodes)]
        for node in range(trie.num_nodes):
            children = range(int(trie.first[node]), int(trie.first[node + 1]))
            below[node].update((int(trie.token[child]), below[child]) for child in children)
        _NESTED[id(trie)] = below[0]
    return _NESTED[id(trie)]


def catalogue(items: int, words: int) -> np.ndarray:
    """Make different ids, few of them in many items: sorted, a row an item."""
    rng, drawn = np.random.default_rng(0), np.zeros((0, LEVEL), np.int64)
    while len(drawn) < items:
        drawn = np.unique(np.concatenate([drawn, popular(rng, items, words)]), axis=0)
    return drawn[np.sort(rng.permutation(len(drawn))[:items])]


def popular(rng: Any, count: int, words: int) -> np.ndarray:
    """Draw ids, low ones far more often."""
    return (words * rng.power(0.3, (count, LEVEL))).astype(np.int64)


def histories(ids: np.ndarray, words: int, count: int, length: int, rng: Any) -> np.ndarray:
    """Draw histories: mostly the next item shares two ids with the last, else it is any."""
    keys = ids @ words ** np.arange(LEVEL)[::-1]
    here, rows = popular(rng, count, words), []
    for _ in range(length):
        nearest = np.searchsorted(keys, here @ words ** np.arange(LEVEL)[::-1])
        rows.append(ids[nearest.clip(max=len(ids) - 1)])
        here = popular(rng, count, words)
        here[:, :2] = np.where(rng.random((count, 1)) < 0.85, rows[-1][:, :2], here[:, :2])
    return (np.stack(rows, axis=1) + tokens_of(words)).reshape(count, -1)


def tokens_of(words: int) -> np.ndarray:
    """Return the first token id of every level."""
    return 2 + np.arange(LEVEL) * words


def trained(ids: np.ndarray, words: int, seconds: float) -> Any:
    """Train a Llama of about a million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=LEVEL * words + 2,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    network, rng = LlamaForCausalLM(config), np.random.default_rng(2)
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3)
    begun = time.process_time()
    while (spent := (time.process_time() - begun) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - spent)
        batch = torch.from_numpy(histories(ids, words, 32, 8, rng))
        loss = network(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    print(f"# loss {loss.item():.2f}")
    return network.eval()


if __name__ == "__main__":
    main()
