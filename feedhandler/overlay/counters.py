"""Counters and gauges of a member, each with its meaning.

Metrics and pages are made from these tables; `readings.py` fills them in.
"""

#: Counters. Members have those of their role, including those that are 0.
COUNTS = {
    "first": "first copies of messages and heartbeats: taken",
    "duplicate": "further copies: dropped",
    "behind": "copies dropped because they are a whole ring behind: it is too small",
    "old": "copies dropped because their sender was restarted since",
    "stranger": "datagrams dropped: from a sender that is not allowed",
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
    "passed": "messages dropped because they came after their gap was reported",
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

#: Gauges, which may fall again.
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
