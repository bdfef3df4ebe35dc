"""What tests of requests that multicast lines answer share: packets of such feeds, stores of them,
and a client and a session with the lines between them in memory."""

from typing import Any

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.scanner import PacketHeader, parse_header
from feedhandler.retrans.events import Event, Packet
from feedhandler.retrans.store import PacketStore


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
