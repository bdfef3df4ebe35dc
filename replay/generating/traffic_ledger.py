"""Counts of a generated capture, kept while it is made: for checks of receivers.

A `TrafficLedger` takes a session's blocks and counts, for what arrives on both lines together:
packets, bytes and messages by service and minute, the busiest seconds, and by line what was lost
and how far B lags behind A. Bytes are given twice: as UDP payload, and as the source paper counts
them, frames with 16 bytes of record header. `document` is the JSON; docs/generating.md explains it.
"""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.captures.records import FRAME_BYTES_MIN, HEADERS_BYTES, RECORD_HEADER_BYTES
from feedhandler.replay.generating.packets import SERVICES
from feedhandler.replay.generating.tape import EDGES_NS, REALTIME

Array = np.ndarray[Any, Any]

SECOND_NS = 1_000_000_000
#: Busiest seconds that are named, lost packets that are.
PEAKS, LOST_NAMED = 10, 1_000
#: Seconds that a ledger has room for at first, and by which it grows: two days, for times past
#: midnight. No session is longer than a month.
SECONDS, SECONDS_MAX = 2 * 86_400, 32 * 86_400
#: Upper edges of the skew's histogram, microseconds.
SKEW_EDGES_US = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
#: Rows of the tables: the services, then all refreshes.
ROWS = REALTIME + 1


class TrafficLedger:
    """See the module. `midnight_ns`: the exchange's midnight since 1970 UTC; `zone` is the
    clock that the ledger gives times in. `count` raises `UsageError` where a session lasts longer
    than a month."""

    def __init__(self, midnight_ns: int, zone: str) -> None:
        self._midnight_ns, self._zone = midnight_ns, ZoneInfo(zone)
        shape = (ROWS, SECONDS)
        self._packets, self._payload, self._counted = (np.zeros(shape, np.int32) for _ in range(3))
        self.messages = np.zeros(ROWS, np.int64)
        #: Packets sent by the exchange, and lost on A, on B, on both.
        self.sent = 0
        self.lost = [0, 0, 0]
        self._lost_named: list[tuple[int, int]] = []
        self._skew = np.zeros(len(SKEW_EDGES_US) + 1, np.int64)
        self._skew_ns = [1 << 62, 0, 0]

    def count(self, data: Array, columns: dict[str, Array]) -> None:
        """Count one block (`session.Block`)."""
        lost = columns["lost"]
        self.sent += len(lost)
        for index, bits in enumerate((1, 2, 3)):
            self.lost[index] += int(((lost & bits) == bits).sum())
        self._name_lost(data, columns)
        rows = np.minimum(columns["channel"], REALTIME)
        for line, name in enumerate(("time_a_ns", "time_b_ns")):
            kept = (lost & (1 << line)) == 0
            self._count(
                columns[name][kept] // SECOND_NS, rows[kept], columns["length"][kept],
                columns["messages"][kept],
            )  # fmt: skip
        skew = (columns["time_b_ns"] - columns["time_a_ns"])[lost == 0]
        if len(skew):
            buckets = np.searchsorted(np.array(SKEW_EDGES_US) * 1000, skew, "left")
            self._skew += np.bincount(buckets, minlength=len(self._skew))
            low, high, total = self._skew_ns
            self._skew_ns = [
                min(low, int(skew.min())), max(high, int(skew.max())), total + int(skew.sum()),
            ]  # fmt: skip

    def _count(self, second: Array, row: Array, length: Array, messages: Array) -> None:
        if not len(second):
            return
        first = int(second.min())
        width = int(second.max()) - first + 1
        self._make_room(first + width)
        cell = row.astype(np.int64) * width + (second - first)
        length = length.astype(np.int64)
        counted = np.maximum(length + HEADERS_BYTES, FRAME_BYTES_MIN) + RECORD_HEADER_BYTES
        for table, weights in ((self._packets, None), (self._payload, length),
                               (self._counted, counted)):  # fmt: skip
            sums = np.bincount(cell, weights, minlength=ROWS * width)
            table[:, first : first + width] += sums.reshape(ROWS, width).astype(np.int32)
        self.messages += np.bincount(row, messages, minlength=ROWS).astype(np.int64)

    def _make_room(self, seconds: int) -> None:
        """Make the tables longer where a session lasts longer than they do.

        Raises `UsageError` where it lasts longer than any may.
        """
        if seconds > SECONDS_MAX:
            raise UsageError(
                f"a session of more than {SECONDS_MAX // 86_400} days",
                "give a shorter --duration, or a faster line in the profile",
            )
        more = seconds - self._packets.shape[1]
        if more > 0:
            room = ((0, 0), (0, (more + SECONDS - 1) // SECONDS * SECONDS))
            self._packets, self._payload, self._counted = (
                np.pad(table, room) for table in (self._packets, self._payload, self._counted)
            )

    def _name_lost(self, data: Array, columns: dict[str, Array]) -> None:
        """Record service and number of each packet that both lines lost."""
        for row in np.flatnonzero(columns["lost"] == 3)[: LOST_NAMED - len(self._lost_named)]:
            channel, at = int(columns["channel"][row]), int(columns["offset"][row])
            if channel < REALTIME:
                number = int.from_bytes(data[at + 4 : at + 8].tobytes(), "big")
                self._lost_named.append((SERVICES[channel], number))

    @property
    def packets(self) -> int:
        """Packets that arrived, on both lines."""
        return int(self._packets.sum())

    @property
    def counted_bytes(self) -> int:
        """Bytes that arrived, as frames with their record headers."""
        return int(self._counted.sum(dtype=np.int64))

    def totals(self) -> dict[str, dict[str, Any]]:
        """Return Table 1: packets, bytes and messages by service, with all refreshes as one."""
        answer = {}
        for row, name in enumerate([*map(str, SERVICES), "refresh"]):
            packets = int(self._packets[row].sum())
            answer[name] = {
                "packets": packets,
                "payload_bytes": int(self._payload[row].sum(dtype=np.int64)),
                "counted_bytes": int(self._counted[row].sum(dtype=np.int64)),
                "messages": int(self.messages[row]),
            }
        return answer

    def peaks(self, by_bytes: bool) -> list[dict[str, Any]]:
        """Return Tables 2 and 3: the busiest seconds, by packets or by bytes counted."""
        packets, counted = self._packets.sum(axis=0), self._counted.sum(axis=0)
        order = np.argsort(-(counted if by_bytes else packets), kind="stable")[:PEAKS]
        return [
            {"at": self._clock(second), "packets": int(packets[second]),
             "counted_bytes": int(counted[second])}
            for second in order.tolist() if packets[second]
        ]  # fmt: skip

    def minutes(self) -> dict[str, Any]:
        """Return Figures 2 to 5: packets and counted bytes by service and minute."""
        busy = np.flatnonzero(self._packets.any(axis=0))
        if not len(busy):
            return {"first": "", "packets": {}, "counted_bytes": {}}
        first, end = int(busy[0]) // 60, int(busy[-1]) // 60 + 1
        tables = {}
        for name, table in (("packets", self._packets), ("counted_bytes", self._counted)):
            whole = table[:, first * 60 : end * 60].reshape(ROWS, -1, 60).sum(axis=2)
            tables[name] = {
                row: whole[index].tolist()
                for index, row in enumerate([*map(str, SERVICES), "refresh"])
            }
        return {"first": self._clock(first * 60), **tables}

    def document(self, tape: Any, about: dict[str, Any]) -> dict[str, Any]:
        """Return the ledger for JSON; `tape` has the repeats of symbols and the last numbers."""
        totals = self.totals()
        payload = sum(total["payload_bytes"] for total in totals.values())
        messages = sum(total["messages"] for total in totals.values())
        packets = self.packets
        lags = int(self._skew.sum())
        return {
            **about,
            "packets": packets,
            "payload_bytes": payload,
            "counted_bytes": self.counted_bytes,
            "messages": messages,
            "mean_payload_bytes": payload / max(packets, 1),
            "mean_message_bytes": (payload - 16 * packets) / max(messages, 1),
            "mean_messages": messages / max(packets, 1),
            "services": totals,
            "peaks": {"packets": self.peaks(False), "counted_bytes": self.peaks(True)},
            "minutes": self.minutes(),
            "repeats": {
                "repeats": tape.repeats,
                "within_1_ms": tape.within_1_ms,
                "within_10_ms": tape.within_10_ms,
                "edges_ns": list(EDGES_NS),
                "services": {
                    str(service): counts.tolist()
                    for service, counts in zip(SERVICES, tape.tables["gaps"], strict=True)
                },
            },
            "lines": {
                "sent": self.sent, "lost_a": self.lost[0], "lost_b": self.lost[1],
                "lost_both": self.lost[2], "lost_both_first": self._lost_named,
                "next_sequences": dict(
                    zip(map(str, SERVICES), tape.tables["sequences"].tolist(), strict=False)
                ),
            },
            "skew": {
                "edges_us": list(SKEW_EDGES_US), "counts": self._skew.tolist(),
                "least_ns": self._skew_ns[0] if lags else 0, "most_ns": self._skew_ns[1],
                "mean_ns": self._skew_ns[2] / max(lags, 1),
            },
        }  # fmt: skip

    @staticmethod
    def stretch(tape: Any, opened: dict[str, Array]) -> dict[str, Any]:
        """Count a stationary stretch without its prelude: one line's packets, payload bytes and
        messages by service, before losses."""
        answer = {}
        for row, name in enumerate([*map(str, SERVICES), "refresh"]):
            rows = slice(row, row + 1) if row < REALTIME else slice(REALTIME, None)
            answer[name] = {
                key: int((tape.tables[table] - opened[table])[rows].sum())
                for key, table in (("packets", "packets"), ("payload_bytes", "bytes"),
                                   ("messages", "messages"))
            }  # fmt: skip
        return answer

    def _clock(self, second: int) -> str:
        """Format a second after the exchange's midnight, in the ledger's zone."""
        moment = datetime.fromtimestamp(self._midnight_ns // SECOND_NS + second, UTC)
        return moment.astimezone(self._zone).strftime("%H:%M:%S")
