"""Task models, as the recipes train them: where they lie, and how an adapter becomes a model.

A folder of `models/` is a whole checkpoint, or a LoRA adapter (peft) with a `bestk.json` that names
its base and the tokens that end prompts and texts. Knows files and weights, nothing of search.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestk.errors import MissingExtraError, ModelError, SchemaError, first_line

FORMAT = "bestk.model"
FORMAT_VERSION = 1
CARD = "bestk.json"
GIVES = ("texts", "labels")

# They lie in a checkout, beside the package, or in a package of their own, made from models/.
PACKAGED = ("smollm2-commongen", "smollm2-question", "smollm2-tldr")
_INSTALLED = importlib.util.find_spec("bestk_models")
_FOLDERS = (
    Path(__file__).parents[2] / "models",
    *map(Path, (_INSTALLED and _INSTALLED.submodule_search_locations) or ()),
)


@dataclass(frozen=True, kw_only=True)
class Card:
    """What bestk must know of an adapter besides its weights."""

    base: str  # a whole model of transformers: a short name, a folder or a hub name
    prompt_end: str  # the special token that the tokenizer puts after every prompt
    task: str  # the task of `bestk eval` that it was trained for
    text_end: str | None = None  # the special token that ends texts; None is the base's own
    gives: str = "texts"  # or labels: one that judges texts and writes none

    def write(self, folder: Path) -> None:
        """Write the card into an adapter's folder."""
        told = {"format": FORMAT, "version": FORMAT_VERSION, **vars(self)}
        (folder / CARD).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Card:
        """Read the card of an adapter's folder."""
        try:
            told = json.loads((folder / CARD).read_text(encoding="utf-8"))
            made_for = told.pop("format"), told.pop("version")
            card = cls(**told) if made_for == (FORMAT, FORMAT_VERSION) else None
            for name, value in told.items():
                if not isinstance(value, str) and (name != "text_end" or value is not None):
                    raise TypeError(f"{name} must be text, got {value!r}")
            if told.get("gives", "texts") not in GIVES:
                raise ValueError(f"gives must be {' or '.join(GIVES)}, got {told['gives']!r}")
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise SchemaError(f"{folder / CARD} is no card of an adapter: {error}") from None
        if card is None:
            raise SchemaError(f"{folder / CARD} is not version {FORMAT_VERSION} of {FORMAT}")
        return card


def names() -> list[str]:
    """List the task models that are here and write texts."""
    found = [path for folder in _FOLDERS for path in _models_in(folder)]
    return sorted({path.name for path in found if _writes(path)})


def find(name: str) -> Path | None:
    """Return the folder of a task model, None where there is none of that name."""
    for folder in _FOLDERS:
        if any(path.name == name for path in _models_in(folder)):
            return folder / name
    return None


def check_here(name: str) -> None:
    """Say how to get a task model that has a package and is not here."""
    if name in PACKAGED and find(name) is None:
        raise MissingExtraError(f"{name} comes with another package: pip install bestk-models")


def is_adapter(folder: str | Path) -> bool:
    """Return whether a folder holds an adapter that needs a base model."""
    return (Path(folder) / CARD).is_file() and (Path(folder) / "adapter_config.json").is_file()


def check_card(folder: Path) -> None:
    """Refuse an adapter of which nobody says what it is to be added to."""
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} holds an adapter and no {CARD}: write one that says its base, prompt_end "
            "and task (docs/python-api.md), or load the base with the adapter merged into it"
        )


def check_writes(adapter: Path) -> None:
    """Refuse an adapter that judges texts."""
    if Card.read(adapter).gives == "labels":
        raise ModelError(
            f"{adapter.name} writes no text, it gives labels to texts: use it in a report, "
            f"--grammar-model {adapter.name}"
        )


def merged(model: Any, folder: Path) -> Any:
    """Return the base model with the adapter's weights added to its own."""
    try:
        import peft
    except ImportError:
        raise MissingExtraError(
            f"{folder.name} is an adapter and needs peft: pip install 'bestk[adapters]'"
        ) from None
    # peft would ask the hub for a file that is not in the folder.
    if not any((folder / f"adapter_model.{kind}").is_file() for kind in ("safetensors", "bin")):
        raise ModelError(f"adapter {folder} has no adapter_model.safetensors: put it there")
    try:
        peft.PeftConfig.from_pretrained(str(folder))
        peft.load_peft_weights(str(folder), device="cpu")
    except Exception as error:  # each of the libraries that read weights has errors of its own
        raise ModelError(
            f"adapter {folder} cannot be read: {first_line(error)} (copy its files there again)"
        ) from error
    try:
        return peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"adapter {folder} does not fit its base: {first_line(error)}") from error


def prepare(model: Any, tokenizer: Any, card: Card) -> None:
    """Make a model and its tokenizer read and write as the adapter was trained to."""
    end_prompts(tokenizer, card.prompt_end)
    if card.text_end is not None:
        number = _special(tokenizer, card.text_end)
        model.generation_config.eos_token_id = model.config.eos_token_id = number
        tokenizer.eos_token = card.text_end


def end_prompts(tokenizer: Any, token: str) -> Any:
    """Make a tokenizer put a token after every prompt, so that a model knows where its text starts.

    The tokenizer is changed, and has no chat template any more: prompts are plain texts.
    """
    from tokenizers.processors import TemplateProcessing

    number = _special(tokenizer, token)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {token}", special_tokens=[(token, number)]
    )
    tokenizer.chat_template = None
    return tokenizer


def _special(tokenizer: Any, token: str) -> int:
    if token not in tokenizer.all_special_tokens:
        raise ModelError(
            f"{token!r} is no special token of the tokenizer: it cannot end prompts or texts"
        )
    return int(tokenizer.convert_tokens_to_ids(token))


def _writes(folder: Path) -> bool:
    try:
        return not is_adapter(folder) or Card.read(folder).gives == "texts"
    except SchemaError:
        return True  # loading it says what is wrong


def _models_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [
        path for path in folder.iterdir() if (path / "config.json").is_file() or is_adapter(path)
    ]
