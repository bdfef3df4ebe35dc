"""Counts of a sender while it sends, and the same columns as plain numbers for compiled code."""

from enum import IntEnum


class Progress(IntEnum):
    """Columns of a sender's `progress`, readable by any thread while it runs."""

    SENT = 0  # datagrams handed to the kernel
    BYTES = 1  # their payload bytes
    BEHIND = 2  # sent more than BEHIND_NS after their time
    LATENESS_MAX_NS = 3
    LATENESS_SUM_NS = 4
    WOULD_BLOCK = 5  # waits for room in a socket's send buffer
    NO_BUFFERS = 6  # waits because the kernel was out of buffers
    SYSTEM_CALLS = 7
    TOO_LONG = 8  # frames that the interface does not take, not sent (raw frames only)


COLUMNS = len(Progress)
(
    SENT, BYTES, BEHIND, LATENESS_MAX_NS, LATENESS_SUM_NS, WOULD_BLOCK, NO_BUFFERS, SYSTEM_CALLS,
    TOO_LONG,
) = (int(column) for column in Progress)  # fmt: skip
