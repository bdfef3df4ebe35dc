"""Readings of a member: its counts and measurements by the names of `feedhandler.counters`.

They are for metrics and status.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.merging import MergedReceiver, MergedSender

if TYPE_CHECKING:
    from feedhandler.overlay.port import Port

AnyMember = Sender | Proxy | Receiver


def parts_of(member: AnyMember | MergedSender | MergedReceiver) -> Sequence[AnyMember]:
    """Return a member's objects, one for each tree."""
    return member.members if isinstance(member, MergedSender | MergedReceiver) else (member,)


def counts_of(member: AnyMember, port: "Port | None") -> dict[str, int]:
    """Return the counts of a member and its port, by the names of `COUNTS`; zeros may be missing.

    `port` None: the member is of a further tree, and counts that it shares with the first are left
    out.
    """
    counts: dict[str, int] = dict(member.counts)
    if isinstance(member, Receiver) and port is not None:
        holding = member.holding
        counts |= {
            "delivered": holding.delivered, "late": holding.late, "passed": holding.passed,
            "missing": holding.missing, "overfull": holding.overfull,
        }  # fmt: skip
    if not isinstance(member, Receiver):
        counts["useless"] = member.reports.useless
    if port is None:
        return counts
    if not isinstance(member, Sender):
        counts["clock_steps"] = member.clock.steps
    counts |= {
        "datagrams_sent": port.sent, "datagrams_received": port.received,
        "not_taken": sum(port.errors.values()), "oversize": port.oversize,
        "kernel_drops": port.kernel_drops,
    }  # fmt: skip
    return counts


def gauges_of(member: AnyMember, now_ns: int) -> dict[str, float]:
    """Return a member's measurements by the names of `GAUGES`, those of its role.

    `now_ns`: its time.
    """
    gauges: dict[str, float] = {"topology_version": member.topology.version}
    if isinstance(member, Receiver):
        gauges["held"] = member.holding.held
        gauges["last_hop_seconds"] = member.last_hop.own_ns(now_ns) / 1e9
        gauges["longest_hop_seconds"] = member.last_hop.longest_ns / 1e9
        gauges["extra_hold_seconds"] = member.holding.extra_hold_ns / 1e9
    else:
        gauges["set_apart"] = len(member.reports.apart)
    if isinstance(member, Sender):
        gauges["longest_hop_seconds"] = member.longest_hop_ns / 1e9
        gauges["hold_seconds"] = member.hold_ns / 1e9
    else:
        gauges["silent_seconds"] = max(now_ns - member.heard_ns, 0) / 1e9
        gauges["clock_offset_seconds"] = member.clock.offset_ns / 1e9
        gauges["clock_error_seconds"] = member.clock.error_ns / 1e9
    return gauges
