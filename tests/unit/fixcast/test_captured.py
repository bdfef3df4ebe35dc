"""A captured channel's messages, each once and in order."""

import random

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.fixcast.captured import CapturedChannel
from feedhandler.fixcast.exchange_plan import symbols_of
from feedhandler.fixcast.messages import Header
from feedhandler.replay.captures.reading import Datagram
from feedhandler.replay.generating.fix_market import FixMarket
from tests.support.fix_translation import MS, Wire

MESSAGES = 1_000
LINES = ("239.9.9.1", "239.9.9.2")


def session(seed: int) -> Wire:
    """Return the wire of a publisher that has sent its whole session."""
    wire, market = Wire(), FixMarket(seed, symbols_of(1)[:5])
    list(wire.publish(market.next_message(0) for _ in range(MESSAGES)))
    list(wire.end())
    return wire


def capture(wire: Wire, lost: tuple[set[int], set[int]], skew_ns: int = 0) -> list[Datagram]:
    """Both lines' datagrams but those that are lost, B later by `skew_ns`, in the order of time."""
    found = [
        Datagram(number * MS + line * skew_ns, LINES[line], 9_000, "10.0.0.1", each)
        for line in (0, 1)
        for number, each in enumerate(wire.datagrams)
        if number not in lost[line]
    ]
    return sorted(found)


@pytest.mark.parametrize("skew_ms", [0, 1, 500])
def test_what_one_line_lost_the_other_has(seed: int, skew_ms: int) -> None:
    rng, wire = random.Random(seed), session(seed)
    numbers = range(1, len(wire.datagrams))
    lost = set(rng.sample(numbers, len(numbers) // 4))
    both = (lost, set(rng.sample(sorted(set(numbers) - lost), len(numbers) // 4)))
    channel = CapturedChannel(capture(wire, both, skew_ms * MS))
    assert list(channel) == [wire.bodies[number] for number in sorted(wire.bodies)]
    assert (channel.lost, channel.wrong) == (0, 0)


def test_what_no_line_has_is_counted(seed: int) -> None:
    wire = session(seed)
    gone = wire.datagrams[len(wire.datagrams) // 2]
    at = {wire.datagrams.index(gone)}
    channel = CapturedChannel(capture(wire, (at, at)))
    found = list(channel)
    missing = [number for number, each in wire.bodies.items() if each in gone]
    assert channel.lost == len(missing) > 0
    assert found == [wire.bodies[n] for n in sorted(wire.bodies) if n not in missing]


def test_what_is_no_fix_is_counted(seed: int) -> None:
    wire = session(seed)
    foreign = Datagram(5 * MS, LINES[0], 9_000, "10.0.0.1", b"no FIX")
    channel = CapturedChannel(sorted([*capture(wire, (set(), set())), foreign]))
    assert len(list(channel)) == MESSAGES
    assert channel.wrong == 1


def test_a_capture_of_several_channels_is_refused(seed: int) -> None:
    other = Datagram(5 * MS, "239.9.9.3", 9_000, "10.0.0.1", b"")
    channel = CapturedChannel([*capture(session(seed), (set(), set())), other])
    with pytest.raises(UsageError, match="several channels"):
        list(channel)


def test_an_empty_capture_has_no_messages() -> None:
    channel = CapturedChannel([])
    assert (list(channel), channel.lost, channel.wrong) == ([], 0, 0)


def test_a_second_epoch_that_ends_soon_is_read_though_no_message_states_it() -> None:
    header = Header(has_epoch=False)
    given = [
        header.application(
            envelope(b"FIX.4.4", b"35=X\x0158=%b%d\x01" % (epoch, number)), number, 0
        )
        for epoch, count in ((b"first", 10), (b"second", 5))
        for number in range(1, count + 1)
    ]
    channel = CapturedChannel(
        Datagram(at * MS, group, 9_000, "10.0.0.1", each)
        for at, each in enumerate(given)
        for group in LINES
    )
    assert list(channel) == given
    assert channel.lost == 0
