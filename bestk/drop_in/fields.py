"""What becomes of every field of transformers' `GenerationConfig` in `bestk.generate`.

One table: the drop-in acts on it, the docs page shows it, a test holds both against transformers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bestk.errors import OptionError


class Treatment(StrEnum):
    """What a field does to a search."""

    HONOURED = "honoured"
    WARNED = "ignored with a warning"
    REFUSED = "refused"
    NOTE = "no effect in generate either"


@dataclass(frozen=True)
class Field:
    """The treatment of one field, and how or why."""

    treatment: Treatment
    note: str


_honoured = functools.partial(Field, Treatment.HONOURED)
_warned = functools.partial(Field, Treatment.WARNED)
_refused = functools.partial(Field, Treatment.REFUSED)

_SPEED = _warned("it is about speed; best-k search keeps one cache of its own")
_ASSISTANT = _warned("it is about the speed of assisted generation")
_OF_ASSISTANTS = (
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size"),
    *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"),
    *("assistant_ensemble_weight", "speculation_type"),
)
_STEPS = _refused("there is no sequence of steps that a text went through alone")


def _warper(note: str) -> Field:
    return _honoured(f"{note}; with `do_sample=True` only, as in `generate`, else a warning")


FIELDS: dict[str, Field] = {
    # length
    "max_length": _honoured("the length of prompt and text together"),
    "max_new_tokens": _honoured("texts that do not end by then are dropped, not cut"),
    **dict.fromkeys(("min_length", "min_new_tokens"), _honoured("no text ends before")),
    "early_stopping": _warned("a search ends by its budget: use `max_completions`"),
    "max_time": _honoured("the search ends with what it has found"),
    "stop_strings": _refused(
        "generate keeps the tokenizer from a callable: use `stop=` with `text_tokenizer=`"
    ),
    # strategy
    "do_sample": _warned("nothing is drawn; temperature, top-k and so on shape the probabilities"),
    "num_beams": _honoured("is `beam_size` unless that is given"),
    "use_mtp": _SPEED,
    # cache
    **dict.fromkeys(("use_cache", "cache_implementation", "cache_config", "max_cache_len"), _SPEED),
    # probabilities
    "temperature": _warper("divides log-probabilities"),
    **dict.fromkeys(("top_k", "top_p", "min_p", "top_h"), _warper("keeps the likeliest tokens")),
    "typical_p": _warper("keeps typical tokens"),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), _warper("cuts unlikely tokens")),
    "repetition_penalty": _honoured("by the node's own prefix; padding is not penalised"),
    "encoder_repetition_penalty": _honoured("by the prompt's own tokens"),
    "length_penalty": _honoured("ranks the texts, unless `rank_by` is given"),
    "no_repeat_ngram_size": _honoured("by the node's own prefix"),
    "bad_words_ids": _honoured("token sequences that no text holds"),
    "renormalize_logits": _honoured("probabilities are always normalised after the processors"),
    "forced_bos_token_id": _honoured("after a prompt of one token, as in `generate`"),
    "forced_eos_token_id": _honoured("at the last place of `max_length`"),
    "remove_invalid_values": _honoured("NaN and infinite scores are replaced"),
    "exponential_decay_length_penalty": _honoured("ending gets ever likelier"),
    "suppress_tokens": _honoured("never generated"),
    "begin_suppress_tokens": _honoured("never generated first"),
    "sequence_bias": _honoured("added where a sequence is completed"),
    "token_healing": _refused("generate keeps the tokenizer from a callable: heal prompts first"),
    "guidance_scale": _refused("it keeps a second cache from call to call"),
    "watermarking_config": _honoured("SynthID's keeps state from call to call: refused"),
    # output
    "num_return_sequences": _honoured("is `num_texts` unless that is given"),
    "output_attentions": _STEPS,
    "output_hidden_states": _STEPS,
    "output_scores": _honoured("`sequences_scores` is given anyway; `scores` by step is None"),
    "output_logits": _STEPS,
    "return_dict_in_generate": _honoured("gives the output class of beam search, and `num_found`"),
    # special tokens
    "pad_token_id": _honoured("fills rows on the right"),
    "bos_token_id": _honoured("is the prompt where none is given"),
    "eos_token_id": _honoured("one or several"),
    # encoder-decoder
    "encoder_no_repeat_ngram_size": _honoured("by the source's own n-grams"),
    "decoder_start_token_id": _honoured("one, or one per prompt"),
    # assisted generation
    "is_assistant": _refused("a search drafts nothing for another model"),
    **dict.fromkeys(_OF_ASSISTANTS, _ASSISTANT),
    # performance
    **dict.fromkeys(("compile_config", "disable_compile"), _SPEED),
    **dict.fromkeys(("continuous_batching_config", "prefill_chunk_size"), _SPEED),
    # other searches, which transformers keeps on the hub
    "low_memory": _SPEED,
    "penalty_alpha": _refused("contrastive search is another algorithm"),
    "dola_layers": _refused("DoLa is another algorithm"),
    **dict.fromkeys(
        ("diversity_penalty", "num_beam_groups"),
        _refused("diverse beam search is another algorithm"),
    ),
    **dict.fromkeys(
        ("constraints", "force_words_ids"),
        _refused("constrained beam search is another algorithm"),
    ),
    # about the file
    "_from_model_config": Field(Treatment.NOTE, "where the config came from"),
    "transformers_version": Field(Treatment.NOTE, "who wrote the config"),
}

_WARPERS = frozenset(
    {"temperature", "top_k", "top_p", "min_p", "top_h"}
    | {"typical_p", "epsilon_cutoff", "eta_cutoff"}
)


def check(generation_config: Any) -> list[str]:
    """Refuse what a search cannot do, and return `name=value` of what it will ignore."""
    defaults = generation_config._get_default_generation_params()
    ignored = []
    for name, value in vars(generation_config).items():
        field = FIELDS.get(name)
        if field is None or _is_neutral(name, value, defaults):
            continue
        if field.treatment is Treatment.REFUSED:
            raise OptionError(f"{name}={value!r} cannot be used in bestk.generate: {field.note}")
        is_idle_warper = name in _WARPERS and not generation_config.do_sample
        if field.treatment is Treatment.WARNED or is_idle_warper:
            ignored.append(f"{name}={value!r}")
    return ignored


def table() -> str:
    """Write the fields as the rows of a Markdown table."""
    rows = [f"| `{name}` | {field.treatment} | {field.note} |" for name, field in FIELDS.items()]
    return "\n".join(["| field | in `bestk.generate` | |", "|---|---|---|", *rows])


def _is_neutral(name: str, value: Any, defaults: dict[str, Any]) -> bool:
    if name == "use_cache":
        return value is not False
    if name == "guidance_scale" and value == 1:
        return True
    return value is None or value is False or (name in defaults and value == defaults[name])
