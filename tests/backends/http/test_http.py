"""Models behind servers: three dialects, what is refused, keys, options, the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import random_toy
from fake_servers import SHAPES, Fake, WordList, llama_cpp, serving, sglang, vllm
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

import bestk
from bestk.backends.http import transport
from bestk.backends.toy import ToyBackend
from bestk.errors import BestKError, ModelError, OptionError, ServerError

TOY = random_toy(4, vocab_size=9)
SETTINGS: dict[str, Any] = {"max_new_tokens": 6, "beam_size": 5, "k": 3}

Connect = Callable[..., bestk.LanguageModel]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def connect(stack: ExitStack) -> Connect:
    """Serve an app and load the model behind it."""

    def load(app: FastAPI, **options: Any) -> bestk.LanguageModel:
        options = {"tokenizer": WordList(9), "patience": 5, **options}
        lm = bestk.load(stack.enter_context(serving(app)), **options)
        stack.callback(lm.backend.close)
        return lm

    return load


def found(result: bestk.SearchResult) -> Any:
    return [(h.text, h.token_ids, h.log_probs) for h in result.hypotheses]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_dialect_gives_the_model_itself(shape: str, connect: Connect) -> None:
    lm = connect(SHAPES[shape](Fake(TOY)))
    backend = lm.backend
    assert (lm.name, backend.vocab_size, backend.eos_ids) == ("toy", 9, (0,))
    assert backend.capabilities.max_length == 64
    plain = bestk.LanguageModel(TOY, WordList(9))
    for prompt in ("w1", [2, 3], "w5 w5"):
        given, expected = (bestk.search(model, prompt, **SETTINGS) for model in (lm, plain))
        assert found(given) == found(expected)
        assert given.mass == expected.mass


@pytest.mark.parametrize("shape", SHAPES)
def test_every_dialect_serves_what_needs_whole_distributions(shape: str, connect: Connect) -> None:
    lm = connect(SHAPES[shape](Fake(TOY)))
    plain = bestk.LanguageModel(TOY, WordList(9))
    shaped = {**SETTINGS, "temperature": 0.7, "repetition_penalty": 1.3}
    given, expected = (bestk.search(model, [1], **shaped) for model in (lm, plain))
    assert [h.token_ids for h in given.hypotheses] == [h.token_ids for h in expected.hypotheses]
    # No sum of these probabilities is 0.87, so that rounding decides nothing.
    draws = [bestk.run_method(model, [1], "Ncls0.87", max_new_tokens=6) for model in (lm, plain)]
    assert draws[0].texts == draws[1].texts


def test_beam_search_runs_on_a_server(connect: Connect) -> None:
    lm, plain = connect(vllm(Fake(TOY))), bestk.LanguageModel(TOY, WordList(9))
    given, expected = (
        bestk.run_method(model, [1], "BS", beam_size=3, max_new_tokens=6) for model in (lm, plain)
    )
    assert given.texts == expected.texts


def test_an_address_may_end_in_v1(stack: ExitStack) -> None:
    url = stack.enter_context(serving(vllm(Fake(TOY))))
    for address in (url + "/", url + "/v1", url + "/v1/"):
        lm = bestk.load(address, tokenizer=WordList(9))
        stack.callback(lm.backend.close)
        assert lm.name == "toy"


# What a server lists


def test_the_limit_of_a_server_is_found_and_told(connect: Connect) -> None:
    lm = connect(vllm(Fake(TOY, max_logprobs=4)))
    assert lm.backend.capabilities.max_listed == 4
    assert lm.backend.vocab_size == 9
    with pytest.raises(
        OptionError,
        match=r"lists at most 4 tokens.*9 per node: set max_children=4, or start the server "
        r"with --max-logprobs -1",
    ):
        bestk.search(lm, [1], **SETTINGS)
    with pytest.raises(OptionError, match=r"needs them all.*--max-logprobs -1"):
        bestk.search(lm, [1], max_children=4, temperature=0.5, **SETTINGS)
    assert bestk.search(lm, [1], max_children=4, **SETTINGS).hypotheses


def test_a_limit_of_which_the_server_says_nothing_is_tried(connect: Connect) -> None:
    fake = Fake(TOY, max_logprobs=5)
    app = vllm(fake)

    @app.middleware("http")
    async def terse(request: Request, answer: Any) -> Any:
        response = await answer(request)
        if response.status_code == 400:
            return JSONResponse({"detail": "bad logprobs"}, 400)
        return response

    assert connect(app).backend.capabilities.max_listed == 5


def test_a_server_without_any_log_probs_is_refused(connect: Connect) -> None:
    with pytest.raises(ServerError, match=r"lists no log-probs.*--max-logprobs 20"):
        connect(vllm(Fake(TOY, max_logprobs=0)))


def changed(app: FastAPI, path: str, change: Callable[[Any], Any]) -> FastAPI:
    """Change what a server answers at one path."""

    @app.middleware("http")
    async def middleware(request: Request, answer: Any) -> Any:
        response = await answer(request)
        if request.url.path != path or response.status_code != 200:
            return response
        content = json.loads(b"".join([part async for part in response.body_iterator]))
        return JSONResponse(change(content))

    return app


def by_text(content: Any) -> Any:
    for choice in content["choices"]:
        top = choice["logprobs"]["top_logprobs"][0]
        choice["logprobs"]["top_logprobs"] = [{f" w{i}": v for i, v in enumerate(top.values())}]
    return content


def without_logprobs(content: Any) -> Any:
    for choice in content["choices"]:
        choice["logprobs"] = None
    return content


def logits(content: Any) -> Any:
    for choice in content["choices"]:
        top = choice["logprobs"]["top_logprobs"][0]
        choice["logprobs"]["top_logprobs"] = [{name: value + 20 for name, value in top.items()}]
    return content


def doubled(content: Any) -> Any:
    """Below 0 each, and yet no distribution."""
    for choice in content["choices"]:
        top = choice["logprobs"]["top_logprobs"][0]
        choice["logprobs"]["top_logprobs"] = [dict.fromkeys(top, -0.1)]
    return content


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (by_text, r"names tokens by their text.*--return-tokens-as-token-ids"),
        (without_logprobs, r"answers without logprobs.top_logprobs.*--max-logprobs 20"),
        (logits, r"which is at most 0: start vLLM with --logprobs-mode raw_logprobs"),
        (doubled, r"no log-probabilities: start vLLM with --logprobs-mode raw_logprobs"),
    ],
)
def test_a_server_that_does_not_give_what_search_needs_is_refused(
    change: Callable[[Any], Any], complaint: str, connect: Connect
) -> None:
    with pytest.raises(ServerError, match=complaint):
        connect(changed(vllm(Fake(TOY)), "/v1/completions", change))


def test_a_server_that_lists_fewer_than_asked_is_told(connect: Connect) -> None:
    fake = Fake(TOY)
    app = vllm(fake)
    is_short = False

    def shorten(content: Any) -> Any:
        if is_short:
            for choice in content["choices"]:
                top = choice["logprobs"]["top_logprobs"][0]
                choice["logprobs"]["top_logprobs"] = [dict(list(top.items())[:3])]
        return content

    lm = connect(changed(app, "/v1/completions", shorten))
    is_short = True
    with pytest.raises(BestKError, match=r"lists 3 tokens where 9 were asked for"):
        bestk.search(lm, [1], **SETTINGS)


@pytest.mark.parametrize(
    ("app", "path", "change", "complaint"),
    [
        (
            sglang,
            "/generate",
            lambda content: [{**one, "meta_info": {"id": "1"}} for one in content],
            "answers without meta_info.output_top_logprobs",
        ),
        (
            llama_cpp,
            "/completion",
            lambda content: {
                **content,
                "completion_probabilities": [{"content": "x", "probs": []}],
            },
            r"answers without completion_probabilities\[\].top_logprobs",
        ),
        (llama_cpp, "/completion", lambda content: {"text": ""}, "answers without content"),
    ],
)
def test_the_other_dialects_refuse_too(
    app: Any, path: str, change: Any, complaint: str, connect: Connect
) -> None:
    with pytest.raises(ServerError, match=complaint):
        connect(changed(app(Fake(TOY)), path, change))


def test_numbers_that_no_json_can_write(connect: Connect) -> None:
    def nothing_known(content: Any) -> Any:
        for choice in content["choices"]:
            top = choice["logprobs"]["top_logprobs"][0]
            choice["logprobs"]["top_logprobs"] = [dict.fromkeys(top)]
        return content

    is_broken = False
    app = changed(
        vllm(Fake(TOY)), "/v1/completions", lambda c: nothing_known(c) if is_broken else c
    )
    lm = connect(app)
    is_broken = True
    with pytest.raises(BestKError, match="NaN"):
        bestk.search(lm, [1], **SETTINGS)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_has_no_probability_is_no_child(shape: str, connect: Connect) -> None:
    toy = ToyBackend.table({}, [0.5, 0.0, 0.5, 0.0])
    (answer,) = connect(SHAPES[shape](Fake(toy)), tokenizer=WordList(4)).backend.ask([[1]], 4)
    listed = dict(zip(answer.tokens, answer.log_probs, strict=True))
    assert listed == {0: math.log(0.5), 1: -math.inf, 2: math.log(0.5), 3: -math.inf}


def test_padding_of_the_output_layer_is_no_token(connect: Connect) -> None:
    # The tokenizer knows 7 of the 9 ids, and SGLang does not say how many there are.
    lm = connect(sglang(Fake(TOY)), tokenizer=WordList(7))
    assert lm.backend.vocab_size == 7
    result = bestk.search(lm, [1], **SETTINGS)
    assert all(max(h.token_ids) < 7 for h in result.hypotheses)


# llama.cpp's own tokenizer


def test_llama_cpp_reads_and_writes_text_itself(connect: Connect) -> None:
    fake = Fake(TOY)
    lm = connect(llama_cpp(fake), tokenizer=None)
    plain = bestk.LanguageModel(TOY, WordList(9))
    given, expected = (bestk.search(model, "w1 w2", **SETTINGS) for model in (lm, plain))
    assert found(given) == found(expected)
    assert "/detokenize" not in [path for path, _ in fake.requests], "texts cost no requests"
    assert bestk.search(lm, "w1 w2", stop=["w3"], **SETTINGS).texts
    assert lm.is_chat
    messages = [{"role": "user", "content": "w1"}, {"role": "user", "content": "w2"}]
    assert lm.encode(messages) == [1, 2]
    assert lm.tokens_text([1, 0]) == " w1w0"
    assert lm.decode([[1, 0]]) == [" w1"]
    assert lm.spell("w4 w5") == [4, 5]


def test_settings_that_need_a_tokenizer_have_llama_cpps(connect: Connect) -> None:
    lm = connect(llama_cpp(Fake(TOY)), tokenizer=None)
    settings = {**SETTINGS, "bad_words": ["w3"]}
    given = bestk.search(lm, [1], **settings)
    assert given.texts
    assert not any(3 in h.token_ids for h in given.hypotheses)
    with pytest.raises(OptionError, match="need a tokenizer of transformers"):
        bestk.search(lm, [1], regex="w[1-3]", **SETTINGS)


def test_llama_cpp_leaves_out_half_characters_and_is_asked_again(connect: Connect) -> None:
    fake = Fake(TOY)
    lm = connect(llama_cpp(fake, partial=range(1, 9)))
    plain = bestk.LanguageModel(TOY, WordList(9))
    given, expected = (bestk.search(model, [1], **SETTINGS) for model in (lm, plain))
    assert found(given) == found(expected)
    again = [body for path, body in fake.requests if path == "/completion" and "logit_bias" in body]
    assert len(again) > 3


# Which server, which model


def anonymous(content: Any) -> Any:
    for card in content["data"]:
        card["owned_by"] = "a proxy"
    return content


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kind_of_a_server_shows_by_its_endpoints(shape: str, connect: Connect) -> None:
    fake = Fake(TOY)
    lm = connect(changed(SHAPES[shape](fake), "/v1/models", anonymous))
    kinds = {"vllm": "VllmDialect", "sglang": "SglangDialect", "llama.cpp": "LlamaCppDialect"}
    assert type(lm.backend.dialect).__name__ == kinds[shape]
    assert found(bestk.search(lm, [1], **SETTINGS))


def test_the_kind_can_be_told(connect: Connect) -> None:
    lm = connect(sglang(Fake(TOY)), server="sglang")
    assert type(lm.backend.dialect).__name__ == "SglangDialect"
    with pytest.raises(OptionError, match=r"unknown server 'slang': did you mean 'sglang'\?"):
        connect(sglang(Fake(TOY)), server="slang")


def several(content: Any) -> Any:
    card = content["data"][0]
    content["data"] += [
        {**card, "id": "other"},
        {**card, "id": "adapter", "parent": "toy", "root": "owner/adapter"},
    ]
    return content


def test_one_of_several_models_has_to_be_chosen(connect: Connect) -> None:
    def app() -> FastAPI:
        return changed(vllm(Fake(TOY)), "/v1/models", several)

    with pytest.raises(OptionError, match=r"several models: choose one with model= \(toy, other\)"):
        connect(app())
    assert connect(app(), model="toy").name == "toy"
    with pytest.raises(OptionError, match=r"unknown model 'othr': did you mean 'other'\?"):
        connect(app(), model="othr")


def test_an_adapter_is_asked_by_its_name(connect: Connect) -> None:
    fake = Fake(TOY)
    connect(changed(sglang(fake), "/v1/models", several), model="adapter")
    assert {body["lora_path"] for path, body in fake.requests if path == "/generate"} == {"adapter"}
    fake = Fake(TOY)
    fake.model = "toy"
    with pytest.raises(ServerError, match="`adapter` does not exist"):
        connect(changed(vllm(fake), "/v1/models", several), model="adapter")


def test_what_is_no_such_server_is_told(connect: Connect, stack: ExitStack) -> None:
    with pytest.raises(ServerError, match=r"lists no models at /v1/models \(404\): give the addr"):
        connect(FastAPI())
    empty = changed(vllm(Fake(TOY)), "/v1/models", lambda content: {"data": []})
    with pytest.raises(ServerError, match="serves no model"):
        connect(empty)


def test_an_address_where_nobody_listens_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_FIRST_CONTACT", 0.2)
    with pytest.raises(ServerError, match=r"gave no answer for 0.2 seconds \(.*refused|failed"):
        bestk.load("http://127.0.0.1:9", patience=3600)


@pytest.mark.parametrize("url", ["http://", "http://:8000", "http://host:port", "https:///v1"])
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(OptionError, match="an address is like http://localhost:8000"):
        bestk.load(url)


# Keys, headers, options


def test_keys_go_as_bearer_tokens(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    for variable in ("BESTK_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ServerError, match=r"answers 401, Unauthorized: pass api_key="):
        connect(vllm(Fake(TOY, key="secret")))
    assert connect(vllm(Fake(TOY, key="secret")), api_key="secret")
    assert connect(vllm(Fake(TOY, key="s")), headers={"Authorization": "Bearer s"})
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    monkeypatch.setenv("BESTK_API_KEY", "secret")
    assert connect(vllm(Fake(TOY, key="secret")))
    monkeypatch.delenv("BESTK_API_KEY")
    with pytest.raises(ServerError, match="401") as caught:
        connect(vllm(Fake(TOY, key="secret")))
    assert "wrong" not in str(caught.value), "an error shows no key"


def test_extra_fields_go_into_every_request(connect: Connect) -> None:
    fake = Fake(TOY)
    lm = connect(vllm(fake), extra_body={"priority": 3})
    bestk.search(lm, [1], **SETTINGS)
    posted = [body for path, body in fake.requests if path == "/v1/completions"]
    assert posted
    assert all(body["priority"] == 3 for body in posted)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"modle": "x"}, r"unknown option 'modle': did you mean 'model'\?"),
        ({"dtype": "float16"}, "http://localhost:1 takes other options: unknown option 'dtype'"),
        ({"src_lang": "de"}, "takes other options: unknown option 'src_lang'"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, got 0"),
        ({"patience": "long"}, "patience must be a number of seconds above 0, got 'long'"),
        ({"num_connections": 0}, "num_connections must be a whole number of at least 1, got 0"),
        ({"prefixes_per_request": 1.5}, "prefixes_per_request must be a whole number"),
    ],
)
def test_options_are_checked_before_anything_is_asked(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(OptionError, match=complaint):
        bestk.load("http://localhost:1", **options)


def test_options_of_engines_are_no_options_of_other_models() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'patience'"):
        bestk.load("smollm2", patience=3)
    with pytest.raises(OptionError, match=r"unknown option 'dtpye': did you mean 'dtype'\?"):
        bestk.load("smollm2", dtpye="float32")


def test_a_tokenizer_that_is_not_found_is_told(connect: Connect) -> None:
    with pytest.raises(ModelError, match=r"whose tokenizer is not found here .*pass tokenizer="):
        connect(vllm(Fake(TOY)), tokenizer=None)
    with pytest.raises(ModelError, match="tokenizer no/such cannot be loaded"):
        connect(vllm(Fake(TOY)), tokenizer="no/such")


def test_what_is_too_long_for_the_server_is_told(connect: Connect) -> None:
    with pytest.raises(BestKError, match="at most 58 fit"):
        bestk.search(connect(vllm(Fake(TOY))), [1] * 60, **SETTINGS)


# The command line


def test_the_command_line_searches_a_server(cli: Any, stack: ExitStack) -> None:
    fake = Fake(TOY)
    url = stack.enter_context(serving(llama_cpp(fake)))
    arguments = ("--max-new-tokens", "6", "--beam-size", "5", "-k", "3", "--policy", "best-k")
    code, out, err = cli("generate", "--raw", "--model", url, "--json", *arguments, "w1")
    assert code == 0, err
    plain = bestk.LanguageModel(TOY, WordList(9))
    expected = bestk.search(plain, "w1", **SETTINGS)
    assert [h["text"] for h in json.loads(out)["hypotheses"]] == expected.texts
    compared = ("compare", "--raw", "--model", url, "--methods", "BS,BKS_mean")
    code, out, err = cli(*compared, *arguments, "w1")
    assert code == 0, err
    assert "Beam search" in out


def test_the_command_line_takes_engine_options(cli: Any, stack: ExitStack) -> None:
    url = stack.enter_context(serving(llama_cpp(Fake(TOY))))
    common = ("generate", "--raw", "--model", url, "--max-new-tokens", "3", "w1")
    chosen = ("--engine-option", "model=toy", "--engine-option", "patience=3")
    assert cli(*common, *chosen)[0] == 0
    code, _, err = cli(*common, "--engine-option", "patience=-3")
    assert (code, "patience must be a number of seconds above 0, got -3" in err) == (2, True)
    code, _, err = cli(*common, "--engine-option", "patience")
    assert (code, "--engine-option is written name=value, got 'patience'" in err) == (2, True)
    code, _, err = cli(*common, "--engine-option", "modell=toy")
    assert (code, "did you mean 'model'?" in err) == (2, True)


def test_the_command_line_keeps_what_was_found(cli: Any, stack: ExitStack, tmp_path: Path) -> None:
    fake = Fake(TOY)
    url = stack.enter_context(serving(llama_cpp(fake)))
    fake.trouble = lambda number: Response("gone", 503) if number > 6 else None
    patient = ("--engine-option", "patience=0.3", "--max-new-tokens", "6")
    code, out, err = cli("generate", "--raw", "--model", url, *patient, "w1")
    assert code == 2
    assert "gave no answer for 0.3 seconds (503, gone)" in err
    assert "w" in out, "texts found until then are shown"


def test_a_batch_job_through_a_server_in_trouble(
    cli: Any, stack: ExitStack, tmp_path: Path
) -> None:
    fake = Fake(TOY)
    url = stack.enter_context(serving(llama_cpp(fake)))
    source = tmp_path / "in.jsonl"
    rows = [{"id": number, "prompt": f"w{number % 9} w{number // 9}"} for number in range(12)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def job(name: str) -> str:
        common = ("--model", url, "--raw", "--max-new-tokens", "4", "--beam-size", "3")
        code, _, err = cli("batch", str(source), "-o", str(tmp_path / name), *common)
        assert code == 0, err
        return (tmp_path / name).read_text()

    plain = job("plain.jsonl")
    assert len(plain.splitlines()) == 12
    fake.trouble = lambda number: Response("busy", 429) if number % 3 == 0 else None
    assert job("troubled.jsonl") == plain
