"""The drop-in with encoder-decoders: `generate` runs the encoder, the search goes on from there."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput

import bestk
from bestk.errors import OptionError

pytest.importorskip(
    "bestk.backends.transformers.seq2seq", reason="needs the encoder-decoder backend"
)

VOCAB, PAD, EOS = 28, 1, 2
SOURCES = torch.tensor([[5, 6, 7, 8, EOS, PAD, PAD], [9, 3, 9, 3, 9, 4, EOS]])
MASK = (SOURCES != PAD).long()
SEARCH: dict[str, Any] = {"k": 3, "beam_size": 10, "min_prob": 0.02, "num_texts": 5}


def tiny(name: str) -> Any:
    torch.manual_seed(3)
    special = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": EOS}
    if name == "bart":
        model: Any = BartForConditionalGeneration(
            BartConfig(
                vocab_size=VOCAB,
                d_model=16,
                encoder_layers=1,
                decoder_layers=2,
                encoder_attention_heads=2,
                decoder_attention_heads=2,
                encoder_ffn_dim=16,
                decoder_ffn_dim=16,
                max_position_embeddings=64,
                bos_token_id=0,
                forced_eos_token_id=None,
                **special,
            )
        )
        sharpness = 40.0
    else:
        model = T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCAB,
                d_model=16,
                d_kv=8,
                d_ff=16,
                num_layers=2,
                num_heads=2,
                tie_word_embeddings=False,
                **special,
            )
        )
        sharpness = 1.5
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(sharpness)
    return model.eval()


@pytest.fixture(scope="module", params=["bart", "t5"])
def model(request: pytest.FixtureRequest) -> Any:
    return tiny(request.param)


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


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "forced tokens": {"forced_bos_token_id": 11, "forced_eos_token_id": EOS},
    "min_length": {"min_length": 4, "forced_eos_token_id": EOS},
    "repetition": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_text_is_one_of_generates(model: Any, name: str) -> None:
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
        **SEARCH,
        **OPTIONS[name],
    )
    assert isinstance(output, GenerateBeamEncoderDecoderOutput)
    assert output.num_found.tolist() != [0, 0]
    sequences, scores = output.sequences.view(2, 5, -1), output.sequences_scores.view(2, 5)
    for row, count in enumerate(output.num_found.tolist()):
        for number in range(count):
            ids = sequences[row, number]
            ends = (ids[1:] == EOS).nonzero()
            ids = ids[: int(ends[0]) + 2]
            assert ids[0] == EOS, "texts begin with the decoder's start token"
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
    start = torch.tensor([[EOS, 6], [EOS, 7]])
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
    assert {tuple(row[:2].tolist()) for row in found} <= {(EOS, 6), (EOS, 7)}
    with pytest.raises(OptionError, match="decoder tokens"):
        model.generate(
            input_ids=SOURCES,
            attention_mask=MASK,
            decoder_input_ids=start,
            decoder_attention_mask=torch.tensor([[0, 1], [1, 1]]),
            **options,
        )


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


def test_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_drop_in import blocks_of_page

    class Tokenizer:
        def __call__(self, texts: list[str], **_: Any) -> dict[str, torch.Tensor]:
            assert len(texts) == len(SOURCES)
            return {"input_ids": SOURCES, "attention_mask": MASK}

        def batch_decode(self, rows: torch.Tensor, skip_special_tokens: bool) -> list[str]:
            return [" ".join(map(str, row)) for row in rows.tolist()]

    model = tiny("bart")
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda _: Tokenizer())
    monkeypatch.setattr("transformers.AutoModelForSeq2SeqLM.from_pretrained", lambda _: model)
    before, after = blocks_of_page()["An encoder-decoder"]
    scope: dict[str, Any] = {}
    exec(before, scope)
    assert len(scope["summaries"]) == 20
    exec(after, scope)
    assert len(scope["summaries"]) == 20
    assert scope["output"][0, 0] == EOS
