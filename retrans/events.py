"""What a request client tells: values that `RequestClient.feed` and `tick` hand out.

Numbers are sequence numbers. A `request_id` is the one that its `Ask` or `AskRefresh` carried.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server will send the packets asked for."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The server will not; `reason` is a `RetransReject`, or a number that we do not know."""

    request_id: int
    reason: int


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet asked for has come: checked, whole, its numbers asked for, told once.

    It may have come in answer to an earlier request for the same numbers that was cancelled; then
    it can be there before its own request is accepted.
    """

    request_id: int
    service: int
    sequence: int
    next_sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """Every number of the range has come; nothing more is told of the request."""

    request_id: int


@dataclass(frozen=True, slots=True)
class RefreshAccepted:
    """The server will send a snapshot: on the refresh lines, or here as `RefreshPacket`."""

    request_id: int


@dataclass(frozen=True, slots=True)
class RefreshRejected:
    """The server will not; `reason` is a `RefreshReject`, or a number that we do not know."""

    request_id: int
    reason: int


@dataclass(frozen=True, slots=True)
class RefreshPacket:
    """A packet of a snapshot, over the connection: checked, whole, and as it came; a compressed
    body still is."""

    service: int
    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RefreshSnapshot:
    """A whole snapshot in one piece, good for live number `last`: checked, and its `messages` as
    they came."""

    request_id: int
    service: int
    last: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RefreshFailed:
    """No snapshot will come of this request; `reason` is for who logs it."""

    request_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The peer broke the protocol or is dead: the last event of a connection, which must be closed;
    `reason` is one line for the log."""

    reason: str


Event = (
    Accepted
    | Rejected
    | Packet
    | Answered
    | RefreshAccepted
    | RefreshRejected
    | RefreshPacket
    | RefreshSnapshot
    | RefreshFailed
    | Broken
)
