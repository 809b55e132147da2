"""Results in OpenAI's words: choices, log-probabilities, usage.

Pure functions of results. Texts that are complete come first; where a search found too few, those
that were cut off follow, with finish_reason "length". Knows no routes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from bestk.core.record import TreeRecord, texts_of
from bestk.core.tree import State
from bestk.engine.results import hypotheses_of
from bestk.lm.language_model import LanguageModel
from bestk.result import Hypothesis, SearchResult, merge, rank
from bestk.server.tools import Tools

Choice = dict[str, Any]


def filled_up(
    lm: LanguageModel, chosen: SearchResult, whole: SearchResult, n: int
) -> list[Hypothesis]:
    """Return the chosen texts, and where they are fewer than n, texts that were cut off.

    What max_new_tokens cut comes first; only where there is nothing else, the best open prefix.
    """
    texts = list(chosen.hypotheses[:n])
    if len(texts) < n:
        known = {hypothesis.text for hypothesis in texts}
        cut = [h for h in _unfinished(lm, whole, State.TRUNCATED) if h.text not in known]
        texts += cut[: n - len(texts)]
    if not texts:
        texts = [h for h in _unfinished(lm, whole, State.OPEN) if h.text][:1]
    return texts


def completion_choice(
    lm: LanguageModel, record: TreeRecord | None, index: int, text: Hypothesis, top: int | None
) -> Choice:
    """Write one text for `/v1/completions`; `top` is how many other tokens to tell of."""
    written = _choice(index, text)
    written["text"] = text.text
    written["logprobs"] = None
    if top is not None:
        tokens = token_details(lm, record, text, top)
        written["logprobs"] = {
            "tokens": [token["token"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [
                {other["token"]: other["logprob"] for other in token["top_logprobs"]}
                for token in tokens
            ],
            "text_offset": [token["offset"] for token in tokens],
        }
    return written


def chat_choice(
    lm: LanguageModel,
    record: TreeRecord | None,
    index: int,
    text: Hypothesis,
    top: int | None,
    *,
    tools: Tools | None = None,
    is_chunk: bool = False,
) -> Choice:
    """Write one text for `/v1/chat/completions`."""
    written = _choice(index, text)
    said, calls = (text.text, []) if tools is None else tools.read(text.text)
    message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None}
    if calls:
        message |= {"content": said or None, "tool_calls": _tool_calls(calls, is_chunk=is_chunk)}
        written["finish_reason"] = "tool_calls"
    written["delta" if is_chunk else "message"] = message
    written["logprobs"] = None
    if top is not None:
        tokens = token_details(lm, record, text, top)
        told = [{k: v for k, v in token.items() if k != "offset"} for token in tokens]
        written["logprobs"] = {"content": told, "refusal": None}
    return written


def usage(prompt_tokens: int, texts: Sequence[Hypothesis], expansions: int) -> dict[str, int]:
    """Count what a request cost."""
    completion_tokens = sum(text.num_tokens for text in texts)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "expansions": expansions,
    }


def token_details(
    lm: LanguageModel, record: TreeRecord | None, text: Hypothesis, top: int
) -> list[dict[str, Any]]:
    """Tell of every token that shows in a text: its log-probability, and the likeliest others.

    The others are those that the search looked at; the model's other tokens are not told of.
    """
    ids = list(text.token_ids)
    starts = [len(t) for t in lm.decode([ids[:n] for n in range(len(ids))])] if ids else []
    children = _children(record) if record is not None and top else {}
    details, slot = [], 0
    for place, token in enumerate(ids):
        if starts[place] < len(text.text):  # neither the end nor a stop string shows
            others, _ = children.get(slot, ([], {}))
            details.append(
                {
                    **_token(lm, token, text.log_probs[place]),
                    "top_logprobs": [_token(lm, *other) for other in others[:top]],
                    "offset": starts[place],
                }
            )
        slot = children.get(slot, ([], {}))[1].get(token, -1)
    return details


def _tool_calls(calls: Sequence[tuple[str, str]], *, is_chunk: bool) -> list[dict[str, Any]]:
    return [
        {
            **({"index": place} if is_chunk else {}),
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for place, (name, arguments) in enumerate(calls)
    ]


def _choice(index: int, text: Hypothesis) -> Choice:
    return {
        "index": index,
        "finish_reason": text.finish_reason,
        "score": text.score,
        "log_prob": text.log_prob,
    }


def _token(lm: LanguageModel, token: int, log_prob: float) -> dict[str, Any]:
    shown = lm.token_text(token)
    return {"token": shown, "logprob": log_prob, "bytes": list(shown.encode())}


def _children(record: TreeRecord) -> dict[int, tuple[list[tuple[int, float]], dict[int, int]]]:
    """Map each slot to its children, best first, and to the slots of those that were expanded."""
    found: dict[int, tuple[list[tuple[int, float]], dict[int, int]]] = {}
    columns = (record.child_parent, record.child_token, record.child_log_prob)
    for parent, token, log_prob in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault(parent, ([], {}))[0].append((token, log_prob))
    nodes = zip(record.parent.tolist(), record.token.tolist(), strict=True)
    for slot, (parent, token) in enumerate(nodes):
        if slot:
            found[parent][1][token] = slot
    return found


def _unfinished(lm: LanguageModel, result: SearchResult, state: State) -> list[Hypothesis]:
    if result.tree is None:
        return []
    config = result.config
    found = texts_of(result.tree, float("inf"), state=state)

    def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
        return lm.decode(sequences, config.stop, config.min_new_tokens)

    return rank(merge(hypotheses_of(found, config, decode)))
