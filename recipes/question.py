"""smollm2-question: a question from an answer and its context.

    python recipes/question.py --data-dir data

Reads the two subsets of SQuAD's training part and those articles of its development part that
`squad_held_out.py` does not keep for testing.
"""

from __future__ import annotations

import random
from pathlib import Path

from adapter import Pair, Recipe, main
from squad_held_out import part_of
from training import Schedule

from bestk_eval.tasks import task_of
from bestk_eval.tasks.reading import read_jsonl

NUM_VALIDATION = 200


def all_pairs(folder: Path) -> list[Pair]:
    """Read every pair of training data, in an order that is always the same."""
    plain = task_of("squad").plain
    found = []
    for path in sorted((folder / "squad").glob("*.jsonl*")):
        for _, record in read_jsonl(path):
            if "title" in record and part_of(record["title"]) != "train":
                continue
            # A subset has sentences without an answer: they teach what questions look like.
            context = record["context"] if "context" in record else record["sentence"]
            answer = record["answers"][0] if "answers" in record else record.get("answer", "")
            prompt = plain.format(answer=answer, context=" ".join(context.split()))
            found.append(Pair(prompt.strip(), " ".join(record["question"].split())))
    random.Random(0).shuffle(found)
    return found


RECIPE = Recipe(
    name="smollm2-question",
    task="squad",
    validated_on=(str(Path(__file__).with_name("squad_held_out.py")), "validation"),
    pairs=lambda folder: all_pairs(folder)[NUM_VALIDATION:],
    validation=lambda folder: all_pairs(folder)[:NUM_VALIDATION],
    max_tokens=512,
    schedule=Schedule(num_pairs=40_000, batch_size=64, learning_rate=1e-3),
)

if __name__ == "__main__":
    main(RECIPE)
