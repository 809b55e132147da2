"""llama.cpp's own `/completion`, and its tokenizer for who has no other.

`n_probs` without `post_sampling_probs` gives log-probabilities before any sampler, by token id. The
bytes of every token listed come with it: texts are put together from them, without asking again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bestk.backends.http.dialect import Dialect, Served, Wording, check_count, likeliest
from bestk.backends.http.transport import MalformedAnswer, Transport
from bestk.backends.prefix import TopLogprobs

_CERTAIN = 1e6  # added to a logit, it leaves no other token a chance


class LlamaCppDialect(Dialect):
    """Speaks to llama.cpp's server."""

    path = "/completion"

    def __init__(self, wording: Wording, card: Mapping[str, Any]) -> None:
        super().__init__(wording, card)
        self.pieces: dict[int, bytes] = {}  # of every token that was ever listed
        self.eos_ids: tuple[int, ...] = ()

    def learn(self, transport: Transport) -> Served:
        """Ask for the properties, the id that ends a text, and one answer."""
        properties = transport.get("/props")
        settings = properties.get("default_generation_settings") or {}
        meta = self.card.get("meta") or {}
        if ending := properties.get("eos_token"):
            ids = tokenize(transport, ending, special=False)
            if len(ids) == 1:
                self.eos_ids = (ids[0],)
                self.pieces[ids[0]] = ending.encode()
        self.probe(transport, again=bool(self.eos_ids))
        return Served(
            model=self.wording.model,
            vocab_size=meta.get("n_vocab"),
            max_length=settings.get("n_ctx") or meta.get("n_ctx"),
            eos_ids=self.eos_ids,
        )

    def body(self, prefixes: Sequence[Sequence[int]], num_tokens: int, *, again: bool) -> Any:
        """Ask for one greedy token per prefix.

        The server leaves out a token whose bytes are no whole character, and its probabilities with
        it. Asked `again`, it has to take the one that ends a text: no sampler's bias changes the
        probabilities, which are those before sampling.
        """
        bias = {"logit_bias": [[self.eos_ids[0], _CERTAIN]]} if again and self.eos_ids else {}
        return {
            "model": self.wording.model,
            "prompt": [list(prefix) for prefix in prefixes],
            "n_predict": 1,
            "temperature": 0.0,
            "n_probs": num_tokens,
            "post_sampling_probs": False,
            "cache_prompt": True,
            "stream": False,
            **bias,
            **self.wording.extra_body,
        }

    def read(self, answer: Any, num_prefixes: int) -> list[TopLogprobs | None]:
        """Read `completion_probabilities[0].top_logprobs`; one prompt is answered by itself."""
        answers = answer if isinstance(answer, list) else [answer]
        check_count(len(answers), num_prefixes)
        answers = sorted(answers, key=lambda one: int(one.get("index", 0)))
        return [self._likeliest(one) for one in answers]

    def _likeliest(self, answer: Mapping[str, Any]) -> TopLogprobs | None:
        if "content" not in answer:
            raise MalformedAnswer("answers without content: use llama.cpp's own server")
        steps = answer.get("completion_probabilities")
        if not steps:
            return None
        if "top_logprobs" not in steps[0]:
            raise MalformedAnswer(
                "answers without completion_probabilities[].top_logprobs, which a search needs: "
                "use a llama.cpp server of 2025 or later"
            )
        listed = steps[0]["top_logprobs"]
        for entry in listed:
            if (token := int(entry["id"])) not in self.pieces:
                self.pieces[token] = bytes(entry.get("bytes") or entry["token"].encode())
        return likeliest((entry["id"], entry["logprob"]) for entry in listed)


class LlamaCppTokenizer:
    """The server's own tokenizer, as far as prompts and texts need one."""

    unk_token_id = None

    def __init__(self, transport: Transport, dialect: LlamaCppDialect) -> None:
        self.transport = transport
        self.pieces = dialect.pieces
        self.all_special_ids = list(dialect.eos_ids)
        self.chat_template = transport.get("/props").get("chat_template") or None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Turn a text into ids."""
        return {"input_ids": tokenize(self.transport, text, special=add_special_tokens)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Turn a text into ids, without a dict around them."""
        return self(text, add_special_tokens)["input_ids"]

    def apply_chat_template(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, return_dict: bool
    ) -> dict[str, list[int]]:
        """Turn chat messages into ids; the server always opens an answer."""
        body = {"messages": messages}
        prompt = self.transport.post("/apply-template", body, lambda answer: str(answer["prompt"]))
        return self(prompt)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Turn ids into text."""
        return self.batch_decode([ids], skip_special_tokens)[0]

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """Turn several lists of ids into texts; ids of prompts are asked for, once."""
        self._learn({token for ids in sequences for token in ids} - self.pieces.keys())
        hidden = set(self.all_special_ids) if skip_special_tokens else set()
        return [
            b"".join(self.pieces[token] for token in ids if token not in hidden).decode(
                "utf-8", "replace"
            )
            for ids in sequences
        ]

    def _learn(self, tokens: set[int]) -> None:
        wanted = sorted(tokens)
        texts = self.transport.post_all(
            "/detokenize",
            [{"tokens": [token]} for token in wanted],
            [lambda answer: str(answer["content"])] * len(wanted),
        )
        self.pieces.update(zip(wanted, (text.encode() for text in texts), strict=True))


def tokenize(transport: Transport, text: str, *, special: bool) -> list[int]:
    """Turn a text into ids; `special` adds what a prompt begins with."""
    body = {"content": text, "add_special": special, "parse_special": True}
    return transport.post("/tokenize", body, lambda answer: [int(i) for i in answer["tokens"]])
