"""The load of each role while it works: processors, memory, network bytes, sampled from outside.

What it is for: Figures 14 to 16. A role is one or more processes (all clients are one role). Twice
a second or so `Sampler` reads, for each role,

    user and system time   /proc/PID/stat, steps of a kernel tick (10 ms as a rule)
    resident memory        /proc/PID/statm
    TCP bytes              the kernel's own counts for each connection (`sock_diag`): received, and
                           sent and acknowledged
    other bytes            what the roles themselves count: the kernel counts no bytes of UDP
                           sockets

What it promises: a sample costs a millisecond or two and none of the roles' own time; all times are
relative to one start; bytes of a closed connection and time of an ended process are kept, so no
total ever falls.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct

from feedhandler.lab.results import Loads
from feedhandler.lab.sock_diag import Connection, listening, tcp_sockets

INTERVAL_S = 0.5
#: Samples that are kept: a day at this interval. Later ones are not taken.
SAMPLES_MAX = 172_800

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

#: Roles report their counts at least this often.
REPORTED_EACH_S = 1.0

#: By role: a moment (of `time.monotonic`), and the bytes into and out of it by then, beside its TCP
#: sockets'.
Counts = Mapping[str, tuple[float, int, int]]


def _nothing() -> Counts:
    return {}


class Usage(Struct):
    """A process's processor time so far, and its present memory."""

    user_s: float = 0.0
    system_s: float = 0.0
    rss_bytes: int = 0


def usage_of(stat: str, statm: str) -> Usage:
    """Parse the content of the two files (proc(5)): fields 14 and 15, and the second one."""
    fields = stat.rpartition(")")[2].split()
    pages = int(statm.split()[1])
    return Usage(int(fields[11]) / _TICKS, int(fields[12]) / _TICKS, pages * _PAGE_BYTES)


def read_usage(pid: int) -> Usage | None:
    """Read the usage of a process; None where it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        return usage_of((folder / "stat").read_text(), (folder / "statm").read_text())
    except (OSError, IndexError):
        return None


def sockets_of(pid: int) -> set[int]:
    """Return the inodes of a process's sockets; empty where it has ended or may not be read."""
    sockets = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                link = os.readlink(f"{folder}/{name}")
                if link.startswith("socket:["):
                    sockets.add(int(link[8:-1]))
    return sockets


def pids_listening(port: int) -> list[int]:
    """Return the processes of this machine that listen on a TCP port.

    Processes whose descriptors we may not read are missing.
    """
    wanted = set(listening(port))
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if wanted and wanted & sockets_of(pid)]


class _Role:
    """Totals of one role, kept over processes and connections that end."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.pids = tuple(pids)
        self.usages = {pid: Usage() for pid in self.pids}
        self.sockets: set[int] = set()
        self.bytes: dict[int, tuple[int, int]] = {}

    def read(self) -> None:
        """Read the processes' usage; one that has ended keeps its time and has no memory."""
        for pid in self.pids:
            found = read_usage(pid)
            if found is None:
                self.usages[pid].rss_bytes = 0
            else:
                self.usages[pid] = found

    def count(self, connections: Mapping[int, Connection]) -> None:
        """Read the connections' bytes; one that is closed keeps its last count."""
        for inode in self.sockets & connections.keys():
            each = connections[inode]
            self.bytes[inode] = (each.in_bytes, each.out_bytes)

    def totals(self) -> tuple[float, float, int, int, int]:
        """Return user and system seconds, resident bytes, bytes in and out."""
        usages = self.usages.values()
        return (
            sum(usage.user_s for usage in usages),
            sum(usage.system_s for usage in usages),
            sum(usage.rss_bytes for usage in usages),
            sum(each[0] for each in self.bytes.values()),
            sum(each[1] for each in self.bytes.values()),
        )


class Sampler:
    """Samples roles (name: process ids) from `start` to `stop`, on a thread of its own.

    It samples every `interval_s`. `counted` returns bytes that the roles counted themselves, with
    times of their own; values at a sample's time are interpolated.
    """

    def __init__(
        self,
        roles: Mapping[str, int | Iterable[int]],
        interval_s: float = INTERVAL_S,
        counted: Callable[[], Counts] = _nothing,
    ) -> None:
        self._roles = {
            name: _Role((pids,) if isinstance(pids, int) else pids) for name, pids in roles.items()
        }
        self._interval_s = interval_s
        self._counted = counted
        self._counts: dict[str, list[tuple[float, int, int]]] = {name: [] for name in self._roles}
        self._rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in self._roles}
        self._known: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began = 0.0

    def start(self) -> None:
        """Begin: usage and bytes before this are not counted.

        Raises OSError where the kernel refuses sock_diag.
        """
        self._began = time.monotonic()
        self._sample(0.0)
        self._thread.start()

    def stop(self) -> list[Loads]:
        """Take a last sample and end; return each role's load, in the order given."""
        self._ended.set()
        self._thread.join()
        t_s = time.monotonic() - self._began
        for rows in self._rows.values():
            # A sample that is hardly older would make a rate of nothing.
            if len(rows) > 1 and t_s - rows[-1][0] < self._interval_s / 2:
                rows.pop()
        self._sample(t_s)
        return [self._loads(name) for name in self._roles]

    def _loads(self, name: str) -> Loads:
        """Return one role's samples; the first is the base that the others are counted from."""
        table = np.array(self._rows[name]).T
        t_s, elapsed = table[0], np.diff(table[0])
        ins, outs = table[4], table[5]
        if self._counts[name]:
            at_s, more_ins, more_outs = np.array(self._counts[name]).T
            ins = ins + _between(t_s, at_s - self._began, more_ins)
            outs = outs + _between(t_s, at_s - self._began, more_outs)
        return Loads(
            role=name,
            processes=len(self._roles[name].pids),
            t_s=t_s[1:],
            user_cpu=_shares(table[1], elapsed),
            system_cpu=_shares(table[2], elapsed),
            rss_bytes=table[3][1:],
            net_in_bytes=ins[1:] - ins[0],
            net_out_bytes=outs[1:] - outs[0],
        )

    def _run(self) -> None:
        for number in range(1, SAMPLES_MAX):
            due = self._began + number * self._interval_s
            if self._ended.wait(max(0.0, due - time.monotonic())):
                return
            self._sample(time.monotonic() - self._began)

    def _sample(self, t_s: float) -> None:
        """Read everything once."""
        connections = {each.inode: each for each in tcp_sockets()}
        if not connections.keys() <= self._known:
            self._known = set(connections)
            for role in self._roles.values():
                role.sockets.update(*(sockets_of(pid) for pid in role.pids))
        counts = self._counted()
        for name, role in self._roles.items():
            role.read()
            role.count(connections)
            self._rows[name].append((t_s, *role.totals()))
            latest = self._counts[name]
            if name in counts and (not latest or latest[-1] != counts[name]):
                latest.append(counts[name])


def _between(t_s: np.ndarray, reported_s: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Interpolate a running total, reported at times `reported_s`, at the times `t_s`, all in s.

    After the last report it is extrapolated at the last rate, for `REPORTED_EACH_S` at most.
    """
    found = np.interp(t_s, reported_s, values)
    if len(values) > 1 and reported_s[-1] > reported_s[-2]:
        rate = (values[-1] - values[-2]) / (reported_s[-1] - reported_s[-2])
        found += rate * np.clip(t_s - reported_s[-1], 0, REPORTED_EACH_S)
    return found


def _shares(seconds: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
    """Return growth over elapsed time; 0 where no time has passed."""
    grown = np.diff(seconds)
    return np.divide(grown, elapsed, out=np.zeros_like(grown), where=elapsed > 0)
