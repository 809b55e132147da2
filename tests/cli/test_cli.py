"""The command line: in this process on a toy model, and a few runs as users start it."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

import bestk
from bestk.backends.base import Capabilities
from bestk.backends.toy import ToyBackend
from bestk.cli import app, main, options
from bestk.config import SearchConfig
from bestk.viz.terminal import tree_view

ROOT = Path(bestk.__file__).parent.parent
WORDS = ["<end>", " red", " blue", " and", " sky"]
ROWS = {
    (): [0.0, 0.6, 0.4, 0.0, 0.0],
    (1,): [0.5, 0.0, 0.0, 0.5, 0.0],
    (2,): [0.3, 0.0, 0.0, 0.1, 0.6],
    (3,): [0.0, 0.2, 0.8, 0.0, 0.0],
    (4,): [0.9, 0.0, 0.0, 0.1, 0.0],
}


class Words:
    """A tokenizer of five words; any text is the empty prompt's one token."""

    chat_template: str | None = None

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, text: str) -> dict[str, list[int]]:
        self.seen.append(text)
        return {"input_ids": [0]}

    def apply_chat_template(self, messages: Any, **_: Any) -> dict[str, list[int]]:
        self.seen.append(messages)
        return {"input_ids": [0]}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(WORDS[i] for i in ids if i or not skip_special_tokens)

    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in rows]


def toy(distribution: Callable[[tuple[int, ...]], Any] | None = None) -> bestk.LanguageModel:
    table = ToyBackend.ngram({(0,): ROWS[()]} | ROWS, ROWS[()])
    backend = ToyBackend(distribution or table.distribution, vocab_size=5)
    return bestk.LanguageModel(backend, Words(), "toy")


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch) -> bestk.LanguageModel:
    model = toy()
    monkeypatch.setattr("bestk.load", lambda *_, **__: model)
    return model


SMALL = ("--beam-size", "2", "--max-new-tokens", "4", "--k", "2", "--policy", "best-k")


def test_help_opens_with_an_example_that_runs(cli: Any, lm: bestk.LanguageModel) -> None:
    for arguments in ((), ("--help",), ("-h",)):
        code, out, _ = cli(*arguments)
        assert code == 0
        assert 'bestk "Name a colour and say why you like it."' in out
        assert "Search one prompt and show its ranked texts" in out
    code, out, _ = cli("generate", "--help")
    assert code == 0
    assert 'bestk -n 10 "Write a tagline for a bakery."' in out
    assert cli("-n", "10", "Write a tagline for a bakery.")[0] == 0


def test_a_prompt_is_enough(cli: Any, lm: bestk.LanguageModel) -> None:
    code, out, err = cli("colours", *SMALL)
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == cli("generate", *SMALL, "colours")[1].splitlines()[:2]
    code, _, err = cli("generat", "colours")
    assert (code, err) == (2, "Error: unknown command 'generat': did you mean 'generate'?\n")


def test_ten_are_ten(cli: Any, lm: bestk.LanguageModel) -> None:
    code, out, _ = cli("-n", "4", "--max-new-tokens", "5", "colours")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["1", "2", "3", "4"]
    assert out.splitlines()[5].startswith("4 texts")


def test_lines_of_json(cli: Any, lm: bestk.LanguageModel) -> None:
    found = json.loads(cli("generate", *SMALL, "--json", "colours")[1])["hypotheses"]
    code, out, _ = cli("generate", *SMALL, "--jsonl", "colours")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["text"] for line in lines] == [one["text"] for one in found]
    assert list(lines[0]) == ["text", "score", "log_prob", "num_tokens", "finish_reason"]
    code, out, _ = cli("generate", *SMALL, "--jsonl", "--stream", "colours")
    streamed = [json.loads(line)["text"] for line in out.splitlines()]
    assert sorted(streamed) == sorted(line["text"] for line in lines)


def test_names_of_other_tools_are_answered(cli: Any) -> None:
    told = {
        "--num-beams": "unknown option '--num-beams': it is called '--beam-size' here",
        "--max-tokens": "unknown option '--max-tokens': it is called '--max-new-tokens' here",
        "--num-return-sequences": "it is called '--num-texts' here",
        "--do-sample": "unknown option '--do-sample': a search lists texts; ",
    }
    for option, words in told.items():
        code, _, err = cli("generate", "colours", option, "3")
        assert code == 2
        assert words in err


def test_options_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BESTK_GENERATE_MODEL", "toy")
    monkeypatch.setenv("BESTK_GENERATE_NUM_TEXTS", "2")
    assert main(["the cat", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["hypotheses"]) == 2


def test_version(cli: Any) -> None:
    assert cli("--version") == (0, f"bestk {bestk.__version__}\n", "")


def test_ranked_texts_and_summary(cli: Any, lm: bestk.LanguageModel) -> None:
    code, out, err = cli("generate", *SMALL, "colours")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    lines[-2] = lines[-2].split()[0]  # the time differs from run to run
    assert lines == [
        "1  -0.511  blue sky",  # ln(0.4 · 0.6 · 0.9) / 3
        "2  -0.602  red",
        "3  -0.658  red and blue",
        "4  -0.877  red and red",
        "5  -1.060  blue",
        "",
        "unique texts  5 of 5 completed, 5 too long",
        "expansions    8 of 8 in 5 model calls (budget spent)",
        "mass seen     73.8% completed, 4.0% open, 0% pruned, 22.2% too long",
        "time",
        "proven        4 texts: no other text is likelier",
    ]


def test_stream_prints_texts_in_the_order_found(cli: Any, lm: bestk.LanguageModel) -> None:
    code, out, _ = cli("generate", *SMALL, "--stream", "colours")
    texts, _, summary = out.partition("\n\n")
    assert code == 0
    assert texts.splitlines() == [
        "-0.602  red",
        "-1.060  blue",
        "-0.511  blue sky",
        "-0.658  red and blue",
        "-0.877  red and red",
    ]
    assert summary.startswith("unique texts  5 of 5")


def test_progress_shows_in_a_terminal_only(
    cli: Any, lm: bestk.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("generate", *SMALL, "colours")[2] == ""
    monkeypatch.setattr(
        "bestk.cli.terminal.stderr", lambda: Console(stderr=True, force_terminal=True, width=80)
    )
    code, out, err = cli("generate", *SMALL, "colours")
    assert code == 0
    assert "8 of 8 expansions, 5 texts" in err
    assert "searching" not in out


def test_num_texts_are_so_many(cli: Any, lm: bestk.LanguageModel) -> None:
    _, out, _ = cli("generate", *SMALL, "-n", "1", "colours")
    assert out.splitlines()[:2] == ["1  -0.511  blue sky", ""]


def test_ten_texts_are_asked_for_where_nobody_names_algorithm_2(
    cli: Any, lm: bestk.LanguageModel
) -> None:
    told = json.loads(cli("generate", "--max-new-tokens", "4", "--json", "colours")[1])
    wanted = bestk.search(lm, "colours", num_texts=10, max_new_tokens=4)
    assert told["signature"] == wanted.signature
    assert [entry["text"] for entry in told["hypotheses"]] == wanted.texts
    assert len(wanted.texts) == 10
    named = json.loads(cli("generate", "--scoring", "last", "--json", "colours")[1])
    assert "score:last" in named["signature"]
    lines = cli("generate", "--max-new-tokens", "4", "colours")[1].splitlines()
    shown = [line.strip().split("  ")[-1] for line in lines[:10]]
    cut = [text.text.strip() + " …" * (not text.is_complete) for text in wanted.hypotheses]
    assert shown == cut


def test_a_stream_of_n_ends_with_what_was_cut(cli: Any, lm: bestk.LanguageModel) -> None:
    code, out, _ = cli("generate", "--stream", "-n", "6", "--max-new-tokens", "4", "colours")
    assert code == 0
    lines = out.partition("\n\n")[0].splitlines()
    assert len(lines) == len(set(lines)) == 6
    streamed = bestk.stream(lm, "colours", num_texts=6, max_new_tokens=4)
    assert [line.split("  ")[1] for line in lines] == [text.text.strip() for text in streamed]


def test_diverse_texts_are_those_of_search(cli: Any, lm: bestk.LanguageModel) -> None:
    wanted = bestk.search(
        lm,
        "x",
        beam_size=2,
        max_new_tokens=4,
        k=2,
        num_texts=3,
        policy="best-k",
        select="diverse",
        diversity=0.9,
    )
    assert wanted.texts != bestk.search(lm, "x", beam_size=2, max_new_tokens=4, k=2).texts[:3]
    arguments = ("generate", *SMALL, "--select", "diverse", "--diversity", "0.9", "x")
    data = json.loads(cli(*arguments, "-n", "3", "--json")[1])
    assert [entry["text"] for entry in data["hypotheses"]] == wanted.texts
    assert data["signature"] == wanted.signature
    lines = cli(*arguments, "-n", "3")[1].splitlines()
    assert [line.split("  ")[-1] for line in lines[:3]] == [text.strip() for text in wanted.texts]
    assert lines[3] == ""


def test_reranked_texts_show_the_score_that_orders_them(
    cli: Any, lm: bestk.LanguageModel, tmp_path: Path
) -> None:
    wanted = bestk.search(lm, "x", beam_size=2, max_new_tokens=4, k=2, rerank="mbr-chrf")
    path = tmp_path / "result.json"
    arguments = ("generate", *SMALL, "--rerank", "mbr-chrf", "-n", "2", "x")
    lines = cli(*arguments, "--output", str(path))[1].splitlines()
    assert [line.split()[1] for line in lines[:2]] == [
        f"{h.rerank_score:.3f}" for h in wanted.hypotheses[:2]
    ]
    assert bestk.SearchResult.from_json(path.read_text()).texts == wanted.texts, "all are saved"
    entries = json.loads(cli(*arguments, "--json")[1])["hypotheses"]
    assert [entry["text"] for entry in entries] == wanted.texts[:2]
    assert [entry["rerank_score"] for entry in entries] == [
        h.rerank_score for h in wanted.hypotheses[:2]
    ]


def test_json_has_exactly_the_documented_keys(cli: Any, lm: bestk.LanguageModel) -> None:
    code, out, err = cli("generate", *SMALL, "--json", "colours")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert list(data) == ["prompt", "hypotheses", "mass", "cost", "signature"]
    assert data["prompt"] == "colours"
    keys = ["text", "score", "log_prob", "num_tokens", "token_ids", "step"]
    assert [list(entry) for entry in data["hypotheses"]] == [keys] * 5
    assert list(data["mass"]) == ["completed", "frontier", "pruned", "truncated"]
    assert list(data["cost"]) == ["expanded", "steps", "model_calls", "evaluated", "seconds"]
    assert data["signature"].startswith("bestk|model:toy|k:2|b:2|T:4|")
    assert data["hypotheses"][0]["text"] == " blue sky"
    assert len(json.loads(cli("generate", *SMALL, "--json", "-n", "2", "x")[1])["hypotheses"]) == 2


def test_output_saves_everything_whole(cli: Any, lm: Any, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert cli("generate", *SMALL, "--output", str(path), "colours")[0] == 0
    result = bestk.SearchResult.from_json(path.read_text())
    assert result.texts[:2] == [" blue sky", " red"]
    assert result.tree is not None
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"], "a scratch file was left"


def test_standard_input(cli: Any, lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    code, out, _ = cli("generate", *SMALL, "--json", "-")
    assert code == 0
    assert json.loads(out)["prompt"] == "two\nlines"
    assert lm.tokenizer.seen == ["two\nlines"]


def test_chat_models_get_chat_unless_raw(cli: Any, lm: Any) -> None:
    lm.tokenizer.chat_template = "a template"
    cli("generate", *SMALL, "hello")
    cli("generate", *SMALL, "--system", "Be brief.", "hello")
    cli("generate", *SMALL, "--raw", "hello")
    user = {"role": "user", "content": "hello"}
    assert lm.tokenizer.seen == [
        [user],
        [{"role": "system", "content": "Be brief."}, user],
        "hello",
    ]


TREE = """\
colours
├── ● red  60.0%
│   ├── ✔ <end>  50.0%  #2 -0.602
│   └── ● and  50.0%
│       ├── ● blue  80.0%
│       │   ├── … sky  60.0%
│       │   ├── ✔ <end>  30.0%  #3 -0.658
│       │   └── … and  10.0%
│       └── ● red  20.0%
│           ├── ✔ <end>  50.0%  #4 -0.877
│           └── … and  50.0%
└── ● blue  40.0%
    ├── ● sky  60.0%
    │   ├── ✔ <end>  90.0%  #1 -0.511
    │   └── ● and  10.0%
    ├── ✔ <end>  30.0%  #5 -1.060
    └── ○ and  10.0%

16 of 18 nodes drawn: ● 7 expanded, ○ 1 open, ✔ 5 complete, … 5 too long

1  -0.511  blue sky
"""

SMALL_TREE = """\
colours
├── ✔ red<end>  30.0%  #2 -0.602
└── ✔ blue sky<end>  21.6%  #1 -0.511

5 of 18 nodes drawn: ● 7 expanded, ○ 1 open, ✔ 5 complete, … 5 too long
"""


def test_tree_picture(cli: Any, lm: bestk.LanguageModel) -> None:
    code, out, _ = cli("generate", *SMALL, "--tree", "colours")
    assert code == 0
    assert out.startswith(TREE), out


def test_a_large_tree_is_pruned_and_runs_are_joined() -> None:
    result = bestk.search(toy(), "colours", k=2, beam_size=2, max_new_tokens=4)
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(tree_view(result, toy().tokens_text, max_lines=4))
    assert captured.get() == SMALL_TREE


BAD = {
    ("generate", ""): "the prompt is empty",
    ("generate", "  "): "the prompt is empty",
    ("generate",): "Missing argument",
    ("generate", "--k", "9", "--budget", "4", "x"): "k must be at most the budget of 4, got 9",
    ("generate", "--k", "0", "x"): "k must be at least 1, got 0",
    ("generate", "--beam-size", "0", "x"): "beam_size must be at least 1, got 0",
    ("generate", "--max-new-tokens", "0", "x"): "max_new_tokens must be at least 1, got 0",
    ("generate", "--max-frontier", "0", "x"): "max_frontier must be at least 1, got 0",
    ("generate", "--min-prob", "1.5", "x"): "min_prob goes from 0 to 1, got 1.5",
    ("generate", "--min-prob", "nan", "x"): "min_prob must be finite, got nan",
    ("generate", "--k", "many", "x"): "Invalid value for '--k'",
    ("generate", "--num-texts", "0", "x"): "num_texts must be at least 1, got 0",
    (
        "generate",
        "--beamsize",
        "3",
        "x",
    ): "unknown option '--beamsize': did you mean '--beam-size'?",
    ("generate", "--scoring", "meen", "x"): "unknown scoring 'meen': did you mean 'mean'?",
    ("generate", "--decay", "powr", "x"): "unknown decay 'powr': did you mean 'power'?",
    ("generate", "--raw", "--system", "s", "x"): "--system needs chat formatting",
    ("generate", "--system", "s", "x"): "has no chat template for a system text",
    ("generate", "--stop-id", "77", "x"): "stop_ids go from 0 to 4, got 77",
    ("generate", "--output", "/no/such/folder/x.json", "x"): "cannot write /no/such/folder/x.json",
    ("generate", "--stream", "--json", "x"): "give it without --json",
    ("generate", "--stream", "--rerank", "mbr-chrf", "x"): "--select, --rerank",
    ("generate", "--select", "divers", "x"): "unknown select 'divers': did you mean 'diverse'?",
    ("generate", "--diversity", "2", "x"): "diversity goes from 0 (quality alone) to 1, got 2",
    ("generate", "--rerank", "mbr-chr", "x"): "unknown reranker 'mbr-chr': did you mean 'mbr-chrf'",
    ("genrate", "x"): "did you mean 'generate'?",
    ("--verbos",): "unknown option '--verbos'",
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_line_and_exit_code_2(cli: Any, lm: Any, arguments: Any) -> None:
    code, _, err = cli(*arguments)
    assert code == 2
    assert err.startswith("Error: ")
    assert err.count("\n") == 1, f"more than one line: {err}"
    assert BAD[arguments] in err


def test_unknown_model_and_dtype(cli: Any) -> None:
    code, out, err = cli("generate", "--model", "smolm2", "x")
    assert (code, out) == (2, "")
    assert "unknown model 'smolm2': did you mean 'smollm2'?" in err
    code, _, err = cli("generate", "--dtype", "float23", "--model", ".", "x")
    assert (code, err.count("\n")) == (2, 1)
    assert "unknown dtype 'float23': did you mean 'float32'?" in err


def test_prompt_too_long_and_no_tokenizer(cli: Any, lm: Any) -> None:
    lm.backend.capabilities = Capabilities(max_length=4)
    code, _, err = cli("generate", *SMALL, "x")
    assert (code, err.count("\n")) == (2, 1)
    assert "the prompt has 1 tokens, at most 0 fit" in err
    lm.tokenizer = None
    code, _, err = cli("generate", *SMALL, "x")
    assert code == 2
    assert "model toy has no tokenizer" in err


@pytest.mark.parametrize("fault", ["nan", "memory"])
def test_a_search_that_breaks_off_prints_what_it_found(
    cli: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def distribution(prefix: tuple[int, ...]) -> list[float]:
        if len(prefix) < 4:
            return ROWS[prefix[-1:] if prefix[-1] else ()]
        if fault == "memory":
            raise MemoryError
        return [float("nan")] * 5

    monkeypatch.setattr("bestk.load", lambda *_, **__: toy(distribution))
    code, out, err = cli("generate", *SMALL, "x")
    assert code == 2
    assert out.startswith("1  -0.511  blue sky\n")
    assert err.count("\n") == 1
    expected = {"nan": "NaN or infinite logits at step", "memory": "out of memory on cpu"}
    assert expected[fault] in err
    mass = json.loads(cli("generate", *SMALL, "--json", "x")[1])["mass"]
    assert abs(sum(mass.values()) - 1) < 1e-6, "what was being expanded is lost"


def test_ctrl_c_keeps_what_was_found(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(prefix: tuple[int, ...]) -> list[float]:
        if prefix == (0, 1, 3):
            os.kill(os.getpid(), signal.SIGINT)
        return ROWS[prefix[-1:] if prefix[-1] else ()]

    monkeypatch.setattr("bestk.load", lambda *_, **__: toy(distribution))
    before = signal.getsignal(signal.SIGINT)
    code, out, err = cli("generate", "--policy", "best-k", "--json", "x")
    assert (code, err) == (130, "")
    data = json.loads(out)
    assert [entry["text"] for entry in data["hypotheses"]] == [" blue sky", " red", " blue"]
    assert abs(sum(data["mass"].values()) - 1) < 1e-6, "the step under way was not finished"
    assert "(interrupted)" in cli("generate", "x")[1]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_ends_at_once(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(prefix: tuple[int, ...]) -> list[float]:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return ROWS[()]

    monkeypatch.setattr("bestk.load", lambda *_, **__: toy(distribution))
    assert cli("generate", "x") == (130, "", "")


def test_every_setting_is_an_option_with_the_default_of_the_config() -> None:
    command = typing.cast(Any, typer.main.get_command(app())).commands["generate"]
    params = {param.name: param for param in command.params}
    for field in dataclasses.fields(SearchConfig):
        if field.name in options.NO_OPTION:
            assert field.name not in params
            continue
        assert params[field.name].help, field.name
        default = params[field.name].default
        assert (tuple(default) if isinstance(default, list) else default) == field.default
    assert params["model"].default == inspect.signature(bestk.load).parameters["name"].default


def config_of(*arguments: str) -> SearchConfig:
    """Parse a command line of settings alone."""
    seen: list[SearchConfig] = []
    one = typer.Typer()

    def command(**settings: Any) -> None:
        seen.append(options.config_of(settings))

    one.command()(options.search_options(command))
    one(list(arguments), standalone_mode=False)
    return seen[0]


class TestConstraints:
    def test_in_the_command_line_or_in_a_file(self, tmp_path: Path) -> None:
        assert config_of() == SearchConfig()
        config = config_of("--must-include", "red", "--must-include", "sky|skies")
        assert config == SearchConfig(must_include=("red", "sky|skies"))
        assert config_of("--include-bonus", "0.7").include_bonus == 0.7
        assert config_of("--regex", "a+").regex == "a+"
        for option, text in (
            ("--json-schema", '{"type": "string"}'),
            ("--grammar", 'root ::= "é"'),
        ):
            path = tmp_path / "rules"
            path.write_text(text, encoding="utf-8")
            assert getattr(config_of(option, str(path)), option[2:].replace("-", "_")) == text

    @pytest.mark.parametrize("option", ["--json-schema", "--grammar"])
    def test_files_that_cannot_be_read(
        self, cli: Any, lm: Any, option: str, tmp_path: Path
    ) -> None:
        missing = tmp_path / "missing"
        code, out, err = cli("generate", option, str(missing), "x")
        assert (code, out) == (2, "")
        assert err == f"Error: {option} cannot read {missing}: No such file or directory\n"
        binary = tmp_path / "binary"
        binary.write_bytes(b"\xff\xfe\x00")
        code, out, err = cli("generate", option, str(binary), "x")
        assert (code, out) == (2, "")
        assert err == f"Error: {option} must name a file of UTF-8 text, got {binary}\n"

    def test_a_file_that_is_no_schema(self, cli: Any, lm: Any, tmp_path: Path) -> None:
        (tmp_path / "schema").write_text("{")
        code, _, err = cli("generate", "--json-schema", str(tmp_path / "schema"), "x")
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith("Error: json_schema must be JSON")


def test_no_text_at_all_says_why_on_stderr(cli: Any, lm: bestk.LanguageModel) -> None:
    code, out, err = cli("generate", "--policy", "best-k", "--max-new-tokens", "1", "--json", "x")
    assert code == 0
    assert json.loads(out)["hypotheses"] == []
    assert err == (
        "Note: no text was complete within max_new_tokens=1, which cut 2 branches: raise it\n"
    )


def test_languages_go_to_the_loader_if_given(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def load(name: str, **options: Any) -> bestk.LanguageModel:
        given.append(options)
        return toy()

    monkeypatch.setattr("bestk.load", load)
    cli("generate", *SMALL, "x")
    cli("generate", *SMALL, "--src-lang", "en_XX", "--tgt-lang", "de_DE", "x")
    assert given == [
        {"dtype": "auto"},
        {"dtype": "auto", "src_lang": "en_XX", "tgt_lang": "de_DE"},
    ]


def test_cli_reference_is_current() -> None:
    from bestk.cli.reference import reference

    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference(), "run: python -m bestk.cli.reference > docs/cli.md"


def run(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", "-m", "bestk", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **settings)


def test_help_is_light() -> None:
    done = run("--help")
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "bestk.cli" in loaded
    assert not loaded & {"torch", "transformers", "numpy"}, "help must not wait for these"


@pytest.mark.model
@pytest.mark.usefixtures("smollm2")
def test_embedded_model_from_a_pipe() -> None:
    arguments = ("generate", "--json", "--beam-size", "3", "--max-new-tokens", "8", "--raw")
    done = run(*arguments, "--stop", ".", "-", input="The capital of France is\n")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert data["prompt"] == "The capital of France is"
    assert data["cost"]["expanded"] <= 24
    assert any("Paris" in entry["text"] for entry in data["hypotheses"])
