"""Real servers for tests: a toy model with letters, and uvicorn on a free port of this machine."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from fastapi import FastAPI

import bestk
from bestk.backends.toy import ToyBackend, ToySession
from bestk.nodes import BatchSpec, NodeBatch
from bestk.server.app import Access, create_app
from bestk.server.limits import Limits
from bestk.server.main import GracefulServer, ServeOptions, make_server

ALPHABET = "abcdefghijklmnopqrstuvwxyz ."


class Letters:
    """A tokenizer of letters; id 0 ends a text, the last id stands for any other character."""

    chat_template = "role: content"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        unknown = len(ALPHABET) + 1
        return {"input_ids": [ALPHABET.find(letter) + 1 or unknown for letter in text.lower()]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        letters = ("" if skip_special_tokens else "<end>", *ALPHABET, "?")
        return "".join(letters[i] for i in ids)

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, return_dict: bool
    ) -> dict[str, list[int]]:
        return self(" ".join(f"{message['role']} {message['content']}" for message in messages))


class Slow(ToySession):
    """Does something before every step."""

    backend: SlowBackend

    def evaluate(self, nodes: NodeBatch, *, whole: bool) -> torch.Tensor:
        self.backend.num_steps += 1
        self.backend.before_step()
        return super().evaluate(nodes, whole=whole)


class SlowBackend(ToyBackend):
    """A toy model whose steps can be held up, watched, or made to fail."""

    num_steps = 0
    before_step: Callable[[], Any] = staticmethod(lambda: None)

    def start(
        self, prompts: Sequence[Sequence[int]], spec: BatchSpec, prompt_size: int = 0
    ) -> ToySession:
        return Slow(self, [tuple(prompt) for prompt in prompts])


def letters_lm(name: str = "letters") -> bestk.LanguageModel:
    """A model that writes letters; what it writes depends on the whole prefix."""
    size = len(ALPHABET) + 2

    def distribution(prefix: tuple[int, ...]) -> list[float]:
        source = random.Random(hash(prefix[-12:]))  # ints hash alike in every process
        weights = [0.0] * size
        weights[0] = 1.0
        for _ in range(5):
            weights[source.randrange(1, size - 1)] += source.choice([1, 2, 3, 5])
        return [weight / sum(weights) for weight in weights]

    return bestk.LanguageModel(SlowBackend(distribution, vocab_size=size), Letters(), name)


@contextlib.contextmanager
def served(
    *models: bestk.LanguageModel,
    limits: Limits | None = None,
    access: Access | None = None,
    grace: float = 5.0,
    tries: dict[str, bestk.Trie] | None = None,
) -> Iterator[Served]:
    """Run a server on a free port, in a thread of this process."""
    app = create_app({lm.name: lm for lm in models}, limits, access, tries=tries)
    running = Served(app, grace)
    try:
        yield running
    finally:
        running.stop()


class Served:
    """A server that runs."""

    def __init__(self, app: FastAPI, grace: float) -> None:
        self.app, self.loop = app, app.state.loop
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server: GracefulServer = make_server(app, ServeOptions(grace=grace))
        self.loop.start()
        self._thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [listening]}, daemon=True
        )
        self._thread.start()
        until(lambda: self.server.started)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server did not stop"
        self.loop.drain(0)
        assert self.loop.join(30), "the loop did not stop"


def until(is_so: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for something that another thread does; a wait without end is a failure."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def facts(result: Any) -> dict[str, Any]:
    """What a result says, but for time: of a result, or of its JSON."""
    data = dict(result if isinstance(result, dict) else result.to_json())
    for name in ("id", "model", "graph"):
        data.pop(name, None)
    data["cost"] = {k: v for k, v in data["cost"].items() if k != "seconds"}
    return plain(data)


def plain(data: Any) -> Any:
    """Write tuples as the lists that JSON makes of them."""
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    return [plain(item) for item in data] if isinstance(data, list | tuple) else data
