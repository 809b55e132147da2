"""Parquet: rows read batch by batch, and results written with the types of their columns.

Columns that a Parquet input passes on to a Parquet output keep their types: they are copied from
the input. Knows pyarrow, and is imported where a file needs it.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import itertools
import json
import math
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from bestk.batch.files import AnyFile
from bestk.batch.rows import RawRow, passed_on
from bestk.batch.sources import Offset, Source
from bestk.errors import SchemaError

_DECODED = 1024  # rows at a time
_ROWS = 1024  # in a row group of the output, where no input says it

_TEXT, _REAL, _WHOLE, _TRUTH = pa.string(), pa.float64(), pa.int64(), pa.bool_()
_HYPOTHESIS = {
    **{"text": _TEXT, "score": _REAL, "log_prob": _REAL},
    **{"token_ids": pa.list_(_WHOLE), "log_probs": pa.list_(_REAL)},
    **dict.fromkeys(("num_tokens", "step", "count"), _WHOLE),
    **{"is_certified": _TRUTH, "is_complete": _TRUTH, "rerank_score": _REAL},
}
_SHARES = dict.fromkeys(("completed", "frontier", "pruned", "truncated"), _REAL)
# Columns of results; `items` (numbers or texts) and `result` are JSON.
_OWN = {
    "line": _WHOLE,
    "texts": pa.list_(_TEXT),
    **dict.fromkeys(("scores", "rerank_scores"), pa.list_(_REAL)),
    "items": _TEXT,
    "mass": pa.struct(list(_SHARES.items())),
    "cost": pa.struct([("expanded", _WHOLE), ("model_calls", _WHOLE)]),
    **dict.fromkeys(("stop_reason", "notice", "signature", "result"), _TEXT),
    "hypotheses": pa.list_(pa.struct(list(_HYPOTHESIS.items()))),
}


class Parquet(Source):
    """A row in every row, row group after row group."""

    def __init__(self, path: AnyFile) -> None:
        super().__init__(path)
        try:
            with path.open("rb") as file:
                self.metadata = parquet.read_metadata(file)
        except Exception as error:  # pyarrow has errors of many kinds for it
            raise SchemaError(f"{path} is no Parquet file: {error}") from None

    def rows(self, start: Offset) -> Iterator[tuple[RawRow, Offset]]:
        line = start.line
        for first, batch in self.batches(line):
            for content in batch.slice(max(line - first, 0)).to_pylist():
                line += 1
                yield RawRow(line, plain(content)), Offset(line)

    def batches(self, start: int, columns: list[str] | None = None) -> Iterator[tuple[int, Any]]:
        """Yield record batches with the number of their first row, from the one with `start` on."""
        sizes = [self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups)]
        group = first = 0
        while group < len(sizes) and first + sizes[group] <= start:
            first += sizes[group]
            group += 1
        with self.path.open("rb") as file:
            opened = parquet.ParquetFile(file)
            wanted = list(range(group, len(sizes)))
            for batch in opened.iter_batches(
                _DECODED, row_groups=wanted, columns=columns, use_threads=False
            ):
                if first + batch.num_rows > start:
                    yield first, batch
                first += batch.num_rows

    def count(self) -> int:
        return int(self.metadata.num_rows)

    def place_of(self, line: int) -> Offset:
        return Offset(min(line, self.count()))

    def share_of(self, place: Offset) -> float | None:
        return place.line / max(self.count(), 1)


def plain(value: Any) -> Any:
    """Turn what a Parquet file holds into what JSON can say: dates as ISO, bytes as base64."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    return value


class _Unfit(Exception):
    """A column holds something that its type cannot."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def write(results: Path, target: Path) -> None:
    """Write results of JSON lines; columns that no type fits are found on the way, and are text."""
    as_text: set[str] = set()
    while True:
        try:
            _write(target, _tables(results, as_text))
            return
        except _Unfit as unfit:
            as_text.add(unfit.name)


def write_joined(results: Path, target: Path, source: Parquet, keep: Sequence[str] | None) -> None:
    """Write results with the columns that the input passes on."""
    _write(target, _joined(results, source, keep))


def _write(target: Path, tables: Iterator[Any]) -> None:
    """Write tables; the first one is empty, and says which columns there are."""
    schema = next(tables).schema
    with target.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:
        for table in tables:
            if table.num_rows:
                writer.write_table(table)


def _tables(results: Path, as_text: Set[str]) -> Iterator[Any]:
    """Yield tables of the results; what their columns hold is found out in a first reading."""
    known: dict[str, Any] = {"line": _WHOLE}
    for rows in _batches(results):
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [row.get(name) for row in rows]
            found = _OWN.get(name) or _type_of(values)
            known[name] = _wider(known.get(name, found), found)
    schema = pa.schema(
        [
            (name, _TEXT if name in as_text or _is_empty(kind) else kind)
            for name, kind in known.items()
        ]
    )
    yield schema.empty_table()
    for rows in _batches(results):
        yield _table(rows, schema)


def _joined(results: Path, source: Parquet, keep: Sequence[str] | None) -> Iterator[Any]:
    """Yield the results with the columns that the input passes on, batch by batch of the input."""
    passed = source.metadata.schema.to_arrow_schema()
    kept = passed_on(passed.names, keep)
    rows = _lines(results)
    waiting = next(rows, None)
    present = pa.schema([(name, _OWN[name]) for name in waiting or _OWN])
    others = [field for field in present if field.name != "line"]
    schema = pa.schema([present.field("line"), *map(passed.field, kept), *others])
    yield schema.empty_table()
    start = 0 if waiting is None else waiting["line"] - 1
    for first, batch in source.batches(start, kept):
        if waiting is None:
            return
        here = []
        while waiting is not None and waiting["line"] <= first + batch.num_rows:
            here.append(waiting)
            waiting = next(rows, None)
        table = _table(here, present)
        places = pa.array([row["line"] - 1 - first for row in here], pa.int64())
        for name, column in zip(kept, batch.select(kept).columns, strict=True):
            table = table.append_column(passed.field(name), column.take(places))
        yield table.select(schema.names).cast(schema)


def _table(rows: list[dict[str, Any]], schema: Any) -> Any:
    columns = []
    for field in schema:
        values = [_fitting(row.get(field.name), field.type) for row in rows]
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowException, OverflowError):  # such as a whole number that no double holds
            raise _Unfit(field.name) from None
    return pa.Table.from_arrays(columns, schema=schema)


def _fitting(value: Any, kind: Any) -> Any:
    """Write as JSON what stands in a column of text and is none."""
    if value is None or isinstance(value, str) or not pa.types.is_string(kind):
        return value
    return json.dumps(value, ensure_ascii=False)


def _type_of(values: list[Any]) -> Any:
    try:
        return pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return _TEXT  # of several kinds: written as JSON


def _is_empty(kind: Any) -> bool:
    """Tell columns of nothing, and what Parquet has no place for: objects without fields."""
    return pa.types.is_null(kind) or _has_empty_objects(kind)


def _has_empty_objects(kind: Any) -> bool:
    if pa.types.is_list(kind):
        return _has_empty_objects(kind.value_type)
    if not pa.types.is_struct(kind):
        return False
    return kind.num_fields == 0 or any(_has_empty_objects(field.type) for field in kind)


def _wider(one: Any, other: Any) -> Any:
    if one.equals(other):
        return one
    try:
        schemas = [pa.schema([("x", one)]), pa.schema([("x", other)])]
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return _TEXT


def _batches(results: Path) -> Iterator[list[dict[str, Any]]]:
    rows = _lines(results)
    while batch := list(itertools.islice(rows, _ROWS)):
        yield batch


def _lines(results: Path) -> Iterator[dict[str, Any]]:
    with results.open("rb") as file:
        for text in file:
            row = json.loads(text)
            if "result" in row:  # nested too, for those who read no JSON in a column
                row["hypotheses"] = row["result"]["hypotheses"]
            yield row
