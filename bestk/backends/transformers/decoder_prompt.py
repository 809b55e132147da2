"""The tokens that an encoder-decoder's text starts with: what `generate` would feed its decoder.

Knows the generation config: start token, forced first token, Whisper's language and task tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bestk.errors import ModelError

DecoderPrompt = list[int | None]  # None: the language token, to be detected from each source


def decoder_prompt(
    model: Any, target: int | None = None, languages: Collection[int] = ()
) -> DecoderPrompt:
    """Return the decoder's prompt; `target` is the token of the language to write in.

    `languages` are all such tokens: where the start token is one of them (mBART) the target takes
    its place, elsewhere it follows it (mBART-50, M2M100, NLLB, Whisper).
    """
    start = setting(model, "decoder_start_token_id")
    if isinstance(start, list | tuple):
        start = start[0] if len(start) == 1 else None
    if target is not None and (start is None or start in languages):
        return [target]
    if start is None:
        start = setting(model, "bos_token_id")
    if start is None:
        raise ModelError(
            f"{type(model).__name__} does not say how its texts start: set "
            "model.generation_config.decoder_start_token_id"
        )
    if _is_whisper_like(model):
        return _speech_prompt(model, int(start), target)
    first = target if target is not None else setting(model, "forced_bos_token_id")
    return [int(start)] if first is None else [int(start), int(first)]


def setting(model: Any, name: str) -> Any:
    """Look a setting up in the generation config, then in the model's own."""
    for source in (getattr(model, "generation_config", None), model.config):
        value = getattr(source, name, None)
        if value is not None:
            return value
    return None


def _is_whisper_like(model: Any) -> bool:
    names = ("lang_to_id", "task_to_id", "no_timestamps_token_id", "forced_decoder_ids")
    return any(setting(model, name) is not None for name in names)


def _speech_prompt(model: Any, start: int, target: int | None) -> DecoderPrompt:
    """Build Whisper's start: <|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|>."""
    language, task = setting(model, "language"), setting(model, "task")
    languages, tasks = setting(model, "lang_to_id"), setting(model, "task_to_id")
    prompt: DecoderPrompt = [start]
    if language is None and task is None:
        forced = dict(setting(model, "forced_decoder_ids") or [])
        while len(prompt) in forced:
            prompt.append(forced[len(prompt)])
    if target is None and isinstance(language, str) and languages:
        target = languages.get(language, languages.get(f"<|{language}|>"))
    if target is not None or (languages and prompt[1:2] in ([], [None])):
        prompt[1:2] = [target]
    if tasks and not set(prompt) & set(tasks.values()) and (task or target is not None):
        prompt.append(tasks[task or "transcribe"])
    silent = setting(model, "no_timestamps_token_id")
    if silent is not None and not setting(model, "return_timestamps") and prompt[-1] != silent:
        prompt.append(silent)
    return prompt if languages else [token for token in prompt if token is not None]
