"""A TCP proxy on loopback that can reset connections, stop listening, and come back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from ports import free_port


class FlakyProxy:
    """Forwards bytes; `resets` is the share of answers that are cut off by a reset."""

    def __init__(self, target: str, resets: float = 0.0, seed: int = 0) -> None:
        parts = urlsplit(target)
        self.target = (parts.hostname, parts.port)
        self.resets = resets
        self.chance = random.Random(seed)
        self.num_resets = 0
        self.port = free_port()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listen(self) -> None:
        """Take connections, on the same port as before."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def die(self) -> None:
        """Reset every connection and take no more, as a killed server does."""
        asyncio.run_coroutine_threadsafe(self._die(), self._loop).result()

    @contextlib.contextmanager
    def running(self) -> Iterator[FlakyProxy]:
        self._thread.start()
        self.listen()
        try:
            yield self
        finally:
            self.die()
            asyncio.run_coroutine_threadsafe(self._settle(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _die(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            _reset(writer)

    async def _settle(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        back = None
        try:
            answers, back = await asyncio.open_connection(*self.target)
            await asyncio.gather(self._forward(reader, back), self._answer(answers, writer))
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            for end in (writer, back):
                if end is not None:
                    end.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.chance.random() < self.resets:
                self.num_resets += 1
                writer.write(data[: len(data) // 2])
                _reset(writer)
                raise ConnectionResetError
            writer.write(data)
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of a farewell."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
