"""Placement of a measurement's parts on processors, and their priorities.

In a data centre exchange, gateway and subscribers are machines of their own. On one machine they
take turns, and a subscriber that takes the gateway's turn at every message that wakes it measures
the scheduler. So the parts are kept apart: sender and gateway on the first processor, subscribers
on the second. The sender has real-time priority where we have the right to ask for it: an exchange
does not wait for its subscribers. Subscribers have no such priority: where they fill their
processor the kernel would halt them all for a twentieth of each second (`sched_rt_runtime_us`). All
roles get a better niceness (`NICE`) than other processes, where we may set it. Functions return
whether we may, which belongs in the record.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

#: Of a part of the exchange: above everything that is not real-time.
SENDER_PRIORITY = 1
#: Of every role: what runs beside a measurement waits for it.
NICE = -15


def split() -> tuple[set[int], set[int]]:
    """Return the processors of sender and gateway, and those of subscribers.

    Sender and gateway have the first, subscribers all the others, or the same where there is one
    only.
    """
    allowed = sorted(os.sched_getaffinity(0))
    first, rest = set(allowed[:1]), set(allowed[1:])
    return first, rest or first


def _threads(pid: int) -> list[int]:
    """Return the ids of a process's threads; none where it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def pin(pid: int, processors: Iterable[int]) -> None:
    """Keep all threads of a process on these processors; skip what ends meanwhile."""
    for thread in _threads(pid):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, processors)


def put_first(pid: int) -> bool:
    """Give all threads of a process the niceness `NICE`; return whether we may.

    Where the kernel groups processes by session (autogroup), niceness counts within the group
    alone, and the group has its own: a role's session is its own, so both are set.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))
    for thread in _threads(pid):
        try:
            os.setpriority(os.PRIO_PROCESS, thread, NICE)
        except PermissionError:
            return False
        except ProcessLookupError:
            continue
    return True


def set_real_time(pid: int = 0) -> bool:
    """Give a process, or the calling thread, real-time priority; return whether we may.

    Its children do not inherit the priority.
    """
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    try:
        os.sched_setscheduler(pid, policy, os.sched_param(SENDER_PRIORITY))
    except (PermissionError, ProcessLookupError):
        return False
    return True


@contextlib.contextmanager
def preferred(processors: set[int] | None = None) -> Iterator[bool]:
    """Give the calling thread real-time priority while the block runs; yield whether we may.

    `processors` pins it to these meanwhile. Restores the scheduling policy and the affinity at the
    end.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    allowed = os.sched_getaffinity(0)
    if processors is not None:
        os.sched_setaffinity(0, processors)
    try:
        yield set_real_time()
    finally:
        os.sched_setscheduler(0, policy, parameters)
        os.sched_setaffinity(0, allowed)


def describe() -> dict[str, Any]:
    """Return the split of the processors, for the record."""
    first, second = split()
    return {"sender_and_gateway": sorted(first), "subscribers": sorted(second)}
