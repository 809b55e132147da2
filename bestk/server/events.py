r"""Server-sent events: how news are written to a stream.

>>> event("step", {"step": 1})
'event: step\ndata: {"step":1}\n\n'
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

KEEP_ALIVE = ": still here\n\n"
DONE = "data: [DONE]\n\n"


def event(name: str | None, data: Any) -> str:
    """Write one event; without a name it is what OpenAI's clients read."""
    named = "" if name is None else f"event: {name}\n"
    return f"{named}data: {compact(data)}\n\n"


def compact(data: Any) -> str:
    """Write JSON on one line; there are no line ends in it, whatever the texts hold."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Answer with a stream that no proxy should keep back."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)
