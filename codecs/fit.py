"""The fit of a description to packets: what does not fit, and what nothing used.

`Fit` is given the payloads of a capture, one after the other. Of what does not fit it keeps the
first of each kind with its offset in the bytes, and counts the rest; it keeps nothing per packet.
"""

from collections import Counter
from collections.abc import Hashable, Iterator

import msgspec

from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.doubts import Doubts
from feedhandler.codecs.explain import explain
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import Reject
from feedhandler.codecs.layouts import Block, Layout, Record, UnknownMessage
from feedhandler.codecs.reference_data import ReferenceData

#: Values without a meaning that are kept of one field; more are counted as others.
VALUES_KEPT_MAX = 20
#: Bytes of one line of a hex dump.
_LINE = 16
#: Lines of it before and behind the line in question.
_AROUND = 4


class Misfit(msgspec.Struct, frozen=True):
    """One thing that does not fit: where it is, what was found, and what was expected."""

    kind: str
    """what is wrong, in words that are the same for all of its kind"""
    packet: int
    """the packet's number in the capture, from 1"""
    at: int
    """the first byte in question, from the packet's first"""
    field: str
    found: str
    expected: str
    payload: bytes
    message: int = 0
    """the message's number in the packet, from 1; 0: the packet as a whole"""
    type: int | str | None = None

    def __str__(self) -> str:
        message = f", message {self.message}" if self.message else ""
        if message and self.type is not None:
            message += f" of type {self.type}"
        return (
            f"packet {self.packet:,}{message}, {self.field} at byte {self.at}: "
            f"{self.found}, expected {self.expected}"
        )


class TypeUse(msgspec.Struct):
    """Summary of the messages of one type: how many, how long, how many longer than described."""

    label: int | str
    name: str
    count: int = 0
    least: int = 0
    greatest: int = 0
    beyond: int = 0
    """messages with bytes behind what the description reads"""


class Fit:
    """Holds a feed's description against payloads.

    packets      payloads that were examined; `fitting` of them had no misfit
    misfits      the first of each kind, in the order in which they came
    counts       misfits by kind
    types        use of each message type, by its number
    unknown      by field (`layout.field`): how often values came that have no meaning there
    doubts       what fits, and yet is hardly meant
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.packets = self.fitting = 0
        self.misfits: list[Misfit] = []
        self.counts: Counter[str] = Counter()
        self.types: dict[int, TypeUse] = {}
        self.unknown: dict[str, Counter[str]] = {}
        self.doubts = Doubts()
        self._used: set[str] = set()
        self._controls_used: set[str] = set()
        #: By layout, the parts that no message has had yet: `legs`, `legs.fills`.
        self._parts_wanting = {
            layout.name: set(_parts_of(layout)) for ways in feed.layouts.values() for layout in ways
        }
        self._known = ReferenceData(feed)

    def examine(
        self, payload: bytes, captured_ns: int | None = None, stream: Hashable = None
    ) -> None:
        """Hold the description against the next payload: when it was captured, in ns since 1970,
        and in which stream of numbers."""
        self.packets += 1
        before = self.counts.total()
        day = None if captured_ns is None else self.feed.trading_day.of(captured_ns)
        try:
            packet = self.feed.decode_packet(payload, day, known=self._known)
        except BadPacket as error:
            self._rejected(payload, error.reason)
            return
        if packet.messages and self.feed.table.is_compressed(packet.flags):
            payload = self.feed.inflated(payload)
        if packet.control is not None:
            self._controls_used.add(packet.control.layout.name)
        self.doubts.follow(packet, self.packets, stream)
        spans = self.feed.message_spans(payload)
        for number, (record, (at, size, code)) in enumerate(
            zip(packet.messages, spans, strict=True), 1
        ):
            use = self._use(code)
            use.count += 1
            use.least = min(use.least or size, size)
            use.greatest = max(use.greatest, size)
            if isinstance(record, UnknownMessage):
                self._undecoded(payload, record, number, at, size)
            elif isinstance(record, Record):
                self._decoded(use, record, payload, number, at, size)
                if captured_ns is not None:
                    self.doubts.see_times(record, self.packets, number, captured_ns)
        self.fitting += self.counts.total() == before

    def unused(self) -> list[Layout]:
        """Return the layouts of the description that no message had."""
        return [
            layout
            for ways in self.feed.layouts.values()
            for layout in ways
            if layout.name not in self._used
        ]

    def unused_controls(self) -> list[Layout]:
        """Return the layouts of control packets that never came."""
        return [
            layout
            for layout in self.feed.controls.values()
            if layout.name not in self._controls_used
        ]

    def unused_parts(self) -> list[str]:
        """Return the groups, texts and blocks that no message had, as `layout.group.group`.

        Those of layouts that no message had, and those inside another one here, are left out.
        """
        return [
            f"{name}.{path}"
            for name, wanting in self._parts_wanting.items()
            if name in self._used
            for path in sorted(wanting)
            if path.rpartition(".")[0] not in wanting
        ]

    def _use(self, code: int) -> TypeUse:
        use = self.types.get(code)
        if use is None:
            use = TypeUse(self.feed.type_label(code), self.feed.type_name(code) or "")
            self.types[code] = use
        return use

    def _rejected(self, payload: bytes, reason: Reject) -> None:
        fault = explain(self.feed, payload)
        kind = reason.name.lower()
        if fault is None:
            self._keep(Misfit(kind, self.packets, 0, "packet", kind, "a packet", payload))
            return
        self._keep(
            Misfit(
                kind, self.packets, fault.at, fault.what, fault.found, fault.wanted, payload,
                fault.message, fault.type,
            )
        )  # fmt: skip

    def _undecoded(
        self, payload: bytes, record: UnknownMessage, number: int, at: int, size: int
    ) -> None:
        if record.reason == "unknown message type":
            field, found = "type", f"{record.type!r}, of {size} bytes"
            known = ", ".join(str(label) for label in self.feed.message_types)
            expected = f"one of {known}"
        else:
            field, found = "length", f"{size} bytes, which {record.reason}"
            least = self.feed.layouts[self.feed.type_code(record.type)][0].least_size
            expected = f"a message as it is described, of at least {least} bytes"
        self._keep(
            Misfit(
                record.reason,
                self.packets,
                at,
                field,
                found,
                expected,
                payload,
                number,
                record.type,
            )
        )

    def _decoded(
        self, use: TypeUse, record: Record, payload: bytes, number: int, at: int, size: int
    ) -> None:
        layout = record.layout
        assert isinstance(layout, Layout)
        self._used.add(layout.name)
        if wanting := self._parts_wanting[layout.name]:
            wanting -= set(_parts_in(record))
        use.beyond += self._end(layout, payload, at, size) < at + size
        if layout.parts:
            self.doubts.see_elements(layout, payload, at, size, self.packets, number)
        for field in layout.named:
            if field.values and field.price is None:
                value = getattr(record, field.name)
                if value not in (None, "") and str(value) not in field.values:
                    self._unknown_value(f"{layout.name}.{field.name}", str(value))

    @staticmethod
    def _end(layout: Layout, payload: bytes, at: int, size: int) -> int:
        """Return the byte behind the last one that the layout reads of a message."""
        leaves = layout.leaves(payload, at, at + size, layout.fixed(payload, at, size), {})
        while True:
            try:
                next(leaves)
            except StopIteration as done:
                return int(done.value)

    def _unknown_value(self, field: str, value: str) -> None:
        values = self.unknown.setdefault(field, Counter())
        values[value if value in values or len(values) < VALUES_KEPT_MAX else "others"] += 1

    def _keep(self, misfit: Misfit) -> None:
        if misfit.kind not in self.counts:
            self.misfits.append(misfit)
        self.counts[misfit.kind] += 1


def _parts_of(block: Block, around: str = "") -> Iterator[str]:
    """Yield the path of each part of a block, and of the parts in it."""
    for part in block.parts:
        yield around + part.name
        yield from _parts_of(part.elements, f"{around}{part.name}.")


def _parts_in(record: Record, around: str = "") -> Iterator[str]:
    """Yield the path of each part that a record has, and of the parts in it."""
    for part in record.layout.parts:
        value = getattr(record, part.name)
        if value == part.nothing:
            continue
        yield around + part.name
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Record):
                yield from _parts_in(each, f"{around}{part.name}.")


def hex_dump(data: bytes, at: int) -> list[str]:
    """Return lines of 16 bytes, those around byte `at`, which is marked: offset, hex, text."""
    first = max(at // _LINE - _AROUND, 0) * _LINE
    lines = []
    for begin in range(first, min(len(data), (at // _LINE + _AROUND + 1) * _LINE), _LINE):
        row = data[begin : begin + _LINE]
        cells = "".join(
            f"{'>' if begin + index == at else ' '}{byte:02x}" for index, byte in enumerate(row)
        )
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{begin:6}{cells:<{3 * _LINE}}  {text}")
    return lines
