"""A gateway that recovers a CME channel by TCP replay, behind a bad network: nothing lost unmarked,
nothing invented.

What a seed draws, and what is checked, `line_world` says; here numbers count packets, and there is
a connection only while something is asked for. `SEEDS=n` plays n seeds (`make simulate`: 10,000),
`SEED=s` just one.
"""

import random
import struct

import pytest
from channel_world import play_seeds
from line_world import Venue, bites, play, story

from feedhandler.codecs import load_feed

FEED = load_feed("cme-mdp3")


def message(number: int, draw: random.Random, requests: dict[int, bytes]) -> bytes:
    """A quote request, whose time is its number."""
    return FEED.encode_message(39, transact_time=number)


def apply(requests: dict[int, bytes], message: bytes) -> None:
    """Take a quote request into the state: it is only added."""
    requests[int.from_bytes(message[10:18], "little")] = message


def nonsense(draw: random.Random) -> bytes:
    """Return bytes no good server sends: garbage, refusal, another confirmation, far numbers."""
    own = draw.choice(
        [
            FEED.encode_message("admin_logout", text="no"),
            FEED.encode_message("admin_login"),
            message(1 << 30, draw, {}),
        ]
    )
    packet = struct.pack("<IQ", 1 << 30, 0) + own
    framed = struct.pack("<H", len(packet)) + packet
    return draw.choice([draw.randbytes(draw.randrange(1, 60)), framed])


def harmed(data: bytes, draw: random.Random) -> bytes:
    """The bytes with an end missing: what was changed within could not be told from the truth."""
    return data[: draw.randrange(len(data))]


VENUE = Venue(
    FEED, "cme-replay", message, {"source_id": "SIM", "password_env": "CME_REPLAY_PASSWORD"},
    nonsense, harmed=harmed, batch=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CME_REPLAY_PASSWORD", "SIM")


@pytest.mark.timeout(7200)
def test_what_comes_out_of_a_cme_channel_is_what_went_in_or_is_marked() -> None:
    wanted = {
        "gap", "MISSING", "CLOSED", "rts packets", "rts spans", "rts late_packets",
        "rts rejected", "rts broken", "rts failed", "rts cancelled",
        "rts wrong_direction", "a silent server",
    }  # fmt: skip
    play_seeds(lambda seed: play(VENUE, apply, seed), wanted, rare=(27,))


def test_a_seed_does_the_same_again() -> None:
    assert story(VENUE, 3) == story(VENUE, 3)


@pytest.mark.parametrize("seed_", range(2))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(seed_: int) -> None:
    assert bites(VENUE, apply, seed_) == []
