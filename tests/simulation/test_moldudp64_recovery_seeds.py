"""A gateway that recovers an ITCH session by MoldUDP64 requests and GLIMPSE, behind a bad network:
nothing lost unmarked, nothing invented, and its open orders are true whenever it says so.

What a seed draws, and what is checked, `line_world` says; there may be a secondary server of
requests, and a GLIMPSE server, as well.
`SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import random

import pytest
from channel_world import play_seeds
from line_world import Venue, bites, play, story

from feedhandler.codecs import load_feed

FEED = load_feed("nasdaq-totalview-itch")
#: About so many orders are open.
OPEN_ORDERS = 60
PASSWORD = "SIMULATED_PASSWORD"


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the password of the GLIMPSE server, which reads it from the environment."""
    monkeypatch.setenv(PASSWORD, "SECRET")


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
    if message[2:3] == b"A":
        assert order not in orders, f"order {order} is open already"
        orders[order] = message
    else:
        assert orders.pop(order, None) is not None, f"order {order} is not open"


def nonsense(draw: random.Random) -> bytes:
    """Return bytes that no good server sends: garbage, or SoupBinTCP packets out of place."""
    kind, payload = draw.choice(
        [(b"Z", b""), (b"J", b"A"), (b"J", b"S"), (b"A", bytes(30)), (b"S", b""), (b"U", b"x"),
         (b"S", b"G"), (b"L", bytes(46))]
    )  # fmt: skip
    packet = (len(payload) + 1).to_bytes(2, "big") + kind + payload
    return draw.choice([draw.randbytes(draw.randrange(1, 60)), packet])


VENUE = Venue(
    FEED, "moldudp64", message, {"source_id": "SIM"}, nonsense, "glimpse",
    snapshot_server={"source_id": "SIM", "password_env": PASSWORD},
    header={"session": "0000000001"}, mutates=False, refresh_timeout_us=(30_000, 200_000),
    secondary=True,
)  # fmt: skip


@pytest.mark.timeout(7200)
def test_what_comes_out_of_a_session_is_what_went_in_or_is_marked() -> None:
    wanted = {
        "gap", "MISSING", "CLOSED", "snapshot-begin", "rts packets", "rts late_packets",
        "rts unasked_packet", "rts silent", "rts cancelled", "rts rejected",
        "rts failovers", "rts failbacks", "rts moved", "rts passed_on",
        "snapshots snapshots", "snapshots broken", "snapshots cancelled",
        "snapshots failed_cut",
    }  # fmt: skip
    play_seeds(lambda seed: play(VENUE, apply, seed), wanted, rare=(9, 37))


def test_a_seed_does_the_same_again() -> None:
    assert story(VENUE, 3) == story(VENUE, 3)


@pytest.mark.parametrize("seed_", range(2))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(seed_: int) -> None:
    assert bites(VENUE, apply, seed_) == []
