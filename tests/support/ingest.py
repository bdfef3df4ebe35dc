"""Shared by tests of arbitration: packets in two lines of code, and both twins of the core."""

import importlib
import sys
from types import ModuleType
from typing import Any

from feedhandler._compiled import PURE_MODE, _InterpretedFinder
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.kinds import PacketKind
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest import arbitration as compiled_arbitration
from feedhandler.ingest import known as compiled_known
from feedhandler.ingest import recovered as compiled_recovered
from feedhandler.ingest import ring as compiled_ring
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Event
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ingest.states import Verdict

MS = 1_000_000
BODY = 16
NEVER = 2**63 - 1


def _interpreted_stack(*names: str) -> tuple[ModuleType, ...]:
    """Interpreted twins of these modules of `feedhandler.ingest` and of all they import there.

    They call one another's compiled-only methods, so the twins must be twins all the way down.
    """
    package = sys.modules["feedhandler.ingest"]
    mine = [name for name in PURE_MODE if name.startswith("feedhandler.ingest.")]
    compiled = {name: sys.modules.pop(name) for name in mine if name in sys.modules}
    finder = _InterpretedFinder()
    sys.meta_path.insert(0, finder)
    try:
        twins = tuple(importlib.import_module(f"feedhandler.ingest.{name}") for name in names)
    finally:
        sys.meta_path.remove(finder)
        for name in mine:
            sys.modules.pop(name, None)
            sys.modules.pop(f"cython.cimports.{name}", None)
        sys.modules.update(compiled)
        for name, module in compiled.items():
            setattr(package, name.rpartition(".")[2], module)
    return twins


_INTERPRETED = _interpreted_stack("arbitration", "ring", "recovered", "known")
TWINS: dict[str, tuple[ModuleType, ...]] = {
    "compiled": (compiled_arbitration, compiled_ring, compiled_recovered),
    "interpreted": _INTERPRETED[:3],
}
#: `feedhandler.ingest.known` of both.
KNOWN: dict[str, ModuleType] = {"compiled": compiled_known, "interpreted": _INTERPRETED[3]}
QUICK = ArbitrationSettings(hold_packets=16, quarantine_packets=8, compare_packets=64)


def body_of(sequence: int) -> bytes:
    """Message bytes that differ from number to number, of differing length."""
    return (sequence * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") * (1 + sequence % 5)


class Channel:
    """An arbiter with its ring, a clock that the test moves, and everything it has said."""

    def __init__(
        self,
        twin: str = "compiled",
        settings: ArbitrationSettings = QUICK,
        ring_bytes: int = 1 << 18,
        **options: Any,
    ) -> None:
        arbitration, ring, self.recovered = TWINS[twin]
        self.ring = ring.Ring(ring_bytes)
        self.arbiter = arbitration.Arbiter(self.ring, settings=settings, **options)
        self.header = PacketHeader()
        self.now = 1_000 * MS
        self.events: list[Event] = []
        self.reading = True
        self.arbiter.start(self.now)

    def feed(self, line: int, sequence: int, **fields: Any) -> Verdict:
        """Give the arbiter one packet with these fields (`_packet`); what it says about it."""
        payload = self._packet(sequence, **fields)
        verdict = self.arbiter.receive(
            line, self.header, memoryview(payload), 0, self.now + 7, self.now
        )
        self.collect()
        return Verdict(verdict)

    def recover(self, sequence: int, *, epoch: int = 0, **fields: Any) -> Verdict:
        """Give the arbiter a packet that recovery has brought."""
        payload = self._packet(sequence, **fields)
        verdict = self.recovered.recover(
            self.arbiter, self.header, memoryview(payload), 0, self.now + 7, self.now, epoch
        )
        self.collect()
        return Verdict(verdict)

    def give_up(self, until: int, epoch: int = 0) -> None:
        """Tell the arbiter that no server has what is missing below `until`."""
        self.recovered.give_up(self.arbiter, until, self.now, epoch)
        self.collect()

    def disprove(self, number: int, epoch: int = 0) -> None:
        """Tell the arbiter that the server does not have `number` yet."""
        self.recovered.disprove(self.arbiter, number, self.now, epoch)
        self.collect()

    def _packet(
        self,
        sequence: int,
        next_sequence: int | None = None,
        kind: PacketKind = PacketKind.DATA,
        session: int = 0,
        send_time: int = 0,
        body: bytes | None = None,
        count: int = 1,
        head: bytes = bytes(BODY),
    ) -> bytes:
        """The packet's bytes; the header has its fields."""
        payload = head + (body_of(sequence) if body is None else body)
        header = self.header
        header.sequence = sequence
        header.next_sequence = sequence + 1 if next_sequence is None else next_sequence
        header.session, header.send_time = session, send_time
        header.length, header.body = len(payload), BODY
        header.kind, header.count = int(kind), count
        return payload

    def data(self, line: int, *sequences: int, **fields: Any) -> list[Verdict]:
        """Data packets of one sequence number each."""
        return [self.feed(line, sequence, **fields) for sequence in sequences]

    def heartbeat(self, line: int, next_sequence: int, **fields: Any) -> Verdict:
        """A heartbeat that names the next number (0: none)."""
        fields.setdefault("sequence", next_sequence)
        return self.feed(
            line, next_sequence=next_sequence, kind=PacketKind.HEARTBEAT, body=b"", count=0,
            **fields,
        )  # fmt: skip

    def reset(
        self, line: int, sequence: int = 1, next_sequence: int = 2, alone: bool = False,
        **fields: Any,
    ) -> Verdict:  # fmt: skip
        """The feed's sequence reset packet, and unless it comes `alone` a heartbeat of its line
        that names the same number, so that it is believed."""
        before = self.count(ChannelCounter.RESETS)
        verdict = self._reset(line, sequence, next_sequence, **fields)
        if verdict != Verdict.QUARANTINED or alone:
            return verdict
        self.heartbeat(
            line,
            next_sequence,
            send_time=fields.get("send_time", 0),
            session=fields.get("session", 0),
        )
        begun = self.arbiter.state_name == "RESETTING"
        return (
            Verdict.RENUMBERED if begun or self.count(ChannelCounter.RESETS) > before else verdict
        )

    def _reset(self, line: int, sequence: int, next_sequence: int, **fields: Any) -> Verdict:
        fields.setdefault("body", next_sequence.to_bytes(4, "big"))
        fields.setdefault("head", fields.get("send_time", 0).to_bytes(BODY, "big"))
        return self.feed(
            line, sequence, next_sequence=next_sequence, kind=PacketKind.RESET, count=0, **fields
        )

    def wait(self, milliseconds: float) -> None:
        """Let time pass, calling `tick` at each deadline as an owner would."""
        end = self.now + int(milliseconds * MS)
        while self.arbiter.deadline_ns <= end:
            self.now = max(self.arbiter.deadline_ns, self.now)
            self.arbiter.tick(self.now)
            self.collect()
        self.now = end

    def collect(self) -> None:
        """Read what was written, unless the test plays a consumer that does not read."""
        if self.reading:
            self.ring.publish()
            self.events += self.ring.drain()

    def story(self) -> list[tuple]:
        """Return the events since the last call, in short."""
        self.collect()
        said, self.events = self.events, []
        return [brief(event) for event in said]

    def line(self, line: int, counter: LineCounter) -> int:
        """A counter of one line."""
        return int(self.arbiter.line_array[line, counter])

    def count(self, counter: ChannelCounter) -> int:
        """A counter of the channel."""
        return int(self.arbiter.channel_array[counter])


def brief(event: Event) -> tuple:
    """An event as a short tuple: ("packet", 5), ("gap", 6, 8), ("silent", 1)..."""
    match event.kind:
        case RecordKind.PACKET:
            return ("packet", event.sequence)
        case (
            RecordKind.GAP
            | RecordKind.GAP_NOTICED
            | RecordKind.MISSING
            | RecordKind.PASSED
            | RecordKind.SKIPPED
        ):
            return (event.kind.name.lower(), event.sequence, event.next_sequence)
        case RecordKind.WITHDRAWN:
            return ("withdrawn", event.next_sequence, event.sequence)
        case RecordKind.RESET:
            return ("reset", event.next_sequence)
        case RecordKind.START:
            return ("start", event.sequence)
        case RecordKind.LINE_SILENT:
            return ("silent", event.line)
        case RecordKind.LINE_BACK:
            return ("back", event.line)
    return (event.kind.name.lower(), event.sequence)


def packets(*sequences: int) -> list[tuple]:
    """The short form of these packets."""
    return [("packet", sequence) for sequence in sequences]


def fill(channel):
    """Leave no room in the ring; returns the number of filling records."""
    filled = 0
    while channel.ring.put(RecordKind.LINE_BACK):
        filled += 1
    return filled


def unread(channel):
    """Let the consumer read again; what it finds behind the filling."""
    channel.reading = True
    return [said for said in channel.story() if said != ("back", 0)]
