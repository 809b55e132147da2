"""An encoder-decoder as users meet it: a source goes in, texts in the target language come out.

Knows sources (text, token ids, features), languages and the two length limits; knows nothing of
search. Neither the model nor the tokenizer is left changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bestk.errors import OptionError, PromptError, unknown
from bestk.lm.language_model import Features, LanguageModel

if TYPE_CHECKING:
    from bestk.backends.transformers.encoder_decoder import EncoderDecoderBackend


class EncoderDecoderModel(LanguageModel):
    """An encoder-decoder backend and the tokenizer that goes with it.

    `src_lang` is the language of the sources, by default the tokenizer's own.
    """

    backend: EncoderDecoderBackend

    def __init__(
        self,
        backend: EncoderDecoderBackend,
        tokenizer: Any = None,
        name: str | None = None,
        src_lang: str | None = None,
    ) -> None:
        super().__init__(backend, tokenizer, name)
        self.src_lang = src_lang

    @property
    def reads_text(self) -> bool:
        return bool(self.backend.model.reads_text)

    def encode(self, prompt: Any) -> Any:
        """Turn a source into token ids, or into the tensor of its features."""
        from bestk.backends.transformers.sources import Encoded

        if isinstance(prompt, Encoded):
            return prompt
        if isinstance(prompt, Features):
            if self.reads_text:
                raise PromptError(f"model {self.name} reads text, not features: give a string")
            return prompt.tensor()
        if not self.reads_text:
            raise PromptError(
                f"model {self.name} reads {self.backend.model.source_input}, not text: give "
                "bestk.Features of what its processor returns"
            )
        with self._source_language():
            return super().encode(prompt)

    def encode_begun(self, prompt: Any, begin: str) -> list[int]:
        """Refuse it: what a decoder begins with is the model's."""
        raise PromptError(f"texts of {self.name} cannot be begun for it: leave begin out")

    def check_length(self, ids: Any, max_new_tokens: int) -> None:
        """Refuse a source that is too long for the encoder, or texts too long for the decoder."""
        limit = self.backend.capabilities.max_source_length
        if limit is not None and len(ids) > limit:
            raise PromptError(
                f"the source has {len(ids)} tokens, at most {limit} fit into {self.name}: shorten "
                f"it, or give its first {limit} token ids"
            )
        limit, start = self.backend.capabilities.max_length, self.context_length(ids)
        if limit is not None and start + max_new_tokens > limit:
            raise OptionError(
                f"max_new_tokens must be at most {limit - start} for {self.name} (its decoder has "
                f"{limit} positions, {start} taken by its prompt), got {max_new_tokens}"
            )

    def context_length(self, ids: Any) -> int:
        """Count the decoder's tokens before a text."""
        from bestk.backends.transformers.sources import Encoded

        return len(ids.prompts[0] if isinstance(ids, Encoded) else self.backend.decoder_prompt)

    @contextmanager
    def _source_language(self) -> Iterator[None]:
        if self.src_lang is None:
            yield
            return
        before = self.tokenizer.src_lang
        self.tokenizer.src_lang = self.src_lang
        try:
            yield
        finally:
            self.tokenizer.src_lang = before


def make_encoder_decoder(
    model: Any,
    tokenizer: Any = None,
    name: str | None = None,
    *,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    decoder_prompt: Sequence[int] | None = None,
) -> EncoderDecoderModel:
    """Wrap an encoder-decoder; its texts start as its generation config or `tgt_lang` says."""
    from bestk.backends.transformers.decoder_prompt import decoder_prompt as usual_prompt
    from bestk.backends.transformers.encoder_decoder import EncoderDecoderBackend

    known = languages(model, tokenizer)
    for option, language in (("src_lang", src_lang), ("tgt_lang", tgt_lang)):
        _check_language(option, language, known, name or type(model).__name__)
    if src_lang is not None and not hasattr(tokenizer, "src_lang"):
        raise OptionError(
            "src_lang is for tokenizers that mark the source's language: leave it out"
        )
    prompt: Sequence[int | None]
    if decoder_prompt is None:
        target = _target(model, tokenizer, tgt_lang, known, name or type(model).__name__)
        prompt = usual_prompt(model, target, set(known.values()))
    elif tgt_lang is not None:
        raise OptionError("give tgt_lang or decoder_prompt, not both")
    else:
        prompt = _checked_prompt(decoder_prompt)
    return EncoderDecoderModel(
        EncoderDecoderBackend(model, name, prompt), tokenizer, src_lang=src_lang
    )


def languages(model: Any, tokenizer: Any) -> dict[str, int]:
    """Return the languages that a model can be told to use, with the token of each."""
    from bestk.backends.transformers.decoder_prompt import setting

    spoken = setting(model, "lang_to_id")
    if spoken:  # Whisper: {"<|en|>": 50259, …}
        return {code.strip("<|>"): int(token) for code, token in spoken.items()}
    if not hasattr(tokenizer, "src_lang"):
        return {}
    listed = getattr(tokenizer, "lang_code_to_id", None)
    if listed and hasattr(tokenizer, "get_lang_id"):  # M2M100: "en" is the token "__en__"
        return {code: int(tokenizer.get_lang_id(code)) for code in listed}
    codes = listed or [token for token in tokenizer.all_special_tokens if _is_code(token)]
    return {code: int(tokenizer.convert_tokens_to_ids(code)) for code in codes}


def _is_code(token: str) -> bool:
    """Tell a language code (eng_Latn, ro_RO, __java__) from the other special tokens."""
    return "_" in token and not token.startswith(("<", "["))


def _check_language(option: str, language: str | None, known: dict[str, int], name: str) -> None:
    if language is None:
        return
    if not known:
        raise OptionError(f"model {name} knows no language codes: leave {option} out")
    if language not in known:
        raise OptionError(unknown(option, language, known))


def _target(
    model: Any, tokenizer: Any, tgt_lang: str | None, known: dict[str, int], name: str
) -> int | None:
    """Return the token of the target language, None where the checkpoint settles it."""
    from bestk.backends.transformers.decoder_prompt import setting

    if not known:
        return None
    chosen = tgt_lang or getattr(tokenizer, "tgt_lang", None)
    if chosen is not None:
        return known[chosen]
    if setting(model, "lang_to_id"):  # speech says for itself which language it is in
        return None
    settled = (setting(model, "forced_bos_token_id"), setting(model, "decoder_start_token_id"))
    if not set(settled) & set(known.values()):
        some = ", ".join(sorted(known)[:4])
        raise OptionError(
            f"model {name} can write {len(known)} languages: choose one with tgt_lang ({some}, …)"
        )
    return None


def _checked_prompt(prompt: Sequence[int]) -> list[int]:
    if not prompt or any(isinstance(token, bool) or not isinstance(token, int) for token in prompt):
        raise OptionError(f"decoder_prompt must be a list of token ids, got {prompt!r}")
    return list(prompt)
