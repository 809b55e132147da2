"""vLLM's `/v1/completions`, and of any server that answers as it does.

Prefixes go as lists of token ids, many in a request; `return_tokens_as_token_ids` has the likeliest
tokens named by id, since two ids can share a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bestk.backends.http.dialect import (
    GREEDY,
    Dialect,
    Served,
    check_count,
    is_distribution,
    likeliest,
)
from bestk.backends.http.transport import MalformedAnswer, Refusal, Transport
from bestk.backends.prefix import TopLogprobs
from bestk.errors import ServerError

_BY_ID = "token_id:"
_WHOLE = -1  # asks for the whole vocabulary
# "Requested sample logprobs of 49152, which is greater than max allowed: 20"
_OVER_LIMIT = re.compile(r"logprobs of (\d+), which is greater than max allowed: (\d+)")
_LIMITS = (20, 10, 5, 1)  # to try where a server does not say how many it lists


class VllmDialect(Dialect):
    """Speaks to vLLM."""

    path = "/v1/completions"
    way_out = "start the server with --max-logprobs -1"

    def learn(self, transport: Transport) -> Served:
        """Ask for everything: the answer, or the refusal, tells the limit and the vocabulary."""
        vocab_size, limit = self._limit(transport)
        sources = [self.card.get("root"), self.wording.model, self.card.get("parent")]
        return Served(
            model=self.wording.model,
            sources=tuple(dict.fromkeys(source for source in sources if source)),
            vocab_size=vocab_size,
            max_length=self.card.get("max_model_len"),
            max_listed=limit,
        )

    def body(self, prefixes: Sequence[Sequence[int]], num_tokens: int, *, again: bool) -> Any:
        """Ask for one greedy token per prefix, unshaped by the model's own sampling settings."""
        return {
            "model": self.wording.model,
            "prompt": [list(prefix) for prefix in prefixes],
            "max_tokens": 1,
            **GREEDY,
            "logprobs": num_tokens,
            "return_tokens_as_token_ids": True,
            **self.wording.extra_body,
        }

    def read(self, answer: Any, num_prefixes: int) -> list[TopLogprobs | None]:
        """Read `choices[].logprobs.top_logprobs[0]`: `token_id:N` to log-probability."""
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        check_count(len(choices), num_prefixes)
        return [self._likeliest(choice) for choice in choices]

    def _likeliest(self, choice: Mapping[str, Any]) -> TopLogprobs:
        logprobs = choice.get("logprobs")
        if not logprobs or not logprobs.get("top_logprobs"):
            raise MalformedAnswer(
                "answers without logprobs.top_logprobs, which a search needs: use a server that "
                "gives them (vLLM does, with --max-logprobs 20 or more), without a proxy that "
                "drops them"
            )
        listed = logprobs["top_logprobs"][0]
        if not all(name.startswith(_BY_ID) for name in listed):
            raise MalformedAnswer(
                "names tokens by their text, which two ids can share: start vLLM with "
                "--return-tokens-as-token-ids, or use a server that takes "
                "return_tokens_as_token_ids"
            )
        return likeliest((int(name[len(_BY_ID) :]), value) for name, value in listed.items())

    def _limit(self, transport: Transport) -> tuple[int | None, int | None]:
        """Find the size of the vocabulary and how much of it is listed, None where unknown."""
        try:
            answer = self._probe(transport, _WHOLE)
        except Refusal as refusal:
            if told := _OVER_LIMIT.search(refusal.reason):
                vocab_size, limit = int(told[1]), int(told[2])
                if limit == 0:
                    raise ServerError(
                        f"{transport.url} lists no log-probs, which a search needs: start the "
                        "server with --max-logprobs 20"
                    ) from None
                self._probe(transport, limit)
                return vocab_size, limit
            if refusal.status not in {400, 422}:
                raise
            return None, self._largest(transport, refusal)
        return len(answer.tokens), None

    def _largest(self, transport: Transport, refusal: Refusal) -> int:
        for number in _LIMITS:
            try:
                self._probe(transport, number)
            except Refusal as latest:
                refusal = latest
            else:
                return number
        raise refusal

    def _probe(self, transport: Transport, number: int) -> TopLogprobs:
        def read(answer: Any) -> TopLogprobs:
            (found,) = self.read(answer, 1)
            assert found is not None
            if not is_distribution(found):
                raise MalformedAnswer(
                    "gives numbers that are no log-probabilities: start vLLM with "
                    "--logprobs-mode raw_logprobs"
                )
            if number > len(found.tokens):
                raise MalformedAnswer(f"lists {len(found.tokens)} tokens where {number} were asked")
            return found

        return transport.post(self.path, self.body([[0]], number, again=False), read)
