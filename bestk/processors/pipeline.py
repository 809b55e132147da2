"""What callers hang into a search besides its settings, and the processors made of both.

Knows the order in which `generate` applies processors, and keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bestk.config import SearchConfig
from bestk.errors import OptionError
from bestk.processors import builtin
from bestk.processors.base import LogitsProcessor
from bestk.processors.foreign import AllowedTokens
from bestk.processors.translate import Target, translate

if TYPE_CHECKING:
    from bestk.constraints.allowed import Allowed

AllowedTokensFn = Callable[[int, Tensor], Iterable[int]]


@dataclass(frozen=True)
class Hooks:
    """Objects that see every node: as `generate` takes them.

    The drop-in alone sets `counted_length`, how long `generate` takes its padded prompts to be, and
    `eos_ids`, which then replace the model's own.
    """

    logits_processor: Sequence[Any] = ()
    stopping_criteria: Sequence[Any] = ()
    prefix_allowed_tokens_fn: AllowedTokensFn | None = None
    constraints: Sequence[Any] = ()
    allowed: Allowed | None = None
    renormalize: bool = True  # among the tokens that prefix_allowed_tokens_fn names
    counted_length: int | None = None
    eos_ids: tuple[int, ...] | None = None

    @property
    def see_nodes(self) -> bool:
        """Whether code of others is called with every node that is evaluated."""
        given = self.logits_processor, self.stopping_criteria, self.constraints
        return any(map(bool, given)) or self.prefix_allowed_tokens_fn is not None

    def __post_init__(self) -> None:
        for name in ("logits_processor", "stopping_criteria", "constraints"):
            value = getattr(self, name)
            if not isinstance(value, Sequence):
                raise OptionError(f"{name} must be a list, got {type(value).__name__}")
        if self.prefix_allowed_tokens_fn is not None and not callable(
            self.prefix_allowed_tokens_fn
        ):
            raise OptionError(
                "prefix_allowed_tokens_fn must be callable, "
                f"got {type(self.prefix_allowed_tokens_fn).__name__}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Name the objects, for signatures."""
        objects = [*self.logits_processor, *self.stopping_criteria, *self.constraints]
        names = [getattr(one, "__name__", type(one).__name__) for one in objects]
        if self.prefix_allowed_tokens_fn:
            names.append("prefix_allowed_tokens_fn" + ("" if self.renormalize else "(raw)"))
        return (*names, str(self.allowed)) if self.allowed else (*names,)


def processors_of(
    config: SearchConfig,
    hooks: Hooks,
    *,
    device: torch.device,
    vocab_size: int,
    eos_ids: Sequence[int],
    tokenizer: Any = None,
) -> list[LogitsProcessor]:
    """List the processors of a search in the order of `generate`."""
    _check_ids(config, vocab_size)
    bad_words = {*config.bad_words_ids, *_word_ids(config.bad_words, tokenizer, vocab_size)}
    bad_words -= {(token,) for token in eos_ids}
    target = Target(device, vocab_size, hooks.counted_length is not None)
    allowed = hooks.prefix_allowed_tokens_fn
    found: list[LogitsProcessor | bool | None] = [
        config.encoder_repetition_penalty != 1
        and builtin.SourcePenalty(config.encoder_repetition_penalty),
        config.repetition_penalty != 1 and builtin.RepetitionPenalty(config.repetition_penalty),
        bool(config.presence_penalty or config.frequency_penalty)
        and builtin.Occurrences(config.presence_penalty, config.frequency_penalty),
        config.no_repeat_ngram_size is not None
        and builtin.NoRepeatNGram(config.no_repeat_ngram_size),
        config.encoder_no_repeat_ngram_size is not None
        and builtin.NoRepeatNGram(config.encoder_no_repeat_ngram_size, of_source=True),
        bool(bad_words) and builtin.SequenceBias(dict.fromkeys(bad_words, -torch.inf), device),
        allowed is not None and hooks.renormalize and AllowedTokens(allowed),
        config.forced_bos_token_id is not None
        and builtin.Force([config.forced_bos_token_id], device, at_depth=0),
        bool(config.forced_eos_token_id)
        and builtin.Force(config.forced_eos_token_id, device, at_depth=config.max_new_tokens - 1),
        bool(config.suppress_tokens) and builtin.Suppress(config.suppress_tokens, device),
        bool(config.begin_suppress_tokens)
        and builtin.Suppress(
            config.begin_suppress_tokens,
            device,
            at_depth=0 if config.forced_bos_token_id is None else 1,
        ),
        *(translate(processor, target) for processor in hooks.logits_processor),
        config.temperature != 1 and builtin.Temperature(config.temperature),
        config.top_k is not None and builtin.TopK(config.top_k),
        config.top_p is not None and builtin.TopP(config.top_p),
        config.min_p is not None and builtin.MinP(config.min_p),
        config.typical_p is not None and builtin.TypicalP(config.typical_p),
    ]
    return [one for one in found if one is not None and not isinstance(one, bool)]


def _word_ids(words: Sequence[str], tokenizer: Any, vocab_size: int) -> list[tuple[int, ...]]:
    """Spell words as they come at a text's start and after a space; none that cannot be written."""
    if words and tokenizer is None:
        raise OptionError("bad_words needs a tokenizer: use bad_words_ids instead")
    unknown = getattr(tokenizer, "unk_token_id", None)
    spelt = [
        tuple(_spelt(form, tokenizer)) for word in words for form in (word, " " + word.lstrip())
    ]
    return [ids for ids in spelt if ids and unknown not in ids and max(ids) < vocab_size]


def _spelt(text: str, tokenizer: Any) -> list[int]:
    """Turn text into ids by a call, as prompts are, or by `encode`, which will do for a drop-in."""
    if callable(tokenizer):
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _check_ids(config: SearchConfig, vocab_size: int) -> None:
    forced = config.forced_bos_token_id
    named: dict[str, Iterable[int]] = {
        "bad_words_ids": (token for ids in config.bad_words_ids for token in ids),
        "suppress_tokens": config.suppress_tokens,
        "begin_suppress_tokens": config.begin_suppress_tokens,
        "forced_bos_token_id": () if forced is None else (forced,),
        "forced_eos_token_id": config.forced_eos_token_id,
    }
    for name, tokens in named.items():
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise OptionError(f"{name} go from 0 to {vocab_size - 1}, got {token}")
