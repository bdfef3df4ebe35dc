"""The milliseconds in which packets came, packed in few bytes to be sent and kept. No I/O.

Rows are i64[4, n]: milliseconds since 1970, packets, payload bytes, file bytes. A day has tens of
millions of them, and they are most of what a tally holds. Nearly all steps from one to the next are
small, as is all that a millisecond brings, and what the file has beyond the payload is the same for
each packet of plain frames. So of each column most values go into one or two bytes, and those that
do not fit are put aside with their indexes. `compact` and `expanded` are inverse to each other for
any rows, clocks that step back included.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

#: Bytes of a packet beside its payload in a classic capture: the record's header, then those of
#: Ethernet, IPv4 and UDP. Where frames are longer (VLAN tags, padding) the difference is kept.
FRAMING_BYTES = 16 + 14 + 20 + 8
_COLUMNS = ("steps", "packets", "payload", "beyond")
#: The types of a column, and the largest value in each; a column of 0 alone has one entry.
_KINDS = ((np.uint8, 0), (np.uint8, 0xFF), (np.uint16, 0xFFFF), (np.uint32, 0xFFFF_FFFF))
_NO_LIMIT = 0xFFFF_FFFF_FFFF_FFFF
#: The columns that `compact` makes.
NAMES = ("rows", *(name + part for name in _COLUMNS for part in ("", "_at", "_aside")))
#: The size of a value that is put aside: its index, u32, and itself, i64.
_ASIDE_BYTES = 4 + 8


def compact(rows: Array) -> Columns:
    """Pack the rows into columns.

    `rows` is how many there are; for each of `_COLUMNS`, NAME has an entry a row (or one 0 for
    all), and values put aside, which are 0 there, are in NAME_at (u32) and NAME_aside (i64).
    """
    milliseconds, packets, payload, on_file = rows
    steps = milliseconds.copy()
    steps[1:] -= milliseconds[:-1]
    beyond = packets * -FRAMING_BYTES
    beyond += on_file
    beyond -= payload
    made: Columns = {"rows": np.array([len(steps)], np.int64)}
    for name, values in zip(_COLUMNS, (steps, packets, payload, beyond), strict=True):
        kind, largest = _best_kind(values)
        at = np.flatnonzero(values.view(np.uint64) > largest)
        entries = np.zeros(1, kind)
        if largest:
            entries = values.astype(kind)
            entries[at] = 0
        made |= {name: entries, f"{name}_at": at.astype(np.uint32), f"{name}_aside": values[at]}
    return made


def _best_kind(values: Array) -> tuple[type[Any], int]:
    """Choose the type that stores the values in the fewest bytes, and its largest value."""
    best: tuple[type[Any], int] = (np.int64, _NO_LIMIT)
    fewest = values.nbytes
    for kind, largest in _KINDS:
        # A negative number is a large one when unsigned.
        aside = int(np.count_nonzero(values.view(np.uint64) > largest))
        size = aside * _ASIDE_BYTES + (len(values) * np.dtype(kind).itemsize if largest else 1)
        if size < fewest:
            best, fewest = (kind, largest), size
        if not aside:
            break  # larger kinds take more
    return best


def expanded(columns: Columns) -> Array:
    """Restore the rows that `compact` was given, i64[4, n]."""
    rows = np.empty((4, count(columns)), np.int64)
    for row, name in zip(rows, _COLUMNS, strict=True):
        row[:] = columns[name]
        row[columns[f"{name}_at"]] = columns[f"{name}_aside"]
    milliseconds, packets, payload, on_file = rows
    np.cumsum(milliseconds, out=milliseconds)
    on_file += payload + FRAMING_BYTES * packets
    return rows


def count(columns: Columns) -> int:
    """Return how many rows `expanded` will make."""
    return int(columns["rows"][0])
