"""Reads checkpoints with transformers: weights as they are wanted, with their tokenizer.

Knows files and the hub's names; which names there are, and what is made of a model, is `loading`'s.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestk.backends.transformers.cpu_linear import multiplies_bfloat16
from bestk.config import DTYPES
from bestk.errors import (
    BestKError,
    MissingExtraError,
    ModelError,
    OptionError,
    first_line,
    unknown,
)
from bestk.lm.gguf_file import described, is_gguf, read_gguf, stored_dtype

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("bestk")


@dataclass(frozen=True)
class Weights:
    """How a model's weights are to be held, and where."""

    dtype: Any  # torch's, "auto", or "4bit" as they are stored
    place: torch.device
    device_map: Any = None
    quantization: Any = None

    @property
    def can_move(self) -> bool:
        """Whether they can be put where they are wanted once they are read."""
        return self.device_map is None and self.quantization is None

    def wide(self) -> Weights:
        """Return the same, with nothing rounded on a CPU unless it is asked for by name."""
        import torch

        if self.dtype == "4bit":
            raise OptionError("weights stay in 4 bits in whole models alone: load with float32")
        is_free = self.dtype == "auto" and self.can_move and self.place.type == "cpu"
        return replace(self, dtype=torch.float32) if is_free else self

    def best(self, stored: Any) -> Any:
        """Return the format that is meant, of weights that are stored in another."""
        import torch

        if self.dtype == "auto" and self.quantization == "4bit":
            return torch.bfloat16  # in float32 texts would depend on their neighbours
        if self.dtype != "auto" or self.device_map is not None:
            return self.dtype
        if self.place.type != "cpu":
            return torch.bfloat16 if stored == "4bit" else self.dtype
        if stored in (None, torch.float32) or not multiplies_bfloat16():
            return torch.float32
        return "4bit" if stored == "4bit" else torch.bfloat16

    def options(self, stored: Any) -> dict[str, Any]:
        """Say it in transformers' words."""
        if self.dtype == "4bit":
            raise OptionError('dtype "4bit" is for GGUF files: others take quantization="4bit"')
        told: dict[str, Any] = {"dtype": self.best(stored)}
        if self.quantization is not None:
            told["quantization_config"] = _quantization(self.quantization)
        if not self.can_move:
            told["device_map"] = self.device_map or {"": self.place}
        return told


def read(source: str, name: str, weights: Weights, options: dict[str, Any]) -> tuple[Any, Any]:
    """Read a model, and its tokenizer or processor."""
    try:
        if is_gguf(source):
            return _gguf(Path(source), weights)
        with without_bars():
            config = config_of(source, options)
            loader = loader_of(config)
            told = weights.options(config.dtype)
            model: Any = loader.from_pretrained(source, **told, **options)
    except BestKError:
        raise
    except Exception as error:  # each of the libraries that read weights has errors of its own
        raise ModelError(f"model {name} cannot be loaded: {first_line(error)}") from error
    reads_images = loader is _image_loader()
    return model, (_processor if reads_images else _tokenizer)(source, name, options)


def _gguf(path: Path, weights: Weights) -> tuple[Any, Any]:
    if not weights.can_move:
        raise OptionError(f"{path} is a GGUF file: it takes dtype and device, nothing more")
    # transformers' bar heeds no switch but the place that it writes to.
    with without_bars(), contextlib.redirect_stderr(io.StringIO()):
        stored = stored_dtype(path)
        dtype = weights.best(stored)
        if dtype == "4bit" and (stored != "4bit" or weights.place.type != "cpu"):
            raise OptionError('dtype "4bit" is for GGUF files of 4 bits, on a CPU: leave it out')
        return read_gguf(path, stored if dtype == "auto" else dtype)


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


def loader_of(config: Any) -> Any:
    """Choose the class that loads a checkpoint, by what its config says it is."""
    import transformers

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

    folder = described(Path(source)) if is_gguf(source) else source
    return AutoConfig.from_pretrained(folder, **options)


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

    if isinstance(dtype, torch.dtype) or dtype in ("auto", "4bit"):
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
