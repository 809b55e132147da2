"""From transformers' processor objects to ours: common ones vectorised, others called.

Told by the exact class, so that a user's subclass is called as it is. Classes are compared by name:
a release of transformers that lacks one of them is no obstacle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bestk.errors import OptionError
from bestk.processors import builtin
from bestk.processors.base import LogitsProcessor
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
class Target:
    """What a translation needs to know besides the object."""

    device: torch.device
    vocab_size: int
    from_generate: bool = False  # `generate` built the list: its batch is this batch


def translate(processor: Any, target: Target) -> LogitsProcessor:
    """Turn a processor object into one of ours."""
    kind = type(processor)
    if kind.__module__.startswith("transformers."):
        if kind.__name__ in ROW_WISE:
            return RowWise(processor)
        if kind.__name__ in _TRANSLATIONS:
            found = _TRANSLATIONS[kind.__name__](processor, target)
            if found is not None:
                return found
    return Foreign(processor)


def _repetition(processor: Any, _: Target) -> LogitsProcessor | None:
    if getattr(processor, "prompt_ignore_length", None):
        return None
    return builtin.RepetitionPenalty(processor.penalty)


def _source_penalty(processor: Any, target: Target) -> LogitsProcessor:
    _check_batch(processor, target, "encoder_repetition_penalty")
    return builtin.SourcePenalty(1 / processor.penalty)


def _source_ngram(processor: Any, target: Target) -> LogitsProcessor:
    _check_batch(processor, target, "encoder_no_repeat_ngram_size")
    return builtin.NoRepeatNGram(processor.ngram_size, of_source=True)


def _bias(processor: Any, target: Target) -> LogitsProcessor:
    for ids in processor.sequence_bias:
        for token in ids:
            if token >= target.vocab_size:
                raise OptionError(
                    f"token ids go from 0 to {target.vocab_size - 1}, got {token} "
                    f"in {type(processor).__name__}"
                )
    return builtin.SequenceBias(processor.sequence_bias, target.device)


def _min_new_tokens(processor: Any, target: Target) -> LogitsProcessor:
    length = processor.prompt_length_to_skip + processor.min_new_tokens
    return builtin.MinLength(length, _ids(processor.eos_token_id, target), target.device)


def _begin(processor: Any, target: Target) -> LogitsProcessor:
    return builtin.Suppress(
        _ids(processor.begin_suppress_tokens, target),
        target.device,
        at_length=processor.begin_index,
    )


def _check_batch(processor: Any, target: Target, option: str) -> None:
    if not target.from_generate:
        raise OptionError(
            f"{type(processor).__name__} holds the sources of one batch: "
            f"use the option {option} instead"
        )


def _ids(tokens: Any, target: Target) -> Sequence[int]:
    """List ids that the model can give; checkpoints name others, such as −1, to no effect."""
    return [token for token in tokens.flatten().tolist() if 0 <= token < target.vocab_size]


_TRANSLATIONS: dict[str, Callable[[Any, Target], LogitsProcessor | None]] = {
    "EncoderNoRepeatNGramLogitsProcessor": _source_ngram,
    "EncoderRepetitionPenaltyLogitsProcessor": _source_penalty,
    "ExponentialDecayLengthPenalty": lambda p, s: builtin.ExponentialDecayLength(
        p.regulation_start, p.regulation_factor, _ids(p.eos_token_id, s), s.device
    ),
    "ForcedBOSTokenLogitsProcessor": lambda p, s: builtin.Force(
        [p.bos_token_id], s.device, at_length=1
    ),
    "ForcedEOSTokenLogitsProcessor": lambda p, s: builtin.Force(
        _ids(p.eos_token_id, s), s.device, at_length=p.max_length - 1
    ),
    "InfNanRemoveLogitsProcessor": lambda p, s: builtin.RemoveInvalid(),
    "LogitNormalization": lambda p, s: builtin.Normalise(),
    "MinLengthLogitsProcessor": lambda p, s: builtin.MinLength(
        p.min_length, _ids(p.eos_token_id, s), s.device
    ),
    "MinNewTokensLengthLogitsProcessor": _min_new_tokens,
    "MinPLogitsWarper": lambda p, s: builtin.MinP(p.min_p, p.min_tokens_to_keep),
    "NoBadWordsLogitsProcessor": _bias,
    "NoRepeatNGramLogitsProcessor": lambda p, s: builtin.NoRepeatNGram(p.ngram_size),
    "PrefixConstrainedLogitsProcessor": lambda p, s: AllowedTokens(p._prefix_allowed_tokens_fn),
    "RepetitionPenaltyLogitsProcessor": _repetition,
    "SequenceBiasLogitsProcessor": _bias,
    "SuppressTokensAtBeginLogitsProcessor": _begin,
    "SuppressTokensLogitsProcessor": lambda p, s: builtin.Suppress(
        _ids(p.suppress_tokens, s), s.device
    ),
    "TemperatureLogitsWarper": lambda p, s: builtin.Temperature(p.temperature),
    "TopKLogitsWarper": lambda p, s: builtin.TopK(p.top_k),
    "TopPLogitsWarper": lambda p, s: builtin.TopP(p.top_p, p.min_tokens_to_keep),
}
