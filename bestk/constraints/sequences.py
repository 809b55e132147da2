"""Rows of token ids or texts, and their names, as people have them: in memory, or in a file.

Knows arrays, lists, arrow columns and a few formats of files; nothing of what is made of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from bestk.errors import MissingExtraError, OptionError

MOST = 2**31 - 1  # ids, rows and nodes
FORMATS = (".npy", ".jsonl", ".parquet", ".txt")


def read(path: Path) -> tuple[Any, list[Any] | None]:
    """Read rows, all of them ids or all texts, and what names them.

    An array of ids; lines of JSON or a table, with `ids` or `text`, and `item`; or lines of text.
    """
    if path.suffix not in FORMATS:
        raise OptionError(f"{path} must be one of {', '.join(FORMATS)}")
    try:
        if path.suffix == ".npy":
            return np.load(path), None
        if path.suffix == ".parquet":
            return _columns(path)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot read {path}: {error}") from None
    if path.suffix == ".txt":
        return [line for line in lines if line.strip()], None
    rows: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append(row if isinstance(row, dict) else {"ids": row})
            rows[-1]["ids"] = rows[-1]["ids"] if "ids" in rows[-1] else rows[-1]["text"]
        except (ValueError, KeyError):
            raise OptionError(
                f"line {number} of {path} must be ids, or an object with ids or text"
            ) from None
    named = ["item" in row for row in rows]
    if any(named) and not all(named):
        raise OptionError(f"line {named.index(False) + 1} of {path} names no item, and others do")
    return [row["ids"] for row in rows], [row["item"] for row in rows] if any(named) else None


def _columns(path: Path) -> tuple[Any, list[Any] | None]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow is not installed: pip install 'bestk[parquet]'") from error
    table = parquet.read_table(path)
    name = next((name for name in ("ids", "text") if name in table.column_names), None)
    if name is None:
        raise OptionError(f"{path} must have a column ids or text, got {table.column_names}")
    items = table["item"].to_pylist() if "item" in table.column_names else None
    return table[name] if name == "ids" else table[name].to_pylist(), items


def flat(ids: Any) -> tuple[Int[np.ndarray, " ids"], Int[np.ndarray, " rows"]]:
    """Return all ids in one piece, and the length of every row."""
    if hasattr(ids, "combine_chunks"):  # an arrow column
        ids = ids.combine_chunks()
    if hasattr(ids, "value_lengths"):
        lengths = ids.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        values = ids.flatten().to_numpy(zero_copy_only=False)
    elif getattr(ids, "ndim", 1) == 2:
        table = np.asarray(ids)
        holds = table != -1
        lengths = holds.sum(axis=1)
        is_ragged = (holds != (np.arange(table.shape[1]) < lengths[:, None])).any(axis=1)
        if is_ragged.any():
            raise OptionError(f"row {is_ragged.argmax()} has −1 before its end: it is for padding")
        values = table[holds]
    else:
        rows = list(ids)
        if not all(isinstance(row, Sequence | np.ndarray) for row in rows):
            raise OptionError(
                "a trie is built of rows of token ids: lists, or an array of two axes"
            )
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.array(list(itertools.chain.from_iterable(rows)))
    lengths = lengths.astype(np.int64, copy=False)
    if not lengths.all():
        raise OptionError(f"row {lengths.argmin()} is empty: an item has at least one token")
    if len(values) and values.dtype.kind not in "iu":
        raise OptionError(f"token ids must be whole numbers, got {values.dtype}")
    bad = (values < 0) | (values > MOST)
    if bad.any():
        row = np.searchsorted(lengths.cumsum(), bad.argmax(), side="right")
        raise OptionError(f"token ids go from 0 to {MOST}, got {values[bad.argmax()]} in row {row}")
    return values.astype(np.int32, copy=False), lengths


def names_of(items: Any, count: int) -> list[Any] | None:
    """Check the names of rows."""
    if items is None:
        return None
    names = items.tolist() if hasattr(items, "tolist") else list(items)
    names = [name.as_py() if hasattr(name, "as_py") else name for name in names]
    if len(names) != count:
        raise OptionError(f"items must name each of {count} rows, got {len(names)}")
    for kind in (str, int):
        if all(type(name) is kind for name in names):
            return names
    raise OptionError("items must be texts, or whole numbers")
