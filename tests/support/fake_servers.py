"""Servers on loopback that serve a toy model in the shapes of vLLM, SGLang and llama.cpp.

Fields and errors are those of the servers' own sources (vLLM 0.32, SGLang and llama.cpp of August
2026), as far as a client can see them. `Fake.trouble` decides what goes wrong, request by request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response

if TYPE_CHECKING:  # servers in processes of their own do without torch
    from light_toy import LightToy

    from bestk.backends.toy import ToyBackend

LOWEST = -3.4028234663852886e38  # what llama.cpp writes for −inf
Trouble = Callable[[int], Response | float | None]


class WordList:
    """A tokenizer of words w0, w1, …; w0 is special and ends a text."""

    chat_template = None
    eos_token_id = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word.removeprefix("w")) for word in text.split()]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(f" w{i}" for i in ids if i or not skip_special_tokens)

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]


class Fake:
    """A toy model, what was asked of it, and what goes wrong."""

    def __init__(
        self, toy: ToyBackend | LightToy, *, max_logprobs: int = -1, key: str | None = None
    ) -> None:
        self.toy = toy
        self.max_logprobs = max_logprobs
        self.key = key
        self.model = "toy"
        self.requests: list[tuple[str, Any]] = []
        self.trouble: Trouble | None = None
        self.busy = 0
        self.busiest = 0

    def top(self, prefix: Sequence[int], number: int) -> list[tuple[int, float]]:
        """List the likeliest tokens, best first, equal ones by lower id."""
        log_probs = self.toy.log_probs(tuple(prefix))
        order = sorted(range(len(log_probs)), key=lambda token: (-log_probs[token], token))
        return [(token, log_probs[token]) for token in order[:number]]

    async def body(self, request: Request) -> Any:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            raise HTTPException(401, "Unauthorized")
        body = json.loads(await request.body() or b"null")
        self.requests.append((request.url.path, body))
        return body

    def guard(self, app: FastAPI, path: str) -> FastAPI:
        """Let trouble befall the requests to one path."""
        count = 0

        @app.middleware("http")
        async def troubled(request: Request, answer: Any) -> Any:
            nonlocal count
            if request.url.path != path or self.trouble is None:
                return await answer(request)
            count += 1
            befalls = self.trouble(count)
            if isinstance(befalls, Response):
                return befalls
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            try:
                if befalls is not None:
                    await asyncio.sleep(befalls)
                return await answer(request)
            finally:
                self.busy -= 1

        return app


def vllm(fake: Fake) -> FastAPI:
    """`/v1/models`, `/version` and `/v1/completions` as vLLM has them."""
    app = FastAPI()

    @app.get("/v1/models")
    async def models(request: Request) -> Any:
        await fake.body(request)
        card = {"id": fake.model, "object": "model", "created": 1, "owned_by": "vllm"}
        card |= {"root": "owner/toy", "parent": None, "max_model_len": 64, "permission": []}
        return {"object": "list", "data": [card]}

    @app.get("/version")
    async def version() -> Any:
        return {"version": "0.32.0"}

    @app.post("/v1/completions")
    async def completions(request: Request) -> Any:
        body = await fake.body(request)
        if body["model"] != fake.model:
            message = f"The model `{body['model']}` does not exist. Valid aliases: {fake.model}."
            return _vllm_error(404, message, "NotFoundError")
        size = fake.toy.vocab_size
        number = size if body["logprobs"] == -1 else body["logprobs"]
        most = size if fake.max_logprobs == -1 else fake.max_logprobs
        if number > most:
            message = (
                f"Requested sample logprobs of {number}, which is greater than max allowed: {most} "
                f"(parameter=logprobs, value={number})"
            )
            return _vllm_error(400, message, "BadRequestError")
        assert body["max_tokens"] == 1
        assert body["temperature"] == 0
        assert body["return_tokens_as_token_ids"]
        choices = [
            _vllm_choice(index, fake.top(prefix, number))
            for index, prefix in enumerate(body["prompt"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": fake.model,
            "choices": choices[::-1],  # no server promises their order, only their index
            "usage": usage,
        }

    return fake.guard(app, "/v1/completions")


def _vllm_choice(index: int, top: list[tuple[int, float]]) -> dict[str, Any]:
    named = {f"token_id:{token}": max(value, -9999.0) for token, value in top}
    first = next(iter(named))
    logprobs = {
        "text_offset": [0],
        "token_logprobs": [named[first]],
        "tokens": [first],
        "top_logprobs": [named],
    }
    return {
        "index": index,
        "text": "",
        "logprobs": logprobs,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }


def _vllm_error(status: int, message: str, kind: str) -> JSONResponse:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": error}, status)


def sglang(fake: Fake) -> FastAPI:
    """`/v1/models`, `/model_info` and `/generate` as SGLang has them."""
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> Any:
        card = {"id": fake.model, "object": "model", "created": 1, "owned_by": "sglang"}
        return {
            "object": "list",
            "data": [card | {"root": fake.model, "parent": None, "max_model_len": 70}],
        }

    @app.get("/model_info")
    async def model_info() -> Any:
        return {
            "model_path": "owner/toy",
            "served_model_name": fake.model,
            "tokenizer_path": "owner/toy",
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
        }

    @app.get("/server_info")
    async def server_info() -> Any:
        return {"model_path": "owner/toy", "max_total_num_tokens": 4096, "max_req_input_len": 64}

    @app.post("/generate")
    async def generate(request: Request) -> Any:
        body = await fake.body(request)
        assert body["return_logprob"]
        assert body["sampling_params"]["max_new_tokens"] == 1
        assert body["sampling_params"]["temperature"] == 0
        number = body["top_logprobs_num"]
        assert number <= fake.toy.vocab_size, "more than there are would end the real server"
        answers = []
        for prefix in body["input_ids"]:
            # orjson writes −inf as null.
            top = [
                [None if value == -math.inf else value, token, None]
                for token, value in fake.top(prefix, number)
            ]
            meta = {
                "id": "1",
                "finish_reason": {"type": "length", "length": 1},
                "prompt_tokens": len(prefix),
                "weight_version": "default",
                "input_token_logprobs": [],
                "output_token_logprobs": [top[0]],
                "input_top_logprobs": [],
                "output_top_logprobs": [top],
                "completion_tokens": 1,
                "cached_tokens": 0,
            }
            answers.append({"text": "", "output_ids": [top[0][1]], "meta_info": meta})
        return answers

    return fake.guard(app, "/generate")


def llama_cpp(fake: Fake, *, partial: Sequence[int] = ()) -> FastAPI:
    """`/v1/models`, `/props`, `/completion`, `/tokenize`, … as llama.cpp has them.

    Tokens in `partial` are half a character: where one of them is sampled the server leaves the
    probabilities out.
    """
    app = FastAPI()
    words = WordList(fake.toy.vocab_size)

    @app.get("/v1/models")
    async def models() -> Any:
        meta = {"vocab_type": 2, "n_vocab": fake.toy.vocab_size, "n_ctx": 64, "n_ctx_train": 128}
        card = {"id": fake.model, "object": "model", "created": 1, "owned_by": "llamacpp"}
        return {"object": "list", "data": [card | {"meta": meta}]}

    @app.get("/props")
    async def props() -> Any:
        return {
            "default_generation_settings": {"params": {}, "n_ctx": 64},
            "total_slots": 4,
            "model_path": "toy.gguf",
            "chat_template": "{{ messages }}",
            "bos_token": "",
            "eos_token": "w0",
            "build_info": "b6000-abc",
        }

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Any:
        body = await fake.body(request)
        return {"tokens": words(body["content"])["input_ids"]}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Any:
        body = await fake.body(request)
        return {"content": words.decode(body["tokens"])}

    @app.post("/apply-template")
    async def apply_template(request: Request) -> Any:
        body = await fake.body(request)
        return {"prompt": " ".join(message["content"] for message in body["messages"])}

    @app.post("/completion")
    async def completion(request: Request) -> Any:
        body = await fake.body(request)
        assert body["n_predict"] == 1
        assert body["temperature"] == 0
        assert body["post_sampling_probs"] is False
        forced = [token for token, bias in body.get("logit_bias", []) if bias > 1000]
        answers = []
        for index, prefix in enumerate(body["prompt"]):
            top = fake.top(prefix, body["n_probs"])
            answer: dict[str, Any] = {
                "index": index,
                "content": "",
                "tokens": [],
                "id_slot": 0,
                "stop": True,
                "model": fake.model,
                "tokens_predicted": 1,
                "tokens_evaluated": len(prefix),
                "truncated": False,
                "stop_type": "limit",
                "stopping_word": "",
            }
            sampled = forced[0] if forced else top[0][0]
            if sampled not in partial:
                step = _llama_entry(sampled, 0.0) | {
                    "top_logprobs": [_llama_entry(*pair) for pair in top]
                }
                answer["completion_probabilities"] = [step]
            answers.append(answer)
        return answers if len(answers) > 1 else answers[0]

    return fake.guard(app, "/completion")


def _llama_entry(token: int, value: float) -> dict[str, Any]:
    text = f" w{token}" if token else ""  # special tokens show as nothing
    return {
        "id": token,
        "token": text,
        "bytes": list(text.encode()),
        "logprob": LOWEST if value == -math.inf else value,
    }


SHAPES: dict[str, Callable[[Fake], FastAPI]] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llama_cpp,
}


@contextlib.contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serve an app on loopback while the block runs; yields its address."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="error", ws="none", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    number = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{number}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()
