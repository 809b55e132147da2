"""smollm2-cola: whether a sentence is acceptable, for `bestk report --grammar-model smollm2-cola`.

    python recipes/cola.py --data-dir data

Reads cola/in_domain_train, validates on cola/in_domain_dev and cola/out_of_domain_dev. Pairs are
sentences with their labels: five times through the data is --num-pairs 42755.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from adapter import END, lora, write
from torch import Tensor
from training import Encoded, Schedule, Trainer, padded, parser

from bestk.lm.loading import source_of
from bestk.lm.task_models import Card
from bestk_eval.examples import Example
from bestk_eval.metrics.cola import ACCEPTABLE, untrained
from bestk_eval.metrics.grammar import Grammar
from bestk_eval.tasks.reading import read_jsonl

NAME = "smollm2-cola"
MAX_TOKENS = 128
DEV_PARTS = ("in_domain_dev", "out_of_domain_dev")
SCHEDULE = Schedule(num_pairs=5 * 8_551, batch_size=64, learning_rate=5e-4, warm_up=0.06)


class Judged(NamedTuple):
    """A sentence, and whether linguists accept it."""

    sentence: str
    label: int


def main() -> None:
    """Train the adapter with what the command line says."""
    arguments = parser(NAME, SCHEDULE)
    arguments.set_defaults(num_scored=1000)  # all of either part: no text is searched
    options = arguments.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    tokenizer, model = _model(options.device)
    train = _encoded(tokenizer, judged(options.data_dir, "in_domain_train"))
    valid = _encoded(tokenizer, judged(options.data_dir, DEV_PARTS[0]))
    print(f"{NAME}: {len(train)} sentences to train on, {len(valid)} to validate", flush=True)
    schedule = dataclasses.replace(
        SCHEDULE, num_pairs=options.num_pairs, batch_size=options.batch_size
    )
    trainer = Trainer(model, lambda pairs: _loss(model, pairs), schedule, options.output)
    trainer.train(train, valid, options)
    write(
        model,
        options.output,
        Card(base="smollm2", prompt_end=END, task="cola", gives="labels"),
    )
    trainer.finish()
    _print_scores(options.output, options.data_dir, options.num_scored)


def judged(folder: Path, part: str) -> list[Judged]:
    """Read the sentences of a part."""
    (path,) = (folder / "cola").glob(f"{part}.jsonl*")
    return [Judged(record["sentence"], int(record["label"])) for _, record in read_jsonl(path)]


def matthews(wanted: Sequence[bool], given: Sequence[bool]) -> float:
    """Correlate labels: 1 is always right, 0 no better than always the same answer."""
    if len(set(wanted)) < 2 or len(set(given)) < 2:
        return 0.0
    return float(np.corrcoef(wanted, given)[0, 1])


def _model(device: str) -> tuple[Any, Any]:
    from peft import get_peft_model

    # The head is trained whole, so weights are in float32; products on a GPU are not.
    tokenizer, model = untrained(source_of("smollm2"), END)
    return tokenizer, get_peft_model(model.to(device), lora("SEQ_CLS", dropout=0.1))


def _encoded(tokenizer: Any, sentences: Sequence[Judged]) -> list[Encoded]:
    texts = [one.sentence for one in sentences]
    rows = tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"]
    return [(ids, one.label) for ids, one in zip(rows, sentences, strict=True)]


def _loss(model: Any, pairs: Sequence[Encoded]) -> tuple[Tensor, int]:
    """Sum the loss of a few sentences; padding is behind the token that the head looks at."""
    base, device = model.get_base_model(), model.device
    tokens = padded([ids for ids, _ in pairs], base.config.pad_token_id, device)
    last = torch.tensor([len(ids) - 1 for ids, _ in pairs], device=device)
    labels = torch.tensor([label for _, label in pairs], device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = base.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = base.score(hidden[torch.arange(len(pairs), device=device), last])
    return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum"), len(pairs)


def _print_scores(model: Path, data_dir: Path, num_scored: int) -> None:
    """Score the development parts as reports do, with what was saved."""
    grammar = Grammar(str(model))
    for part in DEV_PARTS:
        sentences = judged(data_dir, part)[:num_scored]
        scores = grammar.score(
            [one.sentence for one in sentences], Example(id=part, input=part, references=())
        )
        given = [score > 50 for (score,) in scores]
        wanted = [one.label == ACCEPTABLE for one in sentences]
        accuracy = 100 * float(np.mean(np.equal(given, wanted)))
        print(
            f"{part}, {len(sentences)} sentences: Matthews correlation "
            f"{100 * matthews(wanted, given):.1f}, accuracy {accuracy:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
