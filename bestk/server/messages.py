"""The messages of a request as a language model takes them: texts joined, images opened.

An image is in its URL and within the server's limits, or the request is refused; only its header is
read here. Knows no routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestk.lm.images import from_data_url
from bestk.server.limits import Limits
from bestk.server.schemas import ImagePart, Message, TextPart


def chat_of(messages: Sequence[Message], limits: Limits) -> list[dict[str, Any]]:
    """Return messages as chat templates and processors take them."""
    parts = [part for message in messages for part in message.content]
    limits.check_images(sum(isinstance(part, ImagePart) for part in parts))
    return [_plain(message, limits) for message in messages]


def _plain(message: Message, limits: Limits) -> dict[str, Any]:
    content: Any = message.content
    if not isinstance(content, str):
        if all(isinstance(part, TextPart) for part in content):
            content = "".join(part.text for part in content)
        else:
            content = [_part(part, limits) for part in content]
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "content": content, **named}


def _part(part: TextPart | ImagePart, limits: Limits) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image", "image": from_data_url(part.image_url.url, limits.image)}
