"""`model.generate(..., custom_generate=bestk.generate)`: best-k search where beam search was.

Takes what transformers' `generate` has prepared, and returns what its beam search would: padded
ids, or its output class. Knows `generate`; the search itself is the scheduler's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.utils import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
)

from bestk.api import Outcomes
from bestk.backends.transformers.decoder_only import DecoderOnlyBackend
from bestk.backends.transformers.encoder_decoder import EncoderDecoderBackend
from bestk.backends.transformers.sources import Encoded
from bestk.config import DIVERSITY, SearchConfig
from bestk.constraints.allowed import of_trie
from bestk.constraints.trie import Trie
from bestk.drop_in.fields import check
from bestk.engine.request import requests_of
from bestk.engine.scheduler import Scheduler
from bestk.errors import OptionError
from bestk.lm.encoder_decoder import EncoderDecoderModel
from bestk.lm.language_model import LanguageModel
from bestk.processors.pipeline import Hooks
from bestk.rerank.postprocess import Finish
from bestk.rerank.select import Embed
from bestk.result import Hypothesis, SearchResult

logger = logging.getLogger("bestk")

# What generate passes along to the model, and a search sees to itself.
_OWN_KWARGS = frozenset(
    {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}
    | {"encoder_outputs", "decoder_attention_mask"}
    | {"global_attention_mask"}  # LED's encoder has read it
)
# Fields of SearchConfig that generate takes as fields of its own config.
_OF_GENERATE = frozenset(vars(GenerationConfig()))  # type: ignore[no-untyped-call]
OPTIONS = tuple(
    field.name for field in dataclasses.fields(SearchConfig) if field.name not in _OF_GENERATE
)


@dataclass
class BestKDecoderOnlyOutput(GenerateBeamDecoderOnlyOutput):
    """Beam search's output, and how many texts each prompt has; the rows after them are padding."""

    num_found: Tensor | None = None


@dataclass
class BestKEncoderDecoderOutput(GenerateBeamEncoderDecoderOutput):
    """Beam search's output, and how many texts each prompt has; the rows after them are padding."""

    num_found: Tensor | None = None


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    generation_config: Any = None,
    *,
    select: str | None = None,
    diversity: float = DIVERSITY,
    embed: Embed | None = None,
    rerank: Any = None,
    text_tokenizer: Any = None,
    allowed: Trie | None = None,
    exclude: Sequence[Any] | None = None,
    item_bias: Any = None,
    renormalize: bool | None = None,
    inputs_tensor: Tensor | None = None,
    **options: Any,
) -> Any:
    """Search instead of `generate`'s decoding loop; call it through `custom_generate`.

    Returns `num_texts` rows per prompt, best first. A prompt with fewer texts has rows of padding
    after them, with a score of −inf. `select`, `diversity`, `embed` and `rerank` choose and order
    the texts as in `bestk.search`. Options are those of `SearchConfig` that `generate` does not
    know; `text_tokenizer` is for all that needs text (`stop`, `bad_words`, `rerank`, `embed`) and
    merges token sequences that read the same. With `allowed` every row is an item of a trie, and
    `exclude` has a list for each prompt.
    """
    settings, model_kwargs = _split(options)
    call = _Call(model, input_ids, generation_config, inputs_tensor, model_kwargs)
    call.check()
    for name, judge in (("rerank", rerank), ("embed", embed)):
        if judge is not None and text_tokenizer is None:
            raise OptionError(f"{name} judges texts: give text_tokenizer=tokenizer too")
    finish = Finish(rerank=rerank, select=select, diversity=diversity, embed=embed)
    lm = call.language_model(text_tokenizer)
    config = call.search_config(settings)
    finish.check(config)
    requests = requests_of(
        lm,
        call.prompts(),
        config,
        Hooks(
            logits_processor or (),
            [one for one in stopping_criteria or () if type(one).__name__ != "MaxLengthCriteria"],
            counted_length=input_ids.shape[1],
            eos_ids=call.eos_ids(lm.backend.vocab_size),
            **of_trie(allowed, item_bias, renormalize),
        ),
        exclude=exclude or (),
        keep_tree=False,
    )
    scheduler = Scheduler(len(requests))
    outcomes = Outcomes(requests, scheduler)
    with _evaluated(model):
        for request in requests:
            scheduler.add(request)
        while scheduler.has_work:
            for update in scheduler.step():
                outcomes.note(update)
    is_ranked = "rank_by" in settings or allowed is not None
    exponent = None if is_ranked else float(generation_config.length_penalty)
    found = [_ranked(result, exponent) for result in outcomes.results()]
    if rerank is not None:
        found = [_readable(result, lm) for result in found]
    num_texts = config.num_texts or 1
    return call.output([finish(result).hypotheses[:num_texts] for result in found], num_texts)


@dataclass
class _Call:
    """What `generate` hands over; its rows are repeated `repeats` times for beams."""

    model: Any
    input_ids: Tensor
    config: Any
    inputs_tensor: Tensor | None
    kwargs: dict[str, Any]

    @property
    def repeats(self) -> int:
        return max(self.config.num_beams or 1, self.config.num_return_sequences or 1)

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(self.model.config.is_encoder_decoder)

    def check(self) -> None:
        """Refuse what a search cannot do, and say in one line what it ignores."""
        if self.config is None:
            raise OptionError(
                "bestk.generate is called by transformers: "
                "use model.generate(..., custom_generate=bestk.generate), or bestk.search"
            )
        ignored = check(self.config)
        if ignored:
            logger.warning("best-k search ignores %s", ", ".join(ignored))
        for name, value in self.kwargs.items():
            is_nothing = value is None or (isinstance(value, dict) and not value)
            if name not in _OWN_KWARGS and not is_nothing:
                raise OptionError(
                    f"bestk.generate cannot pass {name} to the model: prompts are token ids alone "
                    "(bestk.search takes images too)"
                )
        cache = self.kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            raise OptionError("bestk.generate starts from the prompt: leave past_key_values out")
        if self.input_ids.shape[1] == 0:
            raise OptionError("bestk.generate needs input_ids, got none: leave inputs_embeds out")
        self._check_positions()

    def language_model(self, tokenizer: Any) -> LanguageModel:
        """Wrap the model; what is learnt of it stays with it for the next call."""
        backend = self.model.__dict__.get("_bestk_backend")
        # A vocabulary that has grown since is another model's.
        if backend is None or backend.vocab_size != backend.model.vocab_size:
            backend = self._backend()
            self.model.__dict__["_bestk_backend"] = backend
        kind = EncoderDecoderModel if self.is_encoder_decoder else LanguageModel
        return kind(backend, tokenizer)

    def prompts(self) -> list[Any]:
        """Return what the model reads, without padding: the prompts, or what was encoded."""
        ids = self.input_ids[:: self.repeats]
        if self.is_encoder_decoder and self.inputs_tensor is not None:
            ids = self.inputs_tensor
            if ids.ndim != 2 or ids.is_floating_point():
                raise OptionError(
                    "bestk.generate reads token ids, got features: use bestk.search instead"
                )
            ids = ids.clamp(min=0)  # generate invents −100 where only encoder_outputs were given
        mask = self._mask()
        rows: list[list[int]] = ids.tolist()
        if mask is not None:
            rows = [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]
        return self._encoded(rows) if self.is_encoder_decoder else rows

    def search_config(self, settings: dict[str, Any]) -> SearchConfig:
        """Build the settings of the search from the options and generate's config."""
        room = int(self.config.max_length) - self.input_ids.shape[1]
        if room < 1:
            raise OptionError(
                f"max_length={self.config.max_length} leaves no room after "
                f"{self.input_ids.shape[1]} tokens: use max_new_tokens"
            )
        told = {"beam_size": self.config.num_beams, "num_texts": self.config.num_return_sequences}
        sizes = {name: size for name, size in told.items() if size is not None and size > 1}
        return SearchConfig.of({"max_new_tokens": room, **sizes, **settings})

    def eos_ids(self, vocab_size: int) -> tuple[int, ...]:
        """List the ids that end a text; ids that the model cannot give end none, as in generate."""
        tokens = self.config._eos_token_tensor
        listed: list[int] = [] if tokens is None else tokens.flatten().tolist()
        return tuple(token for token in listed if 0 <= token < vocab_size)

    def output(self, kept: Sequence[Sequence[Hypothesis]], num_texts: int) -> Any:
        """Lay texts out as beam search does: one row each, `num_texts` per prompt."""
        starts = self.input_ids[:: self.repeats]
        pad = self.config._pad_token_tensor
        fill = 0 if pad is None else int(pad)
        longest = max((text.num_tokens for row in kept for text in row), default=0)
        shape = len(kept), num_texts, starts.shape[1] + longest
        sequences = torch.full(shape, fill, dtype=torch.int64, device=starts.device)
        scores = torch.full(shape[:2], -torch.inf, device=starts.device)
        for row, texts in enumerate(kept):
            for number, text in enumerate(texts):
                end = starts.shape[1] + text.num_tokens
                ids = torch.tensor(text.token_ids, device=starts.device)
                sequences[row, number, :end] = torch.cat([starts[row], ids])
                rerank_score = text.rerank_score
                scores[row, number] = text.score if rerank_score is None else rerank_score
        num_found = torch.tensor([len(texts) for texts in kept], device=starts.device)
        if bool((num_found < num_texts).any()):
            logger.warning(
                "found %s of num_texts=%d texts, rows of padding fill the rest: raise beam_size "
                "or max_new_tokens, or lower min_prob",
                "/".join(map(str, num_found.tolist())),
                num_texts,
            )
        if not self.config.return_dict_in_generate:
            return sequences.flatten(0, 1)
        kind: Any = BestKDecoderOnlyOutput
        if self.is_encoder_decoder:
            kind = BestKEncoderDecoderOutput
        return kind(
            sequences=sequences.flatten(0, 1),
            sequences_scores=scores.flatten(),
            num_found=num_found,
        )

    def _backend(self) -> Any:
        if not self.is_encoder_decoder:
            return DecoderOnlyBackend(self.model)
        # The sources bring their decoder ids, and generate's processors rule tokens out.
        start = self.input_ids[0].tolist()
        return EncoderDecoderBackend(self.model, decoder_prompt=start, has_rules=False)

    def _encoded(self, ids: Sequence[Sequence[int]]) -> list[Encoded]:
        """Return every source as generate has encoded it, without padding on either side."""
        device = next(self.model.parameters()).device
        output, mask = self.kwargs["encoder_outputs"], self._mask()
        hidden, starts = output.last_hidden_state, self.input_ids.tolist()
        if mask is None:
            mask = torch.ones(hidden.shape[:2], dtype=torch.bool)[:: self.repeats]
        return [
            Encoded(row[keep][None], None, [start], type(output), source)
            for row, keep, start, source in zip(
                hidden[:: self.repeats].to(device),
                mask.to(device),
                starts[:: self.repeats],
                ids,
                strict=True,
            )
        ]

    def _mask(self) -> Tensor | None:
        """Mark which tokens of the prompts, or of the sources, are not padding."""
        mask: Tensor | None = self.kwargs.get("attention_mask")
        encoded = self.kwargs.get("encoder_outputs")
        if mask is None:
            return None
        if encoded is not None and mask.shape != encoded.last_hidden_state.shape[:2]:
            raise OptionError(
                f"attention_mask of shape {tuple(mask.shape)} does not fit what the encoder "
                f"returned, {tuple(encoded.last_hidden_state.shape[:2])}: use bestk.search"
            )
        return mask[:: self.repeats].bool()

    def _check_positions(self) -> None:
        positions, mask = self.kwargs.get("position_ids"), self.kwargs.get("attention_mask")
        if positions is not None and not self.is_encoder_decoder:
            ones = torch.ones_like(self.input_ids) if mask is None else mask.long()
            plain = (ones.cumsum(dim=1) - 1).clamp(min=0)
            is_alike = positions.shape[-2:] == plain.shape  # M-RoPE has some for every axis
            if not is_alike or bool(((positions != plain) & (ones > 0)).any()):
                raise OptionError("bestk.generate counts positions itself: leave position_ids out")
        of_decoder = self.kwargs.get("decoder_attention_mask")
        if of_decoder is not None and not bool(of_decoder.bool().all()):
            raise OptionError("bestk.generate cannot hide decoder tokens: unpad decoder_input_ids")


@contextlib.contextmanager
def _evaluated(model: Any) -> Iterator[None]:
    """Run a model that is being trained without its dropout, and leave it as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    settings = {name: value for name, value in options.items() if name in OPTIONS}
    return settings, {name: value for name, value in options.items() if name not in OPTIONS}


def _ranked(result: SearchResult, exponent: float | None) -> SearchResult:
    """Score texts as beam search does, unless told not to: log_prob / length^length_penalty."""
    if exponent is None:
        return result
    scored = [
        dataclasses.replace(text, score=text.log_prob / text.num_tokens**exponent)
        for text in result.hypotheses
    ]
    return dataclasses.replace(result, hypotheses=tuple(sorted(scored, key=lambda t: -t.score)))


def _readable(result: SearchResult, lm: LanguageModel) -> SearchResult:
    """Give rerankers the prompt as text."""
    ids = result.prompt.ids if isinstance(result.prompt, Encoded) else result.prompt
    (text,) = lm.decode([ids])
    return dataclasses.replace(result, prompt=text)


def _signature() -> inspect.Signature:
    """Name every option: `generate` hands on only arguments that a signature names."""
    plain = inspect.signature(generate)
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in OPTIONS
    ]
    *first, rest = plain.parameters.values()
    return plain.replace(parameters=[*first, *named, rest])


generate.__signature__ = _signature()  # type: ignore[attr-defined]
