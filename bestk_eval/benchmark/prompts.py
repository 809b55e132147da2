"""Prompts to measure with: windows of a text that comes with bestk, or random token ids."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from bestk.errors import ModelError
from bestk_eval.benchmark.report import BenchSettings

if TYPE_CHECKING:
    from bestk import LanguageModel

TEXT = resources.files(__package__).joinpath("harbour.txt").read_text(encoding="utf-8")


def make_prompts(lm: LanguageModel, settings: BenchSettings) -> list[list[int]]:
    """Return token ids for every prompt of the batch: all of one length, all different.

    They are windows of the built-in text, taken round and round; random ids where the model has no
    tokenizer; or the one prompt given, as often as asked.
    """
    if not lm.reads_text:
        raise ModelError(f"bench needs a model that reads text, got {lm.name}")
    length = settings.prompt_tokens
    if settings.prompt is not None:
        prompts = [lm.encode(settings.prompt)] * settings.batch
    elif lm.tokenizer is None:
        import torch

        source, size = torch.Generator().manual_seed(settings.seed), lm.backend.vocab_size
        least = min(5, size - 1)  # the first few ids tend to be special ones
        shape = settings.batch, length
        prompts = torch.randint(least, size, shape, generator=source).tolist()
    else:
        text = lm.encode(TEXT.replace("\n", " ").strip())
        starts = [-length - 17 * number for number in range(settings.batch)]
        prompts = [[text[(start + i) % len(text)] for i in range(length)] for start in starts]
    lm.check_length(prompts[0], settings.max_new_tokens)
    return prompts
