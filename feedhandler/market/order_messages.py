# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The latest message about each open order, for books that are written with all that a feed told.

A book keeps of an order what records have: id, side, price, size. What else its message tells (the
time of its priority, who gave it, of what kind it is) is kept here, as the message itself. Only
messages of the given types are kept, which bring orders and tell all of them; one of another type
that gives an order another price takes the kept one away. Memory is the message's size and about
100 bytes an order. Sans-IO.
"""

from collections.abc import Mapping

import cython
from cython.cimports.feedhandler.market.records import Records

from feedhandler.codecs.dbn import MBO, UNDEFINED_TIME

_NO_TIME = cython.declare(cython.ulonglong, UNDEFINED_TIME)
_WORDS = cython.declare(cython.int, MBO.itemsize // 8)
_ADD, _MODIFY = cython.declare(cython.int, 65), cython.declare(cython.int, 77)
_CANCEL, _CLEAR = cython.declare(cython.int, 67), cython.declare(cython.int, 82)


class OrderMessages:
    """Applies messages to `records`, which keeps the books, and keeps those about open orders.

    `sizes`: the least size of the messages that are kept, by type.
    """

    def __init__(self, records: Records, sizes: Mapping[int, int]) -> None:
        self.records, self.normaliser, self.book = records, records.normaliser, records.book
        self.sizes = dict(sizes)
        #: By instrument, then by order id.
        self.kept = {}

    def apply_packet(self, data, start, index, skip, service):
        """Take the messages of the packet at `start`, but for the first `skip`."""
        i: cython.Py_ssize_t
        if not self.sizes:
            return self.records.apply_packet(data, start, index, skip, _NO_TIME, _NO_TIME, service)
        for i in range(skip, index.count):
            self.apply_message(
                data, start + index.offsets[i], index.sizes[i], index.types[i],
                index.sequences[i], service,
            )  # fmt: skip
        return 0

    def apply_message(self, data, at, size, code, sequence, service):
        """Take the message of `size` bytes at `at`."""
        first: cython.Py_ssize_t = self.normaliser.count
        self.records.apply_message(data, at, size, code, _NO_TIME, _NO_TIME, sequence, service)
        if self.sizes and self.normaliser.count > first:
            least = self.sizes.get(code)
            tells: cython.bint = least is not None and size >= least
            self.note(first, data[at : at + size] if tells else None)
        return 0

    def note(self, first, message):
        """Keep what the events from `first` on tell of orders."""
        words: cython.ulonglong[::1] = self.normaliser.words
        index: cython.Py_ssize_t
        at: cython.Py_ssize_t
        instrument: cython.uint
        order: cython.ulonglong
        action: cython.int
        for index in range(first, self.normaliser.count):
            at = index * _WORDS
            instrument = cython.cast(cython.uint, words[at] >> 32)
            order = words[at + 2]
            action = cython.cast(cython.int, (words[at + 4] >> 48) & 0xFF)
            if action == _CLEAR:
                self.drop_empty(instrument)
            elif order and action in (_ADD, _MODIFY, _CANCEL):
                self.keep(instrument, order, action, message)
        return 0

    def keep(self, instrument, order, action, message):
        """Keep, or take away, the message of one order that an event was about."""
        book: cython.Py_ssize_t = self.book.book_of(instrument, False, 0)
        open: cython.bint = book >= 0 and self.book.find_order(book, order) >= 0
        kept: dict = self.kept.get(instrument)
        if open and message is not None and action != _CANCEL:
            if kept is None:
                kept = self.kept[instrument] = {}
            kept[order] = message
        elif kept is not None and (not open or action != _CANCEL):
            kept.pop(order, None)
        return 0

    def drop_empty(self, instrument):
        """Take away the messages of an instrument's book that was emptied; 0: of all such books."""
        if instrument:
            self.kept.pop(instrument, None)
            return 0
        for each in [*self.kept]:
            if self.book.entries_of(each) == 0:
                del self.kept[each]
        return 0

    def empty(self, channel: int) -> None:
        """Empty all books of a channel, as numbers begin anew there."""
        self.records.empty(channel, UNDEFINED_TIME)
        self.drop_empty(0)

    def empty_book(self, instrument: int) -> None:
        """Empty the book of one instrument, which is told anew."""
        self.records.empty_book(instrument)
        self.drop_empty(instrument)

    def of(self, instrument: int) -> Mapping[int, bytes]:
        """Return the messages of an instrument's open orders, by order id."""
        return self.kept.get(instrument, {})
