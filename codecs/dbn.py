"""Record layouts of the Databento Binary Encoding (DBN), version 3, as numpy dtypes.

All integers are little-endian; prices are fixed-point with nine decimals, times nanoseconds since
1970. `UNDEFINED_PRICE` and `UNDEFINED_TIME` stand where there is no value. The first byte of a
record is its length in words of four bytes.

Source: the DBN specification, "Schemas and data formats"; its own library is the judge in tests.
"""

from typing import Final

import numpy as np

UNDEFINED_PRICE: Final = (1 << 63) - 1
UNDEFINED_TIME: Final = (1 << 64) - 1
PRICE_SCALE: Final = 1_000_000_000

#: `rtype` of each kind of record.
RTYPE_TRADE, RTYPE_MBP_1, RTYPE_MBP_10 = 0x00, 0x01, 0x0A
RTYPE_STATUS, RTYPE_DEFINITION, RTYPE_MBO = 0x12, 0x13, 0xA0

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
