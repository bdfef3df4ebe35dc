"""DBN records as Arrow tables, a column a field."""

from collections.abc import Mapping
from typing import Any

import numpy
import pyarrow

from feedhandler.codecs.dbn import Schema

Array = numpy.ndarray[Any, Any]


def record_table(records: Array, names: Mapping[int, str]) -> pyarrow.Table:
    """Return records as a table: letters are text, `length` is left out.

    `names` are instruments' names by `instrument_id`: the column `symbol`, null where there is
    none.
    """
    columns: dict[str, Any] = {}
    for name in records.dtype.names or ():
        if name != "length":
            column = numpy.ascontiguousarray(records[name])
            columns[name] = _text(column) if column.dtype.kind == "S" else column
    numbers, indexes = numpy.unique(records["instrument_id"], return_inverse=True)
    known = pyarrow.array([names.get(each) for each in numbers.tolist()], pyarrow.string())
    columns["symbol"] = known.take(pyarrow.array(indexes))
    return pyarrow.table(columns)


def _text(column: Array) -> Array:
    """Return a column of bytes as text; of one letter each the faster way."""
    if column.dtype.itemsize == 1:
        return column.astype("U1")
    return numpy.char.decode(column, "utf-8", "replace")


def record_columns(schema: Schema) -> pyarrow.Schema:
    """Return the columns of `record_table`."""
    return record_table(numpy.zeros(0, schema.records), {}).schema
