import socket
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from feedhandler.codecs.feed_table import FeedTable
from feedhandler.ingest.arbitration import Arbiter
from feedhandler.ingest.lines import ChannelPlan, Line
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings

LINES_MAX: int

class Receiver:
    ring: Ring
    inlet: Ring
    tap: Ring | None
    tap_drops: int
    recovered_rows: dict[str, int]
    arbiters: list[Arbiter]
    lines: list[Line]
    sockets: list[socket.socket]
    channels: list[ChannelPlan]
    line_counters: numpy.ndarray
    channel_counters: numpy.ndarray
    settings: ArbitrationSettings
    error: BaseException | None
    ring_high_bytes: int
    ring_waits: int
    def __init__(
        self,
        table: FeedTable | None,
        first_sequence: int,
        channels: Sequence[ChannelPlan],
        ring: Ring,
        *,
        settings: ArbitrationSettings | None = None,
        first_channel: int = 0,
        receive_buffer_bytes: int = ...,
        cpu: int | None = None,
        tap: Ring | None = None,
        lines: Sequence[Line] = (),
        fed: Mapping[Line, socket.socket] | None = None,
    ) -> None: ...
    def fileno(self) -> int: ...
    def filenos(self) -> tuple[int, int]: ...
    def wake(self) -> None: ...
    def fill(self, channel: int, data: bytes, epoch: int, received_ns: int) -> bool: ...
    def give_up(self, channel: int, until: int, epoch: int) -> bool: ...
    def disprove(self, channel: int, number: int, epoch: int) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    @property
    def running(self) -> bool: ...
    def receive_buffers(self) -> dict[str, int]: ...
    def snapshot(self) -> dict[str, Any]: ...
