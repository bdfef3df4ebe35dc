"""The market recovery feed of a session of levels: every book in turn, in loops that never end.

A `SnapshotLoops` is fed with the session's packets and keeps its books as of what is due. A loop
has a snapshot of each instrument that has had a level when it begins, each as of its own moment;
its packets are numbered from 1, as CME's are (`retrans.protocols.cme_snapshots`). A loop takes
`cycle_ns`; what is later than a moment is not made up for. Sans-IO.
"""

from collections import deque
from collections.abc import Callable

from feedhandler.codecs import Feed
from feedhandler.market.stream_market import Market
from feedhandler.replay.exchange.due import DuePackets
from feedhandler.replay.generating.order_flow import SIDE_ORDERS_MAX
from feedhandler.replay.generating.packets import Outgoing
from feedhandler.retrans.protocols.cme_replay import PACKET
from feedhandler.retrans.protocols.cme_snapshots import BOOK, FIRST

#: Snapshots of one step at most, and how late one may be that is made up for.
STEP_SNAPSHOTS_MAX, LATE_NS = 16, 50_000_000


class SnapshotLoops(DuePackets):
    """The loops of one channel; `elapsed_ns` returns the time since the session's start.

    `publish` may be called by another thread than everything else. `loops` counts whole ones.
    """

    def __init__(self, feed: Feed, cycle_ns: int, elapsed_ns: Callable[[], int]) -> None:
        super().__init__(elapsed_ns)
        self._feed, self._cycle_ns = feed, cycle_ns
        self._market = Market(feed)
        #: Number and send time of the latest packet.
        self._last = self._sent = 0
        #: Of the loop under way: the instruments that are left, and how many it has.
        self._left: deque[str] = deque()
        self._total = 0
        self._next_ns = 0
        self.loops = 0

    def _process(self, outgoing: Outgoing) -> None:
        self._market.apply(outgoing.packet)
        self._last, self._sent = PACKET.unpack_from(outgoing.packet)

    def step(self) -> list[bytes]:
        """Return the packets of loops that are due by now."""
        self.advance()
        packets: list[bytes] = []
        now_ns = self._elapsed_ns()
        self._next_ns = max(self._next_ns, now_ns - LATE_NS)
        while self._next_ns <= now_ns and len(packets) < STEP_SNAPSHOTS_MAX:
            if not self._left:
                self._left.extend(map(str, self._market.books))
                self._total = len(self._left)
            if not self._left:
                break
            packets.append(self._snapshot(self._left.popleft()))
            self.loops += not self._left
            self._next_ns += self._cycle_ns // self._total
        return packets

    def _snapshot(self, name: str) -> bytes:
        """Return the packet with the present book of an instrument."""
        book = self._market.books[name]
        entries = [
            {
                "md_entry_px_optional_ex": price,
                "md_entry_size_short_optional": size,
                "md_price_level_optional": index,
                "md_entry_type": kind,
            }
            for kind, side in (("0", book.bids), ("1", book.asks))
            for index, (price, size, _) in enumerate(side.top(SIDE_ORDERS_MAX), 1)
        ]
        message = self._feed.encode_message(
            BOOK,
            last_msg_seq_num_processed=self._last,
            tot_num_reports=self._total,
            security_id=self._market.instruments()[name],
            transact_time=self._sent,
            last_update_time=self._sent,
            entries=entries,
        )
        number = FIRST + self._total - len(self._left) - 1
        return self._feed.encode_packet(sequence=number, messages=[message], send_time=self._sent)
