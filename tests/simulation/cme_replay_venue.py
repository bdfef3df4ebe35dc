"""A channel of CME MDP 3.0: what is lost comes by TCP replay. Numbers count packets, and there is a
connection only while something is asked for."""

import random
import struct

from line_world import PASSWORD, Venue

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
    FEED, "cme-replay", message, apply, {"source_id": "SIM", "password_env": PASSWORD},
    nonsense, harmed=harmed, batch=1,
    secondary=True,
    wanted={
        "rts failovers", "rts failbacks",
        "gap", "MISSING", "CLOSED", "rts packets", "rts spans", "rts late_packets",
        "rts rejected", "rts broken", "rts failed", "rts cancelled",
        "rts wrong_direction", "a silent server",
    },
    rare=(60,),
)  # fmt: skip
