"""Links that break off and resume at random: what they get in the end is the stream, whole.

A service is published with gaps, resets, new days, snapshot blocks and mid-day starts, to links
of every kind that never end, and to links of the same kinds that end at any instant and resume from
the last thing they had. Joined, the second get what the first get. Where history is short, what
they do not get is exactly what is announced lost.

    SEED=7 python -m pytest tests/unit/amqp/test_resume_property.py -k one_seed

repeats one seed.
"""

import json
import os
import random
import struct
from dataclasses import dataclass, field
from typing import Any

import pytest

from feedhandler.amqp.framing import WHOLE_PACKET
from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.scanner import parse_header
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED, FakeLink, Rig, Sent, order, packet, prefix_of, quote

SEEDS = 6
ADDRESSES = [
    f"euronext.104{symbol}?as={grain}{types}"
    for symbol in ("", ".1003")
    for grain in ("packet", "batch", "message")
    for types in ("", "&types=230")
]

#: The tag of a client that has nothing of the day yet.
BEFORE_ALL = prefix_of(FEED, 104) + struct.pack(">QH", 0, WHOLE_PACKET)
#: In place of the tag of a packet in a batch of a snapshot block, which are not distinguished.
IN_A_BLOCK = b"block"


def packets_in(body: bytes) -> list[tuple[int, bytes]]:
    """Sequence number and bytes of each packet of a body."""
    found, at, header = [], 0, PacketHeader()
    while at < len(body):
        size = int.from_bytes(body[at + FEED.table.length_at :][: FEED.table.length_size], "big")
        size += FEED.table.length_add
        assert parse_header(FEED.table, body, at, size, header) == 0
        found.append((header.sequence, body[at : at + size]))
        at += size
    return found


def items(sent: list[Sent]) -> list[tuple[Any, ...]]:
    """Return what a link got, whatever it came in: (tag of the packet or message, bytes), or (None,
    the quality message)."""
    found: list[tuple[Any, ...]] = []
    for each in sent:
        if each.content == "quality+json":
            found.append((None, each.body))
        elif each.content == "batch":
            for sequence, data in packets_in(each.body):
                tag = struct.pack(">8sQH", each.tag[:8], sequence, 0xFFFF)
                found.append((IN_A_BLOCK if each.block_position else tag, data))
        else:
            found.append((each.tag, each.body))
    return found


def reason(item: tuple[Any, ...]) -> str:
    return "" if item[0] is not None else str(json.loads(item[1])["reason"])


@dataclass
class Customer:
    """Subscriber that has a link to `address`, loses it, and resumes."""

    rig: Rig
    address: str
    sender_queue: SenderQueue | None = None
    link: FakeLink | None = None
    had: list[tuple[Any, ...]] = field(default_factory=list)

    def attach(self, grants: int) -> None:
        tags = (tag for tag, _ in reversed(self.had) if tag is not None)
        resume = f"&from={next(tags, BEFORE_ALL).hex()}" if self.link is not None else ""
        self.sender_queue, self.link = self.rig.attach(self.address + resume, grants)

    def lose(self, frames: int) -> None:
        """The link breaks off; its last `frames` messages have not arrived."""
        assert self.sender_queue is not None
        self.rig.detach(self.sender_queue)
        self.receive(max(0, len(self.link.frames) - frames))
        self.sender_queue = None
        while self.had and self.had[-1][0] in (None, IN_A_BLOCK):
            self.had.pop()  # it will be sent again

    def receive(self, count: int) -> None:
        sent = self.link.sent[:count]
        assert [each.group_sequence for each in sent] == list(range(len(sent)))
        self.had += items(sent)


class Session:
    """One service's day at random."""

    def __init__(self, seed: int, history_bytes: int) -> None:
        self.random = random.Random(seed)
        self.rig = Rig(history_bytes=history_bytes)
        self.stream = self.rig.streams[0]
        self.next = 1
        self.day = self.steps = 0
        self.wholes = [(address, self.rig.attach(address)[1]) for address in ADDRESSES]
        self.customers = [Customer(self.rig, address) for address in ADDRESSES]
        for each in self.customers:
            each.attach(1 << 20)
        self.rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
        self.publish()

    def publish(self) -> None:
        """Some packets."""
        for _ in range(self.random.randint(1, 6)):
            count = self.random.randint(0, 4)
            messages = [
                self.random.choice([order, quote])(self.random.randint(1000, 1005), self.next)
                for _ in range(count)
            ]
            self.rig.put(packet(self.next, messages), self.next, count)
            self.next += 1
        self.rig.pump()

    def gap(self) -> None:
        first, self.next = self.next, self.next + self.random.randint(1, 5)
        self.rig.control_event(RecordKind.GAP, sequence=first, next_sequence=self.next)
        self.publish()

    def reset(self) -> None:
        """A new epoch; of a new day, or numbers could not tell the two apart."""
        self.day += 1
        self.next = 1
        self.stream.set_prefix(struct.pack(">I", 20261121 + self.day) + self.stream.prefix[4:])
        self.rig.control_event(RecordKind.RESET, next_sequence=1)
        self.publish()

    def block(self) -> None:
        self.publish()  # two blocks of one LastSeqNum could not be told apart
        data = [packet(self.next - 1, [order(1000 + n % 6, n)]) for n in range(4)]
        self.rig.block(data, last=self.next - 1)

    def closed(self) -> None:
        """A stream that closes, and opens behind a snapshot."""
        self.stream.close()
        self.rig.fanout.quality(self.stream, self.rig.qualities[0].recovering([(0, 1)], self.next))
        closed_at = self.next
        self.publish()
        last = self.random.randint(closed_at, self.next - 1)
        data = [packet(last, [order(1001, 7)])]
        begin = self.rig.qualities[0].snapshot_begin(last, 1)
        end = self.rig.qualities[0].snapshot_end(last + 1)
        self.rig.fanout.block(self.stream, begin, data, last, end)
        store = self.stream.store
        self.stream.closed = False
        self.rig.fanout.replay(self.stream, store.packets(last + 1, self.next), last + 1)

    def step(self) -> None:
        """Something happens, and some customers come and go."""
        self.steps += 1
        self.rig.qualities[0].silent = {str(self.steps)}  # so that no two messages are the same
        happens = [self.publish] * 6 + [self.gap, self.reset, self.block, self.closed]
        self.random.choice(happens)()
        for each in self.customers:
            if each.sender_queue is None:
                if self.random.random() < 0.3:
                    each.attach(self.random.choice([0, 3, 1 << 20]))
            elif self.random.random() < 0.2:
                each.lose(self.random.choice([0, 0, 1, 7]))
            else:
                each.link.grants += self.random.randint(0, 20)
                each.sender_queue.drain()
        self.rig.resumption.catch_ups.turn(self.random.choice([100, 1000, 1 << 17]))

    def finish(self) -> None:
        for each in self.customers:
            if each.sender_queue is None:
                each.attach(1 << 20)
            each.link.grants = 1 << 20
            each.sender_queue.drain()
        self.rig.catch_up()
        self.publish()
        for each in self.customers:
            assert each.link is not None
            each.sender_queue.drain()
            assert each.sender_queue.catching == 0
            each.receive(len(each.link.frames))


def check(seed: int) -> None:
    print(f"SEED={seed} python -m pytest {__file__} -k one_seed")
    session = Session(seed, history_bytes=1 << 22)
    for _ in range(40):
        session.step()
    session.finish()
    for (address, whole), customer in zip(session.wholes, session.customers, strict=True):
        wanted = [(tag, data) for tag, data in items(whole.sent)]
        found = [item for item in customer.had if reason(item) != "resume"]
        assert found == wanted, address


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_stream_in_pieces_is_the_stream(seed: int) -> None:
    check(seed)


@pytest.mark.skipif("SEED" not in os.environ, reason="SEED is not set")
def test_one_seed() -> None:
    check(int(os.environ["SEED"]))


# -- too short a history -------------------------------------------------------------------------


def is_live(tag: bytes | None) -> bool:
    """Return whether a tag is that of a live packet or message."""
    return tag is not None and tag != IN_A_BLOCK and not tag[8] & 0x80


def check_announced(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> tuple[int, int]:
    """Hold what was found against what was wanted: whatever is not there was announced lost, number
    by number where the epoch is the same. Return how many things were not there, and how
    many of them were announced by number."""
    at = missed = numbered = 0
    at_packet: bytes | None = None
    excuses: list[dict[str, Any]] = []
    for item in found:
        if reason(item) == "resume":
            quality = json.loads(item[1])
            excuses += [quality] if quality["doubt"] is not None else []
            continue
        before = at
        while at < len(wanted) and wanted[at] != item:
            at += 1
        assert at < len(wanted), ("invented, or twice", item)
        if at > before:
            assert excuses, ("not announced", wanted[before:at])
            missed += at - before
            for tag, _ in wanted[before:at]:
                if is_live(tag) and is_live(item[0]) and tag[:8] == item[0][:8]:
                    number = int.from_bytes(tag[8:16], "big")
                    lost = [each for quality in excuses for each in quality["lost"]]
                    assert any(first <= number <= last for first, last in lost), (number, lost)
                    numbered += 1
        at += 1
        if item[0] is None or item[0][:16] != at_packet:  # not the rest of a packet
            excuses.clear()
        at_packet = item[0] and item[0][:16]
    return missed, numbered


def check_short(seed: int) -> tuple[int, int]:
    print(f"SEED={seed} python -m pytest {__file__} -k one_seed")
    session = Session(seed, history_bytes=6_000)
    for _ in range(60):
        session.step()
    session.finish()
    missed = numbered = 0
    for (_, whole), customer in zip(session.wholes, session.customers, strict=True):
        more, exactly = check_announced(customer.had, items(whole.sent))
        missed, numbered = missed + more, numbered + exactly
    return missed, numbered


def test_what_a_short_history_cannot_bring_is_announced_number_by_number() -> None:
    missed = numbered = 0
    for seed in range(SEEDS // 3):
        more, exactly = check_short(seed)
        missed, numbered = missed + more, numbered + exactly
    assert missed > 50 * SEEDS
    assert numbered > 5 * SEEDS
