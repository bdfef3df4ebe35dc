"""A session of ITCH: what is lost comes by MoldUDP64 requests, of which there may be a secondary
server, and there may be a GLIMPSE server as well."""

import random

from line_world import PASSWORD, Venue, open_or_close

from feedhandler.codecs import load_feed

FEED = load_feed("nasdaq-totalview-itch")
#: About so many orders are open.
OPEN_ORDERS = 60


def message(number: int, draw: random.Random, orders: dict[int, bytes]) -> bytes:
    """An order that is added, with the message's number for its id, or one that is deleted."""
    if len(orders) > OPEN_ORDERS * draw.random():
        gone = draw.choice(list(orders))
        made = FEED.encode_message("order_delete", stock_locate=1, order_reference_number=gone)
    else:
        made = FEED.encode_message(
            "add_order_no_mpid_attribution", stock_locate=1, order_reference_number=number,
            buy_sell_indicator="B", shares=100, stock="ZVZZT", price=10_000,
        )  # fmt: skip
    apply(orders, made)
    return made


def apply(orders: dict[int, bytes], message: bytes) -> None:
    """Take a message into the open orders."""
    order = int.from_bytes(message[13:21], "big")
    open_or_close(orders, order, message, message[2:3] == b"A")


def nonsense(draw: random.Random) -> bytes:
    """Return bytes that no good server sends: garbage, or SoupBinTCP packets out of place."""
    kind, payload = draw.choice(
        [(b"Z", b""), (b"J", b"A"), (b"J", b"S"), (b"A", bytes(30)), (b"S", b""), (b"U", b"x"),
         (b"S", b"G"), (b"L", bytes(46))]
    )  # fmt: skip
    packet = (len(payload) + 1).to_bytes(2, "big") + kind + payload
    return draw.choice([draw.randbytes(draw.randrange(1, 60)), packet])


VENUE = Venue(
    FEED, "moldudp64", message, apply, {"source_id": "SIM"}, nonsense, snapshots="glimpse",
    snapshot_server={"source_id": "SIM", "password_env": PASSWORD},
    header={"session": "0000000001"}, mutates=False, refresh_timeout_us=(30_000, 200_000),
    secondary=True,
    wanted={
        "gap", "MISSING", "CLOSED", "snapshot-begin", "rts packets", "rts late_packets",
        "rts unasked_packet", "rts silent", "rts cancelled", "rts rejected",
        "rts failovers", "rts failbacks", "rts moved", "rts passed_on",
        "snapshots snapshots", "snapshots broken", "snapshots cancelled",
        "snapshots failed_cut",
    },
)  # fmt: skip
