"""From transformers' processor objects to steps: common ones vectorised, others called.

Told by the exact class, so that a user's subclass is called as it is. Classes are compared by name:
a release of transformers that lacks one of them is no obstacle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bestk.errors import OptionError
from bestk.processors import builtin as steps
from bestk.processors.base import Step
from bestk.processors.foreign import AllowedTokens, Foreign, RowWise

# transformers' processors that look at scores only.
ROW_WISE = frozenset(
    {
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "TopHLogitsWarper",
        "TypicalLogitsWarper",
    }
)


@dataclass(frozen=True)
class Setting:
    """What a translation needs to know besides the object."""

    device: torch.device
    vocab_size: int
    first: int = 0  # the batch id of the first search
    from_generate: bool = False  # `generate` built the list: its batch is this batch


def translate(processor: Any, setting: Setting) -> Step:
    """Turn a processor object into a step."""
    kind = type(processor)
    if kind.__module__.startswith("transformers."):
        if kind.__name__ in ROW_WISE:
            return RowWise(processor)
        if kind.__name__ in _TRANSLATIONS:
            step = _TRANSLATIONS[kind.__name__](processor, setting)
            if step is not None:
                return step
    return Foreign(processor)


def _repetition(processor: Any, _: Setting) -> Step | None:
    if getattr(processor, "prompt_ignore_length", None):
        return None
    return steps.RepetitionPenalty(processor.penalty)


def _source_penalty(processor: Any, setting: Setting) -> Step:
    _check_batch(processor, setting, "encoder_repetition_penalty")
    return steps.SourcePenalty(1 / processor.penalty)


def _source_ngram(processor: Any, setting: Setting) -> Step:
    _check_batch(processor, setting, "encoder_no_repeat_ngram_size")
    return steps.NoRepeatNGram(processor.ngram_size, of_source=True)


def _bias(processor: Any, setting: Setting) -> Step:
    for ids in processor.sequence_bias:
        for token in ids:
            if token >= setting.vocab_size:
                raise OptionError(
                    f"token ids go from 0 to {setting.vocab_size - 1}, got {token} "
                    f"in {type(processor).__name__}"
                )
    return steps.SequenceBias(processor.sequence_bias, setting.device)


def _min_new_tokens(processor: Any, setting: Setting) -> Step:
    length = processor.prompt_length_to_skip + processor.min_new_tokens
    return steps.MinLength(length, _ids(processor.eos_token_id, setting), setting.device)


def _begin(processor: Any, setting: Setting) -> Step:
    return steps.Suppress(
        _ids(processor.begin_suppress_tokens, setting),
        setting.device,
        at_length=processor.begin_index,
    )


def _check_batch(processor: Any, setting: Setting, option: str) -> None:
    if not setting.from_generate:
        raise OptionError(
            f"{type(processor).__name__} holds the sources of one batch: "
            f"use the option {option} instead"
        )


def _ids(tokens: Any, setting: Setting) -> Sequence[int]:
    """List ids that the model can give; checkpoints name others, such as −1, to no effect."""
    return [token for token in tokens.flatten().tolist() if 0 <= token < setting.vocab_size]


_TRANSLATIONS: dict[str, Callable[[Any, Setting], Step | None]] = {
    "EncoderNoRepeatNGramLogitsProcessor": _source_ngram,
    "EncoderRepetitionPenaltyLogitsProcessor": _source_penalty,
    "ExponentialDecayLengthPenalty": lambda p, s: steps.ExponentialDecayLength(
        p.regulation_start, p.regulation_factor, _ids(p.eos_token_id, s), s.device
    ),
    "ForcedBOSTokenLogitsProcessor": lambda p, s: steps.Force(
        [p.bos_token_id], s.device, at_length=1
    ),
    "ForcedEOSTokenLogitsProcessor": lambda p, s: steps.Force(
        _ids(p.eos_token_id, s), s.device, at_length=p.max_length - 1
    ),
    "InfNanRemoveLogitsProcessor": lambda p, s: steps.RemoveInvalid(),
    "LogitNormalization": lambda p, s: steps.Normalise(),
    "MinLengthLogitsProcessor": lambda p, s: steps.MinLength(
        p.min_length, _ids(p.eos_token_id, s), s.device
    ),
    "MinNewTokensLengthLogitsProcessor": _min_new_tokens,
    "MinPLogitsWarper": lambda p, s: steps.MinP(p.min_p, p.min_tokens_to_keep),
    "NoBadWordsLogitsProcessor": _bias,
    "NoRepeatNGramLogitsProcessor": lambda p, s: steps.NoRepeatNGram(p.ngram_size),
    "PrefixConstrainedLogitsProcessor": lambda p, s: AllowedTokens(
        p._prefix_allowed_tokens_fn, s.first
    ),
    "RepetitionPenaltyLogitsProcessor": _repetition,
    "SequenceBiasLogitsProcessor": _bias,
    "SuppressTokensAtBeginLogitsProcessor": _begin,
    "SuppressTokensLogitsProcessor": lambda p, s: steps.Suppress(
        _ids(p.suppress_tokens, s), s.device
    ),
    "TemperatureLogitsWarper": lambda p, s: steps.Temperature(p.temperature),
    "TopKLogitsWarper": lambda p, s: steps.TopK(p.top_k),
    "TopPLogitsWarper": lambda p, s: steps.TopP(p.top_p, p.min_tokens_to_keep),
}
