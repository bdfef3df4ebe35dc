"""Shared by tests of requests that multicast lines or datagrams answer: packets of such feeds,
stores of them, clients, lines that keep what is sent, pieces and mutations of bytes."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.scanner import parse_header
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Event, Packet
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup
from feedhandler.retrans.reconnection import RecoveryClient
from feedhandler.retrans.requesting import DatagramClient
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.store import PacketStore

ClientT = TypeVar("ClientT", bound=DatagramClient)


def stored(feed: Feed, packets: list[bytes], bytes_max: int = 1 << 16) -> PacketStore:
    """A store with these packets."""
    store = PacketStore(bytes_max)
    for data in packets:
        keep(feed, store, data)
    return store


def keep(feed: Feed, store: PacketStore, data: bytes) -> None:
    """Append a packet to a store."""
    header = PacketHeader()
    assert parse_header(feed.table, data, 0, len(data), header) == 0
    store.append(header.sequence, header.next_sequence, data, 0, len(data))


def drawn_packets(
    packet: Callable[[int, int], bytes], count_max: int, draw: random.Random
) -> list[bytes]:
    """Packets of 1 to `count_max` messages, 2,000 messages or some more in all; `packet` makes one
    of a first number and a count."""
    packets: list[bytes] = []
    first = 1
    while first < 2_000:
        count = draw.randint(1, count_max)
        packets.append(packet(first, count))
        first += count
    return packets


def by_datagrams(
    make: Callable[[ClientSetup], ClientT],
    feed: Feed,
    service: int,
    latest: Sequence[bytes],
    **settings: int,
) -> ClientT:
    """A client over UDP that may ask; `latest[0]` is the lines' latest packet."""
    channels = (ChannelNames(service),)
    setup = ClientSetup(
        feed, RecoverySettings(**settings), "us", retransmission=channels,
        latest=lambda service: latest[0],
    )  # fmt: skip
    made = make(setup)
    made.connected(0)
    return made


def answered(session: Any, lines: "Lines", data: bytes, now_ns: int) -> list[bytes]:
    """Return what a session answers, and then what goes out by the lines until nothing waits."""
    said = [session.feed(data, now_ns)]
    for _ in range(10_000):
        if not session.waiting:
            break
        assert session.deadline_ns <= now_ns
        assert session.tick(now_ns) == b""
    return said + lines.drain()


def numbers(events: list[Event]) -> list[int]:
    """The numbers of the packets among events, in order."""
    return [
        number
        for event in events
        if isinstance(event, Packet)
        for number in range(event.sequence, event.next_sequence)
    ]


def messages(feed: Feed, events: list[Event]) -> dict[int, bytes]:
    """The messages of the packets among events, by number; each must come once."""
    found: dict[int, bytes] = {}
    for event in events:
        if isinstance(event, Packet):
            for number, message in enumerate(feed.messages_of(event.data), event.sequence):
                assert number not in found, f"{number} comes twice"
                found[number] = message
    return found


def whole(events: list[Event]) -> list[Any]:
    """The events, packets as (service, first, end)."""
    return [
        (each.service, each.sequence, each.next_sequence) if isinstance(each, Packet) else each
        for each in events
    ]


def exchange(
    asking: RecoveryClient,
    answers: Callable[[bytes, int], list[bytes]],
    packet: Callable[[int, int], bytes],
    service: int,
    draw: random.Random,
) -> None:
    """Ask for a run of numbers by datagrams that are lost, doubled and late, until all have come.

    As recovery does, what has not come is cancelled and asked for again. `answers` is given a
    request and the time, `packet` makes one of a first number and a count: in such packets each
    number must come, once.
    """
    missing = set(range(100, draw.randint(101, 900)))
    came: list[int] = []
    delayed: list[bytes] = []
    for request_id in range(1, 10_000):
        if not missing:
            break
        low = min(missing)
        high = next(n for n in range(low, low + 1000) if n not in missing)
        asking.ask(Ask(request_id, service, low, high, 0), request_id)
        while request := asking.data_to_send():
            for answer in answers(request, request_id):
                copies = [answer] * draw.choice([0, 1, 1, 1, 2])
                if draw.random() < 0.2:
                    delayed += copies
                    copies = [delayed.pop(draw.randrange(len(delayed)))] if delayed else []
                for data in copies:
                    for event in asking.feed(data, request_id):
                        if isinstance(event, Packet):
                            first, end = event.sequence, event.next_sequence
                            assert event.data == packet(first, end - first)
                            came += range(first, end)
                            missing -= set(range(first, end))
        asking.cancel(request_id)
    assert not missing
    assert len(came) == len(set(came)), "a number came twice"


def exchange_by_lines(
    asking: RecoveryClient,
    answered: Callable[[bytes], list[bytes]],
    feed: Feed,
    service: int,
    message: Callable[[int], bytes],
    draw: random.Random,
) -> None:
    """Ask by a connection for a run of numbers that lines bring, lose and double, until all came.

    As recovery does, what has not come is cancelled and asked for again. `answered` is told what is
    sent, and returns what the connection says, before or behind the lines, and then what they
    bring; of `message`s each must come, once.
    """
    missing = set(range(100, draw.randint(101, 900)))
    came: dict[int, bytes] = {}
    for request_id in range(1, 1_000):
        if not missing:
            break
        low = min(missing)
        high = next(n for n in range(low, low + 1000) if n not in missing)
        asking.ask(Ask(request_id, service, low, high, 0), request_id)
        said, *sent = answered(asking.data_to_send())
        before = draw.random() < 0.5
        events = asking.feed(said, request_id) if before else []
        for data in sent:
            for _ in range(draw.choice([0, 1, 1, 2])):
                events += asking.datagram(service, data, request_id)
        events += [] if before else asking.feed(said, request_id)
        found = messages(feed, events)
        assert not found.keys() - missing
        came |= found
        missing -= found.keys()
        asking.cancel(request_id)
        if not asking.up:
            asking.connected(request_id)
    assert not missing
    assert all(body == message(number) for number, body in came.items())


def check_pieces(
    at_once: RecoveryClient,
    in_pieces: RecoveryClient,
    data: bytes,
    draw: random.Random,
    now_ns: int,
) -> None:
    """Both clients make the same of what a server says, one in pieces; of the bytes one may be
    turned into another before."""
    said = bytearray(data)
    if draw.random() < 0.5:
        said[draw.randrange(len(said))] ^= 1 << draw.randrange(8)
    events: list[Event] = []
    for chunk in chunks(bytes(said), draw):
        events += in_pieces.feed(chunk, now_ns)
    assert events == at_once.feed(bytes(said), now_ns)
    assert in_pieces.data_to_send() == at_once.data_to_send()
    assert in_pieces.counts == at_once.counts


class Lines:
    """Lines on which a server sends its packets for one service: they are kept."""

    def __init__(self, service: int) -> None:
        self.service = service
        self.sent: list[bytes] = []

    def __call__(self, service: int, data: bytes) -> None:
        assert service == self.service
        self.sent.append(data)

    def drain(self) -> list[bytes]:
        """Return the packets sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


def chunks(data: bytes, draw: random.Random) -> Iterator[bytes]:
    """The bytes in pieces, as a connection may bring them."""
    at = 0
    while at < len(data):
        size = draw.choice([1, 1, 2, 7, 29, 100])
        yield data[at : at + size]
        at += size


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The bytes with a few changes: bits, cuts, repeats."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed)) if changed else 0
        change: Callable[[], None] = draw.choice(
            [
                lambda at=at: changed.__setitem__(at, draw.randrange(256)) if changed else None,
                lambda at=at: changed.__delitem__(slice(at, at + draw.randint(1, 9))),
                lambda at=at: changed.__setitem__(
                    slice(at, at), draw.randbytes(draw.randint(1, 9))
                ),
            ]
        )
        change()
    return bytes(changed)
