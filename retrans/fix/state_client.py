"""The client of a server of Market Data Requests, with the face of `client.RequestClient`.

A gateway's recovery asks for a service's snapshot; here that is a request for the present state of
the books of the service's channel. `MarketDataClient` asks, collects and checks; it tries once,
for when to try again is recovery's to say. A whole state is handed on as one `RefreshSnapshot`,
and `snapshot_of` makes packets of it, which are what the gateway's snapshot blocks consist of.

`fits` tells whether a state is of the numbering that the stream is in: by SenderSubID (50), where
both say it. Sans-IO: the time is an argument.
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
#: What a server's refusal means to recovery; others are requests that cannot be read.
_REASONS = {
    Refusal.UNKNOWN_CHANNEL.name: RefreshReject.WRONG_SERVICE,
    Refusal.TOO_MANY.name: RefreshReject.NO_DATA,
    Refusal.NOT_COMPLETE.name: RefreshReject.NO_DATA,
    Refusal.STATE_UNKNOWN.name: RefreshReject.NO_DATA,
    Refusal.CUT_SHORT.name: RefreshReject.NO_DATA,
}
_NUMBER = re.compile(rb"\x0134=\d+\x01")
_NUMBERING = re.compile(rb"\x0150=(\d{1,20})\x01")


class StateClient:
    """One connection's client. `channels`: of each service that is asked for here, its id."""

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
        """Counted so far, by the names of `COUNTS`."""
        told = self._client.counts
        return {
            **self._counts,
            "asked": told["requests"],
            "rejected": told["rejected"],
            "states": told["complete"],
            "wrong_answers": told["wrong_answers"],
            "wrong": told["wrong"],
        }

    # -- the connection -------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Is there a connection?"""
        return self._client.up

    def connected(self, now_ns: int) -> None:
        """The connection is there."""
        self._client.connected(now_ns)

    def disconnected(self, now_ns: int) -> None:
        """The connection is gone; what was asked is told as failed by the next one's first tick."""
        self._client.disconnected(now_ns)

    @property
    def deadline_ns(self) -> int:
        """When `tick` has something to do."""
        return self._client.deadline_ns

    def take_output(self) -> bytes:
        """The bytes to write, once."""
        return self._client.take_output()

    def feed(self, data: bytes, now_ns: int) -> list[Event]:
        """Take in what came; what it means."""
        return self._told(self._client.feed(data, now_ns))

    def tick(self, now_ns: int) -> list[Event]:
        """Let time pass."""
        return self._told(self._client.tick(now_ns))

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, request: Ask, now_ns: int) -> bool:
        """Messages by number are another server's matter: nothing is asked."""
        self._counts["not_asked"] += 1
        return False

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Ask for the present state; False (and counted) without a connection or room."""
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
        """Nobody waits for this request any more. A request that is not under way is ignored."""
        for number, request in list(self._asked.items()):
            if request.request_id == request_id:
                del self._asked[number]
                self._client.cancel(number)
                self._counts["cancelled"] += 1

    def _told(self, events: Sequence[object]) -> list[Event]:
        """What the client tells, in recovery's words."""
        told: list[Event] = []
        for event in events:
            if isinstance(event, Broken):
                told.append(event)
                continue
            request = self._asked.pop(getattr(event, "request", -1), None)
            if request is None:
                continue
            if isinstance(event, Complete):
                whole = RefreshSnapshot(
                    request.request_id, request.service, event.last, tuple(event.messages)
                )
                told.append(whole)
            elif isinstance(event, Rejected):
                reason = _REASONS.get(event.code, RefreshReject.BADLY_FORMED)
                told.append(RefreshRejected(request.request_id, int(reason)))
            else:
                told.append(RefreshFailed(request.request_id, "failed"))
        return told


def snapshot_of(event: RefreshSnapshot) -> Snapshot:
    """A state as packets: runs of snapshots, numbered from 1 within the state, since each is one of
    the channel's messages to a reader but has no number there."""
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
    """The message with another MsgSeqNum."""
    frame = Frame()
    frame_message(message, 0, len(message), frame)
    begin_string = message[2 : message.index(b"\x01")]
    text = message[frame.body - 1 : frame.body_end]
    return envelope(begin_string, _NUMBER.sub(b"\x0134=%d\x01" % number, text, count=1)[1:])


def trimmed(packet: bytes, first: int) -> bytes:
    """What of a run of messages has numbers from `first` on: a state may end within one."""
    frame, at = Frame(), 0
    while at < len(packet) and not frame_message(packet, at, len(packet) - at, frame):
        if frame.sequence >= first:
            break
        at = frame.end
    return packet[at:]


def fits(snapshot: Snapshot, store: PacketStore) -> bool:
    """Is the state of the numbering that was published last? True where either does not say."""
    latest = store.packet(store.taken - 1) if store.count else None
    if latest is None or not snapshot.packets:
        return True
    said = [_NUMBERING.search(data) for data in (snapshot.packets[0], latest[2])]
    numberings = {each[1] for each in said if each}
    return len(numberings) < 2
