"""Lines that a gateway feeds itself, by TCP or through the overlay: what tests of both need."""

import os
import time
from collections.abc import Callable
from typing import Any

from feedhandler.ingest.receiver import Receiver
from feedhandler.ingest.ring import Ring
from feedhandler.recording.frame_writer import FrameWriter

#: A thread that hangs fails the test by then.
PATIENCE_S = 60.0


def until(condition: Callable[[], bool], said: Callable[[], object]) -> None:
    """Look again and again until something is so; `said`: what a failure prints."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, said()
        os.sched_yield()


def recorded_frame(lines: Any, send: Callable[[], object] = lambda: None) -> bytes:
    """Run the only line of `TcpLines` or `OverlayLines`; the frame that is recorded first."""
    (line,) = lines.feeds
    tap = Ring(1 << 18)
    receiver = Receiver(None, 1, (), Ring(1 << 18), tap=tap, lines=[line], fed=lines.feeds)
    writer = FrameWriter([(line.group, line.port, "")], 1 << 17, by_line=True)
    filled = 0

    def drained() -> bool:
        nonlocal filled
        filled = writer.drain(tap, 1 << 17)
        return filled > 0

    try:
        receiver.start()
        lines.start()
        send()
        until(drained, lambda: receiver.error)
    finally:
        lines.stop()
        receiver.stop()
    return bytes(writer.out[16:filled])
