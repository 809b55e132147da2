"""The training loop that the recipes share: AdamW, a cosine, checkpoints. Resumes after a kill.

Knows weights and a loss over encoded pairs; the recipes know models and data.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Encoded = tuple[list[int], Any]  # what a loss takes: ids, and what else it needs to know of them


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast to train."""

    num_pairs: int  # seen in training, with repetition
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    warm_up: float = 0.03  # of all steps

    @property
    def num_steps(self) -> int:
        """Count the steps of the optimizer."""
        return math.ceil(self.num_pairs / self.batch_size)

    def rate(self, step: int) -> float:
        """Return the learning rate: a warm-up, then down to a tenth along a cosine."""
        warm = max(1, round(self.warm_up * self.num_steps))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        done = (step - warm) / max(1, self.num_steps - warm)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


class Trainer:
    """Weights under training, with their place in the schedule.

    `loss` returns the summed loss of a few pairs, and how many tokens that were.
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[[Sequence[Encoded]], tuple[Tensor, int]],
        schedule: Schedule,
        folder: Path,
    ) -> None:
        self.model = model
        self.loss = loss
        self.schedule = schedule
        self.folder = folder
        self.step = 0
        self.losses: list[float] = []
        self.started = time.monotonic()
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.weights, betas=(0.9, 0.98), weight_decay=schedule.weight_decay
        )

    @property
    def checkpoint(self) -> Path:
        """Name the file that a killed run goes on from."""
        return self.folder / "training.pt"

    def train(
        self, train: Sequence[Encoded], valid: Sequence[Encoded], options: argparse.Namespace
    ) -> None:
        """Go through the schedule from where it stands, saving every so often."""
        if not train or not valid:
            raise SystemExit("there are no pairs to train on, or none to validate: see --data-dir")
        self._resume()
        steps = self.schedule.num_steps
        for step, batch in enumerate(_batches(train, self.schedule.batch_size, steps)):
            if step < self.step:
                continue
            self._advance(batch, options.micro_batch)
            if self.step % options.save_every == 0 or self.step == steps:
                told = self._validate(valid[: options.num_validation], options.micro_batch)
                print(f"step {self.step}/{steps}: {self._told()}, validation {told}", flush=True)
                self._save()

    def finish(self) -> None:
        """Forget the checkpoint: the recipe has written the model."""
        self.checkpoint.unlink(missing_ok=True)

    def _advance(self, batch: Sequence[Encoded], micro_batch: int) -> None:
        """Do one step of the optimizer on a batch, in parts that the memory holds."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.step)
        ordered = sorted(batch, key=lambda pair: len(pair[0]))  # parts of equal length pad less
        total, loss = 0, 0.0
        for first in range(0, len(ordered), micro_batch):
            part, tokens = self.loss(ordered[first : first + micro_batch])
            part.backward()
            loss, total = loss + float(part.detach()), total + tokens
        for weight in self.weights:
            if weight.grad is not None:
                weight.grad /= total
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss / total)
        self.step += 1

    @torch.no_grad()
    def _validate(self, pairs: Sequence[Encoded], micro_batch: int) -> str:
        """Return the mean loss of a target's token."""
        self.model.eval()
        found = [
            self.loss(pairs[first : first + micro_batch])
            for first in range(0, len(pairs), micro_batch)
        ]
        return f"{sum(float(loss) for loss, _ in found) / sum(n for _, n in found):.3f}"

    def _told(self) -> str:
        recent = self.losses[-50:]
        rate = len(self.losses) * self.schedule.batch_size / (time.monotonic() - self.started)
        return f"loss {sum(recent) / len(recent):.3f}, {rate:.1f} pairs/s"

    def _save(self) -> None:
        """Write everything that going on needs; the file appears whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.checkpoint.with_suffix(".new")
        state = {"step": self.step, "of": self.schedule.num_steps, "weights": self.weights}
        torch.save({**state, "optimizer": self.optimizer.state_dict()}, scratch)
        os.replace(scratch, self.checkpoint)

    def _resume(self) -> None:
        """Go on from the checkpoint, if there is one of the same schedule."""
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, map_location=self.weights[0].device)
        if state["of"] != self.schedule.num_steps:
            raise SystemExit(
                f"{self.checkpoint} is of {state['of']} steps, these settings make "
                f"{self.schedule.num_steps}: give another folder"
            )
        with torch.no_grad():
            for weight, saved in zip(self.weights, state["weights"], strict=True):
                weight.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        print(f"going on from step {self.step}", flush=True)


def parser(
    name: str, schedule: Schedule, *others: argparse.ArgumentParser
) -> argparse.ArgumentParser:
    """Make the command line that all recipes have, with the options of others."""
    made = argparse.ArgumentParser(description=f"Train {name}.", parents=others, allow_abbrev=False)
    made.add_argument("--data-dir", type=Path, required=True, help="folder of the datasets")
    made.add_argument("-o", "--output", type=Path, default=Path("models") / name)
    made.add_argument("--num-pairs", type=int, default=schedule.num_pairs, help="seen in training")
    made.add_argument("--batch-size", type=int, default=schedule.batch_size)
    made.add_argument("--micro-batch", type=int, default=schedule.batch_size)
    made.add_argument("--num-validation", type=int, default=200, help="pairs of the loss")
    made.add_argument("--num-scored", type=int, default=100, help="examples scored in the end")
    made.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--threads", type=int, default=torch.get_num_threads())
    return made


def padded(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> Tensor:
    """Put rows of different lengths into one tensor."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], device=device)


def _batches(pairs: Sequence[Encoded], size: int, steps: int) -> Iterator[list[Encoded]]:
    """Go through the pairs in a seeded order, as often as it takes; the same in every run."""
    order: list[int] = []
    shuffle = random.Random(0)
    for _ in range(steps):
        while len(order) < size:
            order += shuffle.sample(range(len(pairs)), len(pairs))
        yield [pairs[place] for place in order[:size]]
        del order[:size]
