"""The machine and software of a measurement: processors, kernel, network settings, versions."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from feedhandler import __version__

#: Packages whose version matters to a measurement.
PACKAGES = ("python-qpid-proton", "uvloop", "pyzmq", "numpy", "msgspec", "Cython")
#: Kernel settings that bound what a receiver can hold.
SYSCTLS = ("net/core/rmem_max", "net/core/wmem_max", "net/core/netdev_max_backlog",
           "kernel/sched_rt_runtime_us")  # fmt: skip


def machine() -> dict[str, Any]:
    """Describe processors, memory, kernel and its settings; leave out what cannot be read."""
    facts: dict[str, Any] = {
        "system": platform.platform(),
        "architecture": platform.machine(),
        "processors": os.cpu_count(),
        "usable_processors": sorted(os.sched_getaffinity(0)),
        "load_average_before": list(os.getloadavg()),
    }
    if model := _field(Path("/proc/cpuinfo"), "model name"):
        facts["processor"] = model
    if memory := _field(Path("/proc/meminfo"), "MemTotal"):
        facts["memory_bytes"] = int(memory.split()[0]) * 1024
    for name in SYSCTLS:
        path = Path("/proc/sys") / name
        if path.exists():
            facts[name.replace("/", ".")] = int(path.read_text())
    return facts


def _field(path: Path, name: str) -> str:
    """Return the value of the first line `name : value` of a file; empty where there is none."""
    if path.exists():
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def versions() -> dict[str, str]:
    """Return the versions of this product, of Python and of the packages that matter."""
    found = {"feedhandler": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
