"""smollm2-commongen: a sentence from a set of words.

    python recipes/commongen.py --data-dir data

Reads commongen/train and commongen/test.
"""

from __future__ import annotations

import random
from pathlib import Path

from adapter import Pair, Recipe, main
from training import Schedule

from bestk_eval.tasks import task_of
from bestk_eval.tasks.reading import read_jsonl


def pairs(folder: Path, split: str) -> list[Pair]:
    """Read a sentence for every reference of every set; the words in a shuffled order."""
    task, shuffle = task_of("commongen"), random.Random(0)
    (path,) = (folder / "commongen").glob(f"{split}.jsonl*")
    found = []
    for _, record in read_jsonl(path):
        for sentence in record["references"]:
            words = shuffle.sample(record["concepts"], len(record["concepts"]))
            found.append(Pair(task.plain.format(concepts=" ".join(words)), tidy(sentence)))
    return found


def tidy(sentence: str) -> str:
    """Write a sentence with a capital and a full stop, as most of them are written."""
    sentence = " ".join(sentence.split()).replace(" .", ".").replace(" ,", ",")
    sentence = sentence[:1].upper() + sentence[1:]
    return sentence if sentence.endswith((".", "!", "?")) else sentence + "."


RECIPE = Recipe(
    name="smollm2-commongen",
    task="commongen",
    validated_on=("commongen", "test"),
    pairs=lambda folder: pairs(folder, "train"),
    validation=lambda folder: pairs(folder, "test"),  # results are of dev
    max_tokens=64,
    schedule=Schedule(num_pairs=134_000, batch_size=128, learning_rate=1e-3),
)

if __name__ == "__main__":
    main(RECIPE)
