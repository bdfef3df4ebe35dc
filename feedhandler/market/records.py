"""Normalised records of one schema, made of order events and the books that they keep.

`Records.take` is given a feed's messages, one after the other in the order of the stream, and
`taken` gives the records that followed from them:

* `mbo`: the events themselves.
* `trades`: the trades.
* `bbo`, `mbp10`: each trade, with the levels before it, and each event that changed the best level,
  or one of ten, with the levels behind it. An event is all that one message does to an instrument:
  of its parts the last one that changed such a level stands in the record.

Sans-IO.
"""

from typing import Any, Final

import numpy

from feedhandler.codecs.dbn import FLAG_LAST, MBO, SCHEMAS
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.market.depth_book import DepthBook
from feedhandler.market.normaliser import Normaliser

Array = numpy.ndarray[Any, Any]

#: How many levels of each side the records of a schema have.
DEPTHS: Final = {"bbo": 1, "mbp10": 10}
#: Fields that records of trades and levels have as the order event has them.
_SHARED = [name for name in SCHEMAS["trades"].records.names or () if name in (MBO.names or ())]
_SHARED = [name for name in _SHARED if name not in ("length", "rtype")]
_TRADE, _CLEAR = b"T", b"R"


class Records:
    """Records of one schema (`mbo`, `bbo`, `mbp10`, `trades`) of a feed.

    Raises `UsageError` for a feed without `[book]`, and for another schema.
    """

    def __init__(self, feed: Feed, schema: str) -> None:
        if schema not in SCHEMAS:
            raise UsageError(f"unknown records {schema!r}", f"known: {', '.join(SCHEMAS)}")
        self.normaliser = Normaliser(feed)
        self.book = DepthBook()
        self._name, self._schema = schema, SCHEMAS[schema]
        self._depth = DEPTHS.get(schema, 0)
        self._levels = numpy.zeros(4 * self._depth, numpy.uint64)
        self._found: list[Array] = []
        #: Of the events under way, by instrument: the levels before.
        self._before: dict[int, Array] = {}
        #: The same: the last part that changed a level, and that level's depth.
        self._changed: dict[int, tuple[Array, int]] = {}

    def take(
        self,
        data: bytes,
        at: int,
        size: int,
        message_type: int,
        *,
        send_ns: int,
        received_ns: int,
        sequence: int,
        channel: int,
    ) -> None:
        """Take the message of `size` bytes at `at`; times are ns since 1970."""
        self.normaliser.clear()
        if not self.normaliser.message(
            data, at, size, message_type, send_ns, received_ns, sequence, channel
        ):
            return
        self.apply(self.normaliser.records)

    def apply(self, events: Array) -> None:
        """Take order events (dtype `MBO`) of whole messages, in the order of the stream."""
        if self._name == "mbo":
            self._found.append(events.copy())
        elif self._name == "trades":
            self._keep(events[events["action"] == _TRADE])
        else:
            for event in events:
                self._apply(event)

    def taken(self) -> Array:
        """Return the records since the last call."""
        found, self._found = self._found, []
        return numpy.concatenate(found) if found else numpy.zeros(0, self._schema.records)

    def _apply(self, event: Array) -> None:
        instrument = int(event["instrument_id"])
        if event["action"] == _CLEAR and not instrument:
            self._clear_all(event)
            return
        if event["action"] == _TRADE:
            self._tell(event, 0, self._levels_of(instrument))
        else:
            self._before.setdefault(instrument, self._levels_of(instrument))
            depth = self._take(event)
            if depth < self._depth:
                self._changed[instrument] = (event.copy(), depth)
        if event["flags"] & FLAG_LAST:
            before = self._before.pop(instrument, None)
            changed = self._changed.pop(instrument, None)
            levels = self._levels_of(instrument)
            if changed and before is not None and not numpy.array_equal(levels, before):
                self._tell(*changed, levels)

    def _clear_all(self, event: Array) -> None:
        """Empty all books of a channel, and tell each that was not empty."""
        instruments = self.book.instruments()
        before = {instrument: self._levels_of(instrument) for instrument in instruments}
        self._take(event)
        for instrument, levels in before.items():
            after = self._levels_of(instrument)
            if not numpy.array_equal(levels, after):
                one = event.copy()
                one["instrument_id"] = instrument
                self._tell(one, 0, after)

    def _take(self, event: Array) -> int:
        """Apply an event to the books; return the depth at which a level changed."""
        return self.book.take(
            int(event["instrument_id"]), int(event["order_id"]), int(event["price"]),
            int(event["size"]), event["action"][0], event["side"][0], int(event["channel_id"]),
        )  # fmt: skip

    def _levels_of(self, instrument: int) -> Array:
        self.book.write_levels(instrument, self._depth, memoryview(self._levels), 0)
        return self._levels.copy()

    def _tell(self, event: Array, depth: int, levels: Array) -> None:
        """Add the record of an event."""
        made = self._keep(event.reshape(1))
        made["depth"] = depth
        made.view(numpy.uint8)[-levels.nbytes :] = levels.view(numpy.uint8)

    def _keep(self, events: Array) -> Array:
        made = numpy.zeros(len(events), self._schema.records)
        for name in _SHARED:
            made[name] = events[name]
        made["length"], made["rtype"] = made.itemsize // 4, self._schema.rtype
        self._found.append(made)
        return made
