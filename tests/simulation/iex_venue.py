"""A channel of IEX DEEP: what is lost comes by gap fill, whose requests and answers are datagrams,
each of which may be lost, doubled, late or wrong."""

import random
import struct

from channel_world import SERVICE
from line_world import Venue, World

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


VENUE = Venue(
    load_feed("iex-deep"), "iex-tp", message, apply, {}, invented, world=GapFillWorld,
    secondary=True,
    wanted={
        "rts failovers", "rts failbacks",
        "gap", "MISSING", "CLOSED", "rts packets", "rts others_packets", "rts bad_packets",
        "rts wrong_session", "rts tests", "rts tests_answered", "rts broken", "rts cancelled",
        "a silent server",
    },
)  # fmt: skip
