"""Batch jobs: formats, order, bad rows, shards; what is refused; memory that stays flat."""

from __future__ import annotations

import gzip
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from batch_jobs import OPTIONS, read_rows, rows_of, write_rows

import bestk
from bestk.backends.toy import ToyBackend
from bestk.batch import Job, JobConfig, ModelName, Shard, follow_batch, run_batch
from bestk.batch.formats import open_source
from bestk.batch.sources import JsonLines, Offset
from bestk.batch.terminal import describe
from bestk.errors import BestKError, ModelError, OptionError, SchemaError
from bestk.lm.toy_language import toy_language
from bestk.rerank import MBR, ByFunction

SMALL: dict[str, Any] = {"beam_size": 3, "max_new_tokens": 6}


@pytest.fixture
def lm() -> bestk.LanguageModel:
    return toy_language()


class TestResults:
    def test_every_row_has_what_a_search_of_it_alone_finds(
        self, lm: bestk.LanguageModel, tmp_path: Path
    ) -> None:
        rows = rows_of(40)
        source = write_rows(tmp_path / "in.jsonl", rows)
        done = run_batch(lm, source, tmp_path / "out.jsonl", batch_size=4, window=16, **SMALL)
        assert (done.num_rows, done.num_bad, done.is_done, done.share) == (40, 0, True, 1.0)
        found = read_rows(tmp_path / "out.jsonl")
        assert [row["line"] for row in found] == list(range(1, 41)), "the order is the input's"
        for row, given in zip(found, rows, strict=True):
            options = SMALL | given.get("options", {})
            alone = bestk.search(lm, given["prompt"], **options)
            assert row["texts"] == alone.texts
            assert row["scores"] == pytest.approx([h.score for h in alone.hypotheses], abs=1e-6)
            assert row["mass"]["completed"] == pytest.approx(alone.mass.completed, abs=1e-6)
            assert row["cost"] == {
                "expanded": alone.cost.expanded,
                "model_calls": alone.cost.model_calls,
            }
            assert row["signature"] == alone.signature
            assert (row["id"], row["tag"]) == (given["id"], given["tag"])
            assert "prompt" not in row
            assert "options" not in row

    def test_choosing_and_reranking(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(4))
        options = {"num_texts": 3, "select": "diverse", "diversity": 0.9, "rerank": "mbr-chrf"}
        run_batch(lm, source, tmp_path / "out.jsonl", **SMALL, **options)
        for row, given in zip(read_rows(tmp_path / "out.jsonl"), rows_of(4), strict=True):
            if "options" in given:
                continue
            alone = bestk.search(lm, given["prompt"], **SMALL, **options)
            assert row["texts"] == alone.texts
            assert row["rerank_scores"] == pytest.approx(
                [h.rerank_score for h in alone.hypotheses], abs=1e-6
            )
            assert row["signature"] == alone.signature

    def test_full_results_read_back(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", [{"prompt": "the dog"}])
        run_batch(lm, source, tmp_path / "out.jsonl", full=True, tree=True, **SMALL)
        (row,) = read_rows(tmp_path / "out.jsonl")
        result = bestk.SearchResult.from_json(row["result"])
        alone = bestk.search(lm, "the dog", **SMALL)
        assert result.hypotheses == alone.hypotheses
        assert result.tree is not None
        assert len(result.tree) == alone.cost.expanded
        assert result.to_html().startswith("<!doctype"), "and can be drawn"

    def test_prompts_of_every_kind(self, tmp_path: Path) -> None:
        lm = toy_language()
        lm.tokenizer.chat_template = "yes"
        seen: list[Any] = []

        def template(messages: Any, **options: Any) -> dict[str, list[int]]:
            seen.append(messages)
            return {"input_ids": [1, 2, 3]}

        lm.tokenizer.apply_chat_template = template
        talk = [{"role": "user", "content": "hello"}]
        rows = [{"prompt": "a dog"}, {"messages": talk}, {"token_ids": [1, 2, 3]}]
        source = write_rows(tmp_path / "in.jsonl", rows)
        run_batch(lm, source, tmp_path / "chat.jsonl", system="Be brief.", **SMALL)
        told = {"role": "system", "content": "Be brief."}
        assert [told, {"role": "user", "content": "a dog"}] in seen, "a prompt is a chat"
        assert talk in seen, "messages are as they are"
        first, second, third = read_rows(tmp_path / "chat.jsonl")
        assert first["texts"] == second["texts"] == third["texts"]
        seen.clear()
        run_batch(lm, source, tmp_path / "raw.jsonl", raw=True, **SMALL)
        assert all(messages == talk for messages in seen), "raw: a prompt is no chat"
        assert read_rows(tmp_path / "raw.jsonl")[0]["texts"] != first["texts"]

    def test_an_empty_input_is_an_empty_output(
        self, lm: bestk.LanguageModel, tmp_path: Path
    ) -> None:
        (tmp_path / "in.jsonl").write_text("")
        assert run_batch(lm, tmp_path / "in.jsonl", tmp_path / "out.jsonl").num_rows == 0
        assert (tmp_path / "out.jsonl").read_bytes() == b""


BAD = {
    "not json": "not JSON",
    '{"prompt": "a"': "not JSON",
    "[1, 2]": "must be a JSON object",
    '{"prompt": NaN}': "NaN is no JSON value",
    '{"prompt": "a", "tag": 1e999}': "1e999 is past the range of a double",
    '{"prompt": "\\ud800"}': "not JSON",
    '{"prompt": ""}': "the prompt is empty",
    '{"prompt": 3}': "prompt must be text, got 3",
    '{"id": 1}': "one of prompt, messages, token_ids, got none",
    '{"prompt": "a", "token_ids": [1]}': "got prompt and token_ids",
    '{"token_ids": []}': "a list that is not empty",
    '{"token_ids": [1, 999]}': "token ids go from 0 to 31, got 999",
    '{"token_ids": ["a"]}': "must be whole numbers, got 'a'",
    '{"messages": [{"role": "user", "content": "a"}]}': "no chat template",
    '{"messages": ["a"]}': "dicts with role and content, got 'a'",
    '{"prompt": "a", "options": {"beamsize": 2}}': "did you mean 'beam_size'?",
    '{"prompt": "a", "options": {"k": 0}}': "k must be at least 1, got 0",
    '{"prompt": "a", "options": [1]}': "options must be an object",
    '{"prompt": "a", "options": {"suppress_tokens": [99]}}': "suppress_tokens go from 0 to 31",
    '{"prompt": "a", "texts": []}': "column 'texts' is one of the output's own",
}


class TestBadRows:
    def test_go_to_the_errors_file_and_stop_nothing(
        self, lm: bestk.LanguageModel, tmp_path: Path
    ) -> None:
        good = {"id": "good", "prompt": "the dog"}
        rows = [entry for bad in BAD for entry in (bad, good)]
        source = write_rows(tmp_path / "in.jsonl", ["", *rows, ""])
        done = run_batch(lm, source, tmp_path / "out.jsonl", batch_size=2, window=4, **SMALL)
        assert (done.num_rows, done.num_bad) == (len(BAD), len(BAD))
        found = read_rows(tmp_path / "out.jsonl")
        assert [row["line"] for row in found] == [3 + 2 * i for i in range(len(BAD))]
        errors = read_rows(done.errors)
        assert [error["line"] for error in errors] == [2 + 2 * i for i in range(len(BAD))]
        for error, reason in zip(errors, BAD.values(), strict=True):
            assert reason in error["error"]
        assert next(error for error in errors if "got none" in error["error"])["id"] == 1

    def test_words_of_one_row_are_barred_from_it_alone(
        self, lm: bestk.LanguageModel, tmp_path: Path
    ) -> None:
        row = {"prompt": "the dog"}
        rows = [row, row | {"options": {"bad_words": ["sings"]}}]
        done = run_batch(lm, write_rows(tmp_path / "in.jsonl", rows), tmp_path / "o.jsonl", **SMALL)
        assert (done.num_rows, done.num_bad) == (2, 0)
        sung = [
            any("sings" in text for text in r["texts"]) for r in read_rows(tmp_path / "o.jsonl")
        ]
        assert sung == [True, False]

    def test_a_row_that_the_reranker_cannot_judge(
        self, lm: bestk.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(MBR, "needs_source", True)
        rows = [{"prompt": "the dog"}, {"token_ids": [1, 2]}]
        source = write_rows(tmp_path / "in.jsonl", rows)
        done = run_batch(lm, source, tmp_path / "out.jsonl", rerank="mbr-chrf", **SMALL)
        assert (done.num_rows, done.num_bad) == (1, 1)
        assert "cannot be judged as text" in read_rows(done.errors)[0]["error"]

    def test_bytes_that_are_no_text(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        (tmp_path / "in.jsonl").write_bytes(b'{"prompt": "\xff"}\n{"prompt": "a dog"}')
        done = run_batch(lm, tmp_path / "in.jsonl", tmp_path / "out.jsonl", **SMALL)
        assert (done.num_rows, done.num_bad) == (1, 1)
        assert "not UTF-8" in read_rows(done.errors)[0]["error"]

    def test_a_row_that_breaks_the_model(self, tmp_path: Path) -> None:
        def distribution(prefix: tuple[int, ...]) -> list[float]:
            return [math.nan if 3 in prefix else 0.5, 0.5, 0.0, 0.0]

        lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=4))
        rows = [{"token_ids": [1]}, {"token_ids": [3], "id": "x"}, {"token_ids": [2]}]
        source = write_rows(tmp_path / "in.jsonl", rows)
        for name, options in (("plain", {}), ("shaped", {"temperature": 0.5})):
            done = run_batch(lm, source, tmp_path / f"{name}.jsonl", **SMALL, **options)
            assert (done.num_rows, done.num_bad) == (2, 1)
            (error,) = read_rows(done.errors)
            assert (error["line"], error["id"]) == (2, "x")
            assert "NaN" in error["error"]

    def test_a_row_that_does_not_fit_into_memory(self, tmp_path: Path) -> None:
        def distribution(prefix: tuple[int, ...]) -> list[float]:
            if 3 in prefix:
                raise MemoryError
            return [0.5, 0.5, 0.0, 0.0]

        lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=4))
        rows = [{"token_ids": [1]}, {"token_ids": [3]}, {"token_ids": [2]}]
        source = write_rows(tmp_path / "in.jsonl", rows)
        done = run_batch(lm, source, tmp_path / "out.jsonl", **SMALL)
        assert (done.num_rows, done.num_bad) == (2, 1)
        assert "out of memory" in read_rows(done.errors)[0]["error"]

    def test_an_engine_that_fails_ends_the_job_and_keeps_what_is_done(self, tmp_path: Path) -> None:
        is_down = True

        def distribution(prefix: tuple[int, ...]) -> list[float]:
            if is_down and prefix[0] == 2:
                raise ModelError("the server is gone: start it again")
            return [0.5, 0.5, 0.0, 0.0]

        lm = bestk.LanguageModel(ToyBackend(distribution, vocab_size=4))
        rows = [{"token_ids": [1]}] * 4 + [{"token_ids": [2]}] * 2
        source = write_rows(tmp_path / "in.jsonl", rows)
        with pytest.raises(BestKError, match="the server is gone"):
            run_batch(lm, source, tmp_path / "out.jsonl", batch_size=2, window=2, **SMALL)
        assert len(read_rows(tmp_path / "out.jsonl.job" / "results.jsonl")) == 4
        assert not (tmp_path / "out.jsonl").exists()
        is_down = False
        done = run_batch(lm, source, tmp_path / "out.jsonl", batch_size=2, window=2, **SMALL)
        assert (done.num_rows, done.num_bad, done.num_read) == (6, 0, 2)


class TestFormats:
    def test_gzip_in_and_out(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(20))
        (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(source.read_bytes()))
        sizes = {"batch_size": 2, "window": 4}
        run_batch(lm, source, tmp_path / "plain.jsonl", **sizes, **SMALL)
        run_batch(lm, tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl.gz", **sizes, **SMALL)
        packed = (tmp_path / "out.jsonl.gz").read_bytes()
        assert gzip.decompress(packed) == (tmp_path / "plain.jsonl").read_bytes()
        run_batch(lm, tmp_path / "in.jsonl.gz", tmp_path / "again.jsonl.gz", **sizes, **SMALL)
        assert (tmp_path / "again.jsonl.gz").read_bytes() == packed, "no clock in it"

    def test_parquet_keeps_the_types_of_what_it_passes_on(
        self, lm: bestk.LanguageModel, tmp_path: Path
    ) -> None:
        import datetime

        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        rows = rows_of(50)
        day = datetime.datetime(2024, 1, 2, 3, 4, 5)
        table = pa.table(
            {
                "prompt": [row["prompt"] if i != 7 else None for i, row in enumerate(rows)],
                "when": pa.array([day] * 50, pa.timestamp("ms")),
                "bytes": pa.array([b"\xff"] * 50, pa.binary()),
                "id": pa.array(range(50), pa.int16()),
                "options": [row.get("options") for row in rows],
            }
        )
        pq.write_table(table, tmp_path / "in.parquet", row_group_size=13)
        sizes = {"batch_size": 2, "window": 8}
        done = run_batch(lm, tmp_path / "in.parquet", tmp_path / "out.parquet", **sizes, **SMALL)
        assert (done.num_rows, done.num_bad) == (49, 1)
        assert read_rows(done.errors)[0]["line"] == 8
        found = pq.read_table(tmp_path / "out.parquet")
        for name in ("when", "bytes", "id"):
            assert found.schema.field(name).type == table.schema.field(name).type
            assert found[name].to_pylist() == [
                v for i, v in enumerate(table[name].to_pylist()) if i != 7
            ]
        write_rows(tmp_path / "in.jsonl", rows)
        run_batch(lm, tmp_path / "in.jsonl", tmp_path / "out.jsonl", **sizes, **SMALL)
        wanted = [row for i, row in enumerate(read_rows(tmp_path / "out.jsonl")) if i != 7]
        for name in ("line", "texts", "scores", "mass", "cost", "stop_reason", "signature"):
            assert found[name].to_pylist() == [row[name] for row in wanted]
        # And as JSON lines, where dates are texts.
        run_batch(lm, tmp_path / "in.parquet", tmp_path / "mixed.jsonl", **sizes, **SMALL)
        first = read_rows(tmp_path / "mixed.jsonl")[0]
        assert (first["when"], first["bytes"]) == ("2024-01-02T03:04:05", "/w==")
        assert first["texts"] == wanted[0]["texts"]

    def test_json_lines_to_parquet_finds_types(
        self, lm: bestk.LanguageModel, tmp_path: Path
    ) -> None:
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        rows = [
            {"prompt": "a dog", "n": 1, "mixed": 1},
            {"prompt": "a cat", "n": 2.5, "mixed": "x"},
        ]
        rows.append({"prompt": "a bird", "late": {"a": [1]}, "mixed": [1]})
        source = write_rows(tmp_path / "in.jsonl", rows)
        run_batch(lm, source, tmp_path / "out.parquet", full=True, **SMALL)
        table = pq.read_table(tmp_path / "out.parquet")
        assert table.schema.field("n").type == pa.float64()
        assert table["n"].to_pylist() == [1.0, 2.5, None]
        assert table["mixed"].to_pylist() == ["1", "x", "[1]"], "of several kinds: as JSON"
        assert table["late"].to_pylist() == [None, None, {"a": [1]}]
        result = bestk.SearchResult.from_json(table["result"].to_pylist()[0])
        assert result.texts == table["texts"].to_pylist()[0]

    @pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
    def test_reading_from_any_place_is_reading_the_rest(self, tmp_path: Path, kind: str) -> None:
        rows = rows_of(30)
        path = write_rows(tmp_path / "in.jsonl", rows)
        if kind == "jsonl.gz":
            path = tmp_path / "in.jsonl.gz"
            path.write_bytes(gzip.compress((tmp_path / "in.jsonl").read_bytes()))
        if kind == "parquet":
            pa = pytest.importorskip("pyarrow")
            pq = pytest.importorskip("pyarrow.parquet")
            path = tmp_path / "in.parquet"
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
        source = open_source(path)
        assert source.count() == 30
        whole = list(source.rows(Offset()))
        assert [row.line for row, _ in whole] == list(range(1, 31))
        for number, (_, place) in enumerate(whole, start=1):
            assert list(source.rows(place)) == whole[number:]
            assert source.place_of(number) == place

    def test_lines_without_a_last_newline_are_counted(self, tmp_path: Path) -> None:
        (tmp_path / "in.jsonl").write_bytes(b"a\nb")
        assert JsonLines(tmp_path / "in.jsonl").count() == 2


class TestShards:
    @pytest.mark.parametrize("count", [3, 20])
    @pytest.mark.parametrize("kind", ["jsonl", "parquet"])
    def test_put_together_are_the_whole(
        self, lm: bestk.LanguageModel, tmp_path: Path, count: int, kind: str
    ) -> None:
        source = write_rows(tmp_path / "in.jsonl", [*rows_of(30), "bad", *rows_of(10, seed=1)])
        if kind == "parquet":
            pa = pytest.importorskip("pyarrow")
            pq = pytest.importorskip("pyarrow.parquet")
            source = tmp_path / "in.parquet"
            pq.write_table(pa.Table.from_pylist(rows_of(45)), source, row_group_size=11)
        sizes = {"batch_size": 2, "window": 8}
        whole = run_batch(lm, source, tmp_path / "whole.jsonl", **sizes, **SMALL)
        results, errors = b"", b""
        for number in range(1, count + 1):
            output = tmp_path / f"{number}.jsonl"
            part = run_batch(lm, source, output, shard=f"{number}/{count}", **sizes, **SMALL)
            results += output.read_bytes()
            errors += part.errors.read_bytes() if part.num_bad else b""
        assert results == (tmp_path / "whole.jsonl").read_bytes()
        assert errors == (whole.errors.read_bytes() if whole.num_bad else b"")

    @pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2"])
    def test_what_is_no_shard(self, text: str) -> None:
        with pytest.raises(OptionError, match="a shard is written i/n"):
            Shard.of(text)


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"k": 2}, "k=5, now it is 2"),
            ({"num_texts": 2}, "num_texts=None, now it is 2"),
            ({"full": True}, "full=False, now it is True"),
            ({"window": 5}, "window=4, now it is 5"),
            ({"shard": "1/2"}, "shard=1/1, now it is 1/2"),
            ({"model": "other"}, "model=toy, now it is other"),
        ],
    )
    def test_jobs_of_different_settings_do_not_mix(
        self, lm: bestk.LanguageModel, tmp_path: Path, change: dict[str, Any], named: str
    ) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(12))
        output = tmp_path / "out.jsonl"
        job = Job(
            model=lm,
            input=source,
            output=output,
            wanted=JobConfig(config=bestk.SearchConfig(**SMALL)),
            batch_size=2,
            window=4,
        )
        steps = follow_batch(job)
        assert [next(steps).num_rows, next(steps).num_rows] == [0, 4]
        steps.close()
        other = bestk.LanguageModel(lm.backend, lm.tokenizer, change.pop("model", lm.name))
        options = {"batch_size": 2, "window": 4, **SMALL, **change}
        with pytest.raises(OptionError, match=named):
            run_batch(other, source, output, **options)
        assert run_batch(lm, source, output, batch_size=2, window=4, **SMALL).num_rows == 12

    def test_a_job_goes_on_in_the_number_format_that_it_was_begun_in(
        self, lm: bestk.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, output = write_rows(tmp_path / "in.jsonl", rows_of(12)), tmp_path / "out.jsonl"
        facts = {"dtype": "4bit", "device": "cpu"}
        monkeypatch.setattr(lm.backend, "facts", lambda: facts)
        job = Job(
            model=lm,
            input=source,
            output=output,
            wanted=JobConfig(config=bestk.SearchConfig(**SMALL)),
            batch_size=2,
            window=4,
        )
        steps = follow_batch(job)
        assert [next(steps).num_rows, next(steps).num_rows] == [0, 4]
        steps.close()
        facts["dtype"] = "float32"
        with pytest.raises(OptionError, match="begun with weights in 4bit, here they are in float"):
            run_batch(lm, source, output, batch_size=2, window=4, **SMALL)
        facts["dtype"] = "4bit"
        assert run_batch(lm, source, output, batch_size=2, window=4, **SMALL).num_rows == 12

    def test_an_input_that_changed(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(6))
        run_batch(lm, source, tmp_path / "out.jsonl", **SMALL)
        write_rows(source, rows_of(7))
        with pytest.raises(OptionError, match=r"input=.* bytes.*now it is"):
            run_batch(lm, source, tmp_path / "out.jsonl", **SMALL)

    def test_a_finished_job_does_nothing(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", [*rows_of(6), "bad"])
        first = run_batch(lm, source, tmp_path / "out.jsonl", **SMALL)
        before = (tmp_path / "out.jsonl").stat()
        again = run_batch(ModelName("toy"), source, tmp_path / "out.jsonl", **SMALL)
        assert (tmp_path / "out.jsonl").stat() == before
        assert (again.num_rows, again.num_bad) == (first.num_rows, first.num_bad) == (6, 1)
        (tmp_path / "out.jsonl").unlink()
        assert run_batch(lm, source, tmp_path / "out.jsonl", **SMALL).num_read == 7

    def test_outputs_that_are_somebody_elses(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(2))
        (tmp_path / "out.jsonl").write_text("mine")
        with pytest.raises(OptionError, match="is there already, and not from a job"):
            run_batch(lm, source, tmp_path / "out.jsonl")
        assert (tmp_path / "out.jsonl").read_text() == "mine"
        with pytest.raises(OptionError, match="cannot be input and output"):
            run_batch(lm, source, source)
        with pytest.raises(OptionError, match="is no folder"):
            run_batch(lm, source, tmp_path / "no" / "out.jsonl")
        with pytest.raises(OptionError, match="must end in one of"):
            run_batch(lm, source, tmp_path / "out.csv")
        with pytest.raises(OptionError, match="is not there"):
            run_batch(lm, tmp_path / "none.jsonl", tmp_path / "out2.jsonl")

    def test_settings_that_no_row_could_run_with(
        self, lm: bestk.LanguageModel, tmp_path: Path
    ) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(2))
        with pytest.raises(OptionError, match="stop_ids go from 0 to 31"):
            run_batch(lm, source, tmp_path / "out.jsonl", stop_ids=(99,))
        with pytest.raises(OptionError, match="unknown reranker"):
            run_batch(lm, source, tmp_path / "out.jsonl", rerank="mbr")
        by_length: Any = ByFunction(lambda prompt, text: len(text))
        with pytest.raises(OptionError, match="a job takes rerankers by name"):
            run_batch(lm, source, tmp_path / "out.jsonl", rerank=by_length)
        with pytest.raises(OptionError, match="suppress_tokens go from 0 to 31"):
            run_batch(lm, source, tmp_path / "out.jsonl", suppress_tokens=(99,))
        assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"], "nothing is left behind"

    def test_two_at_a_time(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(8))
        job = Job(model=lm, input=source, output=tmp_path / "out.jsonl", batch_size=2, window=4)
        steps = follow_batch(job)
        next(steps)
        with pytest.raises(OptionError, match="another job is writing"):
            run_batch(lm, source, tmp_path / "out.jsonl", batch_size=2, window=4)
        steps.close()

    def test_results_that_somebody_cut(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(8))
        job = Job(model=lm, input=source, output=tmp_path / "out.jsonl", batch_size=2, window=4)
        steps = follow_batch(job)
        next(steps), next(steps)
        steps.close()
        (tmp_path / "out.jsonl.job" / "results.jsonl").write_bytes(b"")
        with pytest.raises(SchemaError, match="was changed: it has 0 of"):
            run_batch(lm, source, tmp_path / "out.jsonl", batch_size=2, window=4)

    def test_a_parquet_file_that_is_none(self, lm: bestk.LanguageModel, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        (tmp_path / "in.parquet").write_bytes(b"no")
        with pytest.raises(SchemaError, match="is no Parquet file"):
            run_batch(lm, tmp_path / "in.parquet", tmp_path / "out.jsonl")


class TestCommandLine:
    def test_exit_codes(self, cli: Any, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(6))
        code, out, err = cli("batch", str(source), "-o", str(tmp_path / "a.jsonl"), *OPTIONS)
        assert (code, out) == (0, "")
        assert f"6 rows in {tmp_path / 'a.jsonl'}" in err
        write_rows(source, [*rows_of(6), "bad"])
        arguments = ("batch", str(source), "-o", str(tmp_path / "b.jsonl"), *OPTIONS)
        code, _, err = cli(*arguments)
        assert code == 1
        assert "1 bad rows" in err
        assert cli(*arguments)[0] == 1, "asked again it says the same"
        code, _, err = cli(*arguments, "-k", "3")
        assert code == 2
        assert err.startswith("Error: ")
        assert "k=2, now it is 3" in err

    def test_ctrl_c_keeps_what_is_done(
        self, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from bestk.batch.window import WindowRunner

        source = write_rows(tmp_path / "in.jsonl", rows_of(12))
        arguments = ("batch", str(source), "-o", str(tmp_path / "out.jsonl"), *OPTIONS)
        arguments += ("--batch-size", "2", "--window", "4")
        begin, calls = WindowRunner.begin, []

        def interrupted(self: WindowRunner, rows: Any) -> Any:
            calls.append(len(rows))
            if len(calls) == 2:
                raise KeyboardInterrupt
            return begin(self, rows)

        monkeypatch.setattr(WindowRunner, "begin", interrupted)
        code, _, err = cli(*arguments)
        assert code == 130
        assert "stopped, 4 rows are kept" in err
        assert len(read_rows(tmp_path / "out.jsonl.job" / "results.jsonl")) == 4
        assert cli(*arguments)[0] == 0
        assert calls == [4, 4, 4, 4], "the first window is not searched again"
        assert len(read_rows(tmp_path / "out.jsonl")) == 12

    def test_options_of_load(self, cli: Any, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.jsonl", rows_of(2))
        arguments = ("batch", str(source), "-o", str(tmp_path / "out.jsonl"), *OPTIONS)
        arguments = (*arguments, "--engine-option")
        code, _, err = cli(*arguments, "no_such=1")
        assert code == 2
        assert "unknown option 'no_such'" in err
        code, _, err = cli(*arguments, "what")
        assert code == 2
        assert "--engine-option is written name=value, got 'what'" in err

    def test_progress_says_how_long_it_will_take(self) -> None:
        at: dict[str, Any] = {"is_done": False, "output": Path("o"), "errors": Path("e")}
        from bestk.batch import JobProgress

        begun = JobProgress(num_read=0, num_rows=500, num_bad=0, share=0.5, **at)
        now = JobProgress(num_read=300, num_rows=790, num_bad=10, share=0.8, **at)
        assert describe(now, begun, 6000.0) == ("790 rows, 10 bad, 80%, 0.1 rows/s, 1:06:40 left")
        unknown = JobProgress(num_read=300, num_rows=790, num_bad=0, share=None, **at)
        assert describe(unknown, begun, 10.0) == "790 rows, 30.0 rows/s"


def test_a_source_that_was_read_from_can_be_sent_to_another_process(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 5))
    opened = open_source(source)
    reading = opened.windows(Offset(), None, 2)
    first = next(reading)
    copy = pickle.loads(pickle.dumps(opened))
    assert next(copy.windows(Offset(), None, 2)) == first


def test_the_last_window_ends_at_its_last_row(tmp_path: Path) -> None:
    opened = open_source(write_rows(tmp_path / "in.jsonl", rows_of(6)))
    *_, last = opened.windows(Offset(), 5, 2)
    assert len(last.rows) == 1
    assert last.end == opened.place_of(5)


def test_columns_that_parquet_has_no_type_for_are_text(
    lm: bestk.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found when the searches are done: it must not be what a job fails at."""
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("bestk.batch.parquet._ROWS", 2)
    columns: dict[str, list[Any]] = {
        "empty": [{}, {}, {}, {}],
        "inner": [{"a": []}, {"a": [{}]}, {"a": []}, {"a": []}],
        "large": [2**60 + 1, 1, 0.5, 1.5],  # no double holds the first
        "plain": [{"a": None}, {"a": 1}, {"a": 2}, {"a": 3}],
    }
    rows = [{"prompt": "a", **{n: v[i] for n, v in columns.items()}} for i in range(4)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert run_batch(lm, source, tmp_path / "out.parquet", **SMALL).num_rows == 4
    table = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    for name in ("empty", "inner", "large"):
        assert [json.loads(text) for text in table[name]] == columns[name]
    assert table["plain"] == columns["plain"]


def test_keys_are_written_to_no_file(
    lm: bestk.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bestk.batch.job.load", lambda name, **options: lm)
    model = ModelName("http://localhost:1", {"api_key": "secret", "patience": 5})
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    run_batch(model, source, tmp_path / "out.jsonl", **SMALL)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"patience" in path.read_bytes() for path in files)
    assert not any(b"secret" in path.read_bytes() for path in files)


def test_windows_are_read_only_when_they_are_searched(
    lm: bestk.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays flat only if reading never runs ahead of searching."""
    read: list[int] = []
    rows = JsonLines.rows

    def counted(self: JsonLines, start: Offset) -> Any:
        for row, place in rows(self, start):
            read.append(row.line)
            yield row, place

    monkeypatch.setattr(JsonLines, "rows", counted)
    source = write_rows(tmp_path / "in.jsonl", rows_of(4000))
    wanted = JobConfig(config=bestk.SearchConfig(**SMALL))
    job = Job(model=lm, input=source, output=tmp_path / "o.jsonl", wanted=wanted, batch_size=4)
    steps = follow_batch(job)
    next(steps)
    read.clear()
    next(steps)
    assert len(read) == 64, "a window and no more"
    steps.close()


def test_memory_is_flat(lm: bestk.LanguageModel, tmp_path: Path) -> None:
    """What Python holds after 1,500 rows is what it held after 500; RSS is in benchmarks/."""
    import gc
    import tracemalloc

    source = tmp_path / "in.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for number in range(1500):
            file.write(json.dumps({"prompt": f"the dog {number % 50}", "pad": "x" * 2000}) + "\n")
    wanted = JobConfig(config=bestk.SearchConfig(beam_size=1, max_new_tokens=3, k=3))
    job = Job(model=lm, input=source, output=tmp_path / "o.jsonl", wanted=wanted, batch_size=16)
    held: dict[int, int] = {}
    tracemalloc.start()
    try:
        for step in follow_batch(job):
            gc.collect()
            held[step.num_rows] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    early = max(size for rows, size in held.items() if rows <= 512)
    late = max(size for rows, size in held.items() if rows > 512)
    # 1,000 rows of 2 kB would be 2 MB, their results much more.
    assert late - early < 300_000, f"{early} bytes after 512 rows, {late} later"


@pytest.mark.model
def test_a_real_chat_model(smollm2: bestk.LanguageModel, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Name a colour."}]
    rows: list[dict[str, Any]] = [
        {"prompt": "Name a colour."},
        {"messages": talk},
        {"prompt": "Name a fruit that is red.", "options": {"max_new_tokens": 5}},
    ]
    source = write_rows(tmp_path / "in.jsonl", rows)
    options: dict[str, Any] = {"beam_size": 5, "max_new_tokens": 20, "stop": "."}
    run_batch(smollm2, source, tmp_path / "out.jsonl", **options)
    first, second, third = read_rows(tmp_path / "out.jsonl")
    alone = bestk.search(smollm2, talk, **options)
    assert alone.texts
    assert first["texts"] == second["texts"] == alone.texts
    assert first["scores"] == pytest.approx([h.score for h in alone.hypotheses], abs=1e-4)
    assert "|T:5|" in third["signature"]
