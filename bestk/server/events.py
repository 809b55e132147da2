r"""Server-sent events: how news are written to a stream.

>>> event("step", {"step": 1})
'event: step\ndata: {"step":1}\n\n'
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

KEEP_ALIVE = ": still here\n\n"
DONE = "data: [DONE]\n\n"


def event(name: str | None, data: Any) -> str:
    """Write one event; without a name it is what OpenAI's clients read."""
    named = "" if name is None else f"event: {name}\n"
    return f"{named}data: {compact(data)}\n\n"


def compact(data: Any) -> str:
    """Write JSON on one line; there are no line ends in it, whatever the texts hold."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Stream(StreamingResponse):
    """A stream that no proxy should keep back; `on_end` is called however it ends.

    Not left to the events' own `finally`: a client may leave before the first of them is asked for.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.on_end()
