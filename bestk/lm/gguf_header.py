"""Looks over a GGUF file's header before anybody reads it: every count and size lies in the file.

Readers believe what a header says, so a file of a few bytes could have them work or allocate for
hours. One walk in the time of the header's bytes finds what leads out of the file. Knows no models.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from bestk.errors import ModelError

# Bytes of the scalar types, by their numbers; 8 is a string and 9 an array.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4  # llama.cpp's own


def check_header(path: Path) -> None:
    """Refuse a file whose header is cut off, or says what cannot be."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Header(data).check()
    except (ValueError, struct.error) as error:  # an empty file cannot be mapped
        raise ModelError(f"{path} is no whole GGUF file: {error}") from None


class _Header:
    """A header, and how far it has been read."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.place = data, 0

    def check(self) -> None:
        if self._take(4, "the magic word") != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        (version,) = struct.unpack("<I", self._take(4, "the version"))
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is none that is read")
        num_tensors, num_fields = self._number(), self._number()
        for _ in range(num_fields):
            self._string("a field's name")
            self._value(self._kind())
        # Where the weights begin is known when all are named; none is as long as the file.
        for _ in range(num_tensors):
            self._tensor()

    def _tensor(self) -> None:
        self._string("a tensor's name")
        (num_dimensions,) = struct.unpack("<I", self._take(4, "a tensor's shape"))
        if num_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {num_dimensions} dimensions")
        weights = 1
        for _ in range(num_dimensions):
            weights *= self._number()
        self._take(4, "a tensor's type")
        if self._number() > len(self.data) or weights > 8 * len(self.data):
            raise ValueError("a tensor lies outside of the file")

    def _value(self, kind: int) -> None:
        if kind == _STRING:
            self._string("a text")
        elif kind != _ARRAY:
            self._take(self._size(kind), "a number")
        else:
            inner, count = self._kind(), self._number()
            if inner == _ARRAY:
                raise ValueError("a list of lists is no setting of a model")
            if inner != _STRING:
                self._take(count * self._size(inner), "a list")
                return
            for _ in range(count):  # each takes eight bytes, so it ends with the file
                self._string("a list's text")

    def _kind(self) -> int:
        return int(struct.unpack("<I", self._take(4, "a type"))[0])

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ValueError(f"there is no type {kind}")
        return _SIZES[kind]

    def _string(self, what: str) -> None:
        self._take(self._number(), what)

    def _number(self) -> int:
        return int(struct.unpack("<Q", self._take(8, "a count"))[0])

    def _take(self, size: int, what: str) -> bytes:
        """Return the next bytes, of a long part the first."""
        if size > len(self.data) - self.place:
            raise ValueError(f"{what} of {size} bytes leads out of the file")
        found = self.data[self.place : self.place + min(size, 8)]
        self.place += size
        return found
