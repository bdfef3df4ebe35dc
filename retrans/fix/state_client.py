"""The client of a server of Market Data Requests, with the interface of `client.RequestClient`.

A gateway's recovery requests a service's snapshot; here that is a request for the present state of
the books of the service's channel. `MarketDataClient` requests, collects and checks; it tries once,
since recovery decides when to try again. A whole state is handed on as one `RefreshSnapshot`, and
`snapshot_of` makes packets of it, which are what the gateway's snapshot blocks consist of.

`fits` says whether a state belongs to the stream's sequence epoch: by SenderSubID (50), where both
have it. Sans-IO: the time is an argument.
"""

import re
from collections.abc import Mapping, Sequence

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.framing import Frame, frame_message
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import (
    Broken,
    Event,
    RefreshFailed,
    RefreshRejected,
    RefreshSnapshot,
)
from feedhandler.retrans.fix.market_data import MarketDataFormat, Refusal
from feedhandler.retrans.fix.market_data_client import (
    Complete,
    MarketDataClient,
    MarketDataClientSettings,
    Rejected,
)
from feedhandler.retrans.fix.resend_client import RUN_BYTES_MAX
from feedhandler.retrans.protocol import RefreshReject
from feedhandler.retrans.refresh import Snapshot
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.store import PacketStore

#: What is counted, by name.
COUNTS: dict[str, str] = {
    "asked": "requests sent, of both kinds",
    "not_asked": "requests not sent: no connection, or too many under way",
    "cancelled": "requests that were cancelled",
    "rejected": "requests that the server rejected",
    "states": "states of books that came whole",
    "wrong_answers": "answers that were not what was asked for, or not whole",
    "wrong": "connections on which a server sent what it may not",
}
#: The reason that recovery gets for a server's refusal; BADLY_FORMED for others.
_REASONS = {
    Refusal.UNKNOWN_CHANNEL.name: RefreshReject.WRONG_SERVICE,
    Refusal.TOO_MANY.name: RefreshReject.NO_DATA,
    Refusal.NOT_COMPLETE.name: RefreshReject.NO_DATA,
    Refusal.STATE_UNKNOWN.name: RefreshReject.NO_DATA,
    Refusal.CUT_SHORT.name: RefreshReject.NO_DATA,
}
_NUMBER = re.compile(rb"\x0134=\d+\x01")
_EPOCH = re.compile(rb"\x0150=(\d{1,20})\x01")


class StateClient:
    """The client's end of successive connections; `channels`: the channel id by service."""

    def __init__(self, channels: Mapping[int, str], settings: RecoverySettings, seed: int) -> None:
        self._channels = dict(channels)
        given = MarketDataClientSettings(
            answer_wait_us=settings.refresh_timeout_us,
            tries_max=1,
            answer_bytes_max=settings.snapshot_bytes_max,
            heartbeat_us=settings.heartbeat_us,
            dead_us=settings.dead_us,
        )
        self._client = MarketDataClient(MarketDataFormat(), given, seed=seed)
        self._asked: dict[int, AskRefresh] = {}
        self._counts: dict[str, int] = dict.fromkeys(COUNTS, 0)

    @property
    def counts(self) -> dict[str, int]:
        """The counters so far, by the names of `COUNTS`."""
        counts = self._client.counts
        return {
            **self._counts,
            "asked": counts["requests"],
            "rejected": counts["rejected"],
            "states": counts["complete"],
            "wrong_answers": counts["wrong_answers"],
            "wrong": counts["wrong"],
        }

    # -- the connection -------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return self._client.up

    def connected(self, now_ns: int) -> None:
        """Begin a connection."""
        self._client.connected(now_ns)

    def disconnected(self, now_ns: int) -> None:
        """End the connection; requests sent on it fail at the first `tick` of the next one."""
        self._client.disconnected(now_ns)

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        return self._client.deadline_ns

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and forget them."""
        return self._client.data_to_send()

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in received bytes and return their events."""
        return self._passed_on(self._client.feed(data, now_ns))

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass and return its events."""
        return self._passed_on(self._client.tick(now_ns))

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Count a request for packets and return False: another server has them."""
        self._counts["not_asked"] += 1
        return False

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Request the present state; return False (and count it) without a connection or room."""
        try:
            if not self.up:
                raise UsageError("no connection", "ask when there is one")
            number = self._client.ask(self._channels[request.service], now_ns)
        except UsageError:
            self._counts["not_asked"] += 1
            return False
        self._asked[number] = request
        return True

    def cancel(self, request_id: int) -> None:
        """Cancel a request; one that is not under way is ignored."""
        for number, request in list(self._asked.items()):
            if request.request_id == request_id:
                del self._asked[number]
                self._client.cancel(number)
                self._counts["cancelled"] += 1

    def _passed_on(self, events: Sequence[object]) -> list[Event]:
        """Return the client's events as events of recovery (`retrans.events`)."""
        passed_on: list[Event] = []
        for event in events:
            if isinstance(event, Broken):
                passed_on.append(event)
                continue
            request = self._asked.pop(getattr(event, "request", -1), None)
            if request is None:
                continue
            if isinstance(event, Complete):
                whole = RefreshSnapshot(
                    request.request_id, request.service, event.last, tuple(event.messages)
                )
                passed_on.append(whole)
            elif isinstance(event, Rejected):
                reason = _REASONS.get(event.code, RefreshReject.BADLY_FORMED)
                passed_on.append(RefreshRejected(request.request_id, int(reason)))
            else:
                passed_on.append(RefreshFailed(request.request_id, "failed"))
        return passed_on


def snapshot_of(event: RefreshSnapshot) -> Snapshot:
    """Return a state as packets: runs of snapshots, numbered from 1 within the state.

    To a reader each is one of the channel's messages, but it has no number there.
    """
    packets: list[bytes] = []
    run, held = bytearray(), 0
    for number, message in enumerate(event.messages, 1):
        data = numbered(message, number)
        if held and held + len(data) > RUN_BYTES_MAX:
            packets.append(bytes(run))
            run, held = bytearray(), 0
        run += data
        held += len(data)
    if held:
        packets.append(bytes(run))
    return Snapshot(event.service, event.last, tuple(packets), len(event.messages), 0)


def numbered(message: bytes, number: int) -> bytes:
    """Return the message with another MsgSeqNum."""
    frame = Frame()
    frame_message(message, 0, len(message), frame)
    begin_string = message[2 : message.index(b"\x01")]
    text = message[frame.body - 1 : frame.body_end]
    return envelope(begin_string, _NUMBER.sub(b"\x0134=%d\x01" % number, text, count=1)[1:])


def trimmed(packet: bytes, first: int) -> bytes:
    """Return the messages of a run from the number `first` on; a state may end within a run."""
    frame, at = Frame(), 0
    while at < len(packet) and not frame_message(packet, at, len(packet) - at, frame):
        if frame.sequence >= first:
            break
        at = frame.end
    return packet[at:]


def fits(snapshot: Snapshot, store: PacketStore) -> bool:
    """Return whether the state is of the epoch published last; True where either has none."""
    latest = store.packet(store.next_serial - 1) if store.count else None
    if latest is None or not snapshot.packets:
        return True
    said = [_EPOCH.search(data) for data in (snapshot.packets[0], latest[2])]
    epochs = {each[1] for each in said if each}
    return len(epochs) < 2
