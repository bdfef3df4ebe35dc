"""Generated traffic as a capture file, plain, gzipped or zstd, with its ledger beside it.

`write_capture` is what `feedhandler generate` and the laboratory call. The capture is a pcap of
nanoseconds with both lines' datagrams in the order of their time; its ledger, `NAME.ledger.json`,
lists what is in it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from feedhandler.codecs.errors import DISK_FAULTS, unwritable
from feedhandler.replay.captures.records import HEADERS_BYTES, RECORD_HEADER_BYTES, check_times
from feedhandler.replay.captures.writer import CaptureWriter, remove_unfinished
from feedhandler.replay.generating.destinations import LINES
from feedhandler.replay.generating.profile_plan import mean_payload
from feedhandler.replay.generating.traffic import Datagrams, Traffic
from feedhandler.replay.generating.traffic_frames import RecordWriter
from feedhandler.replay.generating.traffic_ledger import TrafficLedger

#: Fast rather than small.
GZIP_LEVEL = 1
#: Room beside a payload: a record header, the headers, and what pads a short frame.
_BESIDE = RECORD_HEADER_BYTES + HEADERS_BYTES + 18

#: Of the plain file's size, what generated sessions take when compressed (measured, rounded up).
COMPRESSED_SHARES = {".gz": 0.24, ".zst": 0.19}
#: Packets of both lines a second that a processor generates and writes (measured, rounded down).
PACKETS_PER_SECOND = 400_000
#: The plan counts in thousandths of a packet.
_PLAN_UNIT = 1000

#: Called now and then with the progress: the share done, packets so far.
OnProgress = Callable[[float, int], object]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected size of a session: packets on both lines, bytes of the file, seconds of work."""

    packets: int
    file_bytes: int
    seconds: float


def forecast(traffic: Traffic, path: Path) -> Forecast:
    """Estimate from the plan alone what writing the traffic to `path` takes, without losses."""
    packets = int(traffic.settings.plan.packets[-1]) * len(LINES) // _PLAN_UNIT
    plain = packets * (mean_payload(traffic.profile) + RECORD_HEADER_BYTES + HEADERS_BYTES)
    share = COMPRESSED_SHARES.get(path.suffix, 1.0)
    return Forecast(packets, int(plain * share), packets / PACKETS_PER_SECOND)


def write_capture(
    traffic: Traffic, path: str | os.PathLike[str], on_progress: OnProgress | None = None
) -> dict[str, Any]:
    """Write all of the traffic to `path` (`.gz` and `.zst` are compressed) and its ledger beside
    it; returns the ledger's document. Raises as `unwritable` says where the file cannot be
    written; what was written of it is then removed."""
    target = Path(path)
    ledger = TrafficLedger(traffic.midnight_ns, traffic.profile.zone)
    traffic.on_block = ledger.count
    records = RecordWriter(traffic.destinations)

    def write(file: CaptureWriter) -> dict[str, Any]:
        for datagrams in traffic.datagrams():
            file.write_records(record_bytes(records, datagrams), len(datagrams))
            if on_progress is not None:
                on_progress(traffic.share_done, ledger.sent)
        document = ledger.document(traffic.tape, about(traffic))
        if traffic.flow.opened is not None:
            document["stretch"] = ledger.stretch(traffic.tape, traffic.flow.opened)
        return document

    return write_with_ledger(target, write)


def write_with_ledger(
    target: Path, write: Callable[[CaptureWriter], dict[str, Any]]
) -> dict[str, Any]:
    """Have `write` write a capture, and write the document that it returns beside it; return that.

    Raises as `unwritable` says where either cannot be written. However it fails, what was written
    of the two is removed; what could not be opened for writing stays.
    """
    try:
        with CaptureWriter(target, gzip_level=GZIP_LEVEL) as file:
            document = write(file)
        ledger = ledger_path(target)
        try:
            ledger.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
        except BaseException as error:
            remove_unfinished(target)
            if isinstance(error, OSError) and error.errno in DISK_FAULTS:
                remove_unfinished(ledger)
            raise
    except OSError as error:
        raise unwritable(target, error) from None
    return document


def record_bytes(records: RecordWriter, datagrams: Datagrams) -> memoryview:
    """Build the records of a capture file from datagrams, in the order of their times.

    Raises `UsageError` for times that a capture cannot hold.
    """
    if len(datagrams):
        check_times(int(datagrams.time_ns[0]), int(datagrams.time_ns[-1]))
    size = int(datagrams.length.sum(dtype=np.int64)) + _BESIDE * len(datagrams)
    out = np.empty(size, np.uint8)
    # Memoryviews: in the interpreted twin, numpy's small integers would overflow.
    columns = (datagrams.data, datagrams.time_ns, datagrams.destination, datagrams.offset,
               datagrams.length, out)  # fmt: skip
    used = records.write(*(memoryview(column) for column in columns))
    return memoryview(out)[:used]


def ledger_path(capture: Path) -> Path:
    """Return the path of a capture's ledger."""
    return capture.parent / f"{capture.name}.ledger.json"


def about(traffic: Traffic) -> dict[str, Any]:
    """Describe the inputs of a session and the destinations of its packets."""
    return {
        "profile": traffic.profile.name,
        "seed": traffic.seed,
        "scale": traffic.scale,
        "zone": traffic.profile.zone,
        "day": traffic.profile.day,
        "instruments": len(traffic.instruments),
        "destinations": [f"{group}:{port}" for group, port in traffic.destinations],
    }
