"""Actions that the recovery of a channel requests: values that `Recovery.pop_actions` returns.

Recovery decides, its owner carries out. Numbers are sequence numbers, ranges half-open: `first` to
`end` - 1. A `request_id` is unique within one `Recovery`; several of them share one range of
identifiers where each is given its own `first_id`. Requests for packets and requests for a refresh
are counted together.
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
    """the sequence epoch that the range belongs to, as the MISSING event has it"""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop the request; answers that still come to it are late."""

    request_id: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Announce every gap below `until` as lost: everything missing there has been abandoned."""

    until: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Disprove:
    """Report that the server, which has everything that was sent, does not have `number` yet.

    What came with that number or a higher one was forged, or has overtaken the server.
    """

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AskRefresh:
    """Request a snapshot of `service` from the refresh server."""

    request_id: int
    service: int


@dataclass(frozen=True, slots=True)
class Alert:
    """Notify the operator of a condition that only a person can mend."""

    text: str


@dataclass(frozen=True, slots=True)
class NoSnapshot:
    """Notify those who want a snapshot that none can be had for now; a later one is for all."""

    reason: str
    """no refresh, refused, timed out, failed, resting (asked for in vain lately), or reset (a new
    sequence epoch began, and what was wanted is void)"""


Action = Ask | Cancel | GiveUp | Disprove | AskRefresh | NoSnapshot | Alert
