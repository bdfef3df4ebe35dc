"""Events of a request client: values that `RequestClient.feed` and `tick` return.

Numbers are sequence numbers. A `request_id` is the one that its `Ask` or `AskRefresh` carried.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accepted:
    """The server will send the requested packets."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The server refuses the request; `reason` is a `RetransReject`, or a number unknown to us."""

    request_id: int
    reason: int


@dataclass(frozen=True, slots=True)
class Packet:
    """A requested packet has come: checked, whole, its numbers requested, reported once.

    It may have come in answer to an earlier request for the same numbers that was cancelled; then
    it can precede the acceptance of its own request.
    """

    request_id: int
    service: int
    sequence: int
    next_sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """Every number of the range has come; no further event names this request."""

    request_id: int


@dataclass(frozen=True, slots=True)
class RefreshAccepted:
    """The server will send a snapshot: on the refresh lines, or here as `RefreshPacket`."""

    request_id: int


@dataclass(frozen=True, slots=True)
class RefreshRejected:
    """The server refuses the refresh; `reason` is a `RefreshReject`, or a number unknown to us."""

    request_id: int
    reason: int


@dataclass(frozen=True, slots=True)
class RefreshPacket:
    """A packet of a snapshot that came over the connection: checked, whole and unchanged.

    A compressed body is still compressed.
    """

    service: int
    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RefreshSnapshot:
    """A whole snapshot, valid up to live number `last`: checked, its `messages` unchanged."""

    request_id: int
    service: int
    last: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RefreshFailed:
    """The request will bring no snapshot; `reason` is text for the log."""

    request_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The peer broke the protocol or is dead: the last event of a connection, which must be closed.

    `reason` is one line for the log.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing more is wanted of the connection: its last event, after which it is to be closed."""


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
    | Finished
)
