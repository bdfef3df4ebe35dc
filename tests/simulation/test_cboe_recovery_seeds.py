"""A gateway that recovers a Cboe unit, behind a bad network: nothing lost unmarked, nothing
invented, and its open orders are true whenever it says so.

What a seed draws, and what is checked, `line_world` says; there may be a Spin Server as well.
`SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import random
import struct

import pytest
from channel_world import SERVICE, play_seeds
from line_world import Venue, bites, play, story

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
    if message[1] == ADDS:
        assert order not in orders, f"order {order} is open already"
        orders[order] = message
    else:
        assert orders.pop(order, None) is not None, f"order {order} is not open"


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
    load_feed("cboe-byx-pitch"), "cboe-grp", message,
    {"source_id": "SIM", "session": "0001"}, nonsense, "cboe-spin",
)  # fmt: skip


@pytest.mark.timeout(7200)
def test_what_comes_out_of_a_unit_is_what_went_in_or_is_marked() -> None:
    wanted = {
        "gap", "MISSING", "CLOSED", "snapshot-begin", "rts packets", "rts rejected",
        "rts broken", "rts bad_packets", "rts cancelled", "snapshots spins", "snapshots broken",
    }  # fmt: skip
    play_seeds(lambda seed: play(VENUE, apply, seed), wanted, rare=(9, 20))


def test_a_seed_does_the_same_again() -> None:
    assert story(VENUE, 3) == story(VENUE, 3)


@pytest.mark.parametrize("seed_", range(2))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(seed_: int) -> None:
    assert bites(VENUE, apply, seed_) == []
