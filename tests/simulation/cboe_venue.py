"""A unit of Cboe PITCH: what is lost comes by a Gap Request Proxy; there may be a Spin Server."""

import random
import struct

from channel_world import SERVICE
from line_world import Venue, open_or_close

from feedhandler.codecs import load_feed

ADDS, DELETES = 0x22, 0x29
#: About so many orders are open.
OPEN_ORDERS = 60


def message(number: int, draw: random.Random, orders: dict[int, bytes]) -> bytes:
    """An order that is added, with the message's number for its id, or one that is deleted."""
    if len(orders) > OPEN_ORDERS * draw.random():
        gone = draw.choice(list(orders))
        made = struct.pack("<BBIQ", 14, DELETES, number, gone)
    else:
        made = struct.pack("<BBIQcH6sHB", 26, ADDS, 0, number, b"B", 100, b"ZVZZT ", 10, 1)
    apply(orders, made)
    return made


def apply(orders: dict[int, bytes], message: bytes) -> None:
    """Take a message into the open orders."""
    order = int.from_bytes(message[6:14], "little")
    open_or_close(orders, order, message, message[1] == ADDS)


def nonsense(draw: random.Random) -> bytes:
    """Return bytes that no good server sends: garbage, or answers to nothing."""
    body = draw.choice(
        [
            struct.pack("<BBBIHc", 10, 4, SERVICE, 1 << 30, 3, b"A"),
            struct.pack("<BBIIc", 11, 0x82, 1 << 30, 3, b"A"),
            struct.pack("<BBI", 6, 0x83, 1 << 30),
            b"\3\2N",
        ]
    )
    unit = struct.pack("<HBBI", 8 + len(body), 1, SERVICE, 0) + body
    return draw.choice([draw.randbytes(draw.randrange(1, 60)), unit])


VENUE = Venue(
    load_feed("cboe-byx-pitch"), "cboe-grp", message, apply,
    {"source_id": "SIM", "session": "0001"}, nonsense, snapshots="cboe-spin",
    secondary=True,
    wanted={
        "rts failovers", "rts failbacks",
        "gap", "MISSING", "CLOSED", "snapshot-begin", "rts packets", "rts rejected",
        "rts broken", "rts bad_packets", "rts cancelled", "snapshots spins", "snapshots broken",
    },
)  # fmt: skip
