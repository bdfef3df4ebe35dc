"""A channel of NYSE XDP: what is lost comes by retransmission lines; there may be refreshes, which
come by lines of their own."""

import random
import struct

from channel_world import SERVICE
from line_world import Venue, open_or_close

from feedhandler.codecs import load_feed

PRODUCT, SOURCE = 9, b"SIM"
RESETS, NAMES, ADDS, DELETES = 1, 3, 100, 102
#: About so many orders are open, of so many symbols.
OPEN_ORDERS, SYMBOLS = 60, 8


def message(number: int, draw: random.Random, orders: dict[int, bytes]) -> bytes:
    """An order that is added, with the message's number for its id, or one that is deleted.

    The first is a reset's.
    """
    if number == 1:
        return struct.pack("<HHIIBB", 14, RESETS, 0, 0, PRODUCT, SERVICE)
    if len(orders) > OPEN_ORDERS * draw.random():
        gone = draw.choice(list(orders))
        symbol = orders[gone][8:12]
        made = struct.pack("<HHI4sIQB", 25, DELETES, 0, symbol, number, gone, 0)
    else:
        symbol = draw.randrange(1, SYMBOLS + 1)
        fields = (39, ADDS, 0, symbol, number, number, 100, 5)
        made = struct.pack("<HHIIIQII", *fields) + b"BFIRM \0"
    apply(orders, made)
    return made


def apply(orders: dict[int, bytes], message: bytes) -> None:
    """Take a message into the open orders."""
    if message[2] not in (RESETS, NAMES):
        order = int.from_bytes(message[16:24], "little")
        open_or_close(orders, order, message, message[2] == ADDS)


def nonsense(draw: random.Random) -> bytes:
    """Return bytes no good server sends: garbage, a request, a response to others or to none."""
    body = draw.choice(
        [
            struct.pack("<HHIII10sBBc", 29, 11, 1, 1, 2, b"OTHER", PRODUCT, SERVICE, b"0"),
            struct.pack("<HHIII10sBBc", 29, 11, 1 << 30, 1, 2, SOURCE, PRODUCT, SERVICE, b"0"),
            struct.pack("<HHII10sBB", 24, 10, 1, 2, SOURCE, PRODUCT, SERVICE),
        ]
    )
    packet = struct.pack("<HBBIII", 16 + len(body), 11, 1, 1, 0, 0) + body
    return draw.choice([draw.randbytes(draw.randrange(1, 60)), packet])


FEED = load_feed("nyse-integrated-xdp")
VENUE = Venue(
    FEED, "nyse-xdp", message, apply,
    {"source_id": SOURCE.decode(), "product": PRODUCT}, nonsense, snapshots="nyse-xdp",
    product=PRODUCT, refresh_timeout_us=(100_000, 300_000),
    names=tuple(
        FEED.encode_message("symbol_index_mapping", symbol_index=n, symbol_name=f"S{n}")
        for n in range(1, SYMBOLS + 1)
    ),
    symbols={n: f"S{n}" for n in range(1, SYMBOLS + 1)},
    secondary=True,
    wanted={
        "rts failovers", "rts failbacks",
        "gap", "MISSING", "CLOSED", "rts packets", "rts rejected", "rts heartbeats",
        "rts broken", "rts bad_packets", "rts cancelled", "a silent server", "snapshot-begin",
        "snapshots accepted", "snapshots mappings", "snapshots broken",
        "refresh snapshots", "refresh failed_gap", "refresh outside", "refresh malformed",
    },
)  # fmt: skip
