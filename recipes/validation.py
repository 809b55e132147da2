"""What a trained model reaches on its validation part, greedily and with beam search.

Uses the evaluation that `bestk eval` and `bestk report` run; without `bestk[eval]` the texts are
searched all the same, and the scores left out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import bestk
from bestk_eval.report import make_report
from bestk_eval.runner import Settings, evaluate

METHODS = ("BS:beam_size=1", "BS")  # greedy, and ten beams
SHOWN = ("R", "BLEU", "Cov")


def print_scores(
    model: Path, task: str, split: str, data_dir: Path, num_examples: int, device: str
) -> None:
    """Search the examples of a validation part, and print the scores of the likeliest texts."""
    lm = bestk.load(model, device=device, dtype="float32")
    settings = Settings(
        task=task,
        methods=METHODS,
        split=split,
        num_examples=num_examples,
        data_dir=data_dir,
        batch_size=50,
    )
    with tempfile.TemporaryDirectory() as folder:
        for _ in evaluate(lm, settings, Path(folder)):
            pass
        report = make_report(
            [Path(folder)], metrics=["rouge", "bleu", "coverage"], views=["top"], top=1, samples=200
        )
    (board,) = report.boards
    for row, name in zip(METHODS, ("greedy", "beam search"), strict=True):
        cells = {key: board.cells[row][key] for key in SHOWN if key in board.columns}
        told = ", ".join(f"{key} {cell.estimate.value:.1f}" for key, cell in cells.items())
        print(f"{split}, {num_examples} examples, {name}: {told or 'no scores'}", flush=True)
    for name, reason in board.left_out.items():
        print(f"left out: {name}: {reason}", flush=True)
