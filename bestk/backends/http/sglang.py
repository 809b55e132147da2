"""SGLang's own `/generate`, which names the likeliest tokens by id.

Its `/v1/completions` names them by their texts, which two ids can share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bestk.backends.http.dialect import GREEDY, Dialect, Served, check_count, likeliest
from bestk.backends.http.transport import MalformedAnswer, Refusal, Transport
from bestk.backends.prefix import TopLogprobs


class SglangDialect(Dialect):
    """Speaks to SGLang."""

    path = "/generate"

    def learn(self, transport: Transport) -> Served:
        """Ask which model is served; how large its vocabulary is only its config knows."""
        info = _first(transport, "/model_info", "/get_model_info")
        limits = _first(transport, "/server_info", "/get_server_info")
        sources = [info.get("tokenizer_path"), info.get("model_path"), self.card.get("root")]
        self.probe(transport)
        return Served(
            model=self.wording.model,
            sources=tuple(dict.fromkeys(source for source in sources if source)),
            # Inputs have to be shorter than this, and a text's last token is never put in.
            max_length=limits.get("max_req_input_len") or self.card.get("max_model_len"),
        )

    def body(self, prefixes: Sequence[Sequence[int]], num_tokens: int, *, again: bool) -> Any:
        """Ask for one greedy token per prefix, unshaped by the model's own sampling settings."""
        adapter = {"lora_path": self.wording.model} if self.card.get("parent") else {}
        return {
            "input_ids": [list(prefix) for prefix in prefixes],
            "sampling_params": {"max_new_tokens": 1, **GREEDY},
            "return_logprob": True,
            "top_logprobs_num": num_tokens,
            "logprob_start_len": -1,
            "return_text_in_logprobs": False,
            **adapter,
            **self.wording.extra_body,
        }

    def read(self, answer: Any, num_prefixes: int) -> list[TopLogprobs | None]:
        """Read `meta_info.output_top_logprobs[0]`: triples of log-probability, id and text."""
        answers = answer if isinstance(answer, list) else [answer]
        check_count(len(answers), num_prefixes)
        return [self._likeliest(one["meta_info"]) for one in answers]

    def _likeliest(self, info: Mapping[str, Any]) -> TopLogprobs:
        listed = info.get("output_top_logprobs")
        if not listed or not listed[0]:
            raise MalformedAnswer(
                "answers without meta_info.output_top_logprobs, which a search needs: use a "
                "version of SGLang that gives them for return_logprob and top_logprobs_num"
            )
        return likeliest((entry[1], entry[0]) for entry in listed[0])


def _first(transport: Transport, *paths: str) -> Mapping[str, Any]:
    """Return the first answer; endpoints have been renamed, and the new names come first."""
    for path in paths:
        try:
            info = transport.get(path)
        except Refusal:
            continue
        if isinstance(info, dict):
            return info
    return {}
