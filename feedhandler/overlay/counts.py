"""What a member counts and measures, each with its meaning: its last word, its metrics, a gateway's
status and the documentation are made from these tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.merging import MergedReceiver, MergedSender

if TYPE_CHECKING:
    from feedhandler.overlay.port import Port

#: What only rises. Members have those of their role; those that are 0 are there all the same.
COUNTS = {
    "first": "first copies of messages and heartbeats: taken",
    "duplicate": "further copies: dropped",
    "behind": "copies dropped because they are a whole ring behind: it is too small",
    "old": "copies dropped because their sender was restarted since",
    "stranger": "datagrams dropped: from nobody who may send them",
    "seal": "datagrams dropped: another seal than their sender's",
    "stale": "datagrams dropped: a recording of a sender before",
    "number": "reports, probes and answers dropped: numbered as one before",
    "tree": "datagrams dropped: of another tree",
    "short": "datagrams dropped: shorter than a header",
    "magic": "datagrams dropped: none of the overlay's",
    "version": "datagrams dropped: of another version",
    "kind": "datagrams dropped: of no known kind",
    "length": "datagrams dropped: another length than they say",
    "content": "reports, probes and answers dropped: what they say cannot be",
    "echo": "datagrams dropped: from the isolated process, and no answer to a probe",
    "forwarded": "datagrams that a proxy was to send on",
    "sent": "messages that the sender has numbered",
    "intervals": "intervals by whose reports the sender has set its hold",
    "useless": "reports that came too late, or again",
    "delivered": "messages that a receiver has handed on",
    "late": "messages that came after their deadline",
    "passed": "messages dropped because they came after their gap was told",
    "missing": "messages that a receiver never had",
    "overfull": "messages dropped because too many were held",
    "echoes": "answers of the isolated process to probes of the last hop",
    "unrelayed": "messages that the kernel did not take for the address that they go on to",
    "clock_steps": "steps of a clock that were noticed",
    "datagrams_sent": "datagrams that the kernel took",
    "datagrams_received": "datagrams that came",
    "not_taken": "datagrams that the kernel refused",
    "oversize": "datagrams dropped: longer than any of the overlay's",
    "kernel_drops": "datagrams dropped for want of room in the receive buffer",
    "waits": "times that a line's messages waited for the gateway's receive thread",
}

#: What may fall again.
GAUGES = {
    "topology_version": "version of the topology in force",
    "hold_seconds": "how far ahead of sending deadlines lie: the sender's",
    "held": "messages that a receiver holds now",
    "last_hop_seconds": "how long a message takes to the isolated process; 0: not known",
    "longest_hop_seconds": "the longest last hop of all receivers; 0: not known",
    "extra_hold_seconds": "what a receiver holds besides, for its last hop is shorter",
    "set_apart": "children whose reports do not count now: their delays are beyond the bound",
    "silent_seconds": "time since something of the sender's came",
    "clock_offset_seconds": "what is added to the own clock to have the sender's",
    "clock_error_seconds": "by how much that may be wrong",
}

AnyMember = Sender | Proxy | Receiver


def parts_of(member: AnyMember | MergedSender | MergedReceiver) -> Sequence[AnyMember]:
    """What a member is in each tree."""
    return member.members if isinstance(member, MergedSender | MergedReceiver) else (member,)


def counts_of(member: AnyMember, port: "Port | None") -> dict[str, int]:
    """What a member and its port have counted, by the names of `COUNTS`; what is 0 may be left
    out. `port` None: of a member in a further tree, what it shares with the first is left out."""
    found: dict[str, int] = dict(member.counts)
    if isinstance(member, Receiver) and port is not None:
        holding = member.holding
        found |= {
            "delivered": holding.delivered, "late": holding.late, "passed": holding.passed,
            "missing": holding.missing, "overfull": holding.overfull,
        }  # fmt: skip
    if not isinstance(member, Receiver):
        found["useless"] = member.reports.useless
    if not isinstance(member, Sender):
        found["clock_steps"] = member.clock.steps
    if port is None:
        return found
    found |= {
        "datagrams_sent": port.sent, "datagrams_received": port.received,
        "not_taken": sum(port.errors.values()), "oversize": port.oversize,
        "kernel_drops": port.kernel_drops,
    }  # fmt: skip
    return found


def gauges_of(member: AnyMember, now_ns: int) -> dict[str, float]:
    """What a member measures, by the names of `GAUGES`, those of its role. `now_ns`: its time."""
    found: dict[str, float] = {"topology_version": member.topology.version}
    if isinstance(member, Receiver):
        found["held"] = member.holding.held
        found["last_hop_seconds"] = member.last_hop.own_ns(now_ns) / 1e9
        found["longest_hop_seconds"] = member.last_hop.longest_ns / 1e9
        found["extra_hold_seconds"] = member.holding.extra_hold_ns / 1e9
    else:
        found["set_apart"] = len(member.reports.apart)
    if isinstance(member, Sender):
        found["longest_hop_seconds"] = member.longest_hop_ns / 1e9
        found["hold_seconds"] = member.hold_ns / 1e9
    else:
        found["silent_seconds"] = max(now_ns - member.heard_ns, 0) / 1e9
        found["clock_offset_seconds"] = member.clock.offset_ns / 1e9
        found["clock_error_seconds"] = member.clock.error_ns / 1e9
    return found
