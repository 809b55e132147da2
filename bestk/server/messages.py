"""The messages of a request as a language model takes them: texts joined, images opened.

An image is in its URL and within the server's limits, or the request is refused; only its header is
read here. Knows no routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestk.lm.images import from_data_url
from bestk.server.limits import Limits
from bestk.server.schemas import ImagePart, Message, RefusalPart, TextPart

_ROLES = {"developer": "system"}  # templates know the older name


def chat_of(messages: Sequence[Message], limits: Limits) -> list[dict[str, Any]]:
    """Return messages as chat templates and processors take them."""
    parts = [part for message in messages for part in message.content or ()]
    limits.check_images(sum(isinstance(part, ImagePart) for part in parts))
    return [_plain(message, limits) for message in messages]


def _plain(message: Message, limits: Limits) -> dict[str, Any]:
    content: Any = message.content or message.refusal or ""
    if not isinstance(content, str):
        if any(isinstance(part, ImagePart) for part in content):
            content = [_part(part, limits) for part in content]
        else:
            content = "".join(part.text for part in content)
    plain = {"role": _ROLES.get(message.role, message.role), "content": content}
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            plain[name] = getattr(message, name)
    if message.tool_calls:
        plain["tool_calls"] = [call.plain() for call in message.tool_calls]
    return plain


def _part(part: TextPart | RefusalPart | ImagePart, limits: Limits) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        return {"type": "image", "image": from_data_url(part.image_url.url, limits.image)}
    return {"type": "text", "text": part.text}
