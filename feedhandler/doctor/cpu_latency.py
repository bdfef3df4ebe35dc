"""Processors that stay awake while a gateway runs.

An idle processor halts, and a thread that is then woken waits: some microseconds on a machine of
its own, some tens on a virtual one, at each hop from one process to the next. Linux lets a process
forbid that for as long as it holds a file open (kernel documentation, PM quality of service
interface: `/dev/cpu_dma_latency`, a 32-bit number of microseconds in the machine's byte order). It
holds for all processors, costs power, and ends with the process, in any case.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from feedhandler.codecs.errors import reason_of

DEVICE = Path("/dev/cpu_dma_latency")
#: Remedy where a gateway may not keep processors awake.
AWAKE_HINT = "let its user write there, with a udev rule; or leave gateway.stay_awake out"
#: No wait at all: idle processors poll.
_LATENCY_US = struct.pack("=i", 0)


@contextlib.contextmanager
def staying_awake(device: Path = DEVICE) -> Iterator[str]:
    """Keep idle processors from halting while the block runs; yield the fault, or ""."""
    try:
        # Not created where it is missing: a plain file would keep no processor awake.
        held = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        yield f"{device}: {reason_of(error)}"
        return
    try:
        os.write(held, _LATENCY_US)
        yield ""
    finally:
        os.close(held)


def fault(device: Path = DEVICE) -> str:
    """Return why `staying_awake` would not work here, or ""; changes nothing."""
    if not device.exists():
        return f"{device}: no such file or directory"
    return "" if os.access(device, os.W_OK) else f"{device}: permission denied"
