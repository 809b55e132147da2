"""A model behind a server: prefixes go out a few to a request, all at once; answers keep the order.

Knows no server's dialect and no HTTP; whatever goes wrong on the way is the transport's to mend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bestk.backends.http.dialect import PREFIXES_PER_REQUEST, Dialect
from bestk.backends.http.transport import MalformedAnswer, Transport
from bestk.backends.prefix import EngineInfo, PrefixBackend, TopLogprobs
from bestk.errors import ServerError


class HttpBackend(PrefixBackend):
    """The next tokens that a server finds likeliest."""

    def __init__(
        self,
        transport: Transport,
        dialect: Dialect,
        facts: EngineInfo,
        prefixes_per_request: int = PREFIXES_PER_REQUEST,
    ) -> None:
        super().__init__(facts)
        self.transport = transport
        self.dialect = dialect
        self.prefixes_per_request = prefixes_per_request

    def ask(self, prefixes: list[list[int]], num_tokens: int) -> Sequence[TopLogprobs]:
        """Ask for all prefixes; those that an answer leaves out once more, in other words."""
        number = min(num_tokens, self.vocab_size)
        answers = self._round(prefixes, number, again=False)
        missing = [index for index, answer in enumerate(answers) if answer is None]
        if missing:
            second = self._round([prefixes[index] for index in missing], number, again=True)
            for index, answer in zip(missing, second, strict=True):
                answers[index] = answer
        return [self._known(answer) for answer in answers]

    def close(self) -> None:
        """End all connections."""
        self.transport.close()

    def _round(
        self, prefixes: list[list[int]], number: int, *, again: bool
    ) -> list[TopLogprobs | None]:
        size = self.prefixes_per_request
        chunks = [prefixes[start : start + size] for start in range(0, len(prefixes), size)]
        found = self.transport.post_all(
            self.dialect.path,
            [self.dialect.body(chunk, number, again=again) for chunk in chunks],
            [self._reader(len(chunk), number) for chunk in chunks],
        )
        return [answer for chunk in found for answer in chunk]

    def _reader(self, count: int, number: int) -> Callable[[Any], list[TopLogprobs | None]]:
        def read(content: Any) -> list[TopLogprobs | None]:
            answers = self.dialect.read(content, count)
            for answer in answers:
                if answer is not None and len(answer.tokens) < number:
                    # Taking fewer would lose children that pass γ without a word.
                    raise MalformedAnswer(
                        f"lists {len(answer.tokens)} tokens where {number} were asked for: lower "
                        "max_children to what it lists"
                    )
            return answers

        return read

    def _known(self, answer: TopLogprobs | None) -> TopLogprobs:
        """Leave out ids past the vocabulary: padding of the output layer, which no text holds."""
        if answer is None:
            raise ServerError(f"{self.transport.url} gives no probabilities for a prefix")
        if max(answer.tokens, default=0) < self.vocab_size:
            return answer
        pairs = zip(answer.tokens, answer.log_probs, strict=True)
        kept = [(token, value) for token, value in pairs if token < self.vocab_size]
        return TopLogprobs([token for token, _ in kept], [value for _, value in kept])
