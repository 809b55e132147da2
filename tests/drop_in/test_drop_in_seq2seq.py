"""The drop-in with encoder-decoders: `generate` runs the encoder, the search goes on from there."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import tiny_seq2seq
import torch
import transformers as hf
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput

import bestk
from bestk.errors import OptionError

VOCAB, PAD, EOS = 28, 1, 2
SOURCES = torch.tensor([[5, 6, 7, 8, EOS, PAD, PAD], [9, 3, 9, 3, 9, 4, EOS]])
MASK = (SOURCES != PAD).long()
SEARCH: dict[str, Any] = {"k": 3, "beam_size": 10, "min_prob": 0.02, "num_texts": 5}


_SIZES = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "forced_eos_token_id": None,
}
_SPECIAL = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": EOS}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
LANGUAGE = 13

_MAKERS: dict[str, Callable[[], Any]] = {
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_SIZES, **_SPECIAL)),
    "marian": lambda: hf.MarianMTModel(
        hf.MarianConfig(**_SIZES, **{**_SPECIAL, "decoder_start_token_id": PAD})
    ),
    "mbart50": lambda: hf.MBartForConditionalGeneration(hf.MBartConfig(**_SIZES, **_SPECIAL)),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=VOCAB, **_T5, tie_word_embeddings=False, **_SPECIAL)
    ),
}
_RULES: dict[str, dict[str, Any]] = {
    "marian": {"bad_words_ids": [[PAD]]},
    "mbart50": {"forced_bos_token_id": LANGUAGE},
}


def tiny(name: str) -> Any:
    torch.manual_seed(3)
    model = _MAKERS[name]()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_({"t5": 1.5, "bart": 40.0}.get(name, 10.0))
        if name in ("marian", "mbart50"):  # else they never end a text
            model.final_logits_bias[0, EOS] = 1.0
    for rule, value in _RULES.get(name, {}).items():
        setattr(model.generation_config, rule, value)
    return model.eval()


@pytest.fixture(scope="module", params=_MAKERS)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny(request.param)


def search_options() -> dict[str, Any]:
    """Return the settings of `SEARCH` for `bestk.search`."""
    return {name: value for name, value in SEARCH.items() if name != "num_texts"}


def walk(model: Any, row: int, ids: torch.Tensor, processors: list[Any]) -> list[float]:
    """Score decoder ids token by token, each by an uncached forward over the unpadded source."""
    source = SOURCES[row][MASK[row].bool()][None]
    found = []
    for end in range(1, len(ids)):
        prefix = ids[None, :end]
        with torch.no_grad():
            logits = model(input_ids=source, decoder_input_ids=prefix).logits
        scores = logits[:, -1].log_softmax(-1)
        for processor in processors:
            scores = processor(prefix, scores)
        found.append(float(scores.log_softmax(-1)[0, ids[end]]))
    return found


def up_to_end(ids: torch.Tensor, eos: int, most: int) -> torch.Tensor:
    """Leave the padding out: after the end, or nothing after a text that was cut off."""
    ends = (ids[1:] == eos).nonzero()
    if len(ends):
        return ids[: int(ends[0]) + 2]
    assert len(ids) == 1 + most, "a text that does not end has all the tokens there may be"
    return ids


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "forced tokens": {"forced_bos_token_id": 11, "forced_eos_token_id": EOS},
    "min_length": {"min_length": 4, "forced_eos_token_id": EOS},
    "repetition": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
}


@pytest.mark.parametrize("policy", ["best-k", "diverse"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_text_is_one_of_generates(model: Any, name: str, policy: str) -> None:
    prepared: list[Any] = []

    def keep(model: Any, input_ids: torch.Tensor, **arguments: Any) -> Any:
        prepared.extend(arguments["logits_processor"])
        return bestk.generate(model, input_ids, **arguments)

    keep.__signature__ = inspect.signature(bestk.generate)  # type: ignore[attr-defined]
    output = model.generate(
        input_ids=SOURCES,
        attention_mask=MASK,
        custom_generate=keep,
        max_new_tokens=6,
        length_penalty=0.0,
        return_dict_in_generate=True,
        policy=policy,
        **SEARCH,
        **OPTIONS[name],
    )
    assert isinstance(output, GenerateBeamEncoderDecoderOutput)
    assert output.num_found.tolist() != [0, 0]
    assert policy == "best-k" or output.num_found.tolist() == [5, 5]
    sequences, scores = output.sequences.view(2, 5, -1), output.sequences_scores.view(2, 5)
    for row, count in enumerate(output.num_found.tolist()):
        for number in range(count):
            ids = sequences[row, number]
            assert policy == "diverse" or EOS in ids[1:], "only who asks for n gets cut texts"
            ids = up_to_end(ids, EOS, 6)
            start = model.generation_config.decoder_start_token_id
            assert ids[0] == start, "texts begin with the decoder's start token"
            plain = walk(model, row, ids, prepared)
            assert min(plain) > -math.inf
            assert float(scores[row, number]) == pytest.approx(sum(plain), abs=2e-4)
        assert (sequences[row, count:] == PAD).all()


def test_batch_equals_one_by_one(model: Any) -> None:
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, **SEARCH}
    batch = model.generate(
        input_ids=SOURCES, attention_mask=MASK, custom_generate=bestk.generate, **options
    )
    for row in range(2):
        source = SOURCES[row][MASK[row].bool()][None]
        alone = model.generate(input_ids=source, custom_generate=bestk.generate, **options)
        rows = slice(5 * row, 5 * row + 5)
        torch.testing.assert_close(
            batch.sequences_scores[rows], alone.sequences_scores, atol=1e-4, rtol=0
        )


def test_processors_of_the_source(model: Any) -> None:
    plain = model.generate(
        input_ids=SOURCES,
        attention_mask=MASK,
        custom_generate=bestk.generate,
        max_new_tokens=6,
        encoder_no_repeat_ngram_size=1,
        forced_eos_token_id=EOS,
        **SEARCH,
    )
    rows = plain.view(2, 5, -1)[:, :, 1:]
    for row in range(2):
        content = set(SOURCES[row][MASK[row].bool()].tolist()) - {EOS}
        assert not content & set(rows[row].flatten().tolist())


def test_decoder_ids_and_encoder_outputs_of_the_caller(model: Any) -> None:
    with torch.no_grad():
        hidden = model.get_encoder()(input_ids=SOURCES, attention_mask=MASK).last_hidden_state
    options: dict[str, Any] = {"max_new_tokens": 5, "custom_generate": bestk.generate, **SEARCH}
    options["forced_eos_token_id"] = EOS
    first = model.generation_config.decoder_start_token_id  # else generate puts it before
    start = torch.tensor([[first, 6], [first, 7]])
    by_ids = model.generate(
        input_ids=SOURCES, attention_mask=MASK, decoder_input_ids=start, **options
    )
    by_states = model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
        attention_mask=MASK,
        decoder_input_ids=start,
        **options,
    )
    assert torch.equal(by_ids, by_states)
    found = by_ids[(by_ids != PAD).any(dim=1)]
    assert {tuple(row[:2].tolist()) for row in found} == {(first, 6), (first, 7)}
    with pytest.raises(OptionError, match="decoder tokens"):
        model.generate(
            input_ids=SOURCES,
            attention_mask=MASK,
            decoder_input_ids=start,
            decoder_attention_mask=torch.tensor([[0, 1], [1, 1]]),
            **options,
        )


def test_forced_language() -> None:
    """The model's own forced token, then the call's: after the start token, as in `generate`."""
    model = tiny("mbart50")
    options: dict[str, Any] = {"max_new_tokens": 6, "custom_generate": bestk.generate, **SEARCH}
    for language, given in ((LANGUAGE, {}), (17, {"forced_bos_token_id": 17})):
        output = model.generate(input_ids=SOURCES, attention_mask=MASK, **options, **given)
        found = output[(output != PAD).any(dim=1)]
        assert len(found)
        assert (found[:, :2] == torch.tensor([EOS, language])).all()
    plain = bestk.search(
        bestk.from_transformers(model), SOURCES[1].tolist(), max_new_tokens=5, **search_options()
    )
    ours = model.generate(
        input_ids=SOURCES[1:], return_dict_in_generate=True, length_penalty=0.0, **options
    )
    scores = {hypothesis.token_ids: hypothesis.log_prob for hypothesis in plain.hypotheses}
    best = ours.sequences[0, 2:]
    ids = tuple(best[: int((best == EOS).nonzero()[0]) + 1].tolist())
    assert scores[ids] == pytest.approx(float(ours.sequences_scores[0]), abs=1e-4)


def test_a_later_call_has_its_own_decoder_ids(model: Any) -> None:
    """What one call left on the model holds for decoder ids of any length."""
    options: dict[str, Any] = {"max_new_tokens": 5, "custom_generate": bestk.generate, **SEARCH}
    options["forced_eos_token_id"] = EOS
    inputs = {"input_ids": SOURCES, "attention_mask": MASK}
    long = torch.tensor([[EOS, 6, 7, 9], [EOS, 7, 8, 3]])
    model.generate(**inputs, **options)
    after = model.generate(**inputs, decoder_input_ids=long, **options)
    del model.__dict__["_bestk_backend"]
    fresh = model.generate(**inputs, decoder_input_ids=long, **options)
    assert torch.equal(after, fresh)
    assert (after != PAD).any(dim=1).sum() > 1, "no texts to compare"


def test_lists_of_the_model_can_be_lifted() -> None:
    """`generate` alone decides which tokens are ruled out, the model's own lists included."""
    model = tiny("bart")
    options: dict[str, Any] = {"max_new_tokens": 6, "custom_generate": bestk.generate, **SEARCH}
    inputs = {"input_ids": SOURCES, "attention_mask": MASK}
    plain = model.generate(**inputs, **options)
    common = sorted(set(plain[:, 1:].flatten().tolist()) - {EOS, PAD})
    model.generation_config.suppress_tokens = common
    ruled = model.generate(**inputs, **options)
    assert not set(common) & set(ruled.flatten().tolist())
    for nothing in (None, []):
        lifted = model.generate(**inputs, suppress_tokens=nothing, **options)
        assert torch.equal(lifted, plain)


def test_padding_on_the_left() -> None:
    """Whatever side the padding is on, the decoder sees the source alone."""
    model = tiny("t5")  # its encoder counts relative positions only
    flipped = torch.stack([SOURCES[0].roll(2), SOURCES[1]])
    options: dict[str, Any] = {"max_new_tokens": 6, "custom_generate": bestk.generate, **SEARCH}
    left = model.generate(input_ids=flipped, attention_mask=(flipped != PAD).long(), **options)
    right = model.generate(input_ids=SOURCES, attention_mask=MASK, **options)
    assert torch.equal(left, right)


def test_a_mask_that_does_not_fit() -> None:
    model = tiny("t5")
    hidden = torch.zeros(2, 4, 16)
    with pytest.raises(OptionError, match="does not fit what the encoder returned"):
        model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            attention_mask=MASK,
            custom_generate=bestk.generate,
            max_new_tokens=3,
        )


@pytest.mark.parametrize("family", ["bert2bert", "fsmt", "led", "t5gemma"])
def test_other_families(family: str) -> None:
    """Recomputed prefixes, and an encoder with an argument of its own."""
    model = tiny_seq2seq.tiny(family)
    eos = model.generation_config.eos_token_id or 2
    tokens = torch.tensor([[7, 11, 23, 40, 9, 31, 2], [5, 8, 30, 6, 12, 3, 2]])
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if family == "led":
        inputs["global_attention_mask"] = torch.zeros_like(tokens).index_fill(1, torch.tensor(0), 1)
    options: dict[str, Any] = {"max_new_tokens": 5, "eos_token_id": eos, "pad_token_id": 1}
    options |= {"forced_bos_token_id": None, "forced_eos_token_id": None}
    output = model.generate(
        **inputs,
        **options,
        custom_generate=bestk.generate,
        return_dict_in_generate=True,
        length_penalty=0.0,
        **{**SEARCH, "min_prob": 0.0},
    )
    assert min(output.num_found.tolist()) > 0
    sequences = output.sequences.view(2, 5, -1)
    for row, count in enumerate(output.num_found.tolist()):
        for number in range(count):
            ids = sequences[row, number]
            ids = up_to_end(ids, eos, 5)
            with torch.no_grad():
                logits = model(
                    **{name: value[row : row + 1] for name, value in inputs.items()},
                    decoder_input_ids=ids[None, :-1],
                    use_cache=False,
                ).logits[0]
            plain = logits.log_softmax(-1).gather(1, ids[1:, None]).sum()
            score = output.sequences_scores.view(2, 5)[row, number]
            assert float(score) == pytest.approx(float(plain), abs=1e-3)


@pytest.mark.parametrize("session", ["tree", "prefixes"])
def test_search_sees_detected_languages(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors see every search's own decoder prompt, and the encoder runs but once for it."""
    model = tiny_seq2seq.tiny("whisper")
    spoken = {"<|en|>": 21, "<|de|>": 22, "<|fr|>": 23, "<|ro|>": 24, "<|hu|>": 25}
    model.generation_config.lang_to_id = spoken
    model.generation_config.task_to_id = {"transcribe": 30}
    sounds = tiny_seq2seq.sources_for("whisper")
    lm = bestk.from_transformers(model)
    if session == "prefixes":
        monkeypatch.setattr(type(lm.backend), "obstacle", lambda *_: "since it is asked to")
    detected = [tuple(lm.backend.model.encode([sound]).prompts[0]) for sound in sounds]
    bestk.search(lm, bestk.Features(sounds[0]), k=2, max_new_tokens=3)  # the probe's calls
    seen: set[tuple[int, ...]] = set()

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.update(tuple(row[:2]) for row in input_ids.tolist())
        return scores

    calls: list[int] = []
    model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    results = bestk.search(
        lm,
        [bestk.Features(sound) for sound in sounds],
        k=2,
        max_new_tokens=3,
        logits_processor=[processor],
    )
    assert len(results) == len(sounds)
    assert seen == {prompt[:2] for prompt in detected}
    assert len(calls) == 1


def test_search_sees_the_decoders_prompt() -> None:
    """In `bestk.search` too, processors are given decoder ids, and the source for `encoder_*`."""
    model = tiny("t5")
    seen: list[list[int]] = []

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.extend(input_ids.tolist())
        return scores

    source = SOURCES[1].tolist()
    result = bestk.search(
        bestk.from_transformers(model),
        source,
        k=3,
        max_new_tokens=5,
        logits_processor=[processor],
        encoder_no_repeat_ngram_size=1,
        forced_eos_token_id=[EOS],
    )
    assert all(ids[0] == EOS for ids in seen)
    assert [EOS] in seen
    assert result.hypotheses
    for hypothesis in result.hypotheses:
        assert not set(hypothesis.token_ids) & (set(source) - {EOS})
