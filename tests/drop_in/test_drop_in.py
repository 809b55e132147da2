"""`model.generate(custom_generate=bestk.generate)`: what beam search returns, by best-k search."""

from __future__ import annotations

import inspect
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from transformers import DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import stopping_criteria as sc
from transformers.generation.utils import GenerateBeamDecoderOnlyOutput

import bestk
from bestk.config import SearchConfig
from bestk.drop_in import fields as generation_fields
from bestk.drop_in.fields import FIELDS, Treatment
from bestk.drop_in.generate import OPTIONS
from bestk.errors import OptionError
from bestk.rerank.select import select

VOCAB, EOS, PAD = 24, 0, 1
ROOT = Path(bestk.__file__).parent.parent
SEARCH: dict[str, Any] = {"k": 3, "beam_size": 10, "min_prob": 0.02, "num_texts": 6}
ALGORITHM_2: dict[str, Any] = {"policy": "best-k"}  # of which num_texts are returned
PADDED = torch.tensor([[PAD, PAD, 3, 4, 5], [7, 8, 9, 2, 6], [PAD, PAD, PAD, PAD, 12]])
MASK = (PADDED != PAD).long()
WHOLE = torch.tensor([[3, 4, 5, 3, 4], [7, 8, 9, 2, 6]])


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(18)
        model.lm_head.weight[EOS] *= 1.5
    return model


def run(model: Any, ids: torch.Tensor = WHOLE, **options: Any) -> Any:
    options = {"max_new_tokens": 6, **SEARCH, **options}
    return model.generate(input_ids=ids, custom_generate=bestk.generate, **options)


def texts_of(output: torch.Tensor, prompt_length: int) -> list[tuple[int, ...]]:
    """Return the generated ids of every row, up to and with EOS."""
    texts = []
    for row in output[:, prompt_length:].tolist():
        texts.append(tuple(row[: row.index(EOS) + 1] if EOS in row else ()))
    return texts


def test_rows_are_those_of_search(model: Any) -> None:
    output = run(model, PADDED, attention_mask=MASK, **ALGORITHM_2)
    assert output.dtype == torch.int64
    assert output.shape[0] == 3 * 6
    options = {name: value for name, value in SEARCH.items() if name != "num_texts"}
    for row, mask in enumerate(MASK.bool()):
        rows = output[6 * row : 6 * row + 6]
        assert (rows[:, :5] == PADDED[row]).all(), "rows begin with the prompt as it was given"
        result = bestk.search(
            bestk.from_transformers(model), PADDED[row][mask].tolist(), max_new_tokens=6, **options
        )
        expected = [hypothesis.token_ids for hypothesis in result.hypotheses[:6]]
        assert texts_of(rows, 5) == expected


def test_output_class_and_scores(model: Any) -> None:
    output = run(model, return_dict_in_generate=True, **ALGORITHM_2)
    assert isinstance(output, GenerateBeamDecoderOnlyOutput)
    assert output.sequences_scores.shape == (12,)
    assert output.num_found.tolist() == [6, 6]
    scores = output.sequences_scores.view(2, 6)
    assert (scores.diff(dim=1) <= 0).all(), "best first"


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_scores_are_those_of_beam_search(model: Any, length_penalty: float) -> None:
    common = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    common["length_penalty"] = length_penalty
    beams = model.generate(
        input_ids=WHOLE, num_beams=12, num_return_sequences=12, early_stopping="never", **common
    )
    ours = run(model, num_texts=20, beam_size=20, **common, **ALGORITHM_2)
    found = {
        (row // 20, text): float(ours.sequences_scores[row])
        for row, text in enumerate(texts_of(ours.sequences, 5))
        if text
    }
    shared = 0
    for row, text in enumerate(texts_of(beams.sequences, 5)):
        if (row // 12, text) in found:
            score = float(beams.sequences_scores[row])
            assert found[row // 12, text] == pytest.approx(score, abs=1e-4)
            shared += 1
    assert shared >= 2, "too few texts in common to compare"
    scores = ours.sequences_scores.view(2, 20)
    assert all((row[row > -math.inf].diff() <= 0).all() for row in scores)


def test_rank_by_wins_over_length_penalty(model: Any) -> None:
    options: dict[str, Any] = {"length_penalty": 2.0, "return_dict_in_generate": True}
    output = run(model, rank_by="sum", **options, **ALGORITHM_2)
    result = bestk.search(
        bestk.from_transformers(model),
        WHOLE[0].tolist(),
        max_new_tokens=6,
        rank_by="sum",
        k=3,
        beam_size=10,
        min_prob=0.02,
    )
    assert output.sequences_scores[0] == pytest.approx(result.hypotheses[0].log_prob, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_n_rows_for_n_texts(model: Any, n: int) -> None:
    """Rows are what `bestk.search` finds for n, none is padding, and those cut off have no end."""
    options: dict[str, Any] = {"num_texts": n, "min_prob": 0.02}
    output = model.generate(
        input_ids=PADDED,
        attention_mask=MASK,
        custom_generate=bestk.generate,
        max_new_tokens=6,
        return_dict_in_generate=True,
        **options,
    )
    assert output.num_found.tolist() == [n] * 3
    assert bool(output.sequences_scores.isfinite().all())
    rows, scores = output.sequences.view(3, n, -1), output.sequences_scores.view(3, n)
    num_cut = 0
    for row, mask in enumerate(MASK.bool()):
        prompt = PADDED[row][mask].tolist()
        result = bestk.search(bestk.from_transformers(model), prompt, max_new_tokens=6, **options)
        assert len(set(result.texts)) == n
        for ids, score, text in zip(rows[row], scores[row], result.hypotheses, strict=True):
            assert ids[:5].tolist() == PADDED[row].tolist()
            assert ids[5 : 5 + text.num_tokens].tolist() == list(text.token_ids)
            assert bool((ids[5 + text.num_tokens :] == PAD).all())
            assert float(score) == pytest.approx(text.log_prob / text.num_tokens, abs=1e-5)
            assert text.is_complete == (text.token_ids[-1] == EOS)
            assert text.is_complete or text.num_tokens == 6
            num_cut += not text.is_complete
    assert n < 12 or num_cut, "no text was cut off, so nothing is shown of them"


def test_n_is_generates_own_number(model: Any) -> None:
    """`num_return_sequences` says n where `num_texts` does not; one alone asks for nothing."""
    common: dict[str, Any] = {"input_ids": WHOLE, "max_new_tokens": 6}
    common["custom_generate"] = bestk.generate
    beams = {"num_beams": 7, "num_return_sequences": 7}
    named = model.generate(**common, num_texts=7)
    assert named.shape[0] == 14
    assert torch.equal(model.generate(**common, **beams), named)
    fewer = model.generate(**common, **beams, num_texts=3)
    assert torch.equal(fewer, model.generate(**common, num_texts=3, beam_size=7))
    plain = model.generate(**common)
    best = model.generate(**common, num_texts=1, k=5, beam_size=10, **ALGORITHM_2)
    assert torch.equal(plain, best), "without n it is Algorithm 2"


def test_choosing_needs_n_before_anything_is_searched(model: Any) -> None:
    calls: list[int] = []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        with pytest.raises(OptionError, match="select='diverse' needs num_texts"):
            model.generate(
                input_ids=WHOLE,
                custom_generate=bestk.generate,
                max_new_tokens=6,
                select="diverse",
            )
    finally:
        hook.remove()
    assert not calls


def test_beam_arguments_carry_over(model: Any) -> None:
    """`num_beams` and `num_return_sequences` repeat the rows: they must not multiply the search."""
    named = model.generate(
        input_ids=PADDED,
        attention_mask=MASK,
        custom_generate=bestk.generate,
        max_new_tokens=6,
        num_beams=10,
        num_return_sequences=4,
    )
    ours = model.generate(
        input_ids=PADDED,
        attention_mask=MASK,
        custom_generate=bestk.generate,
        max_new_tokens=6,
        beam_size=10,
        num_texts=4,
    )
    assert torch.equal(named, ours)


def test_fewer_texts_than_asked(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bestk"):
        output = run(
            model,
            num_texts=50,
            beam_size=2,
            max_new_tokens=4,
            return_dict_in_generate=True,
            **ALGORITHM_2,
        )
    found = output.num_found.tolist()
    assert 0 < min(found) <= max(found) < 50
    assert f"found {found[0]}/{found[1]} of num_texts=50" in caplog.text
    sequences = output.sequences.view(2, 50, -1)
    scores = output.sequences_scores.view(2, 50)
    for row, count in enumerate(found):
        assert (sequences[row, count:] == PAD).all()
        assert (scores[row, count:] == -math.inf).all()
        assert (scores[row, :count] > -math.inf).all()
        assert (sequences[row, :count, :5] == WHOLE[row]).all()


def test_no_text_at_all(model: Any) -> None:
    options = {"eos_token_id": 23, "min_new_tokens": 6, "pad_token_id": PAD, "num_texts": 2}
    output = run(model, **options, **ALGORITHM_2)
    assert output.tolist() == [[PAD] * 5] * 4
    cut = run(model, **options)
    assert cut.shape == (4, 5 + 6), "asked for n, texts that are cut off are texts"
    assert len({tuple(row) for row in cut.tolist()}) == 4


def test_eos_of_the_call_replaces_the_models(model: Any) -> None:
    output = run(model, eos_token_id=[23, 18], num_texts=6)
    ends = [[token for token in row[5:] if token != PAD][-1] for row in output.tolist()]
    assert set(ends) <= {23, 18}
    assert len(set(ends)) == 2


@pytest.mark.parametrize("other", [-1, VOCAB, 10**6])
def test_an_eos_that_the_model_cannot_give_ends_nothing(
    model: Any, other: int, caplog: pytest.LogCaptureFixture
) -> None:
    output = run(model, eos_token_id=[EOS, other], num_texts=6)
    assert torch.equal(output, run(model, eos_token_id=[EOS], num_texts=6))


GENERATE: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[19], [8, 23]]},
    "suppress_tokens": {"suppress_tokens": [19, 12]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [19, 12, 17]},
    "forced_eos_token_id": {"forced_eos_token_id": EOS},
    "min_length": {"min_length": 9},
    "min_new_tokens": {"min_new_tokens": 4},
    "sequence_bias": {"sequence_bias": [[[19], -3.0], [[8, 23], 2.0]]},
    "exponential decay": {"exponential_decay_length_penalty": (1, 1.3)},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "renormalize_logits": {"renormalize_logits": True, "suppress_tokens": [19]},
    "remove_invalid_values": {"remove_invalid_values": True},
    "watermarking_config": {"watermarking_config": {"greenlist_ratio": 0.4, "bias": 2.0}},
    "temperature": {"do_sample": True, "temperature": 1.8},
    "top_k": {"do_sample": True, "top_k": 4},
    "top_p": {"do_sample": True, "top_p": 0.7},
    "min_p": {"do_sample": True, "min_p": 0.2},
    "top_h": {"do_sample": True, "top_h": 0.6},
    "typical_p": {"do_sample": True, "typical_p": 0.8},
    "epsilon_cutoff": {"do_sample": True, "epsilon_cutoff": 0.05},
    "eta_cutoff": {"do_sample": True, "eta_cutoff": 0.05},
    "prefix_allowed_tokens_fn": {
        "prefix_allowed_tokens_fn": lambda row, ids: [EOS, *range(row + 2, VOCAB, 2)]
    },
    "three together": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[19, 23]],
        "do_sample": True,
        "top_p": 0.9,
    },
}


@pytest.mark.parametrize("name", GENERATE)
def test_every_text_is_one_of_generates(model: Any, name: str) -> None:
    """Re-score every row, step by step, with the processors that `generate` itself prepared."""
    prepared: list[Any] = []

    def keep(model: Any, input_ids: torch.Tensor, **arguments: Any) -> Any:
        prepared.extend(arguments["logits_processor"])
        return bestk.generate(model, input_ids, **arguments)

    keep.__signature__ = inspect.signature(bestk.generate)  # type: ignore[attr-defined]
    output = model.generate(
        input_ids=WHOLE,
        custom_generate=keep,
        max_new_tokens=6,
        length_penalty=0.0,
        return_dict_in_generate=True,
        **SEARCH,
        **GENERATE[name],
    )
    assert prepared, "generate prepared no processor, so nothing is shown"
    assert output.num_found.sum() >= 4
    for number in range(6):
        rows = output.sequences.view(2, 6, -1)[:, number]
        scores = output.sequences_scores.view(2, 6)[:, number]
        totals = torch.zeros(2)
        is_over = scores == -math.inf
        for end in range(5, rows.shape[1]):
            with torch.no_grad():
                step = model(input_ids=rows[:, :end]).logits[:, -1].log_softmax(-1)
            for processor in prepared:
                step = processor(rows[:, :end], step)
            last = step.log_softmax(-1).gather(1, rows[:, end : end + 1])[:, 0]
            totals += last.masked_fill(is_over, 0.0)
            is_over |= rows[:, end] == EOS
        found = scores > -math.inf
        torch.testing.assert_close(totals[found], scores[found], atol=1e-4, rtol=0)


def test_padding_changes_nothing(model: Any) -> None:
    options = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 1, "min_new_tokens": 2}
    batch = run(model, PADDED, attention_mask=MASK, return_dict_in_generate=True, **options)
    for row, mask in enumerate(MASK.bool()):
        alone = run(model, PADDED[row][mask][None], return_dict_in_generate=True, **options)
        assert batch.num_found[row] == alone.num_found[0]
        together = texts_of(batch.sequences[6 * row : 6 * row + 6], 5)
        assert together == texts_of(alone.sequences, int(mask.sum()))


def test_users_objects_see_unpadded_ids(model: Any) -> None:
    seen: list[list[int]] = []
    asked: list[list[int]] = []

    class Mine(sc.StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            asked.extend(input_ids.tolist())
            return input_ids[:, -1] == 23

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.extend(input_ids.tolist())
        return scores

    output = run(
        model,
        PADDED,
        attention_mask=MASK,
        logits_processor=[processor],
        stopping_criteria=[Mine()],
    )
    prompts = [row[mask].tolist() for row, mask in zip(PADDED, MASK.bool(), strict=True)]
    for ids in seen + asked:
        assert any(ids[: len(prompt)] == prompt for prompt in prompts), f"{ids} holds padding"
    assert any(23 in row and row[row.index(23) + 1 :].count(PAD) for row in output.tolist())


def test_max_length_counts_the_padded_prompt(model: Any) -> None:
    by_length = model.generate(
        input_ids=PADDED,
        attention_mask=MASK,
        custom_generate=bestk.generate,
        max_length=11,
        **SEARCH,
    )
    assert torch.equal(by_length, run(model, PADDED, attention_mask=MASK))


def test_max_time_ends_the_search(model: Any) -> None:
    output = run(model, max_time=1e-6, num_texts=1)
    assert output.shape[0] == 2


class Letters:
    """A tokenizer of letters: token 2 is A, 3 is B and so on; 20 and above are all Z."""

    chat_template = None

    def batch_decode(self, sequences: list[list[int]], skip_special_tokens: bool) -> list[str]:
        return ["".join(chr(63 + min(t, 27)) for t in ids if t > 1) for ids in sequences]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(letter) - 63 for letter in text.strip()]


def test_text_options_need_the_tokenizer(model: Any) -> None:
    letter = Letters().batch_decode([[19]], True)[0]
    output = run(model, text_tokenizer=Letters(), stop=[letter])
    rows = [[token for token in row[5:] if token != PAD] for row in output.tolist()]
    assert any(row and row[-1] == 19 for row in rows)
    assert all(19 not in row[:-1] for row in rows)
    without = run(model, text_tokenizer=Letters(), bad_words=[letter])
    assert not (without[:, 5:] == 19).any()
    with pytest.raises(OptionError, match="needs a tokenizer"):
        run(model, bad_words=[letter])


def test_texts_that_differ(model: Any) -> None:
    """`select` and `diversity` as in `bestk.rerank.select`."""
    options: dict[str, Any] = {"return_dict_in_generate": True, **ALGORITHM_2}
    pool = run(model, num_texts=100, **options)
    chosen = run(model, num_texts=4, select="diverse", diversity=0.9, **options)
    plain = run(model, num_texts=4, **ALGORITHM_2)
    assert not torch.equal(chosen.sequences, plain)
    for row in range(2):
        texts = texts_of(pool.sequences[100 * row : 100 * row + 100], 5)
        scores = pool.sequences_scores[100 * row : 100 * row + 100].tolist()
        found = [
            bestk.Hypothesis(
                text=" ".join(map(str, ids)),
                score=score,
                log_prob=score * len(ids),  # the length penalty is 1
                token_ids=ids,
                log_probs=(),
                step=0,
            )
            for ids, score in zip(texts, scores, strict=True)
            if ids
        ]
        expected = select(found, 4, "diverse", diversity=0.9)
        rows = slice(4 * row, 4 * row + 4)
        assert texts_of(chosen.sequences[rows], 5) == [text.token_ids for text in expected]
        assert chosen.sequences_scores[rows].tolist() == pytest.approx(
            [text.score for text in expected]
        )


def test_texts_that_differ_by_a_function(model: Any) -> None:
    """`embed`: the texts chosen are those whose vectors point in different directions."""
    seen: list[str] = []

    def by_first_letter(texts: list[str]) -> list[list[float]]:
        seen.extend(texts)
        return [
            [float(text[:1] == letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts
        ]

    options = {"text_tokenizer": Letters(), "num_texts": 3, "select": "diverse", "diversity": 1.0}
    run(model, embed=by_first_letter, **options)
    assert seen, "the function was not asked"
    with pytest.raises(OptionError, match="embed judges texts"):
        run(model, embed=by_first_letter, num_texts=3, select="diverse")


def test_rerank(model: Any) -> None:
    asked: set[str] = set()

    def shortest(prompt: str, text: str) -> float:
        asked.add(prompt)
        return -float(len(text))

    options: dict[str, Any] = {"rerank": shortest, "num_texts": 4}
    output = run(model, text_tokenizer=Letters(), return_dict_in_generate=True, **options)
    lengths = [len([token for token in row[5:] if token > 1]) for row in output.sequences.tolist()]
    assert output.sequences_scores.tolist() == [-float(length) for length in lengths]
    assert lengths[:4] == sorted(lengths[:4])
    assert lengths[4:] == sorted(lengths[4:])
    assert asked == set(Letters().batch_decode(WHOLE.tolist(), True))
    with pytest.raises(OptionError, match="text_tokenizer"):
        run(model, **options)


def test_the_backend_is_kept(model: Any) -> None:
    run(model)
    backend = model.__dict__["_bestk_backend"]
    run(model)
    assert model.__dict__["_bestk_backend"] is backend
    assert not any("bestk" in name for name in model.state_dict())


def test_a_model_that_is_being_trained() -> None:
    model = tiny.fresh("gpt2", embd_pdrop=0.5, attn_pdrop=0.5, resid_pdrop=0.5)
    expected = run(model)
    model.train()
    model.transformer.h[0].eval()  # somebody froze it
    for _ in range(2):
        assert torch.equal(run(model), expected), "a search with dropout"
        assert model.training
        assert not model.transformer.h[0].training
    model.transformer.h[0].train()
    lm = bestk.from_transformers(model)
    texts = [bestk.search(lm, [5, 6], max_new_tokens=6, min_prob=0.01).texts for _ in range(2)]
    model.train()
    assert bestk.search(lm, [5, 6], max_new_tokens=6, min_prob=0.01).texts == texts[0] == texts[1]


def test_a_vocabulary_that_grew() -> None:
    model = tiny.fresh("llama")
    run(model)
    model.resize_token_embeddings(tiny.VOCAB + 8, mean_resizing=False)
    with torch.no_grad():
        model.lm_head.weight[-1] = 0
        model.lm_head.weight[-2] = model.lm_head.weight[:-8].mean(dim=0) * 30
    assert int(run(model, num_texts=20, min_prob=0.001).max()) >= tiny.VOCAB


def test_hub_folder(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    options: dict[str, Any] = {"max_new_tokens": 6, **SEARCH}
    output = model.generate(
        input_ids=WHOLE, custom_generate=str(ROOT), trust_remote_code=True, **options
    )
    assert torch.equal(output, run(model))
    letter = Letters().batch_decode([[19]], True)[0]
    stopped = model.generate(
        input_ids=WHOLE,
        custom_generate=str(ROOT),
        trust_remote_code=True,
        tokenizer=Letters(),
        stop_strings=letter,
        **options,
    )
    assert torch.equal(stopped, run(model, text_tokenizer=Letters(), stop=[letter]))
    config = GenerationConfig(stop_strings=[letter], max_new_tokens=6)
    by_config = model.generate(
        input_ids=WHOLE,
        custom_generate=str(ROOT),
        trust_remote_code=True,
        tokenizer=Letters(),
        generation_config=config,
        **SEARCH,
    )
    assert torch.equal(by_config, stopped)
    assert config.stop_strings == [letter]
    assert "custom_generate" in (ROOT / "custom_generate" / "README.md").read_text()


def test_every_option_is_named() -> None:
    """`generate` hands on only what a signature names, and takes its own fields for itself."""
    named = set(inspect.signature(bestk.generate).parameters)
    of_generate = set(vars(GenerationConfig()))
    for field in SearchConfig.__dataclass_fields__:
        assert (field in named) != (field in of_generate), field
    assert {"k", "beam_size", "min_prob", "stop"} <= set(OPTIONS)


def test_table_covers_every_field() -> None:
    fields = set(vars(GenerationConfig())) - {"_commit_hash"}  # of the first 5.16
    assert fields <= set(FIELDS), f"not in the table: {sorted(fields - set(FIELDS))}"
    page = (ROOT / "docs" / "from-beam-search.md").read_text()
    assert generation_fields.table() in page, "the page's table is not the code's"


# A value that is not neutral, for every field that is warned about or refused.
SET: dict[str, Any] = {
    "early_stopping": True,
    "do_sample": True,
    "use_mtp": True,
    "use_cache": False,
    "cache_implementation": "dynamic",
    "cache_config": {"a": 1},
    "max_cache_len": 100,
    "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.9,
    "prompt_lookup_num_tokens": 2,
    "max_matching_ngram_size": 2,
    "assistant_early_exit": 1,
    "assistant_lookbehind": 3,
    "target_lookbehind": 3,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "compile_config": object(),
    "disable_compile": True,
    "continuous_batching_config": object(),
    "prefill_chunk_size": 2,
    "low_memory": True,
    "stop_strings": ["."],
    "token_healing": True,
    "guidance_scale": 1.5,
    "output_attentions": True,
    "output_hidden_states": True,
    "output_logits": True,
    "is_assistant": True,
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "diversity_penalty": 0.5,
    "num_beam_groups": 2,
    "constraints": [object()],
    "force_words_ids": [[3]],
}


def test_every_such_field_has_a_value() -> None:
    kinds = (Treatment.WARNED, Treatment.REFUSED)
    assert set(SET) == {name for name, field in FIELDS.items() if field.treatment in kinds}


@pytest.mark.parametrize("name", SET)
def test_refused_and_warned_fields(name: str) -> None:
    config = GenerationConfig()
    assert generation_fields.check(config) == []
    setattr(config, name, SET[name])
    if FIELDS[name].treatment is Treatment.REFUSED:
        with pytest.raises(OptionError, match=f"{name}=.*cannot be used in bestk.generate"):
            generation_fields.check(config)
    else:
        assert generation_fields.check(config) == [f"{name}={SET[name]!r}"]


THROUGH_GENERATE: list[dict[str, Any]] = [
    {"early_stopping": True, "num_beams": 2},
    {"do_sample": True},
    {"use_cache": False},
    {"temperature": 0.5},
    {"prefill_chunk_size": 2},
    {"cache_implementation": "dynamic"},
]


@pytest.mark.parametrize("options", THROUGH_GENERATE, ids=str)
def test_warnings_through_generate(
    model: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bestk"):
        run(model, num_texts=1, **options)
    name, value = next(iter(options.items()))
    assert f"best-k search ignores {name}={value!r}" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
        ({"output_logits": True, "return_dict_in_generate": True}, "output_logits"),
        ({"position_ids": torch.tensor([[1, 2, 3, 4, 5]] * 2)}, "position_ids"),
        ({"num_texts": 0}, "num_texts must be"),
        ({"num_texts": True}, "num_texts must be"),
        ({"select": "divers"}, "unknown select"),
        ({"diversity": 2}, "diversity goes from 0"),
        ({"k": 0}, "k must be at least 1"),
    ],
    ids=str,
)
def test_refusals_through_generate(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run(model, **options)


def test_what_transformers_itself_refuses(model: Any) -> None:
    for options in ({"stop_strings": ["."]}, {"token_healing": True}):
        with pytest.raises(ValueError, match="tokenizer"):
            run(model, **options)
    with pytest.raises(ValueError, match="beamsize"):
        run(model, beamsize=3)


def test_other_inputs_are_refused(model: Any) -> None:
    embeds = model.get_input_embeddings()(WHOLE).detach()
    with pytest.raises(OptionError, match="inputs_embeds"):
        model.generate(inputs_embeds=embeds, custom_generate=bestk.generate, max_new_tokens=3)
    cache = DynamicCache()
    model(input_ids=WHOLE[:, :3], past_key_values=cache)
    with pytest.raises(OptionError, match="past_key_values"):
        run(model, past_key_values=cache)
    with pytest.raises(OptionError, match="is called by transformers"):
        bestk.generate(model, WHOLE)


def test_neutral_defaults_say_nothing(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bestk"):
        run(model, num_texts=1)
    assert not caplog.records


@pytest.mark.model
def test_smollm2_with_stop_strings(smollm2: bestk.LanguageModel) -> None:
    tokenizer, model = smollm2.tokenizer, smollm2.backend.network
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(
        **inputs,
        custom_generate=bestk.generate,
        k=3,
        beam_size=3,
        num_texts=2,
        max_new_tokens=8,
        stopping_criteria=[sc.StopStringCriteria(tokenizer, ["."])],
    )
    texts = tokenizer.batch_decode(output, skip_special_tokens=True)
    assert any("Paris" in text for text in texts)
    assert all(text.count(".") == 1 and text.endswith(".") for text in texts if text)


def test_every_row_is_an_item_of_a_trie() -> None:
    model = tiny.model("llama")
    prompts = torch.tensor([[5, 6, 7], [8, 9, 10]])
    trie = bestk.Trie.from_sequences([(i, j) for i in range(3, 40) for j in range(3, 9)])
    options: dict[str, Any] = {"certify": 4, "exclude": [[0, 1], []]}
    ids = model.generate(
        prompts,
        custom_generate=bestk.generate,
        allowed=trie,
        num_texts=4,
        max_new_tokens=4,
        budget=300,
        **options,
    )
    found = bestk.search(
        bestk.from_transformers(model), prompts.tolist(), allowed=trie, num_texts=4, **options
    )
    expected = [[*h.token_ids] for result in found for h in result.hypotheses]
    assert ids[:, 3:5].tolist() == expected
