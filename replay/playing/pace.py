"""Send schedules: the due time of each datagram at a given speed.

A `Pace` is a speed; a `Schedule` turns the datagrams of a stream, chunk by chunk, into due times in
nanoseconds after the start. Every due time is computed from the start of the stream, never from the
datagram before, so that rounding errors do not accumulate. Sans-IO.

Speeds: the capture's own pace or a multiple of it, bits a second, datagrams a second, or flat
out. Bits are counted either over the UDP payloads alone, or over Ethernet frames as a capture
shows them: 14 bytes Ethernet, 20 bytes IPv4 and 8 bytes UDP header around the payload, at least
60 bytes, without preamble, check sequence and gap. tcpreplay's `--mbps` counts the same bytes.

*Flat out has no flow control.* UDP cannot slow a sender down: a receiver that falls behind loses
datagrams. `packets_max` puts a ceiling on any speed, spreading bursts instead of pausing them.
"""

import dataclasses
import enum
import re
from typing import Any

import numpy as np

from feedhandler.codecs.errors import UsageError

#: Ethernet, IPv4 and UDP header around a payload, and the shortest frame, in bytes.
FRAME_OVERHEAD_BYTES = 42
FRAME_BYTES_MIN = 60

Array = np.ndarray[Any, Any]


class PaceKind(enum.Enum):
    """The unit of `Pace.value`."""

    ORIGINAL = "times the original pace"
    PAYLOAD_BITS = "UDP payload bits a second"
    FRAME_BITS = "Ethernet frame bits a second"
    PACKETS = "datagrams a second"
    MESSAGES = "messages a second"
    FLAT_OUT = "flat out"


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """A speed: `value` in the unit `kind`, at most `packets_max` datagrams a second (0: any)."""

    kind: PaceKind = PaceKind.ORIGINAL
    value: float = 1.0
    packets_max: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.value < float("inf") or not 0 <= self.packets_max < float("inf"):
            raise UsageError(f"a pace of {self.value} is none", "give a number above 0")

    @property
    def has_schedule(self) -> bool:
        """Whether each datagram has a time of its own, which it can miss or be delayed from."""
        return self.kind is not PaceKind.FLAT_OUT or self.packets_max > 0

    def __str__(self) -> str:
        ceiling = f", at most {self.packets_max:,g} datagrams/s" if self.packets_max else ""
        if self.kind is PaceKind.FLAT_OUT:
            return self.kind.value + ceiling
        return f"{self.value:,g} {self.kind.value}{ceiling}"


_UNITS = {
    "x": (PaceKind.ORIGINAL, 1),
    "pps": (PaceKind.PACKETS, 1),
    "kpps": (PaceKind.PACKETS, 1_000),
    "mpps": (PaceKind.PACKETS, 1_000_000),
    "bps": (PaceKind.FRAME_BITS, 1),
    "kbps": (PaceKind.FRAME_BITS, 1_000),
    "mbps": (PaceKind.FRAME_BITS, 1_000_000),
    "gbps": (PaceKind.FRAME_BITS, 1_000_000_000),
    "mps": (PaceKind.MESSAGES, 1),
    "kmps": (PaceKind.MESSAGES, 1_000),
    "mmps": (PaceKind.MESSAGES, 1_000_000),
}
#: A number as Python reads it, without a sign or an exponent: 40, 1.5, .5, 1_000.
_NUMBER = r"(?:[0-9]+(?:_[0-9]+)*)?\.?(?:[0-9]+(?:_[0-9]+)*)"
#: How a rate of each kind is written; every command takes the same units.
_FORMS = {
    PaceKind.ORIGINAL: "original, 1x or 100x",
    PaceKind.FRAME_BITS: "40mbps or 1.5gbps (Ethernet frames)",
    PaceKind.PACKETS: "10000pps or 10kpps",
    PaceKind.MESSAGES: "20000mps or 20kmps",
}


def parse_pace(text: str, packets_max: float = 0.0) -> Pace:
    """Parse a pace: `1x`, `100x`, `40mbps` (Ethernet frame bits), `40mbps-payload`, `10000pps`,
    `original`, `flat` or `max`, which are the same. Raises `UsageError` where `text` is none."""
    folded = text.strip().lower()
    if folded in ("flat", "max", "flat-out"):
        return Pace(PaceKind.FLAT_OUT, packets_max=packets_max)
    if folded == "original":
        return Pace(packets_max=packets_max)
    kind, value = _measured(folded)
    if kind is None or kind is PaceKind.MESSAGES:
        raise UsageError(
            f"'{text}' is no pace", "give 1x, 100x, 40mbps, 40mbps-payload, 10000pps or flat"
        )
    return Pace(kind, value, packets_max)


def _measured(folded: str) -> tuple[PaceKind | None, float]:
    """Split a number with its unit into kind and value; (None, 0.0) where it is malformed."""
    match = re.fullmatch(rf"({_NUMBER}) ?(x|[kmg]?[bp]ps|[km]?mps)(-payload)?", folded)
    unit = _UNITS.get(match[2]) if match else None
    if match is None or unit is None or (match[3] and unit[0] is not PaceKind.FRAME_BITS):
        return None, 0.0
    kind, factor = unit
    return PaceKind.PAYLOAD_BITS if match[3] else kind, float(match[1]) * factor


def parse_rate(text: str | float, kind: PaceKind, bare_unit: str) -> float:
    """Parse a rate of one kind, as `40mbps` or `10kpps`, to bits, packets or messages a second, or
    a multiple. A bare number is in `bare_unit`. Raises `UsageError` with the accepted forms."""
    folded = str(text).strip().lower()
    if re.fullmatch(_NUMBER, folded):
        folded += bare_unit
    forms = f"write {_FORMS[kind]}"
    found, value = (PaceKind.ORIGINAL, 1.0) if folded == "original" else _measured(folded)
    if found is None or value <= 0:
        raise UsageError(f"'{text}' is no rate", forms)
    if found is not kind:
        raise UsageError(f"'{text}' counts {found.value}, not {kind.value}", forms)
    return value


class Schedule:
    """The due times of one stream at one pace."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._first_ns: int | None = None
        self._bits = 0
        self._packets = 0
        self._last_due_ns = 0
        # The greatest due time minus position / packets_max so far: see `_cap`.
        self._slack_ns = -np.inf

    def due_ns(self, time_ns: Array, length: Array) -> Array:
        """Return the due times of the next datagrams (int64 ns after the start, never falling).

        `time_ns` int64: their times in the capture; `length`: their payload bytes.
        """
        count = len(time_ns)
        if not count:
            return np.empty(0, np.int64)
        due = self._at_pace(np.asarray(time_ns, np.int64), np.asarray(length, np.int64))
        if self.pace.packets_max:
            due = self._cap(due)
        # Captures are not always sorted: a datagram out of order leaves with the one before it.
        due = np.maximum(np.maximum.accumulate(due), self._last_due_ns)
        self._packets += count
        self._last_due_ns = int(due[-1])
        return due

    def _at_pace(self, time_ns: Array, length: Array) -> Array:
        kind, value = self.pace.kind, self.pace.value
        if kind is PaceKind.ORIGINAL:
            if self._first_ns is None:
                self._first_ns = int(time_ns[0])
            elapsed = time_ns - self._first_ns
            return elapsed if value == 1.0 else np.rint(elapsed / value).astype(np.int64)
        if kind is PaceKind.PACKETS:
            return self._position(len(time_ns), value)
        if kind is PaceKind.FLAT_OUT:
            return np.zeros(len(time_ns), np.int64)
        if kind is PaceKind.FRAME_BITS:
            length = np.maximum(length + FRAME_OVERHEAD_BYTES, FRAME_BYTES_MIN)
        ends = self._bits + np.cumsum(length * 8)
        starts = ends - length * 8
        self._bits = int(ends[-1])
        return np.rint(starts * (1e9 / value)).astype(np.int64)

    def _position(self, count: int, per_second: float) -> Array:
        """Return due times (ns) of the next `count` datagrams at a constant rate.

        A double holds a day's nanoseconds with 11 bits to spare: rounding stays below 1 ns."""
        positions = np.arange(self._packets, self._packets + count)
        return np.rint(positions * (1e9 / per_second)).astype(np.int64)

    def _cap(self, due: Array) -> Array:
        """Limit due times to `packets_max` a second: each is at least one interval after the last.

        That is due'[i] = max over j <= i of (due[j] + (i - j) * gap), computed from the start.
        """
        steady = self._position(len(due), self.pace.packets_max)
        slack = np.maximum(np.maximum.accumulate(due - steady), self._slack_ns)
        self._slack_ns = float(slack[-1])
        return (steady + slack).astype(np.int64)
