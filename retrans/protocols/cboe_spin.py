"""Cboe's Spin Server: the open orders of a unit, whole, over TCP.

Once a second the server says up to which number it has an image (type 0x80). A spin request (0x81)
names the number of such an image; the response (0x82) accepts it and says how many orders will
come, or refuses it. Then come the messages that add the orders, and others of the state, in
sequenced units, and last "spin finished" (0x83) with the number up to which the spin is current.
(Cboe US Equities/Options Multicast PITCH Specification 2.41, Spin Messages.) Login and heartbeats
are `cboe_session`'s.

**The client** asks for the first image that is announced after its owner has asked: an older one
would not reach what was lost since. Messages of the spin are handed on as one `RefreshSnapshot`;
one whose orders are not as many as was said, or which is too large, fails. A spin of a request that
was cancelled goes by unheeded, and the next one waits for its end: a server runs one at a time.

**The server** makes an image of each unit's state once a second, of which it keeps the latest
few.

Sans-IO; `retrans.protocols.setup` says what both must do.
"""

import struct
from collections import deque
from dataclasses import dataclass, field

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.retrans.actions import AskRefresh
from feedhandler.retrans.events import (
    Event,
    RefreshAccepted,
    RefreshFailed,
    RefreshRejected,
    RefreshSnapshot,
)
from feedhandler.retrans.protocol import NEVER_NS, RefreshReject, WireError
from feedhandler.retrans.protocols import cboe_session
from feedhandler.retrans.protocols.cboe_session import (
    UNIT,
    CboeClient,
    CboeServer,
    CboeSession,
    check_units,
    exactly,
    unit_of,
)
from feedhandler.retrans.protocols.setup import ClientSetup, ServerSetup
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import WholeSnapshots, runs_of

#: Messages: length, type, sequence number; count of orders and status.
IMAGE_AVAILABLE = SPIN_REQUEST = SPIN_FINISHED = struct.Struct("<BBI")
SPIN_RESPONSE = struct.Struct("<BBIIc")
#: Message types.
AVAILABLE, REQUESTS, RESPONDS, FINISHED = 0x80, 0x81, 0x82, 0x83
#: Status of a response.
ACCEPTED, OUT_OF_RANGE, IN_PROGRESS = b"A", b"O", b"S"
#: Messages that add an order: long, short and expanded.
ADDS_ORDER = frozenset({0x21, 0x22, 0x2F})
#: The first type that is none of the connection's own: below stand login and gap requests.
STATE_FIRST, SPIN_FIRST, SPIN_LAST = 0x20, 0x80, 0x86
#: How often a server makes an image, and how many it keeps of each unit.
IMAGE_NS, IMAGES_KEPT = 1_000_000_000, 4

#: What the client counts, by name.
COUNTS: dict[str, str] = {
    **cboe_session.COUNTS,
    "asked": "snapshots asked for",
    "not_asked": "snapshots not asked for: no connection, or one is under way; or packets",
    "cancelled": "requests that were cancelled",
    "images": "images that the server has announced",
    "requests": "spin requests sent",
    "accepted": "spin requests that the server accepted",
    "rejected": "spin requests that it rejected",
    "spins": "spins that came whole",
    "unheeded": "spins that nobody waited for any more",
    "failed_count": "spins whose orders were not as many as was said",
    "failed_number": "spins that ended with another number than they began with",
    "failed_too_large": "spins of more than snapshot_bytes_max bytes",
    "never_asked": "a response, an end or a message of a spin that was not asked for",
}
#: What the server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    **cboe_session.SERVER_COUNTS,
    "images": "images made",
    "requests": "spin requests",
    "accepted": "spin requests accepted",
    "rejected": "spin requests rejected",
    "spins": "spins sent whole",
    "bytes": "bytes of them",
}


def _is_state(code: int) -> bool:
    """Return whether a message type is one of the feed, not of the connection."""
    return code >= STATE_FIRST and not SPIN_FIRST <= code <= SPIN_LAST


@dataclass(slots=True)
class _Spin:
    """A spin that is asked for, or comes: up to which number, and whose it is (0: none)."""

    sequence: int
    request_id: int
    orders: int = -1
    count: int = 0
    size: int = 0
    messages: list[bytes] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        """Whether it was accepted, so that its messages come."""
        return self.orders >= 0


class SpinClient(CboeClient):
    """The client of a unit's Spin Server.

    Raises `UsageError` for a feed of another framing, another number of channels than one, and
    credentials that do not fit.
    """

    def __init__(self, setup: ClientSetup) -> None:
        if len(setup.refresh) != 1 or setup.retransmission:
            raise UsageError(
                "a Spin Server serves one unit, and no gap requests",
                "give each channel a refresh [[server]] of its own",
            )
        self._service = setup.refresh[0].service
        check_units([self._service])
        self._bytes_max = setup.settings.snapshot_bytes_max
        super().__init__(setup, dict.fromkeys(COUNTS, 0))

    def _begun(self) -> None:
        #: The request that waits for an image.
        self._wanted: AskRefresh | None = None
        self._spin: _Spin | None = None

    # -- asking ---------------------------------------------------------------------------------

    def ask_refresh(self, request: AskRefresh, now_ns: int) -> bool:
        """Request a snapshot; return False (and count it) where none can be asked for now."""
        busy = self._spin is not None and self._spin.request_id
        if not self._up or busy or self._wanted is not None:
            self.counts["not_asked"] += 1
            return False
        self.counts["asked"] += 1
        self._wanted = request
        return True

    def cancel(self, request_id: int) -> None:
        """Cancel a request; one that is not under way is ignored."""
        if self._wanted is not None and self._wanted.request_id == request_id:
            self._wanted = None
            self.counts["cancelled"] += 1
        if self._spin is not None and self._spin.request_id == request_id:
            self._spin.request_id = 0
            self._spin.messages.clear()
            self.counts["cancelled"] += 1

    # -- what the server says -------------------------------------------------------------------

    def _message(self, code: int, message: bytes, now_ns: int, events: list[Event]) -> None:
        if code == AVAILABLE:
            (sequence,) = exactly(IMAGE_AVAILABLE, message)
            self._available(sequence, now_ns)
        elif code == RESPONDS:
            sequence, orders, status = exactly(SPIN_RESPONSE, message)
            self._response(sequence, orders, status, events)
            self._paid(now_ns, self._spin is not None)
        elif code == FINISHED:
            (sequence,) = exactly(SPIN_FINISHED, message)
            self._finished(sequence, events)
            self._paid(now_ns, False)
        elif _is_state(code):
            self._state(code, message, events)
            self._paid(now_ns, True)
        else:
            raise WireError("wrong_direction", f"message {code:#04x}, which no server may send")

    def _available(self, sequence: int, now_ns: int) -> None:
        self.counts["images"] += 1
        if self._wanted is None or self._spin is not None:
            return
        self._spin = _Spin(sequence, self._wanted.request_id)
        self._wanted = None
        self.counts["requests"] += 1
        self.say(SPIN_REQUEST.pack(SPIN_REQUEST.size, REQUESTS, sequence), self._service)
        self._owes(now_ns)

    def _response(self, sequence: int, orders: int, status: bytes, events: list[Event]) -> None:
        spin = self._spin
        if spin is None or spin.runs or sequence != spin.sequence:
            raise WireError("never_asked", f"a response about a spin at {sequence}")
        if status not in (ACCEPTED, OUT_OF_RANGE, IN_PROGRESS):
            raise WireError("malformed_answer", f"a response with status {status!r}")
        if status == ACCEPTED:
            spin.orders = orders
        else:
            self._spin = None
        if not spin.request_id:
            return
        self.counts["accepted" if status == ACCEPTED else "rejected"] += 1
        if status == ACCEPTED:
            events.append(RefreshAccepted(spin.request_id))
        else:
            events.append(RefreshRejected(spin.request_id, RefreshReject.NO_DATA))

    def _state(self, code: int, message: bytes, events: list[Event]) -> None:
        spin = self._spin
        if spin is None or not spin.runs:
            raise WireError("never_asked", f"message {code:#04x} outside a spin")
        spin.count += code in ADDS_ORDER
        if not spin.request_id:
            return
        spin.size += len(message)
        if spin.size > self._bytes_max:
            self._fail(spin, "too_large", events)
        else:
            spin.messages.append(message)

    def _finished(self, sequence: int, events: list[Event]) -> None:
        spin = self._spin
        if spin is None or not spin.runs:
            raise WireError("never_asked", f"the end of a spin at {sequence}")
        self._spin = None
        if not spin.request_id:
            self.counts["unheeded"] += 1
        elif sequence != spin.sequence:
            self._fail(spin, "number", events)
        elif spin.count != spin.orders:
            self._fail(spin, "count", events)
        else:
            self.counts["spins"] += 1
            events.append(
                RefreshSnapshot(spin.request_id, self._service, sequence, tuple(spin.messages))
            )

    def _fail(self, spin: _Spin, name: str, events: list[Event]) -> None:
        self.counts[f"failed_{name}"] += 1
        events.append(RefreshFailed(spin.request_id, COUNTS[f"failed_{name}"]))
        spin.request_id = 0
        spin.messages.clear()


class SpinServer(CboeServer):
    """The Spin Server of one unit; `counts` counts by the names of `SERVER_COUNTS`.

    `setup.refresher` is a `SnapshotSource`: it gives the state of the unit as messages. Raises
    `UsageError` for another number of services than one.
    """

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup, SERVER_COUNTS)
        if len(setup.stores) != 1:
            raise UsageError("a Spin Server serves one unit", "give each unit a server")
        (self.service,) = setup.stores
        #: (number that it is current up to, its messages), the latest last.
        self.images: deque[tuple[int, tuple[bytes, ...]]] = deque(maxlen=IMAGES_KEPT)
        self._made_ns = -NEVER_NS

    def session(self, peer: str, now_ns: int) -> CboeSession:
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        return self.admit(SpinSession(self, now_ns))

    def advance(self, now_ns: int) -> int:
        """Make an image where it is time, and return up to which number the latest is; -1: none."""
        if now_ns >= self._made_ns + IMAGE_NS and self.setup.refresher is not None:
            self._made_ns = now_ns
            image = self.setup.refresher(self.service)
            if image is not None:
                self.counts["images"] += 1
                self.images.append(image)
        return self.images[-1][0] if self.images else -1

    def image(self, sequence: int) -> tuple[bytes, ...] | None:
        """Return the messages of the latest image that is current up to `sequence`."""
        found = (messages for last, messages in reversed(self.images) if last == sequence)
        return next(found, None)


class SpinSession(CboeSession):
    """A client of a Spin Server."""

    _server: SpinServer

    def __init__(self, server: SpinServer, now_ns: int) -> None:
        super().__init__(server, now_ns)
        self._reported_ns = now_ns
        self._spin: deque[bytes] = deque()
        self._sequence = 0

    def _due_ns(self) -> int:
        if self.name is None:
            return NEVER_NS
        return (
            self._now_ns if self._spin and self._paused_ns is None else self._reported_ns + IMAGE_NS
        )

    def _tick(self, now_ns: int) -> bytes:
        output = bytearray()
        if self.name is not None and now_ns >= self._reported_ns + IMAGE_NS:
            self._reported_ns = now_ns
            last = self._server.advance(now_ns)
            if last >= 0 and self._paused_ns is None:
                output += self._unit(IMAGE_AVAILABLE.pack(IMAGE_AVAILABLE.size, AVAILABLE, last))
        return bytes(output) if self._paused_ns is not None else bytes(output) + self._chunk()

    def _unit(self, *messages: bytes) -> bytes:
        return unit_of(*messages, unit=self._server.service)

    def _chunk(self) -> bytes:
        """Return the next units of the spin, about `chunk_bytes` of them; its end behind them."""
        chunk = bytearray()
        while self._spin and len(chunk) < self._server.settings.chunk_bytes:
            chunk += self._spin.popleft()
            if not self._spin:
                self._server.counts["spins"] += 1
        self._server.counts["bytes"] += len(chunk)
        return bytes(chunk)

    def _message(self, code: int, message: bytes, now_ns: int) -> bytes:
        if code != REQUESTS:
            raise WireError("wrong_direction", f"message {code:#04x}, which no client may send")
        (sequence,) = exactly(SPIN_REQUEST, message)
        self._server.counts["requests"] += 1
        self._server.advance(now_ns)
        messages = self._server.image(sequence)
        status, orders = ACCEPTED, 0
        if self._spin:
            status = IN_PROGRESS
        elif messages is None:
            status = OUT_OF_RANGE
        else:
            orders = sum(each[1] in ADDS_ORDER for each in messages)
            self._spin.extend(self._unit(*run) for run in runs_of(messages, UNIT.size))
            self._spin.append(
                self._unit(SPIN_FINISHED.pack(SPIN_FINISHED.size, FINISHED, sequence))
            )
        self._server.counts["accepted" if status == ACCEPTED else "rejected"] += 1
        return self._unit(
            SPIN_RESPONSE.pack(SPIN_RESPONSE.size, RESPONDS, sequence, orders, status)
        )


class SpinSnapshots(WholeSnapshots):
    """The form of spins: whole, framed as units outside the sequence.

    Raises `UsageError` for a feed of another framing.
    """

    def __init__(self, feed: Feed, settings: RecoverySettings) -> None:
        cboe_session.check_feed(feed)
        super().__init__(feed)
