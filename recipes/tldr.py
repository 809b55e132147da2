"""smollm2-tldr: a one-sentence summary of an abstract.

    python recipes/tldr.py --data-dir data

Reads scitldr/train and scitldr/dev.
"""

from __future__ import annotations

from pathlib import Path

from adapter import Pair, Recipe, main
from training import Schedule

from bestk_eval.tasks import task_of
from bestk_eval.tasks.reading import read_jsonl


def pairs(folder: Path, split: str) -> list[Pair]:
    """Read an abstract with each of its summaries."""
    task = task_of("scitldr")
    (path,) = (folder / "scitldr").glob(f"{split}.jsonl*")
    found = []
    for _, record in read_jsonl(path):
        document = record["document"]
        text = document if isinstance(document, str) else " ".join(document)
        prompt = task.plain.format(document=" ".join(text.split()))
        found += [Pair(prompt, " ".join(summary.split())) for summary in record["summaries"]]
    return found


RECIPE = Recipe(
    name="smollm2-tldr",
    task="scitldr",
    validated_on=("scitldr", "dev"),
    pairs=lambda folder: pairs(folder, "train"),
    validation=lambda folder: pairs(folder, "dev"),
    max_tokens=448,
    schedule=Schedule(num_pairs=8_000, batch_size=64, learning_rate=5e-4),
)

if __name__ == "__main__":
    main(RECIPE)
