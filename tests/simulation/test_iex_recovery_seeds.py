"""A gateway that recovers an IEX channel by gap fill, behind a bad network: nothing lost unmarked,
nothing invented.

What a seed draws, and what is checked, `line_world` says; here requests and answers are datagrams,
each of which may be lost, doubled, late or wrong. `SEEDS=n` plays n seeds (`make simulate`:
10,000), `SEED=s` just one.
"""

import random
import struct

import pytest
from channel_world import SERVICE, play_seeds
from line_world import Venue, World, bites, play, story

from feedhandler.codecs import load_feed

SESSION = 0x41000001
#: Bytes of a message.
SIZE = 40


def message(number: int, draw: random.Random, trades: dict[int, bytes]) -> bytes:
    """A trade report, whose trade id is its number."""
    return struct.pack("<HccQ8sIqq", 38, b"T", b"\0", number, b"ZVZZT   ", 100, 5, number)


def apply(trades: dict[int, bytes], message: bytes) -> None:
    """Take a trade into the state: it is only added."""
    trades[int.from_bytes(message[-8:], "little")] = message


def invented(draw: random.Random) -> bytes:
    """A segment that no good server sends: another session's, or with a message far away."""
    number, session = draw.choice([(1, SESSION + 1), (1 << 30, SESSION)])
    body = message(number, draw, {})
    return struct.pack(
        "<BxHIIHHqqq", 1, 0x8004, SERVICE, session, len(body), 1, 0, number, 0
    ) + body  # fmt: skip


VENUE = Venue(load_feed("iex-deep"), "iex-tp", message, {}, invented)


class GapFillWorld(World):
    """A world whose packets have stream offsets, and whose wrong server invents messages too."""

    def said(self, data: bytes, kind: str) -> bytes:
        if kind == "wrong" and self.happens(0.3, self.now):
            return invented(self.rng)
        return super().said(data, kind)

    def _packet(self, first: int, end: int) -> bytes:
        return self.venue.feed.encode_packet(
            sequence=first, service=SERVICE, session=SESSION,
            messages=self.published[first - 1 : end - 1],
            header={"stream_offset": (first - 1) * SIZE},
        )  # fmt: skip


@pytest.mark.timeout(7200)
def test_what_comes_out_of_an_iex_channel_is_what_went_in_or_is_marked() -> None:
    wanted = {
        "gap", "MISSING", "CLOSED", "rts packets", "rts others_packets", "rts bad_packets",
        "rts wrong_session", "rts tests", "rts tests_answered", "rts broken", "rts cancelled",
        "a silent server",
    }  # fmt: skip
    play_seeds(lambda seed: play(VENUE, apply, seed, GapFillWorld), wanted)


def test_a_seed_does_the_same_again() -> None:
    assert story(VENUE, 3, GapFillWorld) == story(VENUE, 3, GapFillWorld)


@pytest.mark.parametrize("seed_", range(2))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(seed_: int) -> None:
    assert bites(VENUE, apply, seed_, GapFillWorld) == []
