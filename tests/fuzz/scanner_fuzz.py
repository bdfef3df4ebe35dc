"""Mutated packets through the compiled scanner: exactly one typed result each, nothing read
outside a packet, the same answer from the interpreted twin.

Valid packets of every message type, control type and kind of every feed are mutated, a whole batch
at a time: bytes and bits of header and body changed, size fields set to edge values, packets cut
and stretched, most of them with a length field that fits again, so that the damage reaches the
message walk. Every batch is scanned twice, with different bytes between the packets: a read
outside a packet would change the answer. Every so many packets of a batch go one by one, in a
buffer of exactly their size, through both twins of the scanner; a few also through records and
columns.
Families of feeds (`FAMILIES`) take turns, and the feeds of a family.

    FEEDHANDLER_FUZZ_TWIN=1 python -m tests.fuzz.scanner_fuzz --count 110000000 --seed 1

scans ten million packets of each family, each by both twins; without the variable every 64th is
compared. It prints the seed, the rate and how often each reject reason came. Exit code 1 where a
reason never came or fewer than 30 % passed the header checks.
"""

import itertools
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy

from feedhandler.codecs import BadPacket, Feed, Reject, feed_table, load_feed, scanner
from feedhandler.codecs.columns import Columns
from feedhandler.codecs.layouts import Block, Layout
from tests.fuzz.command import Command
from tests.support.feeds import FAMILIES, FIX_REASONS
from tests.support.scanners import COMPILED, INTERPRETED

#: Rows of a batch: large enough that Python's part is small, small enough for the caches.
BATCH_PACKETS = 1_024
#: Of how many packets one also goes through the interpreted twin.
TWIN_EVERY = int(os.environ.get("FEEDHANDLER_FUZZ_TWIN", "64"))
#: Packets of a batch that also go through the decoders.
SAMPLE_PACKETS = 8
#: Bytes a packet may be stretched by, and between packets.
SLACK_BYTES = 32
#: Reasons that the header alone gives: what has another reason, or none, passed the header checks.
HEADER_REASONS = (
    Reject.TRUNCATED,
    Reject.LENGTH_MISMATCH,
    Reject.UNKNOWN_PACKET_TYPE,
    Reject.WRONG_CONSTANT,
)
#: Reasons that mutation can reach (a full index is the caller's doing).
REACHABLE = [reason for reason in Reject if reason not in {Reject.INDEX_FULL, *FIX_REASONS}]
EDGE_VALUES = numpy.array([0, 1, 2, 3, 4, 0x7F, 0x80, 0xFE, 0xFF], numpy.uint8)


@dataclass
class Outcome:
    """Result of a run."""

    compared: int = 0
    families: Counter[str] = field(default_factory=Counter)
    reasons: numpy.ndarray = field(
        default_factory=lambda: numpy.zeros(scanner.REJECT_COUNT, numpy.uint64)
    )

    @property
    def packets(self) -> int:
        """The packets of all families."""
        return self.families.total()

    @property
    def past_header(self) -> float:
        """The share of packets that passed the header checks."""
        rejected = sum(int(self.reasons[reason]) for reason in HEADER_REASONS)
        return 1 - rejected / max(1, self.packets)

    @property
    def missing(self) -> list[str]:
        """Reasons that never came."""
        return [reason.name for reason in REACHABLE if not self.reasons[reason]]

    def report(self) -> str:
        """Reject reasons and how often each came."""
        shares = ", ".join(
            f"{reason.name.lower()} {int(self.reasons[reason]):,}" for reason in REACHABLE
        )
        least = min(self.families.values(), default=0)
        return (
            f"{self.packets:,} packets, {least:,} of each family at least, "
            f"{self.past_header:.0%} past the header, {self.compared:,} compared with the twin: "
            f"{shares}"
        )


def random_values(block: Block, rng: random.Random) -> dict[str, object]:
    """Random values for the fields of a block, prices and codes included."""
    values: dict[str, object] = {}
    for each in block.named:
        if each.kind == "c":
            values[each.name] = bytes(rng.randrange(256) for _ in range(each.size))
        else:
            top = 1 << (8 * each.size - (each.kind == "i"))
            values[each.name] = rng.choice([0, 1, top - 1, rng.randrange(top)])
    return values


def random_message(feed: Feed, layout: Layout, rng: random.Random) -> bytes:
    """A valid message of a layout, now and then with a tail."""
    values = random_values(layout, rng)
    if layout.group is not None:
        count = rng.randrange(4)
        values[layout.group.name] = [random_values(layout.group, rng) for _ in range(count)]
    return feed.encode_message(layout.name, **values)


def valid_packets(feed: Feed, rng: random.Random) -> list[bytes]:
    """Valid packets: each message type alone and among others, controls, heartbeat, reset."""
    packets = []
    layouts = [layout for ways in feed.layouts.values() for layout in ways]
    for layout in layouts:
        for count in (1, 2, 5):
            chosen = [layout] * count
            if not feed.table.type_in_packet:
                chosen = [layout, *rng.choices(layouts, k=count - 1)]
            packets.append(
                feed.encode_packet(
                    sequence=rng.randrange(1, 2**31),
                    messages=[random_message(feed, each, rng) for each in chosen],
                    packet_type=layout.code if feed.table.type_in_packet else None,
                )
            )
    kinds = feed.description.packet.kind
    for layout in feed.controls.values():
        kind = next(
            k for k in ("control", "reset", "heartbeat") if layout.code in getattr(kinds, k)
        )
        body = feed.encode_control(layout.code, **random_values(layout, rng))
        packets.append(feed.encode_packet(kind=kind, packet_type=layout.code, body=body))
    if kinds is None or kinds.heartbeat:
        kind = "data" if kinds is None else "heartbeat"
        packets.append(feed.encode_packet(kind=kind, sequence=rng.randrange(2**31)))
    return packets


class Mutator:
    """Mutates copies of one feed's valid packets, a batch at a time."""

    def __init__(self, feed: Feed, seed: int) -> None:
        self.feed = feed
        self.rng = random.Random(seed)
        self.random = numpy.random.default_rng(seed)
        self.packets = valid_packets(feed, self.rng)

    def batch(self, count: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """(rows, sizes): `count` mutated copies of one valid packet, `sizes[i]` bytes of row i."""
        original = numpy.frombuffer(self.rng.choice(self.packets), numpy.uint8)
        width = len(original) + SLACK_BYTES
        rows = numpy.zeros((count, width), numpy.uint8)
        rows[:, : len(original)] = original
        rows[:, len(original) :] = self.random.integers(0, 256, SLACK_BYTES, numpy.uint8)
        sizes = self._resize(count, len(original))
        self._fit_length(rows, sizes)
        self._change_bytes(rows, len(original))
        return rows, sizes

    def _resize(self, count: int, size: int) -> numpy.ndarray:
        """New sizes: half unchanged, the rest cut or stretched, mostly by little."""
        sizes = numpy.full(count, size, numpy.int64)
        way = self.random.integers(0, 8, count)
        little = self.random.integers(-6, 7, count)
        sizes[way == 0] = self.random.integers(0, size + SLACK_BYTES, count)[way == 0]
        sizes[(way == 1) | (way == 2)] += little[(way == 1) | (way == 2)]
        return numpy.clip(sizes, 0, size + SLACK_BYTES)

    def _fit_length(self, rows: numpy.ndarray, sizes: numpy.ndarray) -> None:
        """Let the header's length field fit the new size, but for one packet in ten."""
        table = self.feed.table
        lengths = sizes - table.length_add
        fit = (self.random.integers(0, 10, len(rows)) > 0) & (lengths >= 0)
        for index in range(table.length_size):
            shift = 8 * (table.length_size - 1 - index if table.big_endian else index)
            column = table.length_at + index
            if column < rows.shape[1]:
                rows[fit, column] = (lengths[fit] >> shift) & 0xFF

    def _change_bytes(self, rows: numpy.ndarray, size: int) -> None:
        """Change up to three bytes of each row: bits flipped, random or edge values; in the body,
        at the first message's size and type, or in the header."""
        header = min(self.feed.table.header_size, size)
        everything = numpy.arange(len(rows))
        for _ in range(3):
            chosen = everything[self.random.integers(0, 2, len(rows)) == 0]
            count = len(chosen)
            index = self.random.integers(header, size + 4, count)
            where = self.random.integers(0, 6, count)
            index[where == 0] = header + self.random.integers(0, 4, count)[where == 0]
            index[where == 1] = self.random.integers(0, header, count)[where == 1]
            flags = self.feed.table.flags_at if self.feed.table.flags_size else header
            index[where == 2] = self.random.choice(
                [self.feed.table.count_at, flags, header], count
            )[where == 2]
            index = numpy.minimum(index, rows.shape[1] - 1)
            value = self.random.integers(0, 256, count, numpy.uint8)
            how = self.random.integers(0, 4, count)
            value[how == 0] = self.random.choice(EDGE_VALUES, count)[how == 0]
            flipped = rows[chosen, index] ^ (1 << self.random.integers(0, 8, count)).astype(
                numpy.uint8
            )
            value[how == 1] = flipped[how == 1]
            known = self.feed.description.packet.compressed_flags
            if known:
                value[(where == 2) & (how == 2)] = known[0]
            rows[chosen, index] = value


class Checker:
    """Runs packets of one feed through the scanner and holds the answers against each other."""

    def __init__(self, feed: Feed, family: str, outcome: Outcome) -> None:
        self.feed = feed
        self.family = family
        self.outcome = outcome
        self.index = feed_table.MessageIndex(3 * feed_table.INDEX_CAPACITY)
        self.header = feed_table.PacketHeader()
        self.interpreted = INTERPRETED
        self.twins = [
            (module, feed.table_of(module), module.PacketHeader(), module.MessageIndex())
            for module in (COMPILED, self.interpreted)
        ]
        self.columns = [
            Columns(feed, layout.name) for ways in feed.layouts.values() for layout in ways
        ]

    def check(self, rows: numpy.ndarray, sizes: numpy.ndarray) -> None:
        """Scan a batch twice, with different surroundings; then a sample of it closely."""
        starts = SLACK_BYTES + numpy.arange(len(rows)) * (rows.shape[1] + SLACK_BYTES)
        answers = [self._scan(rows, sizes, starts, filling) for filling in (0x00, 0xFF)]
        assert answers[0] == answers[1], "bytes outside of a packet changed the answer"
        self.outcome.families[self.family] += len(rows)
        for index in range(min(SAMPLE_PACKETS, len(rows))):
            self.decode(rows[index, : sizes[index]].tobytes())
        for index in range(SAMPLE_PACKETS, len(rows), TWIN_EVERY):
            self.compare(rows[index, : sizes[index]].tobytes())

    def _scan(
        self, rows: numpy.ndarray, sizes: numpy.ndarray, starts: numpy.ndarray, filling: int
    ) -> list[object]:
        width = rows.shape[1]
        buffer = numpy.full((len(rows), width + SLACK_BYTES), filling, numpy.uint8)
        buffer[:, :width] = rows
        inside = numpy.arange(width) < sizes[:, None]
        buffer[:, :width][~inside] = filling
        data = numpy.concatenate(
            [numpy.full(SLACK_BYTES, filling, numpy.uint8), buffer.reshape(-1)]
        )
        rejects = numpy.zeros(scanner.REJECT_COUNT, numpy.uint64)
        done, found = 0, []
        while done < len(rows):
            self.index.clear()
            step = scanner.scan_datagrams(
                self.feed.table,
                data,
                starts[done:],
                sizes[done:].astype(numpy.uint32),
                self.header,
                self.index,
                rejects,
            )
            assert step > 0, "an empty index refused a packet"
            self._check_offsets(starts[done : done + step], sizes[done : done + step])
            found.append([column.tobytes() for column in self.index.arrays().values()])
            done += step
        assert int(rejects.sum()) == len(rows), "a packet had no answer, or two"
        if filling:
            self.outcome.reasons += rejects
        return [rejects.tolist(), found]

    def _check_offsets(self, starts: numpy.ndarray, sizes: numpy.ndarray) -> None:
        """Every message lies within its packet, behind the packet's header."""
        arrays = self.index.arrays()
        offsets = arrays["offsets"].astype(numpy.int64)
        owner = numpy.searchsorted(starts, offsets, "right") - 1
        ends = offsets + arrays["sizes"]
        assert (offsets >= starts[owner] + self.feed.table.header_size).all()
        assert (ends <= starts[owner] + sizes[owner]).all()

    def compare(self, packet: bytes) -> Reject:
        """Both twins over one packet in a buffer of its own size; what they say of it."""
        answers = [self._answer(*twin, packet) for twin in self.twins]
        assert answers[0] == answers[1], f"the twins differ over {packet.hex()}: {answers}"
        self.outcome.compared += 1
        return Reject(answers[0][0])

    def decode(self, packet: bytes) -> None:
        """Both twins, records and columns over one packet in a buffer of its own size."""
        verdict = self.compare(packet)
        try:
            self.feed.decode_packet(packet)
            decoded = Reject.FINE
        except BadPacket as error:
            decoded = error.reason
        # A compressed body is inflated, and then it is what is inside that counts.
        # Of several packets in a datagram the header alone is read as one that is all of it.
        several = verdict == Reject.COMPRESSED or self.feed.table.several
        assert decoded == verdict or several, packet.hex()
        if verdict == Reject.FINE:
            for columns in self.columns:
                columns.decode(packet, self.twins[0][3])

    @staticmethod
    def _answer(module, table, header, index, packet: bytes) -> tuple[object, ...]:
        view = memoryview(packet)
        index.clear()
        verdict = module.parse_header(table, view, 0, len(packet), header)
        if verdict:
            return (verdict,)
        checked = module.check_messages(table, view, 0, header)
        verdict = module.scan_messages(table, view, 0, header, index)
        assert checked == verdict, f"check and scan differ over {packet.hex()}"
        fields = (
            header.sequence,
            header.next_sequence,
            header.session,
            header.send_time,
            header.service,
            header.length,
            header.body,
            header.packet_type,
            header.kind,
            header.flags,
            header.count,
        )
        entries = [column.tobytes() for column in index.arrays().values()]
        return (verdict, fields, entries, index.unknown, index.short, index.packets)


def run(count: int, seed: int, progress: bool = False, most: int = 0) -> Outcome:
    """Mutate and scan `count` packets, up to `most` where a reason has not come by then.

    Raises `AssertionError` at the first wrong answer.
    """
    outcome = Outcome()
    checked = {
        family: itertools.cycle([
            (Mutator(feed, seed), Checker(feed, family, outcome)) for feed in map(load_feed, names)
        ])
        for family, names in FAMILIES.items()
    }  # fmt: skip
    began = time.monotonic()
    for feeds in itertools.cycle(checked.values()):
        left = count - outcome.packets
        if left <= 0 and (outcome.packets >= most or not outcome.missing):
            break
        rows = min(BATCH_PACKETS, left) if left > 0 else BATCH_PACKETS
        mutator, checker = next(feeds)
        checker.check(*mutator.batch(rows))
        if progress and outcome.packets % (BATCH_PACKETS * 1000) == 0:
            rate = outcome.packets / (time.monotonic() - began)
            print(f"{outcome.packets:,} packets, {rate:,.0f}/s", flush=True)
    return outcome


def problems(outcome: Outcome, _count: int) -> list[str]:
    """Return the broken promises, a line each: reject reasons never reached, few right headers."""
    found = [f"never reached: {', '.join(outcome.missing)}"] if outcome.missing else []
    if outcome.past_header < 0.3:
        found.append(f"only {outcome.past_header:.0%} of the headers were right")
    return found


if __name__ == "__main__":
    command = Command("scanner_fuzz", "packets", lambda n, seed, _: run(n, seed, True), problems)
    sys.exit(command.main())
