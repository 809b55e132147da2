"""CoLA models: classifiers of two labels, the second of which means acceptable.

One is a checkpoint that transformers loads, or an adapter as `recipes/cola.py` trains them: LoRA
and a head on a causal model, which looks at the token that ends a text.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from bestk.errors import MissingDataError, ModelError, SchemaError
from bestk.lm import task_models
from bestk.lm.loading import base_of

ACCEPTABLE = 1

_PATIENCE = 10.0  # seconds


def load_cola(name: str) -> tuple[Any, Any]:
    """Load a tokenizer and a model by short name, folder or hub name."""
    import torch

    folder = task_models.find(name) or Path(name)
    if task_models.is_adapter(folder):
        tokenizer, model = _adapted(name, folder)
    else:
        tokenizer, model = _whole(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return tokenizer, model.eval().to(device)


def untrained(source: str, prompt_end: str) -> tuple[Any, Any]:
    """Return the tokenizer of a causal model, and the model with a new head for two labels."""
    import torch
    import transformers

    tokenizer = task_models.end_prompts(
        transformers.AutoTokenizer.from_pretrained(source), prompt_end
    )
    # The head looks at the last token that is no padding, which must not be the end of the text.
    special = (tokenizer.eos_token, *tokenizer.all_special_tokens)
    padding = next((token for token in special if token not in (None, prompt_end)), None)
    if padding is None:
        raise ModelError(f"the tokenizer of {source} has no special token but {prompt_end!r}")
    tokenizer.pad_token = padding
    tokenizer.padding_side = "right"
    told = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)  # the head has no weights yet: that is known
    try:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            source, num_labels=2, pad_token_id=tokenizer.pad_token_id, dtype=torch.float32
        )
    finally:
        transformers.logging.set_verbosity(told)
    return tokenizer, model


def _adapted(name: str, folder: Path) -> tuple[Any, Any]:
    try:
        card = task_models.Card.read(folder)
        if card.gives != "labels":
            raise ModelError(f"it gives {card.gives}, not labels")
        tokenizer, model = untrained(base_of(folder), card.prompt_end)
        return tokenizer, task_models.merged(model, folder)
    except (ModelError, SchemaError, OSError, ValueError) as error:
        raise MissingDataError(f"{name} is no CoLA model that can be had: {error}") from error


def _whole(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        # Asked for files it cannot reach, the hub's library tries for a minute, line by line.
        here = not _is_on_hub(name)
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=here)
        model = AutoModelForSequenceClassification.from_pretrained(name, local_files_only=here)
    except (OSError, ValueError) as error:
        way = f"hf download {name}" if "/" in name else "recipes/cola.py makes smollm2-cola"
        raise MissingDataError(
            f"the CoLA model {name} is not there: {way}, or name a folder that holds "
            "one with --grammar-model"
        ) from error
    if model.config.num_labels != 2:
        raise MissingDataError(
            f"a CoLA model has 2 labels, {name} has {model.config.num_labels}: name another"
        )
    return tokenizer, model


def _is_on_hub(name: str) -> bool:
    """Ask the hub once whether it has a model; a folder is none, and no answer is no."""
    import huggingface_hub

    if Path(name).exists():
        return False
    try:
        huggingface_hub.HfApi().model_info(name, timeout=_PATIENCE)
    except Exception:  # errors of the hub, of its client and of the network
        return False
    return True
