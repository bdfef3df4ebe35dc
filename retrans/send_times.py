"""Judges by send times whether a snapshot belongs to the stream's sequence epoch.

A LastSeqNum says how far a snapshot goes, but not in which epoch: one that was cut before a reset
and comes late looks as if it were of the new one. Its send time is unambiguous. The start of a
snapshot that holds packet n left the exchange after packet n did, and before n + 1, or not long
after. So its send time is compared with those of published packets on either side; retransmitted
packets are skipped, for a server may put its own time on them.

Not detected: a snapshot cut within `refresh_clock_us` of a reset (a host's clock may be off by so
much), and one for which the store holds no live packet to compare it with.
"""

from typing import Any

from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.scanner import parse_header
from feedhandler.retrans.protocol import RETRANSMITTED
from feedhandler.retrans.refresh import Snapshot
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.store import PacketStore

#: Most retransmitted packets in a row that are skipped.
PASSED_OVER_MAX = 1000


class SendTimes:
    """Compares the send times of one feed's snapshots with those of published packets."""

    def __init__(self, feed: Any, settings: RecoverySettings) -> None:
        self._feed = feed
        self._early_ns = settings.refresh_clock_us * 1000
        #: An exchange may take its time between cutting a snapshot and sending it.
        self._late_ns = settings.refresh_timeout_us * 1000
        self._header = PacketHeader()

    def fit(self, snapshot: Snapshot, store: PacketStore) -> bool:
        """Return whether the snapshot's send time fits the packets before and after it.

        It must be after the last packet in it, and not long after the next one.

        A side on which the store holds no live packet is not judged.
        """
        begin, end = store.next_serial - store.count, store.next_serial
        index = store.find(begin, end, snapshot.last + 1)
        ahead_ns = self._ahead_ns(snapshot, store, range(index - 1, begin - 1, -1))
        if ahead_ns is not None and ahead_ns > self._early_ns:
            return False
        ahead_ns = self._ahead_ns(snapshot, store, range(index, end))
        return ahead_ns is None or -ahead_ns <= self._late_ns

    def _ahead_ns(self, snapshot: Snapshot, store: PacketStore, serials: range) -> int | None:
        """Return the ns from the snapshot's sending to the first live packet of `serials`.

        None where there is none.

        At most `PASSED_OVER_MAX` retransmitted packets are skipped.
        """
        header = self._header
        for serial in serials[:PASSED_OVER_MAX]:
            packet = store.packet(serial)
            if packet is None:
                return None
            data = packet[2]
            parse_header(self._feed.table, data, 0, len(data), header)
            if header.flags != RETRANSMITTED:
                return self._feed.send_times_apart_ns(snapshot.send_time, header.send_time)
        return None
