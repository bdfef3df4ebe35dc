"""What a channel's recovery wants done: values that `Recovery.take` hands out, for others to do.

Numbers are sequence numbers, ranges half-open: `first` to `end` - 1. A `request_id` is unique
within one `Recovery`, and where each begins its count (`first_id`) among several; requests for
packets and for a refresh share one count.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    """Request the packets from `first` to `end` - 1 of `service` from the retransmission server."""

    request_id: int
    service: int
    first: int
    end: int
    epoch: int
    """the numbering that the range belongs to, as the MISSING mark told it"""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget the request: whatever still answers it is late."""

    request_id: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Announce every hole below `until` as lost: everything missing there has been abandoned."""

    until: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Disprove:
    """The server, which has everything that was sent, does not have `number` yet: what came with
    that number, or a higher one, was forged (or has overtaken the server)."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AskRefresh:
    """Request a snapshot of `service` from the refresh server."""

    request_id: int
    service: int


@dataclass(frozen=True, slots=True)
class Alert:
    """Tell the operator: something that only a person can mend."""

    text: str


@dataclass(frozen=True, slots=True)
class NoSnapshot:
    """Whoever wants a snapshot cannot have one for now; one that comes later is for all."""

    reason: str
    """no refresh, refused, timed out, failed, resting (asked for in vain lately), or reset (a new
    numbering began, and what was wanted is void)"""


Action = Ask | Cancel | GiveUp | Disprove | AskRefresh | NoSnapshot | Alert
