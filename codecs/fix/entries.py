# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Market data entries as columns: those of W and X messages as numpy arrays, and as Arrow.

`EntryColumns.decode` reads consecutive whole messages, checks each against a dictionary, and writes
one row for each entry into preallocated arrays, which are reused from one call to the next. Each
entry has the symbol that it names itself, else the message's: a message may name several
instruments. Prices and sizes are exact, an integer and the number of its decimal places; the text
itself stays where it is in the bytes. `symbols_of` gives the instruments of one message, each once,
whatever its type.
"""

import cython
import numpy
import pyarrow
from cython.cimports.feedhandler.codecs.fix.framing import Frame, frame_at
from cython.cimports.feedhandler.codecs.fix.index import FieldIndex, FixTable, index_message_at
from cython.cimports.feedhandler.codecs.fix.reasons import FINE
from cython.cimports.feedhandler.codecs.fix.values import (
    decimal_places,
    decimal_raw,
    small_number,
    time_of_day_ns,
)

from feedhandler.codecs.visibility import Readonly

#: The value of a number that the entry does not have.
MISSING = -1
#: Default capacity, in rows.
ROWS = 65_536

_NO_DECIMAL = cython.declare(cython.longlong, -9_000_000_000_000_000_000)

#: Each column with its type, in the order of `arrays`.
COLUMNS = {
    "message": numpy.uint32,
    "sequence": numpy.uint64,
    "action": numpy.uint8,
    "kind": numpy.uint8,
    "symbol_at": numpy.uint32,
    "symbol_size": numpy.uint32,
    "price_raw": numpy.int64,
    "price_places": numpy.int8,
    "price_at": numpy.uint32,
    "price_size": numpy.uint32,
    "size_raw": numpy.int64,
    "size_places": numpy.int8,
    "time_ns": numpy.int64,
    "date": numpy.int32,
    "position": numpy.int32,
    "level": numpy.int32,
    "orders": numpy.int32,
    "id_at": numpy.uint32,
    "id_size": numpy.uint32,
}


def _column(capacity: int, name: str) -> memoryview:
    """Return an empty column: a memoryview, whose items are Python integers interpreted, too."""
    return memoryview(numpy.zeros(capacity, COLUMNS[name]))


@cython.cclass
class EntryColumns:
    """One row for each entry of NoMDEntries (268) of the W and X messages that were decoded.

    message                 u32  number of the message, among those that `decode` read
    sequence                u64  its MsgSeqNum
    action, kind            u8   MDUpdateAction (279; 0: none, as in W), MDEntryType (269)
    symbol_at, symbol_size  u32  Symbol (55), else SecurityID (48): where in the bytes; size 0: none
    price_raw, price_places      MDEntryPx (270) is raw / 10**places; places -1: none
    price_at, price_size    u32  its text
    size_raw, size_places        MDEntrySize (271), as the price
    time_ns, date                MDEntryTime (273) since midnight, MDEntryDate (272) as yyyymmdd
    position, level, orders i32  MDEntryPositionNo (290), MDPriceLevel (1023), NumberOfOrders (346)
    id_at, id_size          u32  MDEntryID (278)

    Times and numbers that an entry does not have are -1. `rows` are in use.
    """

    table: Readonly[FixTable]
    frame: Readonly[Frame]
    index: Readonly[FieldIndex]
    capacity: Readonly[cython.Py_ssize_t]
    rows: Readonly[cython.Py_ssize_t]
    messages: Readonly[cython.Py_ssize_t]
    root_symbol_at: cython.uint
    root_symbol_size: cython.uint
    named: cython.bint
    message: Readonly[cython.uint[::1]]
    sequence: Readonly[cython.ulonglong[::1]]
    action: Readonly[cython.uchar[::1]]
    kind: Readonly[cython.uchar[::1]]
    symbol_at: Readonly[cython.uint[::1]]
    symbol_size: Readonly[cython.uint[::1]]
    price_raw: Readonly[cython.longlong[::1]]
    price_places: Readonly[cython.schar[::1]]
    price_at: Readonly[cython.uint[::1]]
    price_size: Readonly[cython.uint[::1]]
    size_raw: Readonly[cython.longlong[::1]]
    size_places: Readonly[cython.schar[::1]]
    time_ns: Readonly[cython.longlong[::1]]
    date: Readonly[cython.int[::1]]
    position: Readonly[cython.int[::1]]
    level: Readonly[cython.int[::1]]
    orders: Readonly[cython.int[::1]]
    id_at: Readonly[cython.uint[::1]]
    id_size: Readonly[cython.uint[::1]]

    def __init__(self, table: FixTable, capacity: cython.Py_ssize_t = 65_536) -> None:
        self.table = table
        self.frame = Frame()
        # So that the entries of any message that fits the index fit the empty columns.
        self.index = FieldIndex(table, min(capacity, 16_384))
        self.capacity = capacity
        self.rows = self.messages = 0
        self.message = _column(capacity, "message")
        self.sequence = _column(capacity, "sequence")
        self.action = _column(capacity, "action")
        self.kind = _column(capacity, "kind")
        self.symbol_at = _column(capacity, "symbol_at")
        self.symbol_size = _column(capacity, "symbol_size")
        self.price_raw = _column(capacity, "price_raw")
        self.price_places = _column(capacity, "price_places")
        self.price_at = _column(capacity, "price_at")
        self.price_size = _column(capacity, "price_size")
        self.size_raw = _column(capacity, "size_raw")
        self.size_places = _column(capacity, "size_places")
        self.time_ns = _column(capacity, "time_ns")
        self.date = _column(capacity, "date")
        self.position = _column(capacity, "position")
        self.level = _column(capacity, "level")
        self.orders = _column(capacity, "orders")
        self.id_at = _column(capacity, "id_at")
        self.id_size = _column(capacity, "id_size")

    @cython.ccall
    def clear(self) -> cython.void:
        """Forget all rows."""
        self.rows = self.messages = 0

    @cython.boundscheck(False)  # the first line checks the bytes against the bounds
    def decode(
        self,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        rejects: cython.ulonglong[::1],
    ) -> cython.Py_ssize_t:
        """Append the entries of the consecutive messages in `data[start:start + size]`.

        Each message is counted in `rejects` by its `FixReject`. Offsets count from the beginning of
        `data`, so all rows between two `clear` must be of the same bytes. Returns the number of
        bytes read: all, or those up to a message whose framing is wrong, or whose entries have no
        room.
        """
        at: cython.Py_ssize_t = start
        end: cython.Py_ssize_t = start + size
        if start < 0 or size < 1 or end > len(data):
            return 0
        first = cython.address(data[0]) if cython.compiled else memoryview(data)
        while at < end:
            verdict: cython.int = frame_at(first, end, at, self.frame)
            if verdict != FINE:
                rejects[verdict] += 1
                break
            verdict = index_message_at(self.table, first, self.frame, self.index)
            if verdict == FINE and self.frame.message_type in (0x57, 0x58):
                if self.rows + self.index.entry_count > self.capacity + 1:
                    break
                _add_entries(self, self.index, first)
            rejects[verdict] += 1
            self.messages += 1
            at = self.frame.end
        return at - start

    def arrays(self) -> dict[str, numpy.ndarray]:
        """Return numpy views (no copies) of the rows, by column; and `price` and `size` as floats.

        A float is NaN where there is no number.
        """
        found = {name: numpy.asarray(getattr(self, name))[: self.rows] for name in COLUMNS}
        for name in ("price", "size"):
            places = found[f"{name}_places"].astype(numpy.int64)
            value = found[f"{name}_raw"] / 10.0 ** numpy.maximum(places, 0)
            found[name] = numpy.where(places < 0, numpy.nan, value)
        return found

    def texts(self, data: bytes, name: str) -> list[bytes]:
        """Return the texts of column `name` (`symbol`, `price`, `id`) in `data`, by row."""
        found = self.arrays()
        spans = zip(found[f"{name}_at"].tolist(), found[f"{name}_size"].tolist(), strict=True)
        return [bytes(data[at : at + size]) for at, size in spans]

    def to_arrow(self, data: bytes) -> pyarrow.RecordBatch:
        """Return the rows as an Arrow record batch, texts included; what is missing is null."""
        found = self.arrays()
        out: dict[str, pyarrow.Array] = {
            "message": pyarrow.array(found["message"]),
            "sequence": pyarrow.array(found["sequence"]),
        }
        for name, column in (("action", "action"), ("kind", "kind")):
            letters = [chr(value) if value else None for value in found[column].tolist()]
            out[name] = pyarrow.array(letters, pyarrow.string())
        for name in ("symbol", "id"):
            texts = [text.decode("utf-8", "replace") or None for text in self.texts(data, name)]
            out[name] = pyarrow.array(texts, pyarrow.string())
        for name in ("price", "size"):
            missing = found[f"{name}_places"] < 0
            out[f"{name}_raw"] = pyarrow.array(found[f"{name}_raw"], mask=missing)
            out[f"{name}_places"] = pyarrow.array(found[f"{name}_places"], mask=missing)
            out[name] = pyarrow.array(found[name], mask=missing)
        for name in ("time_ns", "date", "position", "level", "orders"):
            out[name] = pyarrow.array(found[name], mask=found[name] == MISSING)
        return pyarrow.RecordBatch.from_pydict(out)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _begin_row(out: EntryColumns, row: cython.Py_ssize_t) -> cython.int:
    """Write a row of an entry that has nothing but its message's symbol."""
    out.message[row] = cython.cast(cython.uint, out.messages)
    out.sequence[row] = out.frame.sequence
    out.action[row] = out.kind[row] = 0
    out.symbol_at[row] = out.root_symbol_at
    out.symbol_size[row] = out.root_symbol_size
    out.price_raw[row] = out.size_raw[row] = 0
    out.price_places[row] = out.size_places[row] = -1
    out.price_at[row] = out.price_size[row] = out.id_at[row] = out.id_size[row] = 0
    out.time_ns[row] = -1
    out.date[row] = out.position[row] = out.level[row] = out.orders[row] = -1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _find_root_symbol(out: EntryColumns, index: FieldIndex) -> cython.int:
    """Find the message's own Symbol, else its SecurityID, among the fields that are in no entry."""
    i: cython.Py_ssize_t
    out.root_symbol_at = out.root_symbol_size = 0
    for i in range(index.count):
        if index.entries[i]:
            if index.group_tags[index.entries[i]] == 268:
                break
            continue
        if index.tags[i] == 55 or (index.tags[i] == 48 and out.root_symbol_size == 0):
            out.root_symbol_at = index.offsets[i]
            out.root_symbol_size = index.sizes[i]
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _add_entries(out: EntryColumns, index: FieldIndex, first: cython.p_const_uchar) -> cython.int:
    """Append a row for each entry of the message that was indexed last."""
    entry: cython.Py_ssize_t
    i: cython.Py_ssize_t
    _find_root_symbol(out, index)
    for entry in range(1, index.entry_count):
        if index.group_tags[entry] != 268:
            continue
        row: cython.Py_ssize_t = out.rows
        _begin_row(out, row)
        out.named = False
        for i in range(index.firsts[entry], index.ends[entry]):
            if index.entries[i] == cython.cast(cython.uint, entry):
                _add_field(out, index, first, row, i)
        out.rows = row + 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _add_field(
    out: EntryColumns,
    index: FieldIndex,
    first: cython.p_const_uchar,
    row: cython.Py_ssize_t,
    i: cython.Py_ssize_t,
) -> cython.int:
    """Write one field of an entry into its column."""
    tag: cython.uint = index.tags[i]
    at: cython.uint = index.offsets[i]
    size: cython.uint = index.sizes[i]
    if tag == 270:
        out.price_at[row] = at
        out.price_size[row] = size
        out.price_raw[row] = decimal_raw(first, at, size)
        out.price_places[row] = _decimal_places(first, at, size, out.price_raw[row])
    elif tag == 271:
        out.size_raw[row] = decimal_raw(first, at, size)
        out.size_places[row] = _decimal_places(first, at, size, out.size_raw[row])
    elif tag == 279:
        out.action[row] = first[at]
    elif tag == 269:
        out.kind[row] = first[at]
    elif tag == 55 or (tag == 48 and not out.named):
        out.named = tag == 55
        out.symbol_at[row] = at
        out.symbol_size[row] = size
    elif tag == 278:
        out.id_at[row] = at
        out.id_size[row] = size
    elif tag == 273:
        out.time_ns[row] = time_of_day_ns(first, at, size)
    elif tag == 272:
        out.date[row] = small_number(first, at, size)
    elif tag == 290:
        out.position[row] = small_number(first, at, size)
    elif tag == 1023:
        out.level[row] = small_number(first, at, size)
    elif tag == 346:
        out.orders[row] = small_number(first, at, size)
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _decimal_places(
    first: cython.p_const_uchar, at: cython.uint, size: cython.uint, raw: cython.longlong
) -> cython.schar:
    """Return the decimal places of a number; -1 where it does not fit, or has more than 18."""
    places: cython.int = decimal_places(first, at, size)
    if raw == _NO_DECIMAL or places > 18:
        return -1
    return places


def symbols_of(data: bytes, index: FieldIndex) -> list[bytes]:
    """Return the instruments that an indexed message names, each once, in their order.

    Symbol (55), else SecurityID (48), of the message and of each entry of its groups.
    """
    named: dict[int, tuple[int, int]] = {}
    for i in range(index.count):
        tag, entry = index.tags[i], index.entries[i]
        if tag == 55 or (tag == 48 and entry not in named):
            named[entry] = (index.offsets[i], index.sizes[i])
    return list(dict.fromkeys(bytes(data[at : at + size]) for at, size in named.values()))
