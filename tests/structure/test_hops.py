"""How many of our calls lie between a user's line and the model's forward, by every journey."""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import goldens
import pytest
import tiny
import torch
from serving import served
from transformers import LlamaForCausalLM

import bestk
from bestk.cli import main

PACKAGES = tuple(str(Path(bestk.__file__).parents[1] / name) for name in ("bestk/", "bestk_eval/"))
SMALL = {"k": 2, "beam_size": 2, "max_new_tokens": 3}
FLAGS = ["--k", "2", "--beam-size", "2", "--max-new-tokens", "3"]

# The most that a journey may take; each number only ever goes down.
MOST = {
    "generate": 6,
    "drop-in": 4,
    "search": 5,
    "search with a processor": 5,
    "stream": 5,
    "batch job": 6,
    "eval": 6,
    "server's thread": 4,
}


class Depth:
    """Notes how deep in our code a model's forward is called, for the steps of a search."""

    def __init__(self) -> None:
        self.found: list[list[str]] = []

    def __enter__(self) -> Depth:
        self.plain = plain = LlamaForCausalLM.forward

        @functools.wraps(plain)
        def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
            ids = kwargs.get("input_ids", args[0] if args else None)
            if ids is not None and ids.shape[1] <= 2:  # a step; longer ones read prompts
                self.found.append(ours())
            return plain(model, *args, **kwargs)

        LlamaForCausalLM.forward = watched
        return self

    def __exit__(self, *_: object) -> None:
        LlamaForCausalLM.forward = self.plain

    @property
    def last(self) -> list[str]:
        """The walk of the last step; a model that is still tried out is called from elsewhere."""
        assert self.found, "no step was seen"
        return self.found[-1]


def ours() -> list[str]:
    """The frames of our own code on the stack, outermost first."""
    return [
        f"{Path(frame.filename).name}:{frame.name}"
        for frame in traceback.extract_stack()
        if frame.filename.startswith(PACKAGES)
    ]


def by_command(folder: Path, *arguments: str) -> list[str]:
    """Run a command over a folder with a model."""
    tiny.model("llama").save_pretrained(folder / "model")
    goldens.tokenizer().save_pretrained(folder / "model")
    with Depth() as depth:
        assert main([*arguments, "--model", str(folder / "model")]) == 0
    return depth.last


def walk(journey: str, folder: Path) -> list[str]:
    if journey == "generate":
        return by_command(folder, "generate", "ONE", *FLAGS)
    if journey == "batch job":
        rows = folder / "in.jsonl"
        rows.write_text("\n".join(json.dumps({"prompt": p}) for p in goldens.PROMPTS))
        return by_command(folder, "batch", str(rows), "-o", str(folder / "out.jsonl"), *FLAGS)
    if journey == "eval":
        task = folder / "task.jsonl"
        task.write_text("\n".join(json.dumps({"input": p, "references": [p]}) for p in "AB"))
        into = ["-o", str(folder / "out"), "--methods", "BKS_mean:k=2", "--style", "plain"]
        return by_command(folder, "eval", str(task), *into, *FLAGS[2:])
    model, lm = tiny.model("llama"), goldens.causal("llama")
    journeys: dict[str, Callable[[], Any]] = {
        "drop-in": lambda: model.generate(
            torch.tensor([[5, 6, 7]]), custom_generate=bestk.generate, pad_token_id=0, **DROPPED
        ),
        "search": lambda: bestk.search(lm, ["ONE", "TWO"], **SMALL),
        "search with a processor": lambda: bestk.search(
            lm, ["ONE", "TWO"], logits_processor=[goldens.Even()], **SMALL
        ),
        "stream": lambda: list(bestk.stream(lm, "ONE", **SMALL)),
        "server's thread": lambda: ask(lm),
    }
    with Depth() as depth:
        journeys[journey]()
    return depth.last


DROPPED = {"k": 2, "num_beams": 2, "max_new_tokens": 3}


def ask(lm: bestk.LanguageModel) -> None:
    import httpx

    with served(lm) as running:
        body = {"prompt": "ONE", "raw": True, **SMALL}
        answer = httpx.post(f"{running.url}/v1/search", json=body, timeout=60)
        assert answer.status_code == 200


@pytest.mark.parametrize("journey", MOST)
@pytest.mark.filterwarnings("ignore")
def test_the_way_to_the_model_is_short(journey: str, tmp_path: Path) -> None:
    found = walk(journey, tmp_path)
    assert len(found) <= MOST[journey], " › ".join(found)
