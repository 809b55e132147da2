"""A language model as users meet it: a backend with a tokenizer, prompts in, texts out.

Knows prompts (text, token ids, chat messages) and decoding; knows nothing of search.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from bestk.backends.base import Backend
from bestk.errors import ModelError, OptionError, PromptError
from bestk.lm.images import is_image
from bestk.lm.token_text import token_pieces

Message = dict[str, Any]


class Features:
    """A prompt that is no text: what a model's processor made of one sound or picture.

    `values` are a tensor or array without a batch axis, for Whisper [mel bins, frames].
    """

    def __init__(self, values: Any) -> None:
        self.values = values

    def tensor(self) -> Any:
        """Return the values as a tensor."""
        import torch

        return torch.as_tensor(self.values)

    def to_json(self) -> dict[str, list[int]]:
        """Return what the prompt was; the values themselves are not kept."""
        return {"features": list(self.tensor().shape)}

    def __repr__(self) -> str:
        return f"Features{tuple(self.tensor().shape)}"


Prompt = str | Sequence[int] | Sequence[Message] | Features


def check_prefetch(rows: Any) -> None:
    """Refuse what is no number of nodes."""
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 0):
        raise OptionError(f"prefetch must be a number of nodes, 0 for none, got {rows!r}")


class LanguageModel:
    """A backend and the tokenizer that goes with it.

    Without a tokenizer prompts are token ids, and texts are the ids themselves. `chat_template`
    stands in for the tokenizer's own. `prefetch` is what searches are run with that do not say it.
    """

    src_lang: str | None = None  # of models that translate
    prefetch: int | None = None  # nodes of a pass, evaluated ahead of time; None: what pays

    def __init__(
        self,
        backend: Backend,
        tokenizer: Any = None,
        name: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.name = name or backend.name
        self._pieces: dict[int, str] = {}
        self.evaluations: OrderedDict[Any, Any] = OrderedDict()  # name it, so they go with it

    @property
    def is_chat(self) -> bool:
        """Whether the model comes with a chat template."""
        return bool(self.chat_template or getattr(self.tokenizer, "chat_template", None))

    @property
    def tool_template(self) -> str | None:
        """The chat template, if it has a place for tools."""
        template = self.chat_template or getattr(self.tokenizer, "chat_template", None)
        if isinstance(template, dict):
            template = template.get("tool_use", template.get("default"))
        return template if template and re.search(r"\btools\b", template) else None

    @property
    def reads_text(self) -> bool:
        """Whether prompts can be text; else they are features."""
        return True

    def encode(self, prompt: Prompt) -> Any:
        """Turn a prompt of any kind into what the backend reads: token ids."""
        if isinstance(prompt, str):
            _check_text(prompt)
            return self._ids(self._tokenizer()(prompt)["input_ids"])
        if not isinstance(prompt, Sequence) or not prompt:
            raise PromptError(f"a prompt must be text, token ids or chat messages, got {prompt!r}")
        ids = [item for item in prompt if isinstance(item, int) and not isinstance(item, bool)]
        if len(ids) == len(prompt):
            return self._ids(ids)
        if all(isinstance(item, dict) for item in prompt):
            return self._chat(prompt)
        raise PromptError(f"a prompt must be text, token ids or chat messages, got {prompt!r}")

    def encode_begun(self, prompt: Prompt, begin: str) -> Any:
        """Encode a prompt whose text has begun already, so that a search goes on from there."""
        written = self.spell(begin)
        if not written:
            raise PromptError(f"{begin[:40]!r} cannot begin a text: {self.name} cannot write it")
        return self.encode(prompt) + self._ids(written)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Message]) -> Any:
        """Encode a conversation with tools, which its template tells the model of."""
        return self._chat(messages, tools=list(tools))

    def spell(self, text: str) -> list[int]:
        """Turn a piece of text into the ids that a model would write it with, none if it cannot."""
        if self.tokenizer is None:
            words = text.split()
            ids = [int(word) for word in words] if all(map(str.isdecimal, words)) else []
        else:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        can_write = all(token != unknown and token < self.backend.vocab_size for token in ids)
        return ids if can_write else []

    def decode(
        self,
        sequences: Sequence[Sequence[int]],
        stop: Sequence[str] = (),
        min_new_tokens: int = 0,
    ) -> list[str]:
        """Turn generated ids into texts, without special tokens, cut at the first stop string.

        A stop string that is whole before `min_new_tokens` ends no text, and so cuts none.
        """
        if self.tokenizer is None:
            return [" ".join(map(str, ids)) for ids in sequences]
        if not sequences:
            return []
        texts: list[str] = self.tokenizer.batch_decode(
            [list(ids) for ids in sequences], skip_special_tokens=True
        )
        if not stop:
            return texts
        heads = [""] * len(texts)
        if min_new_tokens > 1:
            heads = self.decode([ids[: min_new_tokens - 1] for ids in sequences])
        return [_cut(text, stop, head) for text, head in zip(texts, heads, strict=True)]

    def chat_prompt(self, text: str, system: str | None = None) -> Prompt:
        """Put a text into the model's chat form, or leave it plain where there is none."""
        _check_text(text)
        if self.is_chat:
            opening = [] if system is None else [{"role": "system", "content": system}]
            return [*opening, {"role": "user", "content": text}]
        if system is not None:
            raise PromptError(
                f"model {self.name} has no chat template for a system text: put it into the prompt"
            )
        return text

    def asked(self, prompt: Prompt, *, raw: bool = False, system: str | None = None) -> Prompt:
        """Return a prompt as it is encoded: a chat model answers a text, unless `raw` is set.

        This is the one rule for what a text is; ids, messages and features stay as they are.
        """
        if raw and system is not None:
            raise OptionError("a system text needs chat formatting: give it without raw")
        return self.chat_prompt(prompt, system) if isinstance(prompt, str) and not raw else prompt

    def token_text(self, token: int) -> str:
        """Show one token as text, special ones by their name, loose bytes as `<0xE2>`."""
        return self.token_texts([token])[token]

    def token_texts(self, tokens: Iterable[int]) -> dict[int, str]:
        """Show tokens as text; each is decoded once in the life of the model."""
        wanted = set(tokens)
        fresh = sorted(wanted - self._pieces.keys())
        self._pieces.update(zip(fresh, token_pieces(self.tokenizer, fresh), strict=True))
        return {token: self._pieces[token] for token in sorted(wanted)}

    def tokens_text(self, tokens: Sequence[int]) -> str:
        """Show tokens as text, special ones by their name."""
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    def check_length(self, ids: Sequence[int], max_new_tokens: int) -> None:
        """Refuse a prompt that leaves no room for the text."""
        limit = self.backend.capabilities.max_length
        if limit is not None and len(ids) + max_new_tokens > limit:
            raise PromptError(
                f"the prompt has {len(ids)} tokens, at most {max(limit - max_new_tokens, 0)} fit "
                f"({limit} of the model less max_new_tokens={max_new_tokens}): shorten either"
            )

    def context_length(self, ids: Any) -> int:
        """Count the tokens that stand before the first generated one."""
        return len(ids)

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise ModelError(
                f"model {self.name} has no tokenizer: pass one, or give prompts as token ids"
            )
        return self.tokenizer

    def told(self, prompt: Prompt) -> Any:
        """Return a prompt as results tell of it."""
        return prompt

    def _chat(self, messages: Sequence[Any], **given: Any) -> Any:
        """Encode messages."""
        tokenizer = self._tokenizer()
        if not self.is_chat:
            raise PromptError(
                f"model {self.name} has no chat template: give the prompt as text instead"
            )
        for message in messages:
            content = message.get("content")
            if isinstance(content, list) and any(map(is_image, content)):
                raise PromptError(f"model {self.name} reads text alone: leave the images out")
        if self.chat_template:
            given["chat_template"] = self.chat_template
        try:
            encoded = tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_dict=True, **given
            )
        except Exception as error:  # templates are programs of their own, in jinja
            raise PromptError(
                f"the chat template of {self.name} cannot take the messages ({error}): "
                "each must be a dict with role and content"
            ) from error
        return self._ids(encoded["input_ids"])

    def _ids(self, ids: Sequence[int]) -> list[int]:
        if not ids:
            raise PromptError("the prompt is empty: give at least one token")
        size = self.backend.vocab_size
        for token in ids:
            if not 0 <= token < size:
                raise PromptError(f"token ids go from 0 to {size - 1}, got {token}")
        return [int(token) for token in ids]


def _check_text(text: str) -> None:
    if not text.strip():
        raise PromptError("the prompt is empty: give at least one word")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PromptError("the prompt is not UTF-8 text: it holds bytes that are no character")


def _cut(text: str, stop: Sequence[str], head: str) -> str:
    """Cut a text where its first stop string begins that is not whole within `head`."""
    size = len(head.rstrip("\ufffd"))  # half a character at its end reads otherwise in the text
    places = [text.find(string, max(0, size - len(string) + 1)) for string in stop]
    return text[: min((place for place in places if place >= 0), default=None)]


def is_batch(prompts: Any) -> TypeGuard[Sequence[Any]]:
    """Tell a list of prompts from one prompt, which may itself be a list of ids or messages."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        return False
    return not prompts or isinstance(prompts[0], str | Sequence | Features)
