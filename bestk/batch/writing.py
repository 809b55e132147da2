"""The output of a finished job in its final format, made from the lines of its results.

JSON lines are the results as they are, and move into their place; gzip and Parquet are written from
them as a stream. Columns that a Parquet input passes on to a Parquet output keep their types: they
are copied from the input. Knows formats, no models.
"""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from bestk.batch.files import AnyFile
from bestk.batch.rows import passed_on
from bestk.batch.sources import Parquet, Source, format_of, parquet_library

_ROWS = 1024  # in a row group of the output, where no input says it


def assembler(
    output: AnyFile, source: Source, keep: Sequence[str] | None
) -> Callable[[Path, Path], None] | None:
    """Return what writes the output from the results; None where these are the output."""
    kind = format_of(output)
    if kind == "jsonl":
        return None
    if kind == "gzip":
        return _compress
    if isinstance(source, Parquet):
        return lambda results, target: _parquet(target, _joined(results, source, keep))
    return _from_json


def copies_columns(output: AnyFile, source: Source) -> bool:
    """Whether the columns to pass through come from the input when the output is written."""
    return format_of(output) == "parquet" and isinstance(source, Parquet)


def _compress(results: Path, target: Path) -> None:
    # Neither time nor name: the same results are the same bytes.
    with (
        results.open("rb") as plain,
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)


class _Unfit(Exception):
    """A column holds something that its type cannot."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _from_json(results: Path, target: Path) -> None:
    """Write results of JSON lines; columns that no type fits are found on the way, and are text."""
    as_text: set[str] = set()
    while True:
        try:
            _parquet(target, _tables(results, as_text))
            return
        except _Unfit as unfit:
            as_text.add(unfit.name)


def _parquet(target: Path, tables: Iterator[Any]) -> None:
    """Write tables; the first one is empty, and says which columns there are."""
    schema = next(tables).schema
    with target.open("wb") as file, parquet_library().ParquetWriter(file, schema) as writer:
        for table in tables:
            if table.num_rows:
                writer.write_table(table)


def _tables(results: Path, as_text: Set[str]) -> Iterator[Any]:
    """Yield tables of the results; what their columns hold is found out in a first reading."""
    import pyarrow as pa

    known: dict[str, Any] = {"line": pa.int64()}
    own = _own_types()
    for rows in _batches(results):
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [row.get(name) for row in rows]
            found = own[name] if name in own else _type_of(values)
            known[name] = _wider(known.get(name, found), found)
    schema = pa.schema(
        [
            (name, pa.string() if name in as_text or _is_empty(kind) else kind)
            for name, kind in known.items()
        ]
    )
    yield schema.empty_table()
    for rows in _batches(results):
        yield _table(rows, schema)


def _joined(results: Path, source: Parquet, keep: Sequence[str] | None) -> Iterator[Any]:
    """Yield the results with the columns that the input passes on, batch by batch of the input."""
    import pyarrow as pa

    names = source.metadata.schema.to_arrow_schema().names
    kept = passed_on(names, keep)
    own = _own_types()
    found = list(itertools.islice(_lines(results), 1))
    present = pa.schema([(name, own[name]) for name in (found[0] if found else own)])
    passed = source.metadata.schema.to_arrow_schema()
    schema = pa.schema(
        [present.field("line"), *(passed.field(name) for name in kept)]
        + [field for field in present if field.name != "line"]
    )
    yield schema.empty_table()
    rows = _lines(results)
    waiting = next(rows, None)
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
    import pyarrow as pa

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
    import pyarrow as pa

    if value is None or isinstance(value, str) or not pa.types.is_string(kind):
        return value
    return json.dumps(value, ensure_ascii=False)


def _own_types() -> dict[str, Any]:
    import pyarrow as pa

    real, whole = pa.float64(), pa.int64()
    parts = ("completed", "frontier", "pruned", "truncated")
    return {
        "line": whole,
        "texts": pa.list_(pa.string()),
        "scores": pa.list_(real),
        "rerank_scores": pa.list_(real),
        "items": pa.string(),  # as JSON: numbers or texts
        "mass": pa.struct([(part, real) for part in parts]),
        "cost": pa.struct([("expanded", whole), ("model_calls", whole)]),
        "stop_reason": pa.string(),
        "notice": pa.string(),
        "signature": pa.string(),
        "result": pa.string(),  # as JSON
        "hypotheses": pa.list_(_hypothesis_type()),
    }


def _hypothesis_type() -> Any:
    import pyarrow as pa

    real, whole, truth = pa.float64(), pa.int64(), pa.bool_()
    return pa.struct(
        [
            ("text", pa.string()),
            *((name, real) for name in ("score", "log_prob")),
            ("token_ids", pa.list_(whole)),
            ("log_probs", pa.list_(real)),
            *((name, whole) for name in ("num_tokens", "step", "count")),
            *((name, truth) for name in ("is_certified", "is_complete")),
            ("rerank_score", real),
        ]
    )


def _type_of(values: list[Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.string()  # of several kinds: written as JSON


def _is_empty(kind: Any) -> bool:
    """Tell columns of nothing, and what Parquet has no place for: objects without fields."""
    import pyarrow as pa

    return pa.types.is_null(kind) or _has_empty_objects(kind)


def _has_empty_objects(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_list(kind):
        return _has_empty_objects(kind.value_type)
    if not pa.types.is_struct(kind):
        return False
    return kind.num_fields == 0 or any(_has_empty_objects(field.type) for field in kind)


def _wider(one: Any, other: Any) -> Any:
    import pyarrow as pa

    if one.equals(other):
        return one
    try:
        schemas = [pa.schema([("x", one)]), pa.schema([("x", other)])]
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()


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
