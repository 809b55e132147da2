"""bestk as a model of the real lm-eval: texts of ours, likelihoods of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bestk

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,  # lm-eval's imports alone take seconds
    pytest.mark.filterwarnings("ignore"),  # it warns of what is its own
]

TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{q}}}}"
doc_to_target: {target}
{more}
"""
WRITTEN = """
repeats: 3
generation_kwargs: {until: ["\\n"], max_gen_toks: 8, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOSEN = """
doc_to_choice: ["Paris", "stone"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def evaluate(folder: Path, model: str, kind: str, target: str, more: str, **asked: Any) -> Any:
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval.tasks import TaskManager

    import bestk_eval.harness  # noqa: F401

    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps({"q": "The capital of France is", "a": "Paris."}) + "\n")
    task = TASK.format(rows=rows, kind=kind, target=target, more=more)
    (folder / "task.yaml").write_text(task)
    return lm_eval.simple_evaluate(
        model=model,
        tasks=["capitals"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        **asked,
    )


def test_requests_of_one_prompt_get_different_texts(tmp_path: Path) -> None:
    asked = {"pretrained": "smollm2", "device": "cpu"}
    found = evaluate(tmp_path, "bestk", "generate_until", '"{{a}}"', WRITTEN, model_args=asked)
    (texts,) = found["samples"]["capitals"][0]["resps"]
    assert len(set(texts)) == 3
    lm = bestk.load("smollm2")
    options: Any = {"num_texts": 3, "max_new_tokens": 8, "stop": ["\n", "<|im_end|>"]}
    assert texts == bestk.search(lm, "The capital of France is", raw=True, **options).texts


def test_likelihoods_are_those_of_transformers(tmp_path: Path) -> None:
    from bestk.lm.loading import source_of

    told = []
    for model, name in (("bestk", "smollm2"), ("hf", source_of("smollm2"))):
        asked = {"pretrained": name, "device": "cpu", "dtype": "float32"}
        found = evaluate(tmp_path, model, "multiple_choice", "0", CHOSEN, model_args=asked)
        told.append(found["samples"]["capitals"][0]["resps"])
        assert found["results"]["capitals"]["acc,none"] == 1
    assert told[0] == told[1]
