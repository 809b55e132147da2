"""What a server's dialect must do: word a request for next tokens, read the answer, say its facts.

Knows what dialects share: how log-probabilities are checked and what an answer may lack.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bestk.backends.http.transport import MalformedAnswer, Transport
from bestk.backends.prefix import TopLogprobs

# Servers write −inf, which JSON lacks, as −9999 (vLLM) or the least float there is (llama.cpp).
_NOTHING = -9999.0
# More than 1 by this much is no rounding: these are no probabilities.
_SLACK = 1e-2
# One token as the model itself would have it, unshaped by the settings that it comes with.
GREEDY = {
    "temperature": 0.0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# One request of this many prefixes is small enough to repeat, and large enough to batch.
PREFIXES_PER_REQUEST = 16


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a server says of the model that it serves."""

    model: str
    sources: tuple[str, ...] = ()  # where its tokenizer and config may be found, likeliest first
    vocab_size: int | None = None
    max_length: int | None = None
    max_listed: int | None = None  # None: the whole vocabulary
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Wording:
    """What is put into every request beside the prefixes."""

    model: str
    extra_body: Mapping[str, Any] = field(default_factory=dict)


class Dialect(ABC):
    """How one kind of server is spoken to; `card` is what it says of the model."""

    path: str  # the endpoint that answers prefixes
    way_out = ""  # what lets the server list more tokens; empty where it lists all

    def __init__(self, wording: Wording, card: Mapping[str, Any]) -> None:
        self.wording = wording
        self.card = card

    @abstractmethod
    def learn(self, transport: Transport) -> Served:
        """Ask the server for its facts, and for one answer, to see that it gives what is needed."""

    @abstractmethod
    def body(self, prefixes: Sequence[Sequence[int]], num_tokens: int, *, again: bool) -> Any:
        """Word a request; `again` is for prefixes that were left out of an answer."""

    @abstractmethod
    def read(self, answer: Any, num_prefixes: int) -> list[TopLogprobs | None]:
        """Return the tokens of every prefix in order, None for one that was left out.

        Raises MalformedAnswer, or any error of looking something up that is not there.
        """

    def probe(self, transport: Transport, *, again: bool = False) -> None:
        """Ask for two tokens, to see that what comes are probabilities."""

        def read(answer: Any) -> None:
            (found,) = self.read(answer, 1)
            if found is not None and not is_distribution(found):
                raise MalformedAnswer("gives numbers that are no log-probabilities")

        transport.post(self.path, self.body([[0]], 2, again=again), read)


def likeliest(pairs: Iterable[tuple[int, float | None]]) -> TopLogprobs:
    """Check and collect tokens with their log-probabilities.

    JSON has neither infinity nor NaN, and some servers write both as null: it stands for −inf where
    others are known, and for a broken model where none is.
    """
    listed = list(pairs)
    is_broken = bool(listed) and all(value is None for _, value in listed)
    unknown = math.nan if is_broken else -math.inf
    return TopLogprobs(
        [int(token) for token, _ in listed],
        [unknown if value is None else _checked(float(value)) for _, value in listed],
    )


def is_distribution(answer: TopLogprobs) -> bool:
    """Return whether these can be the probabilities of different tokens."""
    return sum(map(math.exp, answer.log_probs)) <= 1 + _SLACK


def check_count(found: int, expected: int) -> None:
    """Refuse an answer for other than the prefixes that were sent."""
    if found != expected:
        raise MalformedAnswer(f"answers {found} of the {expected} prefixes of a request")


def _checked(log_prob: float) -> float:
    if log_prob > _SLACK:
        raise MalformedAnswer(
            f"gives {log_prob:g} as a log-probability, which is at most 0: start vLLM with "
            "--logprobs-mode raw_logprobs"
        )
    return -math.inf if log_prob <= _NOTHING else log_prob
