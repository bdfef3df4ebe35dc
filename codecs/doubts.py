"""Doubts about a description that fits a capture: what is read without a fault, yet hardly meant.

A description may fit every packet and still have a wrong meaning: numbers of packets taken for
those of messages, a clock that counts from another moment, the members of a group's dimensions in
the wrong order. `Doubts` is given what `fit` has decoded, and keeps of each kind how often it came
and the first:

numbers   packets whose number is not the one that the packet before, of the same stream, announced;
          real captures have some, where packets are lost, doubled or out of order
times     messages with a full time that is more than a day away from the capture's own
elements  elements of groups that are shorter than described; those of an earlier version of the
          feed are, too
"""

from collections.abc import Hashable
from datetime import UTC, datetime

import msgspec

from feedhandler.codecs.feed import Packet
from feedhandler.codecs.kinds import PacketKind
from feedhandler.codecs.layouts import Layout, Record
from feedhandler.codecs.times import DAY_NS, SECOND_NS, DecodeContext

#: Streams of numbers that are followed; those of more are not.
STREAMS_MAX = 4_096
_TEXTS = {
    "numbers": "packets whose number does not follow the one before",
    "times": "messages whose time is more than a day from the capture's",
    "elements": "elements that are shorter than described",
}
#: Kinds of packets whose numbers say nothing of the sequence.
_APART = (PacketKind.CONTROL, PacketKind.UNSEQUENCED)


class Doubt(msgspec.Struct):
    """One kind of doubt: how often it came, and the first."""

    kind: str
    count: int = 0
    packet: int = 0
    """the first one's packet in the capture, from 1"""
    message: int = 0
    """its message in the packet, from 1; 0: the packet as a whole"""
    field: str = ""
    found: str = ""
    expected: str = ""

    def __str__(self) -> str:
        message = f", message {self.message}" if self.message else ""
        return (
            f"{_TEXTS[self.kind]}: {self.count:,}, the first in packet {self.packet:,}{message}: "
            f"{self.field} {self.found}, expected {self.expected}"
        )


class Doubts:
    """Keeps the doubts about one capture's packets."""

    def __init__(self) -> None:
        self.numbers, self.times, self.elements = map(Doubt, _TEXTS)
        #: Of each stream its session, and the number that comes next.
        self._streams: dict[Hashable, tuple[int, int]] = {}

    def found(self) -> list[Doubt]:
        """Return the doubts there are."""
        return [each for each in (self.numbers, self.times, self.elements) if each.count]

    def follow(self, packet: Packet, number: int, stream: Hashable) -> None:
        """Hold a packet's number against what the one before announced; `number`: its own in the
        capture, `stream`: where it was sent to, and by whom."""
        if packet.kind in _APART:
            return
        key = (stream, packet.service)
        session, expected = self._streams.get(key, (packet.session, 0))
        found = packet.next_sequence if packet.kind == PacketKind.HEARTBEAT else packet.sequence
        is_reset = packet.kind == PacketKind.RESET or session != packet.session
        if expected and found and found != expected and not is_reset:
            _count(self.numbers, number, 0, "number", f"{found:,}", f"{expected:,}")
        if packet.next_sequence and (key in self._streams or len(self._streams) < STREAMS_MAX):
            self._streams[key] = packet.session, packet.next_sequence

    def see_times(self, record: Record, number: int, message: int, captured_ns: int) -> None:
        """Hold a message's full times against that of its capture."""
        for name, _ in record.layout.times:
            time_ns = getattr(record, name)
            if time_ns is not None and abs(time_ns - captured_ns) > DAY_NS:
                _count(
                    self.times, number, message, name, _text(time_ns), f"about {_text(captured_ns)}"
                )
                return

    def see_elements(
        self, layout: Layout, payload: bytes, at: int, size: int, number: int, message: int
    ) -> None:
        """Hold the sizes of the elements in a message's groups against the description."""

        def note(group: str, begin: int, found: int, described: int) -> None:
            where = f"{group} at byte {begin}:"
            _count(self.elements, number, message, where, f"{found} bytes", f"{described}")

        context = DecodeContext()
        context.note_short = note
        layout.decode(payload, at, size, context, {})


def _count(doubt: Doubt, packet: int, message: int, field: str, found: str, expected: str) -> None:
    doubt.count += 1
    if doubt.count == 1:
        doubt.packet, doubt.message, doubt.field = packet, message, field
        doubt.found, doubt.expected = found, expected


def _text(time_ns: int) -> str:
    """Return a moment as text in UTC; as a number where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(time_ns // SECOND_NS, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ns:,} ns since 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
