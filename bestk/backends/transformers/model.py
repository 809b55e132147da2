"""What the transformers backends share: facts about a model, and plain forward passes.

Prompts are padded on the right everywhere: with causal models what comes later cannot change what
came before, so neither a mask nor a shifted position is needed, for recurrent models either.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.errors import ModelError


class Checkpoint:
    """A loaded model and the facts that a search needs from it."""

    token_input = "input_ids"  # the argument of `forward` that takes the tokens to continue

    def __init__(self, model: Any, name: str | None = None) -> None:
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        self.name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        self.accepts = frozenset(inspect.signature(model.forward).parameters)

    @property
    def device(self) -> torch.device:
        """Return where prompts go in and logits come out."""
        for parameter in self.model.parameters():
            if parameter.device.type != "meta":
                return torch.device(parameter.device)
        raise ModelError(f"model {self.name} has no weights in memory: load it without offloading")

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that the model computes in."""
        return torch.empty(0, dtype=self.model.dtype).dtype

    @property
    def vocab_size(self) -> int:
        """Count the entries of a row of logits."""
        head = self.model.get_output_embeddings()
        weight = getattr(head, "weight", None)
        return int(self.config.vocab_size if weight is None else weight.shape[0])

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Name the ids that end a text, by the generation config or else the model's own."""
        for source in (getattr(self.model, "generation_config", None), self.model.config):
            ids = getattr(source, "eos_token_id", None)
            if ids is not None:
                listed = ids if isinstance(ids, Sequence) else [ids]
                return tuple(int(i) for i in listed if 0 <= int(i) < self.vocab_size)
        return ()

    @property
    def max_length(self) -> int | None:
        """Say how many positions the model has, None where it does not say."""
        length = getattr(self.config, "max_position_embeddings", None)
        return int(length) if length else None

    def last_logits(
        self, prompts: Sequence[Sequence[int]], **options: Any
    ) -> Float[Tensor, "batch vocab"]:
        """Read whole sequences and return the logits after the last token of each."""
        tokens, lengths = pad_right(prompts, self.device)
        with self._only_last(lengths - 1):
            logits = self.model(**{self.token_input: tokens}, **options).logits
        rows = torch.arange(len(lengths), device=self.device)
        # Without the hook there is a position for every token.
        place = lengths - 1 if logits.shape[1] > 1 else torch.zeros_like(lengths)
        last: Tensor = logits.to(self.device)[rows, place]
        return last

    @contextmanager
    def _only_last(self, last: Int[Tensor, " batch"]) -> Iterator[None]:
        """Let the output layer see one position per row: the others' logits are never read."""
        head = self.model.get_output_embeddings()
        if head is None:
            yield
            return

        def pick(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden = inputs[0]
            if hidden.ndim != 3:  # several streams at once: pick from the logits instead
                return inputs
            rows = torch.arange(hidden.shape[0], device=hidden.device)
            return (hidden[rows, last.to(hidden.device)][:, None], *inputs[1:])

        hook = head.register_forward_pre_hook(pick)
        try:
            yield
        finally:
            hook.remove()


def pad_right(
    sequences: Sequence[Sequence[int]], device: torch.device, size: int | None = None
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, " batch"]]:
    """Stack sequences, filled with zeros on the right, and return them with their lengths."""
    lengths = [len(sequence) for sequence in sequences]
    width = max(lengths) if size is None else size
    rows = [[*sequence, *[0] * (width - len(sequence))] for sequence in sequences]
    return (
        torch.tensor(rows, dtype=torch.int64, device=device),
        torch.tensor(lengths, dtype=torch.int64, device=device),
    )
