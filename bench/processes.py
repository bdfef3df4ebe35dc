"""Processor time of a process so far, from `/proc`."""

import os
from pathlib import Path


def cpu_seconds_of(pid: int) -> float:
    """User and system time of a process so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
