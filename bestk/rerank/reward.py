"""Any sequence-classification model of the transformers library as a judge of texts.

The model reads prompt and text as a pair. With one output that output is the score (a reward
model); with several the score is the log-probability of one label, the last unless told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestk.errors import ModelError, OptionError, first_line
from bestk.rerank.base import Reranker


class RewardModel(Reranker):
    """Scores texts by a model given by name, by folder, or as an object with its tokenizer."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        label: int = -1,
        batch_size: int = 16,
        device: Any = None,
    ) -> None:
        if isinstance(model, str):
            self.name = f"reward:{model}"
            model, tokenizer = _load(model, device)
        elif tokenizer is None:
            raise OptionError("a reward model given as an object needs its tokenizer too")
        else:
            self.name = (
                f"reward:{getattr(model.config, '_name_or_path', '') or type(model).__name__}"
            )
        self.model, self.tokenizer = model, tokenizer
        self.label, self.batch_size = label, batch_size
        count = int(model.config.num_labels)
        if not -count <= label < count:
            raise OptionError(f"label goes from 0 to {count - 1} for {self.name}, got {label}")

    def __call__(
        self, source: str, texts: Sequence[str], log_probs: Sequence[float] | None = None
    ) -> list[float]:
        size = self.batch_size if self.tokenizer.pad_token_id is not None else 1
        scores: list[float] = []
        for start in range(0, len(texts), size):
            scores += self._batch(source, list(texts[start : start + size]))
        return scores

    def _batch(self, source: str, texts: list[str]) -> list[float]:
        import torch

        encoded = self.tokenizer(
            [source] * len(texts),
            texts,
            padding=len(texts) > 1,
            truncation="only_first",
            max_length=self._max_length(),
            return_tensors="pt",
        ).to(self.model.device)
        with torch.inference_mode():
            logits = self.model(**encoded).logits.float()
        if logits.shape[1] > 1:
            logits = logits.log_softmax(dim=1)
        scores: list[float] = logits[:, self.label].tolist()
        return scores

    def _max_length(self) -> int:
        """Return how many tokens fit; a tokenizer without a limit says some huge number."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or 512
        return min(int(self.tokenizer.model_max_length), int(positions))


def _load(name: str, device: Any) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        model = AutoModelForSequenceClassification.from_pretrained(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ModelError(f"reward model {name} cannot be loaded: {first_line(error)}") from error
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval(), tokenizer
