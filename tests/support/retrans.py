"""Shared by tests of recovery over TCP: packets, stores, and a client and server in memory.

`Pair` moves bytes between a `RequestClient` and a `ServerSession`, all at once or in shares of a
given size, with a clock that the test moves.
"""

import zlib

from feedhandler.codecs import load_feed
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.events import Event, Packet
from feedhandler.retrans.protocol import RecoveryProtocol, RefreshReject
from feedhandler.retrans.server import Refresher, RequestServer, ServerSession
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore

FEED = load_feed("euronext-utp-md")
PROTOCOL = RecoveryProtocol(FEED)
MS = 1_000_000
#: A Wednesday noon; nothing depends on which.
NOON_NS = 1_700_046_000 * 10**9


def live_packet(sequence: int, service: int = 104, flags: int = 0, messages: int = 2) -> bytes:
    """A packet as the lines carry it; its messages tell which one it is."""
    return FEED.encode_packet(
        sequence=sequence,
        service=service,
        flags=flags,
        send_time=12_345_678,
        messages=[
            FEED.encode_message(221, symbol_index=sequence, source_seq_num=index)
            for index in range(messages)
        ],
    )


def sent_again(sequence: int, service: int = 104, **options: int) -> bytes:
    """The same as a retransmission."""
    return live_packet(sequence, service, 1, **options)


def filled(first: int, end: int, service: int = 104, bytes_max: int = 1 << 20) -> PacketStore:
    """A store with the packets `first` to `end` - 1."""
    store = PacketStore(bytes_max, 4096)
    for number in range(first, end):
        publish(store, number, service)
    return store


def publish(store: PacketStore, number: int, service: int = 104) -> None:
    data = live_packet(number, service)
    assert store.append(number, number + 1, data, 0, len(data))


class Snapshots(Refresher):
    """A refresher that answers as told, and gives the packets it is told to give."""

    def __init__(self, reason: RefreshReject = RefreshReject.NONE) -> None:
        self.reason = reason
        self.requests: list[int] = []
        self.at_once: list[bytes] = []
        self.callbacks: list = []

    def request(self, service, now_ns):
        self.requests.append(service)
        if self.at_once:
            self.give(self.at_once)
        return self.reason

    def subscribe(self, service, callback):
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def give(self, packets: list[bytes]) -> None:
        for callback in list(self.callbacks):
            callback(packets)


def refresh_packet(sequence: int, service: int = 104) -> bytes:
    """A packet of a snapshot, some messages in it."""
    message = b"\0\x0b\x27\x10" + bytes(9)
    return FEED.encode_packet(
        sequence=sequence, service=service, flags=17, count=3, body=zlib.compress(message * 3, 0)
    )


class Pair:
    """A client connected to a session of a server, in memory."""

    def __init__(
        self,
        stores: dict[int, PacketStore] | None = None,
        *,
        server_settings: ServerSettings | None = None,
        settings: RecoverySettings | None = None,
        refresher: Refresher | None = None,
        source_id: str = "ME",
    ) -> None:
        self.now = NOON_NS
        self.stores = {104: filled(1, 101)} if stores is None else stores
        self.server = RequestServer(
            FEED, self.stores, server_settings or ServerSettings(), refresher
        )
        self.client = RequestClient(FEED, source_id, settings or RecoverySettings())
        self.client.connected(self.now)
        self.session: ServerSession = self.server.session("test", self.now)
        self.events: list[Event] = []
        self._id = 0

    def ask(self, first: int, end: int, service: int = 104) -> int:
        """Ask for packets; the request's id."""
        self._id += 1
        self.client.ask(Ask(self._id, service, first, end, 0), self.now)
        return self._id

    def ask_refresh(self, service: int = 104) -> int:
        self._id += 1
        self.client.ask_refresh(AskRefresh(self._id, service), self.now)
        return self._id

    def run(self, share: int = 1 << 20) -> list[Event]:
        """Move bytes to and fro, `share` at a time, until both are silent; the new events."""
        before = len(self.events)
        while True:
            up = self.client.data_to_send()
            down = self.session.tick(self.now) if self.session.deadline_ns <= self.now else b""
            for at in range(0, len(up), share):
                down += self.session.feed(up[at : at + share], self.now)
            if not up and not down:
                return self.events[before:]
            for at in range(0, len(down), share):
                self.events += self.client.feed(down[at : at + share], self.now)

    def numbers(self, request_id: int) -> list[int]:
        """The numbers that came in answer to a request."""
        return [
            event.sequence
            for event in self.events
            if isinstance(event, Packet) and event.request_id == request_id
        ]

    def count(self, name: str) -> int:
        """One of the server's counters."""
        return self.server.counts[name]
