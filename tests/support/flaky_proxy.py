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
        self._listener: socket.socket | None = None
        self._deaths = 0
        self._taken: set[socket.socket] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
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
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._take, self._listener)

    def _take(self, listener: socket.socket) -> None:
        # Not asyncio's server: what it is taking when it closes is never closed (before 3.12).
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._taken.add(connection)
        task = self._loop.create_task(self._serve(connection, self._deaths))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _die(self) -> None:
        self._deaths += 1
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for writer in list(self._writers):
            _reset(writer)

    async def _settle(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports close their sockets in the loop's next rounds
        for connection in self._taken:
            connection.close()

    async def _serve(self, connection: socket.socket, deaths: int) -> None:
        back = None
        reader, writer = await asyncio.open_connection(sock=connection)
        self._taken.discard(connection)
        self._writers.add(writer)
        try:
            if deaths != self._deaths:
                _reset(writer)
                return
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
