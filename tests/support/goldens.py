"""What searches gave when the code was last known to be right: every journey, setting and family.

    python tests/support/goldens.py --record  # writes goldens.json anew
    python tests/support/goldens.py --exact   # compares with it to the last bit, on one machine
    python tests/support/goldens.py --dump out  # keeps what was hashed, to be compared by eye

A case is hashed twice: `exact` is everything, `discrete` leaves real numbers out, whose last bits
differ between processors; their sum stands beside it. Only public names are used, so that the
script can be run against another version of the package.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import tiny
import tiny_seq2seq
import torch
from light_toy import random_distribution

import bestk
from bestk.backends.toy import ToyBackend
from bestk.cli import main

FILE = Path(__file__).with_suffix(".json")
CHARACTERS = [chr(code) for code in range(32, 92)]  # 60 of them: ids 1 to 60
DEFAULTS = json.loads(json.dumps(dataclasses.asdict(bestk.SearchConfig())))
SMALL: dict[str, Any] = {"k": 3, "beam_size": 4, "max_new_tokens": 7}
PROMPTS = ["ONE", "A LONGER PROMPT", "X", "TWO WORDS", "AND ONE MORE", "7"]
SCHEMA = '{"type": "array", "items": {"enum": [1, 23]}, "maxItems": 2}'


class Even:
    """A processor from outside: it halves the odds of odd ids."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        out = scores.clone()
        out[:, 1::2] -= 0.7 + 0.1 * (input_ids[:, -1:] % 3)
        return out


def _ends_on_7(input_ids: torch.Tensor, scores: Any) -> torch.Tensor:
    return input_ids[:, -1] % 7 == 0


def _allowed(batch_id: int, ids: torch.Tensor) -> list[int]:
    last = int(ids[-1])
    return [2, *((last * i + 3 * batch_id + len(ids)) % 57 + 3 for i in range(1, 9))]


# Settings by name: options of a search, and objects that are hung into it.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "last": {"scoring": "last", "decay_weight": 0.2, "max_frontier": 9},
    "certify": {"scoring": "sum", "decay": "none", "min_prob": 0.0, "certify": 2, "rank_by": "sum"},
    "stop": {"stop": ("E", "OU"), "min_new_tokens": 2},
    "regex": {"regex": "[A-Z ]{1,6}"},
    "json": {"json_schema": SCHEMA},
    "include": {"must_include": ("A|B", "T"), "max_new_tokens": 9},
    "sampler": {"temperature": 0.8, "top_p": 0.9, "top_k": 30},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words": ("E", "AB")},
    "processor": {"logits_processor": [Even()]},
    "criterion": {"stopping_criteria": [_ends_on_7]},
    "allowed": {"prefix_allowed_tokens_fn": _allowed},
    "everything": {
        "temperature": 1.2,
        "stop": ("Q",),
        "regex": "[A-Z0-9 ]+",
        "must_include": ("A|E|I",),
        "logits_processor": [Even()],
        "timeout": 1e6,
    },
}


def tokenizer() -> Any:
    """One token per character; ids as the tiny models have them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": 0, "<bos>": 1, "<end>": 2}
    vocab |= {character: 3 + i for i, character in enumerate(CHARACTERS[: tiny.VOCAB - 3])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<end>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


def plain(result: bestk.SearchResult, *, tree: bool = True) -> dict[str, Any]:
    """Everything that a result holds, without its time."""
    data = json.loads(result.dumps(tree=tree))
    data = _untimed(data)
    data["raw"] = [[h.text, h.log_prob, h.step, h.is_complete] for h in result.raw]
    return data


def toys() -> Iterator[tuple[str, Any]]:
    """Random searches over random toy models."""
    for seed in range(400):
        source = random.Random(seed)
        vocab = source.choice([2, 3, 5, 8])
        ends = (0,) if source.random() < 0.8 else (0, 1)

        def distribution(prefix: tuple[int, ...], s: int = seed, v: int = vocab) -> list[float]:
            return random_distribution(s, prefix, v)

        lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=vocab, eos_ids=ends))
        length, size = source.randint(1, 9), source.randint(1, 6)
        options: dict[str, Any] = {
            "max_new_tokens": length,
            "beam_size": size,
            "k": source.randint(1, min(6, length * size)),
            "scoring": source.choice(["mean", "sum", "last"]),
            "decay": source.choice(["power", "log", "none"]),
            "decay_weight": source.choice([0.0, 0.05, 0.5]),
            "min_prob": source.choice([0.0, 0.05, 0.3]),
            "min_children": source.choice([0, 1, 2]),
            "max_children": source.choice([None, None, 1, 3]),
            "max_frontier": source.choice([500, 500, 7, 2]),
            "min_new_tokens": source.choice([0, 0, min(2, length)]),
            "max_completions": source.choice([None, None, 2]),
            "certify": source.choice([None, None, 1]),
            "rank_by": source.choice(["mean", "sum", "score", "step"]),
        }
        prompts = [[source.randrange(vocab) for _ in range(n)] for n in (1, 3, 2)]
        results = bestk.search(lm, prompts, **options, batch_size=source.choice([1, 2, 3]))
        yield f"toy {seed}", [plain(result) for result in results]


def causal(family: str) -> bestk.LanguageModel:
    """A tiny decoder with the tokenizer of characters."""
    return bestk.from_transformers(tiny.model(family), tokenizer())


def decoders() -> Iterator[tuple[str, Any]]:
    """Families of decoders: every setting, by one prompt, several, and a stream."""
    families = ["llama", "gpt2", "qwen3", "mistral", "gemma3", "opt", "gpt_neox", "gptj"]
    families += ["cohere", "mixtral", "falcon", "falcon_alibi", "bloom", "mamba", "gpt_neo"]
    for family in families:
        lm = causal(family)
        is_full = family in ("llama", "gpt2", "mamba")
        for name, options in SETTINGS.items():
            if not is_full and name not in ("plain", "stop", "penalties"):
                continue
            options = {**SMALL, **options}
            one = bestk.search(lm, PROMPTS[1], **options)
            yield f"{family} {name} one", plain(one)
            if is_full:
                texts = [[h.text, h.log_prob] for h in bestk.stream(lm, PROMPTS[1], **options)]
                yield f"{family} {name} stream", texts
            # Prompts of one length have one shape whatever goes with them.
            alike = [PROMPTS[0], "TWO", "SIX", "TEN", "ALL"]
            many = bestk.search(lm, alike, batch_size=5, **options)
            yield f"{family} {name} alike", [plain(result) for result in many]
        many = bestk.search(lm, PROMPTS, batch_size=3, **SMALL)
        yield f"{family} many", [plain(result) for result in many]
        first = bestk.best_first(lm, PROMPTS[0], beam_size=3, max_new_tokens=5)
        yield f"{family} best-first", plain(first)
        for method in ("BS", "DBS+", "Ncls0.8", "Typ0.5", "BNcls0.8"):
            size = {"beam_size": 10} if method == "DBS+" else {}
            found = bestk.run_method(lm, PROMPTS[:4], method, seed=3, **SMALL | size)
            yield f"{family} {method}", [plain(result) for result in found]


def encoder_decoders() -> Iterator[tuple[str, Any]]:
    """Families of encoder-decoders."""
    for family in ("t5", "mt5", "bart", "marian", "mbart50", "whisper", "led", "fsmt", "bert2bert"):
        lm = bestk.from_transformers(tiny_seq2seq.tiny(family))
        sources = tiny_seq2seq.sources_for(family)
        if family == "whisper":
            sources = [bestk.Features(source) for source in sources]
        for name in ("plain", "last", "penalties", "processor", "criterion"):
            options = {k: v for k, v in SETTINGS[name].items() if k != "bad_words"}
            one = bestk.search(lm, sources[0], **SMALL, **options)
            yield f"{family} {name} one", plain(one)
        many = bestk.search(lm, [sources[0]] * 3, batch_size=3, **SMALL)
        yield f"{family} many", [plain(result) for result in many]
        found = bestk.run_method(lm, sources[:1], "BS", seed=3, **SMALL)
        yield f"{family} BS", [plain(result) for result in found]


def drop_in() -> Iterator[tuple[str, Any]]:
    """`model.generate(custom_generate=bestk.generate)`."""
    common: dict[str, Any] = {
        "custom_generate": bestk.generate,
        "max_new_tokens": 7,
        "k": 3,
        "num_texts": 4,
        "return_dict_in_generate": True,
        "pad_token_id": 0,
    }
    ids = torch.tensor([[0, 0, 9, 11, 13], [7, 8, 9, 10, 11]])
    settings: dict[str, dict[str, Any]] = {
        "plain": {"num_beams": 4},
        "sampler": {"num_beams": 4, "temperature": 0.7, "top_p": 0.9, "do_sample": True},
        "penalties": {"num_beams": 4, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
        "bias": {"num_beams": 4, "sequence_bias": [[[5], -2.0], [[6, 7], -9.0]]},
        "allowed": {"num_beams": 4, "prefix_allowed_tokens_fn": _allowed},
    }
    for family in ("llama", "gpt2"):
        for name, options in settings.items():
            model = tiny.model(family)
            out = model.generate(ids, attention_mask=(ids > 0).long(), **common, **options)
            yield f"{family} drop-in {name}", _output(out)
    for family in ("t5", "bart"):
        for name in ("plain", "penalties"):
            made = tiny_seq2seq.tiny(family)
            sources = torch.tensor([[7, 11, 23, 40, 2], [5, 2, 0, 0, 0]])
            mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
            out = made.generate(sources, attention_mask=mask, **common, **settings[name])
            yield f"{family} drop-in {name}", _output(out)


def _output(out: Any) -> dict[str, Any]:
    return {
        "sequences": out.sequences.tolist(),
        "scores": [x if x > -1e9 else None for x in out.sequences_scores.tolist()],
        "found": out.num_found.tolist(),
    }


def commands() -> Iterator[tuple[str, Any]]:
    """The command line over a folder with a model: generate, compare, batch jobs, evaluations."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "model"
        tiny.model("llama").save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        common = ["--model", str(folder), "--dtype", "float32", "--max-new-tokens", "7"]
        size = ["--beam-size", "4"]
        yield "generate", call(home, "generate", "--json", "ONE TWO", *common, *size, "--k", "3")
        yield "generate stop", call(home, "generate", "A BC", *common, *size, "--stop", "E")
        methods = ["--methods", "BS,Ncls0.8,BKS_last"]
        yield "compare", call(home, "compare", "ONE", "--json", *methods, *common, *size)
        rows = [{"id": f"r{i}", "prompt": prompt} for i, prompt in enumerate(PROMPTS * 3)]
        rows[4]["options"] = {"max_new_tokens": 3}
        rows[5]["options"] = {"regex": "[A-F]+"}
        rows[6]["options"] = {"stop": ["E"]}
        lines = "\n".join(map(json.dumps, rows))
        (Path(home) / "in.jsonl").write_text(lines + "\nnot json\n")
        into = [str(Path(home) / "in.jsonl"), "-o", str(Path(home) / "out.jsonl")]
        told = call(home, "batch", *into, *common, *size, "--batch-size", "1", "--full")
        yield "batch", [told, *read_lines(Path(home))]
        task = [{"id": str(i), "input": p, "references": [p]} for i, p in enumerate(PROMPTS)]
        (Path(home) / "task.jsonl").write_text("\n".join(map(json.dumps, task)) + "\n")
        methods = ["--methods", "BS,Ncls0.8,BFS,BKS_mean,BKS_last:k=2", "--style", "plain"]
        call(home, "eval", str(Path(home) / "task.jsonl"), "-o", home, *methods, *common, *size)
        found = (Path(home) / "results.jsonl").read_text().splitlines()
        yield "eval", [_untimed(_without_home(json.loads(line), home)) for line in found]


def read_lines(home: Path) -> list[Any]:
    """Read what a job has written: results, then errors."""
    files = sorted(home.glob("out*.jsonl"))
    return [
        _untimed(_without_home(json.loads(line), str(home)))
        for file in files
        for line in file.read_text().splitlines()
    ]


def _without_home(data: Any, home: str) -> Any:
    return json.loads(json.dumps(data).replace(home, "HOME"))


def call(home: str, *arguments: str) -> Any:
    """Run a command; its output without what changes from run to run."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(arguments))
    text = out.getvalue().replace(home, "HOME")
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        data = [line for line in text.splitlines() if " s" not in line]
    return [code, _untimed(data)]


def _untimed(data: Any) -> Any:
    """Leave out times, passes (steps are the search's own), settings that are as they would be."""
    if isinstance(data, dict):
        if "evaluated" in data:
            data = {"expanded": data["expanded"], "model_calls": data["steps"]}
        if "config" in data:
            given = {name: v for name, v in data["config"].items() if DEFAULTS[name] != v}
            data = data | {"config": given}
        return {key: _untimed(value) for key, value in data.items() if key != "seconds"}
    return [_untimed(item) for item in data] if isinstance(data, list) else data


def server() -> Iterator[tuple[str, Any]]:
    """Answers of `bestk serve`, one request at a time."""
    import httpx
    from serving import served

    lm = causal("llama")
    with served(lm) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        for name, options in SETTINGS.items():
            body = {k: v for k, v in options.items() if not callable(v) and "_pro" not in k}
            if any(k.endswith(("criteria", "processor", "_fn")) for k in body):
                continue
            body = {**SMALL, **body, "prompt": PROMPTS[1], "raw": True}
            answer = client.post("/v1/search", json=body).json()
            answer.pop("id", None)
            yield f"server {name}", _untimed(answer)
        body = {"prompt": PROMPTS[3], "n": 2, "max_tokens": 7, "stop": ["E"], "logprobs": 2}
        answer = client.post("/v1/completions", json={"model": lm.name, **body}).json()
        yield "server completions", [answer["choices"], answer["usage"]]
        for method in ("BS", "BFS", "BKS_last", "Ncls0.8"):
            body = {**SMALL, "prompt": PROMPTS[1], "raw": True, "method": method}
            answer = client.post("/v1/search", json=body).json()
            answer.pop("id", None)
            yield f"server {method}", _untimed(answer)


GROUPS: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
    "toys": toys,
    "decoders": decoders,
    "encoder_decoders": encoder_decoders,
    "drop_in": drop_in,
    "commands": commands,
    "server": server,
}


def digest(data: Any) -> dict[str, Any]:
    """Hash a case: all of it, and what is no real number; with the sum of those that are."""
    reals: list[float] = []

    def discrete(item: Any) -> Any:
        if isinstance(item, float):
            reals.append(item if abs(item) < 1e30 else 0.0)
            return None
        if isinstance(item, dict):
            return {key: discrete(value) for key, value in item.items()}
        return [discrete(value) for value in item] if isinstance(item, list) else item

    kept = discrete(data)
    return {"exact": _hash(data), "discrete": _hash(kept), "sum": round(sum(reals), 6)}


def _hash(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cases(groups: list[str]) -> Iterator[tuple[str, Any]]:
    """Run groups of cases, one thread, float32."""
    torch.set_num_threads(1)
    for group in groups:
        yield from GROUPS[group]()


def differences(found: dict[str, Any], known: dict[str, Any], *, exact: bool) -> list[str]:
    """Name the cases that are not as they were."""
    wrong = [f"{name}: not recorded" for name in found if name not in known]
    for name in found.keys() & known.keys():
        new, old = found[name], known[name]
        if exact and new["exact"] != old["exact"]:
            wrong.append(f"{name}: not equal to the last bit")
        elif new["discrete"] != old["discrete"]:
            wrong.append(f"{name}: another search or text")
        elif abs(new["sum"] - old["sum"]) > 1e-4 * max(1.0, abs(old["sum"])):
            wrong.append(f"{name}: other numbers, {new['sum']} for {old['sum']}")
    return sorted(wrong)


def run() -> int:
    """Record or compare from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--dump", type=Path)
    parser.add_argument("--groups", default=",".join(GROUPS))
    options = parser.parse_args()
    found = {}
    for name, data in cases(options.groups.split(",")):
        found[name] = digest(data)
        if options.dump is not None:
            options.dump.mkdir(parents=True, exist_ok=True)
            file = options.dump / (name.replace(" ", "_") + ".json")
            file.write_text(json.dumps(data, sort_keys=True, indent=1))
    if options.record:
        lines = [f" {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    wrong = differences(found, json.loads(FILE.read_text()), exact=options.exact)
    print("\n".join(wrong) or f"{len(found)} cases as they were")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run())
