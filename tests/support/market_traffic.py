"""Shared by tests of generated traffic."""

from functools import lru_cache
from typing import Any

from feedhandler.codecs import load_feed
from feedhandler.replay.generating.profile import Profile, load_profile
from feedhandler.replay.generating.traffic import Traffic

FEED = load_feed("euronext-utp-md")
MARKET = load_profile("market")


def stretch(seed: int, profile: Profile = MARKET, **more: Any) -> Traffic:
    """A short stretch of the built-in market, small enough for a test."""
    return Traffic(profile, seed, feed=FEED, **{"rate_mbps": 8.0, "duration_s": 4.0, **more})


def packets_of(traffic: Traffic) -> list[tuple[int, int, bytes]]:
    """(channel, time, packet) of everything that the exchange sends, in order."""
    found = []
    for block in traffic.blocks():
        columns = block.columns
        for row in range(len(block)):
            at, size = int(columns["offset"][row]), int(columns["length"][row])
            found.append((int(columns["channel"][row]), int(columns["time_a_ns"][row]),
                          block.data[at : at + size].tobytes()))  # fmt: skip
    return found


@lru_cache(maxsize=4)
def sent(seed: int) -> list[tuple[int, int, bytes]]:
    """`packets_of` a stretch with a seed."""
    return packets_of(stretch(seed))
