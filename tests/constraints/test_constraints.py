"""Constraints on texts: what every returned text is, and that nodes keep their own state."""

from __future__ import annotations

import builtins
import json
import math
import random
import re
import zlib
from typing import Any

import jsonschema
import pytest
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import facts, refilled

import bestk
from bestk.backends.base import Capabilities
from bestk.backends.children import with_forced
from bestk.backends.toy import ToyBackend
from bestk.constraints import constraints_of
from bestk.constraints.grammar import GrammarConstraint
from bestk.constraints.include import MustInclude
from bestk.constraints.phrases import Phrase, spellings
from bestk.constraints.states import PrefixStates
from bestk.engine.request import Request, requests_of
from bestk.errors import MissingExtraError, OptionError
from bestk.nodes import Children

CHARACTERS = [chr(code) for code in range(32, 127)]
SIZE = 1 + len(CHARACTERS) + 8  # EOS, the characters, and padding that the tokenizer does not know


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One token per printable character, with id 0 for the end."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<end>": 0} | {character: 1 + i for i, character in enumerate(CHARACTERS)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", clean_up_tokenization_spaces=False
    )


def writer(seed: int, likely: str = '"}],: 0123456789abct') -> ToyBackend:
    """Make a model of characters: some are likely, all possible, and the prefix decides which."""
    weights = [30.0] + [8.0 if c in likely else 0.2 for c in CHARACTERS] + [0.2] * 8
    source = random.Random(seed)
    jitter = [source.choice([0.2, 1.0, 5.0]) for _ in range(SIZE)]

    def distribution(prefix: tuple[int, ...]) -> list[float]:
        shift = zlib.crc32(repr(prefix).encode()) % SIZE
        row = [w * jitter[(i + shift) % SIZE] for i, w in enumerate(weights)]
        total = sum(row)
        return [value / total for value in row]

    return ToyBackend(distribution, vocab_size=SIZE)


@pytest.fixture
def lm(tokenizer: Any) -> bestk.LanguageModel:
    return bestk.LanguageModel(writer(0), tokenizer)


def own_constraints(request: Request) -> tuple[Any, ...]:
    """The constraints that a request's search is run with, with what they keep."""
    constraints = request.evaluation.constraints
    assert constraints is not None
    return constraints.constraints


# Phrases


@pytest.mark.parametrize(
    ("phrase", "text", "holds"),
    [
        ("dog", "the dog", True),
        ("dog", "A DOG's life", True),
        ("dog", "dogma", False),
        ("dog", "hotdog", False),
        ("dog", "dogs", False),
        ("dog|dogs", "two dogs", True),
        ("New York", "in new\n york.", True),
        ("New York", "New Yorkers", False),
        ("C++", "I like C++.", True),
        ("C++", "I like C+.", False),
        ("straße", "STRASSE", True),
        ("caf\u00e9", "un cafe\u0301 noir", True),
        ("狗", "我的狗很好", True),
        ("don't", "I don't.", True),
        ("a.b", "axb", False),
    ],
)
def test_what_a_phrase_matches(phrase: str, text: str, holds: bool) -> None:
    assert Phrase(phrase).is_in(text) is holds


def test_overlapping_phrases_may_share_words() -> None:
    text = "New York City"
    assert all(Phrase(phrase).is_in(text) for phrase in ("New York", "York City", "york"))


def test_spellings_fit_where_the_text_stands() -> None:
    assert spellings("dog", "") == ["dog", "Dog", " dog", " Dog"]
    assert spellings("dog", "the") == [" dog"]
    assert spellings("dog", "the ") == ["dog"]
    assert spellings("dog", "It ended.") == [" dog", " Dog"]
    assert spellings("dog", "It ended.\n") == ["dog", "Dog"]


# States by prefix


@settings(max_examples=50, deadline=None)
@given(
    visits=st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=40),
    max_states=st.integers(1, 8),
)
def test_states_are_the_same_however_they_are_reached(
    visits: list[tuple[int, ...]], max_states: int
) -> None:
    states = PrefixStates("", lambda state, token: state + str(token), max_states)
    for prefix in visits:
        assert states[prefix] == "".join(map(str, prefix))
        assert len(states) <= max_states


# must_include

CONSTRAINED = {"k": 3, "beam_size": 8, "max_new_tokens": 8}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    phrases=st.lists(st.sampled_from(["1", "2", "3 4", "5|6", "4 1"]), min_size=1, max_size=3),
    scoring=st.sampled_from(["mean", "sum", "last"]),
    bonus=st.sampled_from([0.0, 0.5, 3.0]),
    min_prob=st.sampled_from([0.05, 0.3]),
    min_new_tokens=st.integers(0, 4),
)
def test_every_text_holds_all_phrases_and_no_mass_is_lost(
    seed: int,
    phrases: list[str],
    scoring: str,
    bonus: float,
    min_prob: float,
    min_new_tokens: int,
) -> None:
    toy = bestk.LanguageModel(random_toy(seed, 8))
    config = bestk.SearchConfig(
        **CONSTRAINED,
        must_include=phrases,
        scoring=scoring,
        include_bonus=bonus,
        min_prob=min_prob,
        min_new_tokens=min_new_tokens,
    )
    under_way = bestk.Run(toy, [[1], [2, 3]], config)
    for update in under_way:
        assert update.row is not None
        standing = update.row.standing
        off = abs(standing.mass.total - 1)
        assert off < 1e-6, f"probability was lost or made at step {standing.step}"
    for result in under_way.results():
        for hypothesis in result.hypotheses:
            assert all(Phrase(phrase).is_in(hypothesis.text) for phrase in phrases)
            assert hypothesis.num_tokens >= min_new_tokens
        assert result.hypotheses or result.notice


def test_a_batch_finds_what_single_searches_find() -> None:
    toy = bestk.LanguageModel(random_toy(5, 8))
    prompts = [[1], [2, 3], [4, 4, 4]]
    options: dict[str, Any] = {**CONSTRAINED, "must_include": ["3 4", "1"]}
    together = bestk.search(toy, prompts, **options)
    alone = [bestk.search(toy, prompt, **options) for prompt in prompts]
    assert [r.texts for r in together] == [r.texts for r in alone]
    assert any(result.texts for result in alone)


def test_progress_of_every_node_equals_a_fresh_count() -> None:
    toy = bestk.LanguageModel(random_toy(11, 8))
    config = bestk.SearchConfig(**CONSTRAINED, must_include=["3 4", "1", "2 5 6"], min_prob=0.1)
    under_way = bestk.Run(toy, [[1], [2]], config)
    for _ in under_way:
        pass
    (rule,) = own_constraints(under_way.requests[0])
    assert isinstance(rule, MustInclude)
    num_nodes = 0
    for result in under_way.results():
        assert result.tree is not None
        for slot in range(1, len(result.tree)):
            prefix = tuple(result.tree.tokens_to(slot))
            kept = rule.states[prefix]
            text = toy.decode([prefix])[0]
            missing = [i for i, phrase in enumerate(rule.phrases) if not phrase.is_in(text)]
            assert kept.text == text
            assert list(kept.missing) == missing
            shares = [
                done / len(tokens)
                for number, tokens in enumerate([(3, 4), (1,), (2, 5, 6)])
                for done in range(1, len(tokens))
                if number in missing and prefix[-done:] == tokens[:done]
            ]
            assert rule.earned(kept) == pytest.approx(
                config.include_bonus * (3 - len(missing) + max(shares, default=0))
            )
            num_nodes += 1
    assert num_nodes > 50


def test_a_begun_word_that_grows_loses_its_bonus(lm: bestk.LanguageModel) -> None:
    rule = MustInclude(bestk.SearchConfig(must_include=["dog"]), lm)
    earned = {text: rule.earned(rule.states[tuple(lm.spell(text))]) for text in _starts("a dogma")}
    assert earned["a d"] == pytest.approx(0.5 / 4 * 2), "two of the tokens of ' dog'"
    assert earned["a dog"] == 0.5
    assert earned["a dogm"] == earned["a dogma"] == 0


def _starts(text: str) -> list[str]:
    return [text[:end] for end in range(1, len(text) + 1)]


def test_unlikely_words_are_sought() -> None:
    # Token 3 has probability 0.001 everywhere: γ never opens it, and it is no top child.
    rows = [0.3, 0.4, 0.299, 0.001]
    toy = bestk.LanguageModel(ToyBackend(lambda prefix: rows, vocab_size=4))
    options: dict[str, Any] = {"max_new_tokens": 6, "max_children": 2, "must_include": ["3"]}
    found = bestk.search(toy, [1], **options)
    assert found.texts
    assert all("3" in text.split() for text in found.texts)
    assert found.mass.total == pytest.approx(1)
    for hypothesis in found.hypotheses:
        assert hypothesis.log_probs == pytest.approx(
            [math.log(rows[token]) for token in hypothesis.token_ids]
        )


def test_a_word_that_no_token_can_write_is_reported() -> None:
    toy = bestk.LanguageModel(random_toy(3, 6))
    result = bestk.search(toy, [1], **CONSTRAINED, must_include=["99"])
    assert not result.texts
    assert str(result.notice).startswith("no text met must_include within")


def test_without_seeking_the_bonus_still_works() -> None:
    class Listing(ToyBackend):
        capabilities = Capabilities(full_logits=False)

    toy = bestk.LanguageModel(Listing(random_toy(3, 6).distribution, vocab_size=6), name="listing")
    result = bestk.search(toy, [1], **CONSTRAINED, must_include=["2", "4"])
    assert result.texts
    assert all({"2", "4"} <= {*text.split()} for text in result.texts)


def test_wanted_tokens_are_listed_once_and_never_certify_too_much() -> None:
    children = Children(torch.tensor([[[2, 0]]]), torch.tensor([[[0.5, 0.2]]]).log())
    log_probs = torch.tensor([[[0.2, 0.1, 0.5, 0.15, 0.05]]]).log()
    listed = with_forced(children, log_probs, torch.tensor([[[4, 2, 3, -1]]]))
    assert listed.token[0, 0, :4].tolist() == [2, 0, 3, 4]
    assert listed.log_prob.exp()[0, 0].tolist() == pytest.approx([0.5, 0.2, 0.15, 0.05, 0, 0])

    # Two children are listed; the unlisted token 1 is likelier than the wanted token 3.
    toy = bestk.LanguageModel(
        ToyBackend(lambda prefix: [0.4, 0.25, 0.34, 0.01], vocab_size=4), name="toy"
    )
    options: dict[str, Any] = {"scoring": "sum", "decay": "none", "must_include": ["3"]}
    result = bestk.search(toy, [1], max_children=2, max_new_tokens=4, min_prob=0, **options)
    exact = bestk.search(toy, [1], max_new_tokens=4, budget=400, min_prob=0, **options)
    best = [hypothesis.token_ids for hypothesis in exact.hypotheses if hypothesis.is_certified]
    proven = [hypothesis.token_ids for hypothesis in result.hypotheses if hypothesis.is_certified]
    assert best
    assert {*proven} <= {*best}


# Grammars


def test_random_schemas_give_only_valid_documents(tokenizer: Any) -> None:
    num_found, num_documents = 0, 0
    for seed in range(200):
        schema = random_schema(random.Random(seed))
        lm = bestk.LanguageModel(writer(seed), tokenizer)
        result = bestk.search(
            lm, "x", json_schema=schema, k=10, beam_size=3, max_new_tokens=40, keep_tree=False
        )
        for text in result.texts:
            jsonschema.validate(json.loads(text), schema)
        assert result.mass.total == pytest.approx(1, abs=1e-6)
        assert bool(result.texts) != bool(result.notice)
        num_found += bool(result.texts)
        num_documents += len(result.texts)
    assert num_found > 150, "schemas that have documents should mostly get some"
    assert num_documents > 1000


def test_32_prompts_with_a_schema(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = bestk.LanguageModel(writer(3), tokenizer)
    kinds = {"a": {"type": "boolean"}, "b": {"enum": ["", "ab", "ba0"]}}
    schema = {"type": "object", "properties": kinds, "required": ["a", "b"]}
    options: dict[str, Any] = {"json_schema": schema, "k": 4, "beam_size": 3, "max_new_tokens": 30}
    options |= {"max_completions": 2}
    prompts = [f"{number:03}" for number in range(32)]
    alone = [bestk.search(lm, prompt, **options) for prompt in prompts]
    assert len({str(result.texts) for result in alone}) > 4
    together = refilled(lm, prompts, monkeypatch, **options)
    assert [facts(result) for result in together] == [facts(result) for result in alone]


def random_schema(source: random.Random, depth: int = 0) -> dict[str, Any]:
    """Draw a schema; parts of JSON Schema that a grammar cannot express are among them."""
    kinds = ["integer", "string", "enum", "constant", "boolean", "any", "both"]
    if depth < 2:
        kinds += ["object"] * 4 + ["array"] * 2
    kind = source.choice(kinds)
    low = source.randint(-20, 20)
    if kind == "integer":
        high = low + source.randint(4, 50)
        steps: list[dict[str, Any]] = [{}, {}, {"multipleOf": source.randint(2, 4)}]
        return {"type": "integer", "minimum": low, "maximum": high} | source.choice(steps)
    if kind == "string":
        return {"type": "string"} | source.choice(
            [{"maxLength": 4}, {"pattern": "^[ab]{1,3}$"}, {"minLength": 1, "maxLength": 3}]
        )
    if kind == "enum":
        return {"enum": source.sample(["a", "bc", 1, 2.5, None, True, [1], {"a": 0}], 3)}
    if kind == "constant":
        return {"const": source.choice(["ab", 7, {"t": [None]}])}
    if kind == "boolean":
        return {"type": source.choice(["boolean", "null", ["boolean", "null"]])}
    if kind == "any":
        return {"anyOf": [random_schema(source, depth + 1) for _ in range(2)]}
    if kind == "both":
        return {"allOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 30}]}
    if kind == "array":
        return {
            "type": "array",
            "items": random_schema(source, depth + 1),
            "minItems": source.randint(0, 1),
            "maxItems": source.randint(1, 3),
            "uniqueItems": source.choice([True, False]),
        }
    names = source.sample(["a", "b", "c", "at"], source.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: random_schema(source, depth + 1) for name in names},
        "required": [name for name in names if source.random() < 0.6],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("option", "pattern"),
    [
        ({"regex": r"(0|1)(2|3)[ab]*"}, r"(0|1)(2|3)[ab]*"),
        ({"regex": r"^\d{2}-\d{2}$"}, r"\d{2}-\d{2}"),
        ({"grammar": 'root ::= pair ("," pair)*\npair ::= [ab] ":" [0-9]'}, r"\w:\d(,\w:\d)*"),
    ],
)
def test_texts_match_from_start_to_end(
    lm: bestk.LanguageModel, option: dict[str, Any], pattern: str
) -> None:
    result = bestk.search(lm, "x", max_new_tokens=12, **option)
    assert len(result.texts) > 5
    assert all(re.fullmatch(pattern, text) for text in result.texts)


def test_masks_of_every_node_equal_those_of_a_fresh_matcher(lm: bestk.LanguageModel) -> None:
    import xgrammar

    config = bestk.SearchConfig(grammar='root ::= "a" root "b" | "c" | [0-9]+', max_new_tokens=10)
    results = bestk.search(lm, ["x", "yy"], config)
    constraint = GrammarConstraint(config, lm)
    (own,) = own_constraints(*requests_of(lm, ["x"], config))
    kept = own.states
    num_nodes = 0
    for result in results:
        assert result.tree is not None
        for slot in range(len(result.tree)):
            prefix = tuple(result.tree.tokens_to(slot))
            fresh = xgrammar.GrammarMatcher(constraint.compiled)
            assert all(fresh.accept_token(token) for token in prefix)
            assert torch.equal(constraint.allowed([kept[prefix]]), constraint.allowed([fresh]))
            num_nodes += 1
    assert num_nodes > 50


def test_padding_and_special_ids_are_never_allowed(lm: bestk.LanguageModel) -> None:
    lm.tokenizer.add_special_tokens({"additional_special_tokens": ["~"]})
    constraint = GrammarConstraint(bestk.SearchConfig(regex=".*"), lm)
    allowed = constraint.allowed([constraint.states.root])[0]
    assert allowed[: 1 + len(CHARACTERS)].sum() == len(CHARACTERS), "EOS and all but the special ~"
    assert not allowed[1 + len(CHARACTERS) :].any()


def test_constraints_work_together(lm: bestk.LanguageModel) -> None:
    result = bestk.search(
        lm,
        "x",
        regex=r"[abct ]+(;[abct ;]*)?",
        must_include=["cat"],
        stop=";",
        min_new_tokens=6,
        max_new_tokens=12,
        beam_size=40,
    )
    assert len(result.texts) > 3
    for hypothesis in result.hypotheses:
        assert re.fullmatch("[abct ]+", hypothesis.text), "the text is cut at the stop string"
        assert Phrase("cat").is_in(hypothesis.text)
        assert hypothesis.num_tokens >= 6
    assert result.mass.total == pytest.approx(1)


def test_stop_strings_wait_for_the_phrases(lm: bestk.LanguageModel) -> None:
    result = bestk.search(lm, "x", must_include=["a", "b"], stop=["t", "c"], max_new_tokens=10)
    assert result.texts
    for text in result.texts:
        assert Phrase("a").is_in(text)
        assert Phrase("b").is_in(text)
        assert not {"t", "c"} & {*text}


@pytest.mark.parametrize("constraint", [{"must_include": ["a", "b"]}, {"regex": "[abt]{2,8}"}])
def test_stopping_criteria_wait_for_the_constraint(
    lm: bestk.LanguageModel, constraint: dict[str, Any]
) -> None:
    (last,) = lm.spell("t")

    def ends_in_t(ids: torch.Tensor, _: Any) -> torch.Tensor:
        return ids[:, -1] == last

    options: dict[str, Any] = {"stopping_criteria": [ends_in_t], "max_new_tokens": 10, **constraint}
    texts = bestk.search(lm, "x", **options).texts
    assert any(text.endswith("t") for text in texts), "no text ended by the criterion"
    for text in texts:
        assert "t" not in text[:-1], "the search went on after the criterion"
        if "regex" in constraint:
            assert re.fullmatch("[abt]{2,8}", text)
        else:
            assert all(Phrase(phrase).is_in(text) for phrase in ("a", "b"))


def test_stop_strings_that_come_too_early_end_no_text_and_bar_none(
    lm: bestk.LanguageModel,
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 4, "stop": "t"}
    result = bestk.search(lm, "x", regex="t[abct]*", **options)
    assert result.hypotheses
    for hypothesis in result.hypotheses:
        assert re.fullmatch("t[abct]*", hypothesis.text)
        assert hypothesis.num_tokens >= 4
        # The token that ended the text, EOS or the stop string, is not part of it.
        assert len(hypothesis.text) == hypothesis.num_tokens - 1


@pytest.mark.model
def test_a_stop_string_of_loose_bytes_waits_for_the_phrases(smollm2: bestk.LanguageModel) -> None:
    dog = smollm2.spell("\N{DOG FACE}")
    assert len(dog) == 3, "a character of three tokens"
    prompt = smollm2.encode("My pet:")
    path = [*smollm2.spell(" a"), *dog, *smollm2.spell(" zebra"), *dog]

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        return [path[len(ids) - len(prompt)]] if len(ids) < len(prompt) + len(path) else []

    options: dict[str, Any] = {"stop": "\N{DOG FACE}", "prefix_allowed_tokens_fn": allowed}
    options |= {"max_new_tokens": 12}
    assert bestk.search(smollm2, prompt, **options).texts == [" a"]
    result = bestk.search(smollm2, prompt, must_include=["zebra"], **options)
    assert result.texts == [], "the first stop string would end a text without the word"


PIECES = ["<pad>", "</s>", "<unk>", *'\u2581abcdogt{}":1', "\u2581cat", "\u2581dog", "\u2581a"]


def sentence_pieces(family: str) -> Any:
    """Make a tokenizer as T5 and Llama have it: spaces are part of tokens, the first is dropped."""
    import transformers

    if family == "t5":
        scored = [(piece, -float(i)) for i, piece in enumerate(PIECES)]
        return transformers.T5Tokenizer(vocab=scored, extra_ids=0)
    pieces = [*PIECES, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("\u2581", "a")]
    return transformers.LlamaTokenizer(
        vocab=vocab, merges=merges, unk_token="<unk>", bos_token=None, eos_token="</s>"
    )


@pytest.mark.parametrize("family", ["t5", "llama"])
@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": "cat( dog| a)*"}, "cat( dog| a)*"),
        ({"grammar": 'root ::= "cat" (" dog" | " a")*'}, "cat( dog| a)*"),
        ({"json_schema": {"type": "object", "required": ["a"], "additionalProperties": False,
                          "properties": {"a": {"enum": [1, 11]}}}}, '{"a": 11?}'),
    ],
)  # fmt: skip
def test_grammars_read_sentence_pieces(
    family: str, constraint: dict[str, Any], pattern: str
) -> None:
    tokenizer = sentence_pieces(family)
    assert tokenizer.decode(tokenizer.encode("cat dog", add_special_tokens=False)) == "cat dog"
    row = [1 / len(tokenizer)] * len(tokenizer)
    backend = ToyBackend(lambda prefix: row, vocab_size=len(row), eos_ids=(1,))
    lm = bestk.LanguageModel(backend, tokenizer)
    result = bestk.search(lm, [5], max_new_tokens=12, beam_size=30, **constraint)
    assert len(result.texts) > 1, result.notice
    assert any(" " in text for text in result.texts)
    for text in result.texts:
        assert re.fullmatch(pattern, text)
    if "json_schema" not in constraint:
        first = {tokenizer.convert_ids_to_tokens(h.token_ids[0]) for h in result.hypotheses}
        assert "\u2581cat" in first, "the token that such a model begins this word with"


def test_ordinary_stop_ids_are_read_by_the_grammar(lm: bestk.LanguageModel) -> None:
    (stop,) = lm.spell("5")
    result = bestk.search(lm, "x", regex="[0-9]{1,3}5|[0-9]{2}", stop_ids=[stop], max_new_tokens=5)
    assert any(text.endswith("5") for text in result.texts)
    for text in result.texts:
        assert re.fullmatch("[0-9]{1,3}5|[0-9]{2}", text)
        assert "5" not in text[:-1], "the stop id ends a text"


def test_a_tiny_transformer_follows_a_grammar(tokenizer: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=0,
        bos_token_id=0,
    )
    tiny = bestk.from_transformers(LlamaForCausalLM(config), tokenizer, "tiny")
    options: dict[str, Any] = {"regex": "[ab]{2,6}", "must_include": ["aab|bba"]}
    together = bestk.search(tiny, ["x", "yy"], max_new_tokens=8, **options)
    for result in together:
        assert {*result.texts} == {"aab", "bba"}
        assert result.mass.total == pytest.approx(1, abs=1e-5)


# What cannot be met, or said


def test_a_grammar_without_texts_is_reported(
    lm: bestk.LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    result = bestk.search(lm, "x", regex="é|ab[^ -~]")  # the tokenizer has no such characters
    assert not result.texts
    assert result.stop_reason == "exhausted"
    assert result.notice == (
        "no text can meet regex: every branch of the search came to a dead end"
    )
    assert result.notice in caplog.text
    assert json.loads(result.dumps())["notice"] == result.notice
    assert bestk.SearchResult.from_json(result.dumps()).notice == result.notice


def test_a_dead_end_frees_its_slot(lm: bestk.LanguageModel) -> None:
    result = bestk.search(lm, "x", regex="(aaé|b|c)", max_new_tokens=6)
    assert {*result.texts} == {"b", "c"}
    assert result.stop_reason == "exhausted"
    assert result.mass.completed < 1


@pytest.mark.parametrize(
    ("options", "notice"),
    [
        ({"regex": "[ab]{9,}"}, "no text met regex within max_new_tokens=6, which cut"),
        ({"json_schema": {"type": "object", "required": ["x"]}}, "no text can meet json_schema"),
        ({"must_include": ["é"]}, "no text met must_include within max_new_tokens=6"),
        ({"must_include": ["abcabcabc"]}, "no text met must_include within max_new_tokens=6"),
        ({"regex": "[ab]{5}", "budget": 5}, "no text met regex within the budget of 5 expansions"),
        ({"regex": "a", "must_include": ["b"]}, "no text can meet must_include and regex"),
    ],
)
def test_what_is_out_of_reach_is_reported(
    lm: bestk.LanguageModel, options: dict[str, Any], notice: str
) -> None:
    result = bestk.search(lm, "x", max_new_tokens=6, **options)
    assert not result.texts
    assert result.notice is not None
    assert result.notice.startswith(notice)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "(a"}, "regex '(a' cannot be used: Regex parsing error at position 3"),
        ({"grammar": "root ::= foo"}, "EBNF parser error at line 1, column 10"),
        ({"json_schema": {"type": "foo"}}, "json_schema is not a schema"),
        ({"json_schema": "{"}, "json_schema must be JSON"),
        ({"json_schema": "[]"}, "json_schema must be a JSON object"),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum greater"),
        ({"regex": "a", "grammar": 'root ::= "a"'}, "regex and grammar exclude each other"),
        ({"regex": ""}, "regex must be a text that is not empty, got ''"),
        ({"must_include": ["ran|"]}, "must_include takes words and phrases"),
        ({"must_include": 3}, "must_include must be a list of str, got 3"),
        ({"include_bonus": -1}, "include_bonus goes from 0 to 1e+06, got -1"),
    ],
)
def test_a_constraint_that_makes_no_sense_is_one_line(
    lm: bestk.LanguageModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as raised:
        bestk.search(lm, "x", **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_models_that_cannot_be_shaped_refuse_grammars(tokenizer: Any) -> None:
    class Listing(ToyBackend):
        name = "listing"
        capabilities = Capabilities(full_logits=False)

    backend = Listing(writer(0).distribution, vocab_size=SIZE)
    with pytest.raises(OptionError, match="listing lists only its likeliest tokens, so regex"):
        bestk.search(bestk.LanguageModel(backend, tokenizer), "x", regex="a")
    with pytest.raises(OptionError, match="regex needs a tokenizer"):
        bestk.search(bestk.LanguageModel(writer(0)), [1], regex="a")


def test_a_missing_extra_says_what_to_install(
    lm: bestk.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "xgrammar":
            raise ImportError(name)
        return plain(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'bestk[constraints]'")):
        constraints_of(bestk.SearchConfig(regex="a"), lm)


def test_signatures_name_constraints() -> None:
    config = bestk.SearchConfig(must_include=["ran|runs", "dog"], json_schema={"type": "integer"})
    fields = config.describe().split("|")
    assert "mustinclude:'ran/runs','dog'" in fields
    assert any(re.fullmatch("jsonschema:[0-9a-f]{8}", field) for field in fields)
    assert bestk.SearchConfig.of({"json_schema": config.json_schema}).json_schema == (
        '{"type": "integer"}'
    )
    assert config.constraints == ("must_include", "json_schema")
    assert not bestk.SearchConfig().constraints


# The embedded model


@pytest.mark.model
def test_a_regex_search_gives_many_distinct_texts(smollm2: bestk.LanguageModel) -> None:
    prompt = [{"role": "user", "content": "Name a famous person and the year of their birth."}]
    pattern = r"[A-Z][a-z]+ [A-Z][a-z]+, 1\d\d\d"
    result = bestk.search(smollm2, prompt, regex=pattern, max_new_tokens=16)
    assert len({*result.texts}) >= 20
    assert all(re.fullmatch(pattern, text) for text in result.texts)
    assert result.mass.total == pytest.approx(1, abs=1e-5)


@pytest.mark.model
def test_texts_of_the_embedded_model_hold_the_words(smollm2: bestk.LanguageModel) -> None:
    words = ["ball", "dog", "run|runs|running|ran"]
    prompt = [{"role": "user", "content": "Write a short sentence about a dog."}]
    result = bestk.search(smollm2, prompt, must_include=words, max_new_tokens=20)
    assert result.texts
    assert all(Phrase(word).is_in(text) for text in result.texts for word in words)
    assert result.mass.total == pytest.approx(1, abs=1e-5)
