"""The server of retransmissions and refreshes: what an exchange offers, for many clients at once.

Plain state machines: `RequestServer` has what all clients share (the packet stores, the quotas, the
permissions), a `ServerSession` is one connection. Bytes and the time go in, bytes to write come
out; the owner moves them. A request is refused with the reason that the protocol has for it.

A request's packets follow its response, unchanged except for the delivery flag, which marks them as
retransmitted. Answers keep the order of the requests. A long one is returned in chunks: a session
with more to send is due at once (`deadline_ns`), and each `tick` returns the next chunk, so that
clients take turns.

A client costs a bounded amount of memory: requests that wait are counted, and so are the bytes of
snapshots that wait for a slow reader. The owner reports when the connection takes no more (`pause`,
`resume`). Clients that break the protocol, read too slowly or are silent are closed: `closed` then
has the reason, and the bytes returned last may still be written.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from feedhandler.codecs.feed import Feed
from feedhandler.retrans.protocol import (
    RETRANSMITTED,
    WIRE_ERRORS,
    Heartbeat,
    HeartbeatReply,
    RecoveryProtocol,
    RefreshReject,
    RefreshRequest,
    Response,
    RetransReject,
    RetransRequest,
    StreamFramer,
    WireError,
)
from feedhandler.retrans.serving import ClientSession, ClientsServer, PacketsOwed
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.store import PacketStore

#: Longest packet that a client may send; a request has 44 bytes.
REQUEST_BYTES_MAX = 256
#: Most answers that may wait in one connection. A client that pipelines more is closed.
ANSWERS_WAITING_MAX = 4096
#: SourceIDs whose requests of a day are counted; further ones have no requests left.
SOURCE_IDS_MAX = 4096
#: Sequence numbers that are looked up at a time.
SLICE_NUMBERS = 64

#: What is counted, by name.
COUNTS: dict[str, str] = {
    **WIRE_ERRORS,
    "clients": "connections accepted",
    "clients_refused": "connections closed because there were too many",
    "clients_left": "connections that the client or the network ended",
    "clients_silent": "connections closed because nothing came from the client",
    "clients_slow": "connections closed because the client took its answers too slowly",
    "clients_wrong": "connections closed because of what the client sent",
    "heartbeats_sent": "heartbeats sent",
    "heartbeats_answered": "answers to those heartbeats",
    "heartbeats": "heartbeats from clients, answered",
    "requests": "retransmission requests",
    "accepted": "retransmission requests accepted",
    "packets": "packets retransmitted",
    "bytes": "bytes of those packets",
    "cut_short": "answers cut short because the packets had left the window meanwhile",
    "refresh_requests": "refresh requests",
    "refresh_accepted": "refresh requests accepted",
    "refresh_packets": "packets of snapshots sent over connections",
    "wrong_direction": "packets that a client has no business to send",
    "too_many_waiting": "connections closed because too many answers waited",
    **{
        f"rejected_{reason.name.lower()}": "retransmission requests rejected for this reason"
        for reason in RetransReject
        if reason
    },
    **{
        f"refresh_rejected_{reason.name.lower()}": "refresh requests rejected for this reason"
        for reason in RefreshReject
        if reason
    },
}


class Refresher(Protocol):
    """The maker of snapshots that a `RequestServer` uses."""

    def request(self, service: int, now_ns: int) -> RefreshReject:
        """Request a snapshot of `service`; return NONE where it will go out, else why not."""

    def subscribe(
        self, service: int, callback: Callable[[list[bytes]], None]
    ) -> Callable[[], None] | None:
        """Call `callback` with the packets of every snapshot of `service` from now on, in order.

        A snapshot may come in several calls. Returns a function that ends it, or None.
        """


class DailyQuota:
    """Counts the requests a day of each SourceID."""

    def __init__(self, per_day: int) -> None:
        self._per_day = per_day
        self._used: dict[str, int] = {}
        self._day_ns = 0

    def try_acquire(self, source_id: str, day_ns: int) -> bool:
        """Count one request of the day that began at `day_ns`; return False where none is left."""
        if not self._per_day:
            return True
        if day_ns > self._day_ns:  # a clock that is set back gives nothing back
            self._day_ns = day_ns
            self._used.clear()
        used = self._used.get(source_id, 0)
        if used >= self._per_day or (not used and len(self._used) >= SOURCE_IDS_MAX):
            return False
        self._used[source_id] = used + 1
        return True

    def renew(self) -> None:
        """Reset the count of every SourceID."""
        self._used.clear()


class RequestServer(ClientsServer[ServerSettings, "ServerSession"]):
    """The state that all clients share.

    `stores` has the packets of each service; the publisher appends to them. Without a `refresher`,
    refresh requests are refused as being of the wrong type. A day is the feed's trading day;
    `now_ns` is ns since 1970. `counts` counts by the names of `COUNTS`.
    """

    def __init__(
        self,
        feed: Feed,
        stores: Mapping[int, PacketStore],
        settings: ServerSettings,
        refresher: Refresher | None = None,
    ) -> None:
        super().__init__(settings, dict.fromkeys(COUNTS, 0))
        self.feed = feed
        self.stores = stores
        self.refresher = refresher
        self.protocol = RecoveryProtocol(feed)
        self._retrans_quota = DailyQuota(settings.requests_per_day)
        self._refresh_quota = DailyQuota(settings.requests_per_day)

    def session(self, peer: str, now_ns: int) -> "ServerSession":
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        return self.admit(ServerSession(self, peer, now_ns))

    def new_day(self) -> None:
        """Reset the day's counts of requests, for every SourceID."""
        self._retrans_quota.renew()
        self._refresh_quota.renew()

    def judge(self, request: RetransRequest, now_ns: int) -> RetransReject:
        """Return NONE to grant a retransmission request, else why not; counts it for the day."""
        if not _readable(request.source_id):
            return RetransReject.BADLY_FORMED
        store = self.stores.get(request.service)
        if store is None:
            return RetransReject.WRONG_SERVICE
        if not self._permitted(request.source_id):
            return RetransReject.PERMISSION
        if not self._retrans_quota.try_acquire(
            request.source_id, self.feed.trading_day.since_ns(now_ns)
        ):
            return RetransReject.TOO_MANY_TODAY
        width = request.end - request.first
        if width < 1 or request.first < self.feed.first_sequence or request.end > store.end:
            return RetransReject.INVALID_RANGE
        if width > self.settings.request_packets_max:
            return RetransReject.OVER_THRESHOLD
        if not store.covers(request.first, request.end):
            return RetransReject.NO_LONGER_AVAILABLE
        return RetransReject.NONE

    def judge_refresh(self, request: RefreshRequest, now_ns: int) -> RefreshReject:
        """Return NONE to grant a refresh request, else why not; counts it for the day.

        The refresher may still refuse it.
        """
        if self.refresher is None:
            return RefreshReject.WRONG_PACKET_TYPE
        if not _readable(request.source_id):
            return RefreshReject.BADLY_FORMED
        if not self._permitted(request.source_id):
            return RefreshReject.PERMISSION
        if not self._refresh_quota.try_acquire(
            request.source_id, self.feed.trading_day.since_ns(now_ns)
        ):
            return RefreshReject.TOO_MANY_TODAY
        return RefreshReject.NONE

    def _permitted(self, source_id: str) -> bool:
        allowed = self.settings.source_ids
        return bool(source_id) and (not allowed or source_id in allowed)


def _readable(source_id: str) -> bool:
    return source_id.isascii() and source_id.isprintable()


class ServerSession(ClientSession[RequestServer]):
    """The server's end of one client's connection; `peer` names it in reports."""

    def __init__(self, server: RequestServer, peer: str, now_ns: int) -> None:
        super().__init__(server, now_ns)
        self.peer = peer
        self._protocol = server.protocol
        self._framer = StreamFramer(server.feed, REQUEST_BYTES_MAX)
        self._flag_at = server.feed.table.flags_at
        self._queue: deque[bytes | PacketsOwed] = deque()
        self._queued_bytes = self._answers = 0
        self._source_id = ""
        self._subscriptions: dict[int, Callable[[], None] | None] = {}

    @property
    def _busy(self) -> bool:
        return bool(self._queue)

    def _drop(self) -> None:
        self._queue.clear()
        for unsubscribe in self._subscriptions.values():
            if unsubscribe is not None:
                unsubscribe()
        self._subscriptions.clear()

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> bytes:
        """Let time pass and return the bytes to write."""
        if self._idle(now_ns):
            return b""
        heartbeat = self._protocol.heartbeat(now_ns) if self._beats(now_ns) else b""
        return heartbeat + self._chunk()

    def feed(self, data: bytes, now_ns: int) -> bytes:
        """Take in the client's bytes and return the bytes to write."""
        if self.closed or not data:
            return b""
        self._now_ns = self._heard_ns = now_ns
        try:
            for packet in self._framer.feed(data):
                if not self.closed:
                    self._packet(packet, now_ns)
            if self._framer.failure is not None:
                raise self._framer.failure
        except WireError as error:
            answer = self._chunk()
            self._counts[error.name] += 1
            self._close("clients_wrong", f"the client sent {error.message}")
            return answer
        self._check_room()
        return self._chunk()

    def _check_room(self) -> None:
        if self._queued_bytes > self._server.settings.output_bytes_max and not self.closed:
            self._close("clients_slow", "the client takes its answers too slowly")

    def _chunk(self) -> bytes:
        """Return the next bytes to write, about `chunk_bytes` of them."""
        if self._paused_ns is not None or not self._queue or self.closed:
            return b""
        chunk = bytearray()
        room = self._server.settings.chunk_bytes
        while self._queue and len(chunk) < room:
            item = self._queue[0]
            if isinstance(item, bytes):
                chunk += item
                self._queued_bytes -= len(item)
            elif not self._retransmit(item, chunk, room):
                break
            else:
                self._answers -= 1
            self._queue.popleft()
        return bytes(chunk)

    def _retransmit(self, answer: PacketsOwed, chunk: bytearray, room: int) -> bool:
        """Append packets of an answer to `chunk`, up to `room` bytes; return True at the end.

        An answer whose packets have left the window meanwhile ends early and is counted.
        """
        store = answer.store
        while answer.at < answer.end:
            until = min(answer.at + SLICE_NUMBERS, answer.end)
            if not (answer.same and store.covers(answer.at, until)):
                self._counts["cut_short"] += 1
                return True
            for _, next_sequence, packet in store.packets(answer.at, until):
                if len(chunk) >= room:
                    return False
                begin = len(chunk)
                chunk += packet
                chunk[begin + self._flag_at] = RETRANSMITTED
                answer.at = next_sequence
                self._counts["packets"] += 1
                self._counts["bytes"] += len(packet)
        return True

    # -- what a client may send -----------------------------------------------------------------

    def _packet(self, packet: bytes, now_ns: int) -> None:
        try:
            frame = self._protocol.read(packet)
        except WireError as error:
            if not self._protocol.is_request(error.packet_type):
                raise
            self._counts[error.name] += 1
            self._refuse_unread(error, now_ns)
            return
        if isinstance(frame, RetransRequest):
            self._source_id = frame.source_id
            self._retransmission(frame, now_ns)
        elif isinstance(frame, RefreshRequest):
            self._source_id = frame.source_id
            self._refresh(frame, now_ns)
        elif isinstance(frame, Heartbeat):
            self._counts["heartbeats"] += 1
            self._push(self._protocol.heartbeat_reply(self._source_id, now_ns))
        elif isinstance(frame, HeartbeatReply):
            self._counts["heartbeats_answered"] += 1
        else:
            raise WireError("wrong_direction", "a packet that no client may send")

    def _refuse_unread(self, error: WireError, now_ns: int) -> None:
        """Refuse a request that could not be read."""
        refresh = self._protocol.is_refresh(error.packet_type)
        reason = RefreshReject.BADLY_FORMED if refresh else RetransReject.BADLY_FORMED
        self._respond(Response(refresh, error.number, error.service, "", reason), now_ns)

    def _retransmission(self, request: RetransRequest, now_ns: int) -> None:
        self._counts["requests"] += 1
        reason = self._server.judge(request, now_ns)
        self._respond(
            Response(False, request.number, request.service, request.source_id, reason), now_ns
        )
        if reason == RetransReject.NONE:
            self._answers += 1
            if self._answers > ANSWERS_WAITING_MAX:
                raise WireError("too_many_waiting", "requests faster than it takes the answers")
            store = self._server.stores[request.service]
            self._queue.append(PacketsOwed(store, request.first, request.end))

    def _refresh(self, request: RefreshRequest, now_ns: int) -> None:
        self._counts["refresh_requests"] += 1
        reason = self._server.judge_refresh(request, now_ns)
        index = len(self._queue)
        if reason == RefreshReject.NONE:
            assert self._server.refresher is not None
            subscribed = self._subscribe(request.service)
            reason = self._server.refresher.request(request.service, now_ns)
            if reason != RefreshReject.NONE and subscribed:
                self._unsubscribe(request.service)
        # A refresher may have given the snapshot already: the response goes before it.
        self._respond(
            Response(True, request.number, request.service, request.source_id, reason),
            now_ns,
            index,
        )

    def _subscribe(self, service: int) -> bool:
        """Subscribe this client to the service's snapshots; return False where it already is.

        Returns False, too, where there is no refresher or the settings do not want it.
        """
        refresher = self._server.refresher
        if refresher is None or not self._server.settings.refresh_over_tcp:
            return False
        if service in self._subscriptions:
            return False
        self._subscriptions[service] = refresher.subscribe(service, self._snapshot)
        return True

    def _unsubscribe(self, service: int) -> None:
        unsubscribe = self._subscriptions.pop(service, None)
        if unsubscribe is not None:
            unsubscribe()

    def _snapshot(self, packets: list[bytes]) -> None:
        """Queue packets of a snapshot that the refresher hands over."""
        if self.closed:
            return
        for packet in packets:
            self._push(packet)
        self._counts["refresh_packets"] += len(packets)
        self._check_room()
        if self.on_output is not None:
            self.on_output()

    # -- what goes out --------------------------------------------------------------------------

    def _respond(self, response: Response, now_ns: int, index: int | None = None) -> None:
        prefix = "refresh_" if response.refresh else ""
        if response.reason:
            kind = RefreshReject if response.refresh else RetransReject
            self._counts[f"{prefix}rejected_{kind(response.reason).name.lower()}"] += 1
        else:
            self._counts[f"{prefix}accepted"] += 1
        self._push(self._protocol.response(response, now_ns), index)

    def _push(self, data: bytes, index: int | None = None) -> None:
        """Queue bytes at the end, or at `index`."""
        self._queued_bytes += len(data)
        if index is None:
            self._queue.append(data)
        else:
            self._queue.insert(index, data)
