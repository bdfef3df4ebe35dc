"""Record layouts of the Databento Binary Encoding (DBN), version 3, as numpy dtypes.

All integers are little-endian; prices are fixed-point with nine decimals, times nanoseconds since
1970. `UNDEFINED_PRICE` and `UNDEFINED_TIME` stand where there is no value. The first byte of a
record is its length in words of four bytes.

Source: the DBN specification, "Schemas and data formats"; its own library is the judge in tests.
"""

from collections.abc import Mapping, Sized
from datetime import date, timedelta
from typing import Final, NamedTuple

import numpy as np

from feedhandler.codecs.times import day_of

UNDEFINED_PRICE: Final = (1 << 63) - 1
UNDEFINED_TIME: Final = (1 << 64) - 1
PRICE_SCALE: Final = 1_000_000_000

#: `rtype` of each kind of record.
RTYPE_TRADE, RTYPE_MBP_1, RTYPE_MBP_10 = 0x00, 0x01, 0x0A
RTYPE_STATUS, RTYPE_DEFINITION, RTYPE_MBO = 0x12, 0x13, 0xA0
RTYPE_SYMBOL_MAPPING = 0x16

#: Bits of `flags`: the last record of an event; one of a snapshot; a book that may be wrong.
FLAG_LAST, FLAG_SNAPSHOT, FLAG_MAYBE_BAD_BOOK = 1 << 7, 1 << 5, 1 << 2

_HEADER = [
    ("length", "u1"),
    ("rtype", "u1"),
    ("publisher_id", "<u2"),
    ("instrument_id", "<u4"),
    ("ts_event", "<u8"),
]

#: One change of one order, or a trade: `action` is A(dd), C(ancel), M(odify), R (clear the book),
#: T(rade), F(ill) or N(one), `side` B(id), A(sk) or N(one). 56 bytes.
MBO: Final = np.dtype(
    [
        *_HEADER,
        ("order_id", "<u8"),
        ("price", "<i8"),
        ("size", "<u4"),
        ("flags", "u1"),
        ("channel_id", "u1"),
        ("action", "S1"),
        ("side", "S1"),
        ("ts_recv", "<u8"),
        ("ts_in_delta", "<i4"),
        ("sequence", "<u4"),
    ]
)

_TRADE = [
    *_HEADER,
    ("price", "<i8"),
    ("size", "<u4"),
    ("action", "S1"),
    ("side", "S1"),
    ("flags", "u1"),
    ("depth", "u1"),
    ("ts_recv", "<u8"),
    ("ts_in_delta", "<i4"),
    ("sequence", "<u4"),
]


def _levels(count: int) -> list[tuple[str, str]]:
    return [
        (f"{name}_{depth:02}", kind)
        for depth in range(count)
        for name, kind in (
            ("bid_px", "<i8"),
            ("ask_px", "<i8"),
            ("bid_sz", "<u4"),
            ("ask_sz", "<u4"),
            ("bid_ct", "<u4"),
            ("ask_ct", "<u4"),
        )
    ]


#: A trade, 48 bytes.
TRADE: Final = np.dtype(_TRADE)
#: A trade or a change of the best level, and the best level behind it, 80 bytes; and the same of
#: ten levels, 368 bytes. `depth` is the level that changed.
MBP_1: Final = np.dtype([*_TRADE, *_levels(1)])
MBP_10: Final = np.dtype([*_TRADE, *_levels(10)])


#: Bytes of a symbol's text, with its NUL.
SYMBOL_BYTES: Final = 71
#: The symbol of an instrument, sent in a stream before its first record, 176 bytes. `start_ts` is
#: the moment from which on it holds.
SYMBOL_MAPPING: Final = np.dtype(
    [
        *_HEADER,
        ("stype_in", "u1"),
        ("stype_in_symbol", f"S{SYMBOL_BYTES}"),
        ("stype_out", "u1"),
        ("stype_out_symbol", f"S{SYMBOL_BYTES}"),
        ("start_ts", "<u8"),
        ("end_ts", "<u8"),
    ]
)


#: A trading status, 40 bytes: `action` as `STATUS_ACTIONS` has it; Y, N or ~ (not given).
STATUS: Final = np.dtype(
    [
        *_HEADER,
        ("ts_recv", "<u8"),
        ("action", "<u2"),
        ("reason", "<u2"),
        ("trading_event", "<u2"),
        ("is_trading", "S1"),
        ("is_quoting", "S1"),
        ("is_short_sell_restricted", "S1"),
        ("_reserved", "S7"),
    ]
)
#: DBN's actions by the trading state that a description names, and whether orders trade in it.
STATUS_ACTIONS: Final = {
    "trading": (7, b"Y"),
    "halted": (8, b"N"),
    "auction": (4, b"N"),
    "quoting": (3, b"N"),
    "closed": (12, b"N"),
}
#: An instrument's definition, 520 bytes; what a venue's directory does not give is undefined.
DEFINITION: Final = np.dtype(
    [
        *_HEADER,
        ("ts_recv", "<u8"),
        ("min_price_increment", "<i8"),
        ("display_factor", "<i8"),
        ("expiration", "<u8"),
        ("activation", "<u8"),
        *((f"{each}_limit_price", "<i8") for each in ("high", "low")),
        ("max_price_variation", "<i8"),
        ("unit_of_measure_qty", "<i8"),
        ("min_price_increment_amount", "<i8"),
        ("price_ratio", "<i8"),
        ("strike_price", "<i8"),
        ("raw_instrument_id", "<u8"),
        ("leg_price", "<i8"),
        ("leg_delta", "<i8"),
        ("inst_attrib_value", "<i4"),
        ("underlying_id", "<u4"),
        ("market_depth_implied", "<i4"),
        ("market_depth", "<i4"),
        ("market_segment_id", "<u4"),
        ("max_trade_vol", "<u4"),
        ("min_lot_size", "<i4"),
        ("min_lot_size_block", "<i4"),
        ("min_lot_size_round_lot", "<i4"),
        ("min_trade_vol", "<u4"),
        ("contract_multiplier", "<i4"),
        ("decay_quantity", "<i4"),
        ("original_contract_size", "<i4"),
        ("leg_instrument_id", "<u4"),
        *((f"leg_ratio_{each}", "<i4") for each in (
            "price_numerator", "price_denominator", "qty_numerator", "qty_denominator",
        )),
        ("leg_underlying_id", "<u4"),
        ("appl_id", "<i2"),
        ("maturity_year", "<u2"),
        ("decay_start_date", "<u2"),
        ("channel_id", "<u2"),
        ("leg_count", "<u2"),
        ("leg_index", "<u2"),
        ("currency", "S4"),
        ("settl_currency", "S4"),
        ("secsubtype", "S6"),
        ("raw_symbol", f"S{SYMBOL_BYTES}"),
        ("group", "S21"),
        ("exchange", "S5"),
        ("asset", "S11"),
        ("cfi", "S7"),
        ("security_type", "S7"),
        ("unit_of_measure", "S31"),
        ("underlying", "S21"),
        ("strike_price_currency", "S4"),
        ("leg_raw_symbol", f"S{SYMBOL_BYTES}"),
        ("instrument_class", "S1"),
        ("match_algorithm", "S1"),
        ("main_fraction", "u1"),
        ("price_display_format", "u1"),
        ("sub_fraction", "u1"),
        ("underlying_product", "u1"),
        ("security_update_action", "S1"),
        ("maturity_month", "u1"),
        ("maturity_day", "u1"),
        ("maturity_week", "u1"),
        ("user_defined_instrument", "S1"),
        ("contract_multiplier_unit", "i1"),
        ("flow_schedule_type", "i1"),
        ("tick_rule", "u1"),
        ("leg_instrument_class", "S1"),
        ("leg_side", "S1"),
        ("_reserved", "S17"),
    ]
)  # fmt: skip


#: Characters of a definition, by the words that descriptions have for them.
DEFINITION_CODES: Final[Mapping[str, Mapping[str, str]]] = {
    "instrument_class": {
        "stock": "K", "future": "F", "call": "C", "put": "P", "bond": "B", "index": "I",
        "fx_spot": "X", "commodity_spot": "Y", "future_spread": "S", "option_spread": "T",
        "mixed_spread": "M",
    },
    "match_algorithm": {
        "fifo": "F", "configurable": "K", "pro_rata": "C", "fifo_lmm": "T",
        "threshold_pro_rata": "O", "fifo_top_lmm": "S", "threshold_pro_rata_lmm": "Q",
        "eurodollar_futures": "Y", "time_pro_rata": "P", "institutional_prioritization": "V",
        "allocation": "A",
    },
    "security_update_action": {"add": "A", "modify": "M", "delete": "D"},
    "user_defined_instrument": {"yes": "Y", "no": "N"},
}  # fmt: skip


class Schema(NamedTuple):
    """A kind of records: DBN's number of the schema, the records, and their `rtype`."""

    number: int
    records: np.dtype
    rtype: int


#: Kinds of records by the name that an address or a command gives them.
SCHEMAS: Final[Mapping[str, Schema]] = {
    "mbo": Schema(0, MBO, RTYPE_MBO),
    "bbo": Schema(1, MBP_1, RTYPE_MBP_1),
    "mbp10": Schema(2, MBP_10, RTYPE_MBP_10),
    "trades": Schema(4, TRADE, RTYPE_TRADE),
    "status": Schema(11, STATUS, RTYPE_STATUS),
    "definition": Schema(9, DEFINITION, RTYPE_DEFINITION),
}
#: Those that give levels of the book, of which the newest is all that a slow receiver needs.
LEVEL_SCHEMAS: Final = ("bbo", "mbp10")
_BY_RTYPE: Final = {schema.rtype: schema for schema in SCHEMAS.values()}
VERSION: Final = 3
_DATASET_BYTES = 16
_RESERVED_BYTES = 53
_INSTRUMENT_ID, _RAW_SYMBOL = 0, 1


def encode_metadata(
    dataset: str, schema: Schema, start_ns: int, end_ns: int, symbols: Mapping[int, str]
) -> bytes:
    """Return what stands in front of the records of a file.

    The records are from `start_ns` on and before `end_ns`. `symbols` are the names of instruments
    by their `instrument_id`, good on each day of that time (in UTC, as DBN counts them); several
    may have one name. Text that is too long is cut.
    """
    days = day_of(start_ns, "UTC"), day_of(end_ns - 1, "UTC") + timedelta(days=1)
    fixed = b"".join(
        (
            _text(dataset, _DATASET_BYTES),
            schema.number.to_bytes(2, "little"),
            start_ns.to_bytes(8, "little"),
            end_ns.to_bytes(8, "little"),
            bytes(8),  # no limit of records
            bytes((_RAW_SYMBOL, _INSTRUMENT_ID, 0)),
            SYMBOL_BYTES.to_bytes(2, "little"),
            bytes(_RESERVED_BYTES),
            bytes(4),  # no definition of the schema
        )
    )
    numbers: dict[bytes, list[int]] = {}
    for number, name in symbols.items():
        numbers.setdefault(_text(name, SYMBOL_BYTES), []).append(number)
    body = fixed + _count(numbers) + b"".join(numbers) + bytes(8)  # none in part, none not found
    body += _count(numbers) + b"".join(_mapping(name, numbers[name], *days) for name in numbers)
    body += bytes(-len(body) % 8)
    return b"DBN" + bytes((VERSION,)) + len(body).to_bytes(4, "little") + body


def encode_symbol_mapping(publisher_id: int, instrument_id: int, symbol: str, at_ns: int) -> bytes:
    """Return the record that gives the symbol of an instrument. Text that is too long is cut."""
    made = np.zeros(1, SYMBOL_MAPPING)
    made["length"], made["rtype"] = made.itemsize // 4, RTYPE_SYMBOL_MAPPING
    made["publisher_id"], made["instrument_id"] = publisher_id, instrument_id
    made["ts_event"] = made["start_ts"] = at_ns
    made["end_ts"] = UNDEFINED_TIME
    made["stype_in"], made["stype_out"] = _INSTRUMENT_ID, _RAW_SYMBOL
    made["stype_in_symbol"] = str(instrument_id).encode()
    made["stype_out_symbol"] = _text(symbol, SYMBOL_BYTES)
    return made.tobytes()


def encode_status(
    publisher_id: int, instrument_id: int, state: str, event_ns: int, received_ns: int
) -> bytes:
    """Return the record of a trading status: a state of `STATUS_ACTIONS`."""
    made = np.zeros(1, STATUS)
    made["length"], made["rtype"] = made.itemsize // 4, RTYPE_STATUS
    made["publisher_id"], made["instrument_id"] = publisher_id, instrument_id
    made["ts_event"], made["ts_recv"] = event_ns, received_ns
    made["action"], made["is_trading"] = STATUS_ACTIONS[state]
    made["is_quoting"] = b"Y" if state in ("trading", "quoting", "auction") else b"N"
    made["is_short_sell_restricted"] = b"~"
    return made.tobytes()


#: Integers of a definition that are 0 where there is nothing.
_NONE_IS_ZERO: Final = ("leg_", "underlying_id")


def _undefined() -> np.ndarray:
    """Return a definition of which nothing is given: integers are the greatest of their kind, but
    for what legs and underlyings have; text is empty."""
    made = np.zeros(1, DEFINITION)
    for name in DEFINITION.names or ():
        kind = DEFINITION[name]
        if kind.kind in "iu" and not name.startswith(_NONE_IS_ZERO):
            made[name] = np.iinfo(kind).max
    made["leg_price"] = made["leg_delta"] = UNDEFINED_PRICE
    made["match_algorithm"] = b" "
    made["user_defined_instrument"] = made["leg_side"] = b"N"
    made["security_update_action"] = b"A"
    made["length"], made["rtype"] = made.itemsize // 4, RTYPE_DEFINITION
    return made


_UNDEFINED_INSTRUMENT: Final = _undefined().tobytes()


class _Place(NamedTuple):
    """Where a field of a definition stands."""

    kind: str
    size: int
    at: int


_PLACES: Final = {
    name: _Place(place[0].kind, place[0].itemsize, place[1])
    for name, place in (DEFINITION.fields or {}).items()
}


def pack_definition(values: Mapping[str, int | bytes]) -> bytes:
    """Return a definition with these values by the names of `DEFINITION`, all else undefined."""
    made = bytearray(_UNDEFINED_INSTRUMENT)
    _put(made, values)
    return bytes(made)


def _put(made: bytearray, values: Mapping[str, int | bytes]) -> None:
    """Write fields of a definition."""
    for name, value in values.items():
        kind, size, at = _PLACES[name]
        if isinstance(value, bytes):
            made[at : at + size] = value.ljust(size, b"\0")
        else:
            made[at : at + size] = value.to_bytes(size, "little", signed=kind == "i")


def encode_definition(
    publisher_id: int,
    instrument_id: int,
    symbol: str,
    event_ns: int,
    received_ns: int,
    packed: bytes = _UNDEFINED_INSTRUMENT,
) -> bytes:
    """Return the record that defines an instrument: what `pack_definition` has of its terms, and
    `symbol` where they have none. A symbol that is too long is cut."""
    made = bytearray(packed)
    own: dict[str, int | bytes] = {
        "publisher_id": publisher_id,
        "instrument_id": instrument_id,
        "raw_instrument_id": instrument_id,
        "ts_event": event_ns,
        "ts_recv": received_ns,
    }
    if not made[_PLACES["raw_symbol"].at]:
        own["raw_symbol"] = _text(symbol, SYMBOL_BYTES)
    _put(made, own)
    return bytes(made)


class RecordBody(NamedTuple):
    """Content of a body of records: those of one schema, and symbols by instrument id."""

    records: np.ndarray
    symbols: Mapping[int, str]


def decode_records(body: bytes) -> RecordBody:
    """Read a body: records of one schema, with or without symbol mappings between them.

    Raises ValueError where it is anything else, or breaks off.
    """
    schema = _BY_RTYPE.get(body[1]) if len(body) > 1 else None
    if schema is not None and len(body) % schema.records.itemsize == 0:
        records = np.frombuffer(body, schema.records)
        same = (records["length"] == schema.records.itemsize // 4) & (
            records["rtype"] == schema.rtype
        )
        if same.all():
            return RecordBody(records, {})
    return _walk(body)


def schema_of(records: np.ndarray) -> str:
    """Return the name of the schema of records that were read."""
    return next(name for name, schema in SCHEMAS.items() if schema.records == records.dtype)


def _walk(body: bytes) -> RecordBody:
    """Read a body record by record."""
    symbols: dict[int, str] = {}
    kept: list[bytes] = []
    kind: Schema | None = None
    at = 0
    while at < len(body):
        size = 4 * body[at]
        if size < 16 or at + size > len(body):
            raise ValueError(f"no whole record at byte {at} of {len(body)}")
        rtype, part = body[at + 1], body[at : at + size]
        if rtype == RTYPE_SYMBOL_MAPPING and size == SYMBOL_MAPPING.itemsize:
            mapping = np.frombuffer(part, SYMBOL_MAPPING)[0]
            symbols[int(mapping["instrument_id"])] = mapping["stype_out_symbol"].decode(
                errors="replace"
            )
        else:
            schema = _BY_RTYPE.get(rtype)
            if schema is None or schema.records.itemsize != size or (kind or schema) != schema:
                raise ValueError(f"an unexpected record of type {rtype} at byte {at}")
            kind = schema
            kept.append(part)
        at += size
    dtype = MBO if kind is None else kind.records
    return RecordBody(np.frombuffer(b"".join(kept), dtype), symbols)


def _mapping(name: bytes, numbers: list[int], first: date, end: date) -> bytes:
    """Return the intervals from a day to before another in which `name` is each instrument of these
    numbers."""
    begins, ends = (int(f"{day:%Y%m%d}").to_bytes(4, "little") for day in (first, end))
    return (
        name
        + _count(numbers)
        + b"".join(begins + ends + _text(str(number), SYMBOL_BYTES) for number in numbers)
    )


def _count(items: Sized) -> bytes:
    return len(items).to_bytes(4, "little")


def _text(text: str, size: int) -> bytes:
    """Return whole characters of the text in `size` bytes, the last of them a NUL at least."""
    return text.encode()[: size - 1].decode(errors="ignore").encode().ljust(size, b"\0")
