"""A gateway that recovers a NYSE XDP channel, behind a bad network: nothing lost unmarked, nothing
invented, and its open orders are true whenever it says so.

What a seed draws, and what is checked, `line_world` says; there may be refreshes as well, which
come by lines of their own. `SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import random
import struct
from collections import Counter

import pytest
from channel_world import SERVICE, play_seeds
from line_world import Venue, World, bites, play, story

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
    order = int.from_bytes(message[16:24], "little")
    if message[2] in (RESETS, NAMES):
        return
    if message[2] == ADDS:
        assert order not in orders, f"order {order} is open already"
        orders[order] = message
    else:
        assert orders.pop(order, None) is not None, f"order {order} is not open"


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
    FEED, "nyse-xdp", message,
    {"source_id": SOURCE.decode(), "product": PRODUCT}, nonsense, "nyse-xdp", product=PRODUCT,
    refresh_timeout_us=(100_000, 300_000),
    names=tuple(
        FEED.encode_message("symbol_index_mapping", symbol_index=n, symbol_name=f"S{n}")
        for n in range(1, SYMBOLS + 1)
    ),
)  # fmt: skip


def seen_in(seed: int) -> Counter[str]:
    """A seed, played and checked; what was seen in it, its refreshes too."""
    made: list[World] = []

    def make(venue: Venue, seed: int) -> World:
        made.append(World(venue, seed))
        return made[0]

    seen = play(VENUE, apply, seed, make)
    if seen["snapshot-end"]:
        assert made[0].core.names == {n: f"S{n}" for n in range(1, SYMBOLS + 1)}
    refreshes = made[0].core.recovery.snapshot(0)["refresh"]
    seen.update({f"refresh {name}": count for name, count in refreshes.items()})
    return seen


@pytest.mark.timeout(7200)
def test_what_comes_out_of_an_xdp_channel_is_what_went_in_or_is_marked() -> None:
    wanted = {
        "gap", "MISSING", "CLOSED", "rts packets", "rts rejected", "rts heartbeats",
        "rts broken", "rts bad_packets", "rts cancelled", "a silent server", "snapshot-begin",
        "snapshots accepted", "snapshots mappings", "snapshots broken",
        "refresh snapshots", "refresh failed_gap", "refresh outside", "refresh malformed",
    }  # fmt: skip
    play_seeds(seen_in, wanted, rare=(9, 27))


def test_a_seed_does_the_same_again() -> None:
    assert story(VENUE, 3) == story(VENUE, 3)


@pytest.mark.parametrize("seed_", range(2))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(seed_: int) -> None:
    assert bites(VENUE, apply, seed_) == []
