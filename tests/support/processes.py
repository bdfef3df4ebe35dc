"""Processor time and resident memory of processes, and what they wait for, from `/proc`."""

import os
from pathlib import Path


def cpu_seconds_of(pid: int) -> float:
    """Return a process's user and system time so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process, this one if none is named."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def opens_pipe(pid: int) -> bool:
    """Return whether a process opens a named pipe that nobody has opened at its other end."""
    # The kernel's function in which it waits (fs/pipe.c), or that one's caller.
    return Path(f"/proc/{pid}/wchan").read_text() in ("wait_for_partner", "fifo_open")
