"""The queue of a slow link of levels (`as=bbo`, `as=mbp10`): newer levels replace older.

What it is for: a subscriber that is behind needs no outdated level. While the link takes nothing,
only the instruments are remembered whose levels or trades came; once it takes again, it is sent
one record of each, with the levels as they are then, in the order in which they first waited.

What it promises: what waits is bounded by the number of instruments, and the link is never given up
for want of room; the last record of an instrument has its present levels. Trades that came
meanwhile are left out.
"""

from typing import Any

import cython
import numpy
from cython.cimports.feedhandler.amqp.record_fanout import RecordFanout
from cython.cimports.feedhandler.amqp.sender_queue import Peer, SenderQueue

from feedhandler.codecs.dbn import SCHEMAS
from feedhandler.codecs.visibility import Readonly


@cython.final
@cython.cclass
class LevelQueue(SenderQueue):
    """See the module. `conflated` counts the records that were replaced."""

    waiting: Readonly[dict]
    fanout: RecordFanout
    conflated: Readonly[cython.ulonglong]

    def __init__(
        self,
        peer: Peer,
        sender: Any,
        subscription: Any,
        queue_bytes_max: int,
        batch_bytes_max: int,
        fanout: RecordFanout,
    ) -> None:
        super().__init__(peer, sender, subscription, queue_bytes_max, batch_bytes_max)
        self.fanout = fanout
        #: Of each stream: the instruments whose levels wait, in order.
        self.waiting: dict[Any, dict[int, None]] = {}
        self.conflated = 0

    def replace(self, stream: Any, octets: Any, record_bytes: int, first: int, end: int) -> bool:
        """Remember the instruments of the records `first` to `end` where the link is behind; return
        whether it is."""
        if not self.waiting and self.accepts_more():
            return False
        waiting = self.waiting.setdefault(stream, {})
        for index in range(first * record_bytes + 4, end * record_bytes, record_bytes):
            instrument = int.from_bytes(octets[index : index + 4], "little")
            self.conflated += instrument in waiting
            waiting[instrument] = None
        self._note_backlog()
        return True

    def drain(self) -> cython.int:
        """Send what waits, then the levels of the instruments that do."""
        SenderQueue.drain(self)
        while self.waiting and self.accepts_more():
            self._send_levels()
        self._note_backlog()
        return 0

    def _send_levels(self) -> None:
        """Send the present levels of the first instruments that wait: as many as fill a batch."""
        stream, waiting = next(iter(self.waiting.items()))
        schema = self.subscription.schema
        many = max(1, self.batch_bytes_max // SCHEMAS[schema].records.itemsize)
        instruments = [each for each, _ in zip(list(waiting), range(many), strict=False)]
        for instrument in instruments:
            del waiting[instrument]
        if not waiting:
            del self.waiting[stream]
        rows = self.fanout.latest(stream, schema, instruments)
        octets = memoryview(rows.view(numpy.uint8))
        template = stream.records_stamped if self.stamp else stream.records_plain
        self.batch(stream.index, template, stream.next_sequence, 0, octets, 0, len(octets))
        self.close_batch(stream.index)

    def _is_behind(self) -> cython.bint:
        """Return whether anything waits for credit or room."""
        return len(self.waiting) > 0 or SenderQueue._is_behind(self)
