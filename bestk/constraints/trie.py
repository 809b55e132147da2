"""A catalogue: the token sequences of which every text is one, as a trie in flat arrays.

Nodes are numbered level by level from the root, 0; the children of a node lie side by side, sorted
by token, so that a node is its token, where its children begin, and the row that ends there:

    rows: 0 "A B", 1 "A", 2 "C"     node    0    1    2    3
                                    token   -    A    C    B
                                    first   1    3    4    4    4
                                    item   −1    1    2    0

Knows ids and rows; no model and no search.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from bestk.constraints.sequences import MOST, flat, names_of
from bestk.errors import OptionError, SchemaError, unknown

logger = logging.getLogger("bestk")

FORMAT, VERSION = "bestk.trie", 1
_ALIGNED = 64  # bytes, for whoever maps a file
_AT_ONCE = 10_000  # texts turned into ids in one call
_ARRAYS = ("token", "first", "item", "names")

Array = Shaped[np.ndarray, "..."]


class Trie:
    """Sequences of token ids, each an item: the row that it came in, or what that was named.

    >>> trie = Trie.from_sequences([[5, 7], [5, 8], [6]], items=["tea", "milk", "salt"])
    >>> len(trie), trie.num_nodes, trie.item_at(trie.find([5, 8]))
    (3, 5, 'milk')
    """

    def __init__(self, arrays: dict[str, Array], facts: dict[str, Any]) -> None:
        self.token: Int[np.ndarray, " nodes"] = arrays["token"]
        self.first: Int[np.ndarray, " nodes+1"] = arrays["first"]
        self.item: Int[np.ndarray, " nodes"] = arrays["item"]  # the row that ends here, −1: none
        self.names: Int[np.ndarray, " bytes"] = arrays["names"]  # as JSON, if there are any
        self.facts = facts
        self.num_rows: int = facts["num_rows"]  # rows go from 0 to it; some may hold no item
        self.tensors: dict[Any, Any] = {}  # copies on devices, for who searches

    @classmethod
    def from_sequences(cls, ids: Any, items: Any = None) -> Trie:
        """Build a trie of rows of token ids: an array padded with −1, lists, or an arrow column.

        `items` names the rows, with numbers or text; a name may come twice. Of rows with the same
        ids the first is the item.
        """
        values, lengths = flat(ids)
        count = len(lengths)
        return _built(values, lengths, np.arange(count), names_of(items, count), count)

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        tokenizer: Any,
        *,
        start: str = " ",
        end: str = "\n",
        items: Any = None,
    ) -> Trie:
        """Build a trie of texts as they stand in a longer one: after `start`, and before `end`.

        Without an end no text is likelier than one that begins it, as "The Rhine" begins "The Rhine
        Falls". The tokenizer's own end of texts will do: `end=tokenizer.eos_token`.
        """
        texts = list(texts)
        for row, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise OptionError(f"row {row} must be a text that is not empty, got {text!r:.60}")
        rows: list[Sequence[int]] = []
        for first in range(0, len(texts), _AT_ONCE):
            some = [start + text + end for text in texts[first : first + _AT_ONCE]]
            rows += tokenizer(some, add_special_tokens=False)["input_ids"]
        trie = cls.from_sequences(rows, items)
        trie.facts["spelt"] = [start + texts[0] + end, list(map(int, rows[0]))]
        return trie

    def with_items(self, add: Any = None, remove: Iterable[Any] = (), items: Any = None) -> Trie:
        """Return a trie with other items; rows keep their numbers, and new ones follow."""
        return self.without_rows(self.rows_of(remove), add, items)

    def without_rows(
        self, gone: Int[np.ndarray, " gone"], add: Any = None, items: Any = None
    ) -> Trie:
        """Return a trie without some rows, whatever they are named."""
        values, lengths, rows = self._sequences()
        stays = ~np.isin(rows, gone)
        values, lengths, rows = values[np.repeat(stays, lengths)], lengths[stays], rows[stays]
        more, more_lengths = (values[:0], lengths[:0]) if add is None else flat(add)
        old, new = self._names, names_of(items, len(more_lengths))
        if len(more_lengths) and (old is None) != (new is None):
            raise OptionError("items must name the new rows if the old ones have names, else not")
        trie = _built(
            np.concatenate([values, more]),
            np.concatenate([lengths, more_lengths]),
            np.concatenate([rows, self.num_rows + np.arange(len(more_lengths))]),
            old if new is None else [*(old or ()), *new],
            self.num_rows + len(more_lengths),
        )
        trie.facts["spelt"] = self.facts.get("spelt")
        return trie

    def __len__(self) -> int:
        return int(self.facts["num_items"])

    @property
    def num_nodes(self) -> int:
        """Count the nodes, the root included."""
        return len(self.token)

    @property
    def num_duplicates(self) -> int:
        """Count the rows that hold the ids of an earlier one."""
        return int(self.facts["num_duplicates"])

    @property
    def nbytes(self) -> int:
        """Count the bytes, of names too."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    @functools.cached_property
    def depth(self) -> int:
        """The longest sequence."""
        return len(self.levels) - 1

    @functools.cached_property
    def levels(self) -> list[tuple[int, int]]:
        """The nodes of every level, from the root's to the deepest: from, to."""
        starts = [0, 1]
        while starts[-1] < self.num_nodes:
            starts.append(int(self.first[starts[-1]]))
        return list(itertools.pairwise(starts))

    @functools.cached_property
    def fan_outs(self) -> tuple[int, int]:
        """The most children of a node, and of one that is not the root."""
        counts = np.diff(self.first)
        return int(counts.max()), int(counts[1:].max())

    @functools.cached_property
    def is_nested(self) -> bool:
        """Whether an item begins another."""
        return bool(((self.item >= 0) & (np.diff(self.first) > 0)).any())

    @functools.cached_property
    def digest(self) -> str:
        """Eight letters for what it holds."""
        return f"{_crc(self._arrays()):08x}"

    def describe(self) -> str:
        """Tell in lines what it holds.

        >>> print(Trie.from_sequences([[5, 7], [5, 8], [6]]).describe())
        3 items in 5 nodes, 1 to 2 tokens long, ids to 8, 18 bytes an item
        """
        lengths = [n for n, (a, b) in enumerate(self.levels) if (self.item[a:b] >= 0).any()]
        told = f"{len(self):,} items in {self.num_nodes:,} nodes, "
        told += f"{lengths[0]} to {lengths[-1]} tokens long, ids to {self.token.max()}, "
        told += f"{self.nbytes / max(len(self), 1):.0f} bytes an item"
        repeated = f"\n{self.num_duplicates:,} rows hold the ids of an earlier one"
        return told + (repeated if self.num_duplicates else "")

    def find(self, ids: Sequence[int]) -> int:
        """Return the node of a prefix, −1 if no item begins with it."""
        node, tokens, first = 0, self.token.data, self.first.data  # as quick to read as lists
        for token in ids:
            end = first[node + 1]
            node = bisect.bisect_left(tokens, token, first[node], end)
            if node == end or tokens[node] != token:
                return -1
        return node

    def item_at(self, node: int) -> Any:
        """Return the item that ends at a node, None if none does."""
        row = int(self.item[node])
        return None if row < 0 else row if self._names is None else self._names[row]

    def rows_of(self, items: Iterable[Any]) -> Int[np.ndarray, " rows"]:
        """Return the rows of items, which are given as results name them."""
        if self._names is not None:
            rows: list[int] = []
            for item in items:
                if item not in self._rows:
                    few = () if len(self._rows) > _AT_ONCE else map(str, self._rows)
                    raise OptionError(unknown("item", str(item), few).removesuffix(": known: "))
                rows += self._rows[item]
            return np.array(rows, np.int64)
        given = np.asarray(list(items))
        is_right = given.dtype.kind in "iu"
        bad = (given < 0) | (given >= self.num_rows) if is_right else np.ones(len(given), bool)
        if bad.any():
            raise OptionError(
                f"items are rows from 0 to {self.num_rows - 1}, got {given[bad.argmax()]!s}"
            )
        return given.astype(np.int64)

    def barred(self, items: Iterable[Any]) -> Int[np.ndarray, " barred"]:
        """Return, sorted, the nodes that must not be entered, as 2·node + 1, without some items.

        Where other items go on from one that is left out, its node ends none: 2·node.
        """
        ends = np.unique(self._node_of[self.rows_of(items)])
        ends = ends[ends >= 0]
        counts = self.first[ends + 1] - self.first[ends]
        dead, silent, above = [ends[counts == 0]], ends[counts > 0], ends[:0]
        for start, end in reversed(self.levels[1:]):
            here = np.union1d(dead[0][(dead[0] >= start) & (dead[0] < end)], above)
            parents, number = np.unique(self._parents(here), return_counts=True)
            is_dead = number == self.first[parents + 1] - self.first[parents]
            is_dead &= (self.item[parents] < 0) | np.isin(parents, silent)
            dead.append(above := parents[is_dead])
        every = np.unique(np.concatenate(dead))
        return np.sort(np.concatenate([2 * every + 1, 2 * np.setdiff1d(silent, every)]))

    def check_vocabulary(self, size: int) -> None:
        """Refuse ids that a model does not have; the first row with one is named."""
        bad = self.token >= size
        if bad.any():
            node = token = int(bad.argmax())
            while self.item[node] < 0:
                node = int(self.first[node])
            raise OptionError(
                f"token ids go from 0 to {size - 1}, got {self.token[token]} in row "
                f"{self.item[node]} of the trie: build it for this model"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that appears whole or not at all."""
        arrays = self._arrays()
        told = self.facts | {
            "format": FORMAT,
            "version": VERSION,
            "arrays": {name: [array.dtype.str, len(array)] for name, array in arrays.items()},
        }
        head = json.dumps({"told": told, "crc32": _crc(arrays, told)}).encode()
        target, blank = Path(path), -(len(head) + 1) % _ALIGNED
        scratch = target.with_name(target.name + ".new")
        try:
            with scratch.open("wb") as file:
                file.write(head + b" " * blank + b"\n")
                for array in arrays.values():
                    file.write(array.tobytes() + b"\0" * (-array.nbytes % _ALIGNED))
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, target)
        except OSError as error:
            raise OptionError(f"cannot write {target}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = False) -> Trie:
        """Read what `save` wrote; mapped, its memory is shared by all processes that map it."""
        try:
            with Path(path).open("rb") as file:
                head = file.readline(1 << 20)
            data = np.memmap(path, np.uint8, "c") if mmap else np.fromfile(path, np.uint8)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise OptionError(f"cannot read {path}: {error}") from None
        try:
            read = json.loads(head)
            told, crc = read["told"], read["crc32"]
            shapes = {name: (np.dtype(kind), int(n)) for name, (kind, n) in told["arrays"].items()}
            is_ours = told["format"] == FORMAT and isinstance(told["version"], int)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            is_ours = False
        if not is_ours:
            raise SchemaError(f"{path} is no trie of bestk, or was cut off: build it again")
        if told["version"] != VERSION:
            raise SchemaError(f"{path} has version {told['version']}, this bestk reads {VERSION}")
        place, arrays = len(head), {}
        for name, (kind, count) in shapes.items():
            arrays[name] = data[place : place + kind.itemsize * count]
            place += -(-arrays[name].nbytes // _ALIGNED) * _ALIGNED
        if place != len(data) or set(arrays) != {*_ARRAYS} or _crc(arrays, told) != crc:
            raise SchemaError(f"{path} is damaged or was cut off: build it again")
        return cls({name: raw.view(shapes[name][0]) for name, raw in arrays.items()}, told)

    @functools.cached_property
    def _names(self) -> Sequence[Any] | None:
        names: list[Any] | None = json.loads(self.names.tobytes()) if len(self.names) else None
        return names

    @functools.cached_property
    def _rows(self) -> dict[Any, list[int]]:
        rows: dict[Any, list[int]] = {}
        for row, name in enumerate(self._names or ()):
            rows.setdefault(name, []).append(row)
        return rows

    @functools.cached_property
    def _node_of(self) -> Int[np.ndarray, " rows"]:
        """The node of every row, −1 where it is no item."""
        nodes = np.full(self.num_rows, -1, np.int32)
        ends = (self.item >= 0).nonzero()[0]
        nodes[self.item[ends]] = ends
        return nodes

    def _parents(self, nodes: Int[np.ndarray, " some"]) -> Int[np.ndarray, " some"]:
        return np.searchsorted(self.first, nodes, side="right") - 1

    def _sequences(self) -> tuple[Array, Array, Array]:
        """Return the ids of all items, their lengths, their rows."""
        nodes = (self.item >= 0).nonzero()[0]
        lengths = np.searchsorted([start for start, _ in self.levels], nodes, side="right") - 1
        ends, here, back = np.cumsum(lengths), nodes, 1
        values = np.empty(ends[-1] if len(ends) else 0, np.int32)
        some = np.arange(len(nodes))
        while len(some):
            values[ends[some] - back] = self.token[here]
            here, back = self._parents(here), back + 1
            some, here = some[here > 0], here[here > 0]
        return values, lengths, self.item[nodes].astype(np.int64)

    def _arrays(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in _ARRAYS}


def _built(
    values: Int[np.ndarray, " ids"],
    lengths: Int[np.ndarray, " sequences"],
    rows: Int[np.ndarray, " sequences"],
    names: Sequence[Any] | None,
    num_rows: int,
) -> Trie:
    """Build level by level: a node is a run of equal pairs of parent and token."""
    if not len(lengths):
        raise OptionError("a trie must hold at least one sequence, got none")
    starts = np.cumsum(lengths) - lengths
    parent = np.zeros(len(lengths), np.int64)
    tokens, items, counts = [np.zeros(1, np.int32)], [np.full(1, -1, np.int32)], []
    active, level, num_nodes = np.arange(len(lengths)), 0, 1
    while len(active):
        key = (parent[active] << 32) | values[starts[active] + level]
        order = key.argsort()
        key = key[order]
        is_new = np.append(True, key[1:] != key[:-1])
        node = is_new.cumsum() - 1
        parent[active[order]] = num_nodes + node
        key = key[is_new]
        size = len(tokens[-1])
        count = np.bincount((key >> 32) - (num_nodes - size), minlength=size)
        counts.append(count.astype(np.int32))
        tokens.append(key.astype(np.int32))  # its lower half
        level, num_nodes = level + 1, num_nodes + len(key)
        if num_nodes > MOST:
            raise OptionError(f"a trie has at most {MOST} nodes: split the catalogue")
        item = np.full(len(key), -1, np.int32)
        ended = active[lengths[active] == level][::-1]  # of equal ones the first comes last
        item[parent[ended] - (num_nodes - len(key))] = rows[ended]
        items.append(item)
        active = active[lengths[active] > level]
    counts.append(np.zeros(len(tokens[-1]), np.int32))
    token = np.concatenate(tokens)
    first = np.cumsum(np.concatenate([np.ones(1, np.int32), *counts]), dtype=np.int32)
    item = np.concatenate(items)
    num_items = int((item >= 0).sum())
    if num_duplicates := len(lengths) - num_items:
        logger.warning("%d rows hold the ids of an earlier row, which stands", num_duplicates)
    arrays = {
        "token": token.astype(np.uint16) if token.max() < 2**16 else token,
        "first": first,
        "item": item,
        "names": np.frombuffer(b"" if names is None else json.dumps(names).encode(), np.uint8),
    }
    facts = {"num_rows": num_rows, "num_items": num_items, "num_duplicates": num_duplicates}
    return Trie(arrays, facts)


def _crc(arrays: dict[str, Array], told: Any = None) -> int:
    def pieces() -> Iterator[Any]:
        yield json.dumps(told, sort_keys=True).encode()
        yield from arrays.values()

    return functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces(), 0)
