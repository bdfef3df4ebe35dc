"""The milliseconds in which packets came, in few bytes: to be sent, and to be kept. No I/O.

Rows are i64[4, n]: milliseconds since 1970, packets, payload bytes, file bytes. A day has tens of
millions of them, and they are most of what a tally holds. Nearly all steps from one to the next are
small, as is all that a millisecond brings, and what the file has beyond the payload is the same for
each packet of plain frames. So of each column most values go into one or two bytes, and those that
do not fit are put aside with their places. `compact` and `expanded` undo each other for whatever
rows, clocks that step back included.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

#: What a classic capture has of a packet beside its payload: the record's header, then those of
#: Ethernet, IPv4 and UDP. Where frames are longer (VLAN tags, padding) the difference is kept.
FRAMING_BYTES = 16 + 14 + 20 + 8
_COLUMNS = ("steps", "packets", "payload", "beyond")
_SMALL_KINDS = (np.uint8, np.uint16, np.uint32)
#: The columns that `compact` makes.
NAMES = tuple(name + part for name in _COLUMNS for part in ("", "_at", "_aside"))
#: Of a value that is put aside: its place, u32, and itself, i64.
_ASIDE_BYTES = 4 + 8


def compact(rows: Array) -> Columns:
    """The rows as columns by name, the same again for each of `_COLUMNS`: NAME (one entry a row),
    and of those put aside, which are 0 there, NAME_at u32 and NAME_aside i64."""
    milliseconds, packets, payload, on_file = rows
    steps = milliseconds.copy()
    steps[1:] -= milliseconds[:-1]
    beyond = packets * -FRAMING_BYTES
    beyond += on_file
    beyond -= payload
    made: Columns = {}
    for name, values in zip(_COLUMNS, (steps, packets, payload, beyond), strict=True):
        kind, at = _least(values)
        made[name] = values.astype(kind)
        made[name][at] = 0
        made[f"{name}_at"] = at.astype(np.uint32)
        made[f"{name}_aside"] = values[at]
    return made


def _least(values: Array) -> tuple[type[Any], Array]:
    """The kind in which the values take the fewest bytes, and the places of those put aside."""
    kind: type[Any] = np.int64
    at = np.zeros(0, np.int64)
    fewest = values.nbytes
    without_sign = values.view(np.uint64)  # a number below 0 is a large one
    for tried in _SMALL_KINDS:
        too_large = without_sign > np.iinfo(tried).max
        aside = int(np.count_nonzero(too_large))
        size = len(values) * np.dtype(tried).itemsize + aside * _ASIDE_BYTES
        if size < fewest:
            kind, at, fewest = tried, np.flatnonzero(too_large), size
        if not aside:
            break  # larger ones take more
    return kind, at


def expanded(columns: Columns) -> Array:
    """The rows that `compact` was given."""
    rows = np.empty((4, count(columns)), np.int64)
    for row, name in zip(rows, _COLUMNS, strict=True):
        row[:] = columns[name]
        row[columns[f"{name}_at"]] = columns[f"{name}_aside"]
    milliseconds, packets, payload, on_file = rows
    np.cumsum(milliseconds, out=milliseconds)
    on_file += payload + FRAMING_BYTES * packets
    return rows


def count(columns: Columns) -> int:
    """How many rows `expanded` will make."""
    return len(columns[_COLUMNS[0]])
