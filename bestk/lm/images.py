"""Images as messages hold them: objects of Pillow, files, data URLs. No address is ever fetched.

Knows Pillow and what an image may be; nothing of models.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestk.errors import MissingExtraError, PromptError, first_line

# What data URLs may hold, as browsers and OpenAI's clients write them.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_DATA_URL = re.compile(r"data:image/(?:png|jpe?g|webp|gif);base64,", re.IGNORECASE)
_SOURCES = ("image", "path", "url")


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """What an image from outside may be."""

    bytes: int
    pixels: int


def is_image(part: Any) -> bool:
    """Tell the image among the parts of a message."""
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def holds_data(part: Mapping[str, Any]) -> bool:
    """Tell whether an image lies in its part: such a part names no file."""
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    return part.get("type") == "image_url" and isinstance(url, str) and url.startswith("data:")


def image_of(part: Mapping[str, Any]) -> Any:
    """Return the image of a part of a message, read and in RGB."""
    given = [part[name] for name in _SOURCES if part.get(name) is not None]
    if part.get("type") == "image_url":
        url = part.get("image_url")
        given = [url.get("url") if isinstance(url, Mapping) else url]
    if len(given) != 1:
        raise PromptError(
            'an image is given once, as {"type": "image", "image": …}: an image of Pillow, or the '
            f"path of a file; got {', '.join(sorted(map(str, part)))}"
        )
    return _read(given[0] if _is_open(given[0]) else _opened(given[0]))


def from_data_url(url: str, limits: ImageLimits | None = None) -> Any:
    """Open the image of a data URL; nothing past the limits is unpacked."""
    found = _DATA_URL.match(url)
    if found is None:
        raise PromptError(
            "an image's URL must be a data URL of png, jpeg, webp or gif "
            f"(data:image/png;base64,…), no address is fetched: got {url[:40]!r}"
        )
    packed = url[found.end() :]
    if limits is not None and len(packed) // 4 * 3 - 2 > limits.bytes:
        raise PromptError(f"an image has at most {limits.bytes} bytes on this server: shrink it")
    try:
        raw = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PromptError(f"an image's data URL is not base64: {first_line(error)}") from None
    image = _decoded(io.BytesIO(raw))
    if limits is not None and image.width * image.height > limits.pixels:
        raise PromptError(
            f"an image has at most {limits.pixels} pixels on this server, got {image.width} x "
            f"{image.height}: shrink it"
        )
    return image


def shown(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result tells of an image: where it was from, or its size."""
    given: Any = next((part[name] for name in _SOURCES if part.get(name) is not None), None)
    if isinstance(given, str | Path):
        return {"type": "image", "image": str(given)}
    size = "x".join(map(str, given.size)) if _is_open(given) else "data"
    return {"type": "image", "image": f"<{size}>"}


def content_text(content: Any) -> str:
    """Show what a message says: its text, with a mark where an image is.

    >>> content_text([{"type": "text", "text": "This"}, {"type": "image"}, {"text": "is?"}])
    'This [image] is?'
    """
    if not isinstance(content, list | tuple):
        return str(content)
    marks = ("[image]" if is_image(part) else str(part.get("text", "")).strip() for part in content)
    return " ".join(marks)


def _opened(source: Any) -> Any:
    if not isinstance(source, str | Path):
        raise PromptError(
            f"an image is one of Pillow or the path of a file, got {type(source).__name__}"
        )
    text = str(source)
    if text.startswith("data:"):
        return from_data_url(text)
    if "://" in text:
        raise PromptError(
            f"no address is fetched, got {text[:40]!r}: open the image and give that, or its path"
        )
    return _decoded(source)


def _decoded(source: Any) -> Any:
    """Open an image, by its header alone."""
    formats = _FORMATS if isinstance(source, io.BytesIO) else None
    try:
        return _pillow().open(source, formats=formats)
    except _unreadable() as error:
        where = "" if isinstance(source, io.BytesIO) else f" {source}"
        raise PromptError(f"the image{where} cannot be read: {_reason(error)}") from None


def _read(image: Any) -> Any:
    """Unpack an image, upright."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image).convert("RGB")
    except _unreadable() as error:
        raise PromptError(f"the image cannot be read: {_reason(error)}") from None


def _unreadable() -> tuple[type[Exception], ...]:
    """List what Pillow raises of files that are no images, or larger than anybody wants."""
    bombs = _pillow().DecompressionBombError, _pillow().DecompressionBombWarning
    return (OSError, ValueError, SyntaxError, *bombs)


def _reason(error: Exception) -> str:
    """Word an error of Pillow's without the object that it names."""
    return first_line(error).partition(" <_io")[0]


def _is_open(image: Any) -> bool:
    return isinstance(image, _pillow().Image)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "Pillow is not installed, and the prompt has images: pip install 'bestk[images]'"
        ) from error
    return Image
