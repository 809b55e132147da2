"""Reads checkpoints with transformers: weights as they are wanted, with their tokenizer.

Knows files and the hub's names; which names there are, and what is made of a model, is `loading`'s.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bestk.config import DTYPES
from bestk.errors import MissingExtraError, ModelError, OptionError, first_line, unknown

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("bestk")


def weights_of(
    dtype: Any, place: torch.device, device_map: Any, quantization: Any
) -> dict[str, Any]:
    """Say how the weights are to be read, and where to."""
    import torch

    is_wide = dtype == "auto" and device_map is None and place.type == "cpu"
    weights = {"dtype": torch.float32 if is_wide else dtype}
    if quantization is not None:
        weights["quantization_config"] = _quantization(quantization)
        if quantization == "4bit" and dtype == "auto":
            weights["dtype"] = torch.bfloat16  # in float32 texts would depend on their neighbours
        device_map = device_map or {"": place}  # such weights do not move
    return weights if device_map is None else {**weights, "device_map": device_map}


def read(
    source: str, name: str, weights: dict[str, Any], options: dict[str, Any]
) -> tuple[Any, Any]:
    """Read a model, and its tokenizer or processor."""
    try:
        with without_bars():
            loader = loader_of(source, options)
            model: Any = loader.from_pretrained(source, **weights, **options)
    except Exception as error:  # each of the libraries that read weights has errors of its own
        raise ModelError(f"model {name} cannot be loaded: {first_line(error)}") from error
    reads_images = loader is _image_loader()
    return model, (_processor if reads_images else _tokenizer)(source, name, options)


def moved(model: Any, place: torch.device) -> Any:
    """Put a model where it is wanted."""
    try:
        return model.to(place)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"device {place} cannot be used: {first_line(error)}") from error


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers from drawing bars of what takes a moment; downloads keep theirs."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging

    was_shown, hub_was_hidden = logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not hub_was_hidden:
        enable_progress_bars()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        if hub_was_hidden:
            disable_progress_bars()


def loader_of(source: str, options: dict[str, Any]) -> Any:
    """Choose the class that loads a checkpoint, by what its config says it is."""
    import transformers

    config = config_of(source, options)
    if not getattr(config, "is_encoder_decoder", False):
        images = _image_loader()
        return (
            images if type(config) in images._model_mapping else transformers.AutoModelForCausalLM
        )
    speech = transformers.AutoModelForSpeechSeq2Seq
    return speech if type(config) in speech._model_mapping else transformers.AutoModelForSeq2SeqLM


def _image_loader() -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText


def config_of(source: str, options: dict[str, Any]) -> Any:
    """Read the config of a checkpoint."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source, **options)


def _tokenizer(source: str, name: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"model {name} has no tokenizer that loads ({first_line(error)}): put one beside the "
            "weights, or use from_transformers(model, tokenizer)"
        ) from error


def _processor(source: str, name: str, options: dict[str, Any]) -> Any:
    """Load what makes tensors of images and text; the tokenizer alone where that cannot be."""
    import transformers

    loader: Any = transformers.AutoProcessor
    try:
        return loader.from_pretrained(source, **options)
    except Exception as error:  # packages that are not installed, files that are not there
        logger.warning(
            "%s reads text alone: its processor cannot be loaded (%s); images need the extra "
            "bestk[images], some models torchvision too",
            name,
            first_line(error),
        )
        return _tokenizer(source, name, options)


def tokenizer_of(given: Any) -> Any:
    """Return the tokenizer of a processor, or what is one."""
    from transformers import ProcessorMixin

    return given.tokenizer if isinstance(given, ProcessorMixin) else given


def dtype_of(dtype: Any) -> Any:
    """Return the number format that is meant."""
    import torch

    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    if dtype not in DTYPES:
        raise OptionError(unknown("dtype", str(dtype), DTYPES))
    return getattr(torch, dtype)


def _quantization(wanted: Any) -> Any:
    """Return the quantization config that is meant."""
    if not isinstance(wanted, str):
        return wanted
    if wanted != "4bit":
        raise OptionError(
            unknown("quantization", wanted, ["4bit"]) + " (or give a config of transformers)"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError(f"{wanted} weights need bitsandbytes: pip install bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True)  # type: ignore[no-untyped-call]


def device_of(device: Any) -> torch.device:
    """Return the device that is meant; a GPU if there is one."""
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise OptionError(f"device must be like cpu, cuda or cuda:1, got {device!r}") from None
