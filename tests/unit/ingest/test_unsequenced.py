"""Packets outside the sequence in arbitration: delivered once, and nothing else changes by them."""

from collections.abc import Callable

import pytest

from feedhandler.codecs.kinds import UNSEQUENCED_BIT, PacketKind
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.fingerprint import UNSEQUENCED_KEPT
from feedhandler.ingest.output import OUTSIDE_MAX
from feedhandler.ingest.states import Verdict
from tests.support.ingest import QUICK, Channel, fill, packets

PUBLISHED, DUPLICATE = Verdict.PUBLISHED, Verdict.DUPLICATE


def outside(channel: Channel, line: int, body: bytes = b"one") -> Verdict:
    """Feed a packet that carries the number set aside."""
    return channel.feed(line, 0, next_sequence=0, kind=PacketKind.UNSEQUENCED, body=body)


def bodies(channel: Channel) -> list[bytes]:
    """Return what was published outside the sequence, in order; check that everything was."""
    channel.collect()
    events, channel.events = channel.events, []
    assert all(event.sequence >> 62 == 1 for event in events)
    return [event.payload[16:] for event in events]


def flowing(channel: Channel) -> None:
    channel.data(0, 1, 2, 3)


def collecting(channel: Channel) -> None:
    channel.data(0, 21_396)


def hinted(channel: Channel) -> None:
    channel.heartbeat(0, 21_396)


def behind_a_hole(channel: Channel) -> None:
    channel.data(0, 1, 3, 4)


def gap_announced(channel: Channel) -> None:
    channel.data(0, 1, 3)
    channel.wait(20)


def in_quarantine(channel: Channel) -> None:
    channel.data(0, 1, 2, 50_000)


def behind_a_reset(channel: Channel) -> None:
    channel.data(0, 1, 2, 3)
    channel.reset(0)


def in_a_new_session(channel: Channel) -> None:
    channel.data(0, 1, 2)
    channel.data(0, 1, session=7)


@pytest.mark.parametrize(
    "where",
    [
        lambda channel: None, flowing, collecting, hinted, behind_a_hole, gap_announced,
        in_quarantine, behind_a_reset, in_a_new_session,
    ],
)  # fmt: skip
def test_it_is_published_once_wherever_the_stream_is_and_changes_nothing(
    channel: Channel, where: Callable[[Channel], None]
) -> None:
    where(channel)
    channel.story()
    before = _state(channel)
    assert [outside(channel, 0), outside(channel, 1)] == [PUBLISHED, DUPLICATE]
    assert [outside(channel, 1, b"two"), outside(channel, 0, b"two")] == [PUBLISHED, DUPLICATE]
    assert bodies(channel) == [b"one", b"two"]
    assert _state(channel) == before
    assert channel.count(ChannelCounter.UNSEQUENCED) == 2
    assert channel.line(0, LineCounter.DUPLICATES) == channel.line(1, LineCounter.DUPLICATES) == 1


def _state(channel: Channel) -> tuple[object, ...]:
    """Everything that a packet of the sequence might change."""
    arbiter = channel.arbiter
    counters = (LineCounter.LATE, LineCounter.STALE, LineCounter.QUARANTINED, LineCounter.HELD)
    counted = (ChannelCounter.STARTS, ChannelCounter.GAPS, ChannelCounter.LOST)
    return (
        arbiter.state_name, arbiter.expected, arbiter.held, arbiter.session, arbiter.deadline_ns,
        [channel.line(line, each) for line in (0, 1) for each in counters],
        [channel.count(each) for each in counted],
    )  # fmt: skip


def test_packets_before_the_streams_start_cost_it_no_gap(channel: Channel) -> None:
    for number in range(5):
        outside(channel, number % 2, bytes([number]))
    channel.data(0, 21_396, 21_397)
    channel.wait(1_000)
    story = channel.story()
    assert story[5:] == [("start", 21_396), *packets(21_396, 21_397)]
    assert channel.count(ChannelCounter.LOST) == 0


def test_equal_packets_are_matched_by_occurrence_line_by_line(channel: Channel) -> None:
    """Two real packets with the same bytes: each line shows both, or loses one of them."""
    assert [outside(channel, 0), outside(channel, 0)] == [PUBLISHED] * 2
    assert [outside(channel, 1), outside(channel, 1)] == [DUPLICATE] * 2
    assert [outside(channel, 1, b"x"), outside(channel, 0, b"x")] == [PUBLISHED, DUPLICATE]
    assert outside(channel, 0, b"x") == PUBLISHED, "B has lost this one"
    assert len(bodies(channel)) == 4


def test_their_numbers_tell_equal_packets_apart_and_are_the_same_on_another_gateway(
    make: Callable[..., Channel],
) -> None:
    one, other = make(), make()
    flowing(other)
    other.story()
    for channel, lines in ((one, (0, 0, 1)), (other, (1, 0, 1))):
        outside(channel, lines[0], b"first")
        outside(channel, lines[1], b"again")
        channel.wait(2_000)
        outside(channel, lines[2], b"again")
    numbers = [[event.sequence for event in channel.events if event.sequence >> 62]
            for channel in (one, other)]  # fmt: skip
    assert numbers[0] == numbers[1]
    assert len(set(numbers[0])) == 3
    assert all(number & UNSEQUENCED_BIT for number in numbers[0])


def test_behind_the_window_equal_bytes_are_a_packet_of_their_own(channel: Channel) -> None:
    outside(channel, 0)
    channel.now += QUICK.unsequenced_window_us * 1_000
    assert outside(channel, 1) == DUPLICATE
    outside(channel, 0, b"two")
    channel.now += QUICK.unsequenced_window_us * 1_000 + 1
    assert outside(channel, 1, b"two") == PUBLISHED


def test_what_is_compared_is_bounded_and_what_gives_way_too_early_is_counted(
    channel: Channel,
) -> None:
    for number in range(UNSEQUENCED_KEPT + 3):
        assert outside(channel, 0, number.to_bytes(2)) == PUBLISHED
    assert channel.count(ChannelCounter.UNSEQUENCED_FORGOTTEN) == 3
    assert outside(channel, 1, (2).to_bytes(2)) == PUBLISHED, "forgotten: rather twice than never"
    assert outside(channel, 1, (4).to_bytes(2)) == DUPLICATE


def test_without_ring_room_they_wait_in_order_and_the_stream_behind_them(channel: Channel) -> None:
    channel.data(0, 1)
    channel.story()
    channel.reading = False
    fill(channel)
    assert [outside(channel, 0, bytes([n])) for n in range(OUTSIDE_MAX)] == [
        PUBLISHED
    ] * OUTSIDE_MAX
    assert outside(channel, 0, b"more") == Verdict.REFUSED
    assert channel.data(0, 2, 3) == [Verdict.HELD] * 2
    channel.reading = True
    channel.story()
    channel.wait(2)
    channel.collect()
    assert [event.payload[16:] for event in channel.events[:-2]] == [
        bytes([number]) for number in range(OUTSIDE_MAX)
    ]
    assert [event.sequence for event in channel.events[-2:]] == [2, 3]
    assert channel.line(0, LineCounter.REFUSED) == 1
    assert outside(channel, 1, b"more") == PUBLISHED, "it was never published: no copy"


def test_recovery_brings_none(make: Callable[..., Channel]) -> None:
    channel = make(recovery_wait_us=50_000)
    flowing(channel)
    assert channel.recover(0, next_sequence=0, kind=PacketKind.UNSEQUENCED) == Verdict.STALE
