"""Processor time and resident memory of processes, from `/proc`."""

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
