"""A gateway that recovers a NYSE XDP channel, behind a bad network: nothing lost unmarked, nothing
invented.

What a seed draws, and what is checked, `line_world` says. `SEEDS=n` plays n seeds (`make simulate`:
10,000), `SEED=s` just one.
"""

import random
import struct

import pytest
from channel_world import SERVICE, play_seeds
from line_world import Venue, bites, play, story

from feedhandler.codecs import load_feed

PRODUCT, SOURCE = 9, b"SIM"


def message(number: int, draw: random.Random, orders: dict[int, bytes]) -> bytes:
    """An "add order", whose order id is its number."""
    return struct.pack("<HHIIIQII", 39, 100, 0, 9, number, number, 100, 5) + b"BFIRM \0"


def nonsense(draw: random.Random) -> bytes:
    """What no good server says: garbage, another's response, one to no request, a request."""
    body = draw.choice(
        [
            struct.pack("<HHIII10sBBc", 29, 11, 1, 1, 2, b"OTHER", PRODUCT, SERVICE, b"0"),
            struct.pack("<HHIII10sBBc", 29, 11, 1 << 30, 1, 2, SOURCE, PRODUCT, SERVICE, b"0"),
            struct.pack("<HHII10sBB", 24, 10, 1, 2, SOURCE, PRODUCT, SERVICE),
        ]
    )
    packet = struct.pack("<HBBIII", 16 + len(body), 11, 1, 1, 0, 0) + body
    return draw.choice([draw.randbytes(draw.randrange(1, 60)), packet])


VENUE = Venue(
    load_feed("nyse-integrated-xdp"), "nyse-xdp", message,
    {"source_id": SOURCE.decode(), "product": PRODUCT}, nonsense, product=PRODUCT,
)  # fmt: skip


def apply(orders: dict[int, bytes], message: bytes) -> None:
    """Take an order into the books: it is only added."""
    orders[int.from_bytes(message[16:24], "little")] = message


@pytest.mark.timeout(7200)
def test_what_comes_out_of_an_xdp_channel_is_what_went_in_or_is_marked() -> None:
    wanted = {
        "gap", "MISSING", "CLOSED", "rts packets", "rts rejected", "rts heartbeats",
        "rts broken", "rts bad_packets", "rts cancelled", "a silent server",
    }  # fmt: skip
    play_seeds(lambda seed: play(VENUE, apply, seed), wanted)


def test_a_seed_does_the_same_again() -> None:
    assert story(VENUE, 3) == story(VENUE, 3)


@pytest.mark.parametrize("seed_", range(5))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(seed_: int) -> None:
    assert bites(VENUE, apply, seed_) == []
