"""Records as Parquet, columns typed by the records' annotations. Needs pyarrow.

A record is a struct, an array or tuple a list, a map a map; values of any shape (Task.options)
are JSON text. Any Parquet reader can use it: pandas, DuckDB, Polars, Spark.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from buffer.tools import jsonl
from r3l.errors import R3LError, UserError
from r3l.records import Record

ROWS_AT_ONCE = 64
TWO_DIMENSIONAL = "step_spans"  # the one array that is a list of lists
T = TypeVar("T")


def write(path: Path, kind: type[T], records: Iterable[T]) -> int:
    """One row per record; returns how many."""
    pa, pq = _arrow()
    hints = get_type_hints(kind)
    schema = pa.schema([(name, _type(pa, hint, name)) for name, hint in hints.items()])
    count, rows = 0, iter(records)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while some := list(islice(rows, ROWS_AT_ONCE)):
            values = [_columns(kind, record) for record in some]
            writer.write_table(pa.Table.from_pylist(values, schema))
            count += len(some)
    return count


def read(path: Path, kind: type[T]) -> Iterator[T]:
    """The records `write` wrote; raises UserError for anything else."""
    pa, pq = _arrow()
    try:
        for batch in pq.ParquetFile(path).iter_batches(ROWS_AT_ONCE):
            for row in batch.to_pylist():
                yield jsonl.record_of(kind, _plain(kind, row))
    except (pa.ArrowException, R3LError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not a table of {kind.__name__} ({error})") from None


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet needs the package pyarrow; pip install 'r3l[parquet]'") from None
    return pyarrow, pyarrow.parquet


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Record)


def _type(pa: Any, hint: Any, name: str = "") -> Any:
    """The Arrow type of an annotation."""
    origin, arguments = get_origin(hint), get_args(hint)
    scalars = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    if hint in scalars:
        return scalars[hint]
    if origin is Literal:
        return pa.string()
    if _is_record(hint):
        return pa.struct([(n, _type(pa, h, n)) for n, h in get_type_hints(hint).items()])
    if origin in (Union, types.UnionType):
        return _type(pa, arguments[0], name)
    if origin is np.ndarray:
        item = pa.from_numpy_dtype(np.dtype(get_args(arguments[1])[0]))
        return pa.list_(pa.list_(item)) if name == TWO_DIMENSIONAL else pa.list_(item)
    if origin is tuple and arguments[-1] is Ellipsis:
        return pa.list_(_type(pa, arguments[0]))
    if origin is tuple:
        return pa.struct([(str(i), _type(pa, inner)) for i, inner in enumerate(arguments)])
    if origin is dict and arguments[1] is not Any:
        return pa.map_(_type(pa, arguments[0]), _type(pa, arguments[1]))
    return pa.string()  # JSON


def _columns(hint: Any, value: Any) -> Any:
    """A value as pyarrow takes it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if _is_record(hint):
        return {n: _columns(h, getattr(value, n)) for n, h in get_type_hints(hint).items()}
    if origin in (Union, types.UnionType):
        return _columns(arguments[0], value)
    if origin is np.ndarray:
        return list(value) if value.ndim == 2 else value
    if origin is tuple and arguments[-1] is Ellipsis:
        return [_columns(arguments[0], inner) for inner in value]
    if origin is tuple:
        pairs = zip(arguments, value, strict=True)
        return {str(i): _columns(inner, v) for i, (inner, v) in enumerate(pairs)}
    if origin is dict and arguments[1] is not Any:
        return [(key, _columns(arguments[1], inner)) for key, inner in value.items()]
    return json.dumps(jsonl.plain(value)) if origin is dict else value


def _plain(hint: Any, value: Any) -> Any:
    """A value of `to_pylist` as JSON lines would hold it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if _is_record(hint):
        return {n: _plain(h, value[n]) for n, h in get_type_hints(hint).items()}
    if origin in (Union, types.UnionType):
        return _plain(arguments[0], value)
    if origin is tuple and arguments[-1] is Ellipsis:
        return [_plain(arguments[0], inner) for inner in value]
    if origin is tuple:
        return [_plain(inner, value[str(i)]) for i, inner in enumerate(arguments)]
    if origin is dict and arguments[1] is not Any:
        return {key: _plain(arguments[1], inner) for key, inner in value}
    return json.loads(value) if origin is dict else value
