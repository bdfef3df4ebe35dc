"""Packet headers whose bits, or whose first message, say what the packet is.

Kinds that some bits of a field tell, data with a shorter header, sequence numbers and sessions with
bits of their own, and resets that a message tells: in both twins of the scanner.
"""

import random
from pathlib import Path
from types import ModuleType

import pytest

from feedhandler.codecs import BadPacket, Feed, PacketKind, Reject, UsageError
from feedhandler.codecs.explain import explain
from feedhandler.codecs.feed import split_packets
from tests.support.descriptions import check_refused, described, head
from tests.support.feeds import table_of
from tests.support.scanners import COMPILED, INTERPRETED, SCANNERS
from tests.support.seeds import seeds_to_play
from tests.support.twins import either

TOP = head("little")
MESSAGES = """
[message]
header_size = 4
length = { at = 0, type = "u16" }
type = { at = 2, type = "u16" }

[[messages]]
type = 7
name = "tick"
fields = [{ type = "u32", name = "Value" }]

[[messages]]
type = 100
name = "restart"
fields = [{ type = "u16", name = "Reason" }, { type = "u32", name = "Next" }]
"""

#: A flag says whether a packet is live, and has the two fields at the end of the header.
FLAGGED = """
[packet]
header_size = 16
length = { field = "Length" }
sequence = { field = "Sequence", counts = "packets" }
kind = { field = "Flags", mask = 0x108, data = [8, 0], control = [0x100], header_size = 8, short = [0] }
fields = [
    { type = "u32", name = "Sequence" },
    { type = "u16", name = "Length" },
    { type = "u16", name = "Flags", bits = { Last = 0, Live = 3, Above = [4, 2] } },
    { type = "u64", name = "Moved" },
]
"""  # noqa: E501

#: Three bits stand above the number, three others count restarts.
UPPER = """
[packet]
header_size = 7
sequence = { field = "Low", counts = "packets", high = "Upper" }
heartbeat_when_empty = true
session = "RestartCount"
fields = [
    { type = "u16", name = "Low" },
    { type = "u16", name = "Flags", bits = { Zip = 0, RestartCount = [1, 3], Upper = [4, 3] } },
    { type = "x3" },
]
"""

#: A message in front says with which number the sequence begins anew.
RESTARTED = """
[packet]
header_size = 6
sequence = { field = "Sequence", counts = "messages", heartbeat = "next" }
heartbeat_when_empty = true
count = "Count"
reset_message = 100
reset_next = "Next"
fields = [{ type = "u32", name = "Sequence" }, { type = "u8", name = "Count" }, { type = "x1" }]
"""
ALL = {"flagged": FLAGGED, "upper": UPPER, "restarted": RESTARTED}


def feed_of(tmp_path: Path, packet: str) -> Feed:
    return described(tmp_path, TOP + packet + MESSAGES)


twin = either(SCANNERS)


def ticks(feed: Feed, *values: int) -> list[bytes]:
    return [feed.encode_message("tick", value=value) for value in values]


def scanned(feed: Feed, twin: ModuleType, data: bytes) -> tuple[object, ...]:
    """The verdict of one twin, and what it found."""
    table, header, index = table_of(feed, twin), twin.PacketHeader(), twin.MessageIndex(255)
    verdict = twin.parse_header(table, memoryview(data), 0, len(data), header)
    if verdict != Reject.FINE:
        return (Reject(verdict),)
    checked = twin.check_messages(table, memoryview(data), 0, header)
    verdict = twin.scan_messages(table, memoryview(data), 0, header, index)
    assert checked == verdict
    return (
        Reject(verdict), PacketKind(header.kind), header.sequence, header.next_sequence,
        header.session, header.body, [int(size) for size in index.arrays()["sizes"]],
        [int(number) for number in index.arrays()["sequences"]],
    )  # fmt: skip


def test_some_bits_tell_the_kind_and_the_size_of_the_header(tmp_path: Path, twin) -> None:
    feed = feed_of(tmp_path, FLAGGED)
    live = feed.encode_packet(
        sequence=5, messages=ticks(feed, 1, 2), header={"moved": 9, "last": 1}
    )
    assert (len(live), live[6:8]) == (32, b"\x09\x00")
    short = feed.encode_packet(
        sequence=6, messages=ticks(feed, 3), packet_type=0, header={"above": 3}
    )
    assert (len(short), short[6:8]) == (16, b"\x30\x00")
    fine, data = Reject.FINE, PacketKind.DATA
    assert scanned(feed, twin, live) == (fine, data, 5, 6, 0, 16, [8, 8], [5, 5])
    assert scanned(feed, twin, short) == (fine, data, 6, 7, 0, 8, [8], [6])
    assert scanned(feed, twin, short[:7]) == (Reject.TRUNCATED,)
    control = feed.encode_packet(kind="control", sequence=0)
    assert scanned(feed, twin, control)[:2] == (fine, PacketKind.CONTROL)
    both = bytearray(live)
    both[7] |= 1  # a flag too many
    assert scanned(feed, twin, bytes(both)) == (Reject.UNKNOWN_PACKET_TYPE,)
    fault = explain(feed, bytes(both))
    assert fault.what == "Flags"
    assert fault.wanted.endswith("in its bits 0x108")
    first, second = (feed.decode_packet(packet) for packet in (live, short))
    assert (first.header["moved"], first.header["flags"]) == (9, 9)
    assert (second.header["moved"], second.messages[0].value) == (0, 3)
    assert split_packets(feed, live + short) == [live, short]


def test_packets_without_a_length_end_behind_their_messages(tmp_path: Path) -> None:
    counted = FLAGGED.replace('length = { field = "Length" }', 'count = "Length"')
    feed = feed_of(tmp_path, counted)
    live = feed.encode_packet(sequence=5, messages=ticks(feed, 1, 2))
    short = feed.encode_packet(sequence=6, messages=ticks(feed, 3), packet_type=0)
    assert split_packets(feed, short + live + short) == [short, live, short]


def test_bits_of_the_header_stand_above_the_number_and_are_the_session(
    tmp_path: Path, twin
) -> None:
    feed = feed_of(tmp_path, UPPER)
    sequence = (5 << 16) + 7
    packet = feed.encode_packet(sequence=sequence, session=3, messages=ticks(feed, 1))
    assert packet[:4] == bytes([7, 0, 0x56, 0])
    assert scanned(feed, twin, packet)[2:5] == (sequence, sequence + 1, 3)
    after = scanned(feed, twin, feed.encode_packet(sequence=0xFFFF, messages=ticks(feed, 1)))
    assert after[2:5] == (0xFFFF, 0x1_0000, 0)
    with pytest.raises(UsageError, match="more than 3 bits"):
        feed.encode_packet(sequence=8 << 16)
    with pytest.raises(UsageError, match="more than 3 bits"):
        feed.encode_packet(sequence=1, session=8)


def test_a_message_in_front_tells_a_reset_and_the_next_number(tmp_path: Path, twin) -> None:
    feed = feed_of(tmp_path, RESTARTED)
    reset = feed.encode_packet(kind="reset", sequence=70, next_sequence=1)
    fine, kind = Reject.FINE, PacketKind.RESET
    assert scanned(feed, twin, reset) == (fine, kind, 70, 1, 0, 6, [10], [70])
    assert [each.next for each in feed.decode_packet(reset).messages] == [1]
    behind = feed.encode_packet(
        sequence=70, messages=[*ticks(feed, 1), feed.encode_message("restart", next=4)]
    )
    assert scanned(feed, twin, behind)[1:4] == (PacketKind.DATA, 70, 72)
    more = feed.encode_packet(
        sequence=70, messages=[feed.encode_message("restart", next=4), *ticks(feed, 1)]
    )
    assert scanned(feed, twin, more)[1:4] == (kind, 70, 4)
    cut = reset[:-1]
    assert scanned(feed, twin, cut) == (Reject.TRUNCATED,)
    fault = explain(feed, cut)
    assert (fault.what, fault.at, fault.wanted) == ("Next", 12, "16 bytes to hold it")
    assert scanned(feed, twin, reset[:9]) == (Reject.MESSAGE_OVERRUN,)
    short = bytes([6, 0]) + feed.encode_message("restart")[2:6]
    two = feed.encode_packet(sequence=70, messages=[short, *ticks(feed, 7)])
    assert scanned(feed, twin, two) == (Reject.TRUNCATED,), "the number is not the next message's"


def test_a_reset_by_message_without_a_number_goes_on_behind_its_own(tmp_path: Path, twin) -> None:
    feed = feed_of(tmp_path, RESTARTED.replace('reset_next = "Next"\n', ""))
    reset = feed.encode_packet(kind="reset", sequence=1)
    assert scanned(feed, twin, reset)[1:4] == (PacketKind.RESET, 1, 2)


@pytest.mark.parametrize("name", ALL)
def test_both_twins_say_the_same_of_whatever_comes(tmp_path: Path, name: str) -> None:
    feed, interpreted = feed_of(tmp_path, ALL[name]), INTERPRETED
    reasons = set()
    for seed in seeds_to_play(range(1, 301)):
        draw = random.Random(seed)
        messages = ticks(feed, *range(draw.randrange(3)))
        messages.insert(0, feed.encode_message("restart", next=draw.randrange(9)))
        packet = bytearray(feed.encode_packet(sequence=draw.randrange(1 << 16), messages=messages))
        for _ in range(draw.randrange(4)):
            packet[draw.randrange(len(packet))] = draw.choice([0, 1, 8, 9, 100, 255])
        packet = packet[: len(packet) - draw.choice([0, 0, 0, 1, 9])]
        said = scanned(feed, COMPILED, bytes(packet))
        assert said == scanned(feed, interpreted, bytes(packet)), f"SEED={seed}"
        reasons.add(said[0])
    assert reasons >= {Reject.FINE, Reject.MESSAGE_OVERRUN}


WRONG = [
    (FLAGGED, "mask = 0x108", "mask = 0x100", "packet.kind.data", "8 has bits"),
    (FLAGGED, "mask = 0x108", "mask = 0", "packet.kind.mask", "has no bits"),
    (FLAGGED, "mask = 0x108", "mask = 0x10000", "packet.kind.mask", "or more than 'Flags'"),
    (FLAGGED, "header_size = 8, short", "short", "packet.kind.short", "needs packet.kind.header"),
    (FLAGGED, "header_size = 8, short", "header_size = 5, short", ".header_size", "kind"),
    (FLAGGED, "short = [0]", "short = [4]", "packet.kind.short", "4 is no value of a kind"),
    (FLAGGED, "kind = {", 'session = "Moved"\nkind = {', ".header_size", "leaves out the session"),
    (FLAGGED.replace('name = "Moved"', 'name = "Moved", bits = { Up = 9 }'),
     'counts = "packets"', 'counts = "packets", high = "Up"', ".header_size", "out the bits"),
    (UPPER, 'high = "Upper"', 'high = "Uper"', "packet.sequence.high", "did you mean upper?"),
    (UPPER, 'high = "Upper"', 'high = "Flags"', "packet.sequence.high", "names no bits"),
    (UPPER, 'field = "Low", ', "", "packet.sequence.field", "empty"),
    (UPPER, 'session = "RestartCount"', 'session = "Restarts"', "packet.session", "names no field"),
    (RESTARTED, "reset_message = 100", "reset_message = 8", "packet.reset_message", "no type"),
    (RESTARTED, 'reset_next = "Next"', 'reset_next = "Nxt"', "packet.reset_next", "mean Next?"),
    (RESTARTED, "count =", 'kind = { field = "Count", data = [0], reset = [1] }\ncount =',
     "packet.reset_message", "packet.kind has resets"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("packet", "old", "new", "key", "reason"), WRONG, ids=[f"{row[3]}-{row[2]}" for row in WRONG]
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, packet: str, old: str, new: str, key: str, reason: str
) -> None:
    check_refused(tmp_path, TOP + packet + MESSAGES, old, new, key, reason)


def test_data_with_a_short_header_is_rejected_where_it_cannot_be_read(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, FLAGGED)
    packet = feed.encode_packet(sequence=1, messages=ticks(feed, 1), packet_type=0)
    with pytest.raises(BadPacket):
        feed.decode_packet(packet[:-1])
