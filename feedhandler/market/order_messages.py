# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The latest message about each open order, for books that are written with all that a feed sent.

A book keeps of an order what records have: id, side, price, size. What else its message has (the
time of its priority, who gave it, of what kind it is) is kept here, as the message itself, by the
order's row in the book. Only messages of the given types are kept, which bring orders and carry all
of them; one of another type that gives an order another price takes the kept one away. Memory is
the size of the longest of these types an order. Sans-IO.
"""

from collections.abc import Mapping

import cython
import numpy
from cython.cimports.feedhandler.codecs.feed_table import MessageIndex
from cython.cimports.feedhandler.market.depth_book import DepthBook
from cython.cimports.feedhandler.market.normaliser import Normaliser
from cython.cimports.feedhandler.market.records import Records

from feedhandler.codecs.dbn import MBO, UNDEFINED_TIME
from feedhandler.codecs.visibility import Readonly

_NO_TIME = cython.declare(cython.ulonglong, UNDEFINED_TIME)
_WORDS = cython.declare(cython.int, MBO.itemsize // 8)
_ADD, _MODIFY = cython.declare(cython.int, 65), cython.declare(cython.int, 77)
_LOW = cython.declare(cython.ulonglong, 0xFFFF_FFFF)
_ALL = cython.declare(cython.ulonglong, (1 << 64) - 1)
_ROWS_MIN = 1 << 10


@cython.cclass
class OrderMessages:
    """Applies messages to `records`, which keeps the books, and keeps those about open orders.

    `sizes`: the size of the messages that are kept, by type; longer ones are not.
    """

    records: Readonly[Records]
    normaliser: Normaliser
    book: DepthBook
    sizes: dict
    stride: cython.Py_ssize_t
    row_sizes: cython.ushort[::1]
    octets: cython.uchar[::1]

    def __init__(self, records: Records, sizes: Mapping[int, int]) -> None:
        self.records, self.normaliser, self.book = records, records.normaliser, records.book
        self.sizes = dict(sizes)
        self.stride = max(self.sizes.values(), default=0)
        rows = _ROWS_MIN if sizes else 0
        #: By row of the book: the size of the message, 0 where none is kept, and the message.
        self.row_sizes = memoryview(numpy.zeros(rows, numpy.uint16))
        self.octets = memoryview(numpy.zeros(rows * self.stride, numpy.uint8))

    def apply_packet(
        self,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        index: MessageIndex,
        skip: cython.Py_ssize_t,
        service: cython.uint,
    ) -> cython.int:
        """Take the messages of the packet at `start`, but for the first `skip`."""
        i: cython.Py_ssize_t
        if self.stride == 0:
            return self.records.apply_packet(data, start, index, skip, _NO_TIME, _NO_TIME, service)
        for i in range(skip, index.count):
            self.apply_message(
                data, start + index.offsets[i], index.sizes[i], index.types[i],
                index.sequences[i], service,
            )  # fmt: skip
        return 0

    def apply_message(
        self,
        data: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        code: cython.ushort,
        sequence: cython.ulonglong,
        service: cython.uint,
    ) -> cython.int:
        """Take the message of `size` bytes at `at`."""
        first: cython.Py_ssize_t = self.normaliser.count
        self.records.apply_message(data, at, size, code, _NO_TIME, _NO_TIME, sequence, service)
        if self.stride and self.normaliser.count > first:
            least = self.sizes.get(code)
            kept: cython.bint = least is not None and size >= least and size <= self.stride
            self.note(first, data, at, size if kept else 0)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def note(
        self,
        first: cython.Py_ssize_t,
        data: cython.const_uchar[::1],
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.int:
        """Keep the message of `size` bytes for the orders that events from `first` on are about; 0:
        it is not kept, nor any before it."""
        index: cython.Py_ssize_t
        octet: cython.Py_ssize_t
        for index in range(first, self.normaliser.count):
            word: cython.Py_ssize_t = index * _WORDS
            action: cython.int = (self.normaliser.words[word + 4] >> 48) & 0xFF
            if action != _ADD and action != _MODIFY:
                continue
            book: cython.Py_ssize_t = self.book.book_of(
                cython.cast(cython.uint, self.normaliser.words[word] >> 32), False, 0
            )
            row: cython.Py_ssize_t = (
                -1 if book < 0 else self.book.find_order(book, self.normaliser.words[word + 2])
            )
            if row < 0 or not self.is_applied(row, word):
                continue
            if row >= len(self.row_sizes):
                self.grow(row)
            self.row_sizes[row] = size
            for octet in range(size):
                self.octets[row * self.stride + octet] = data[at + octet]
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def is_applied(self, row: cython.Py_ssize_t, word: cython.Py_ssize_t) -> cython.bint:
        """Return whether an order has the price and size of the event at `word`."""
        return (
            cython.cast(cython.ulonglong, self.book.level_prices[self.book.order_levels[row]])
            & _ALL
        ) == self.normaliser.words[word + 3] and self.book.order_sizes[row] == (
            self.normaliser.words[word + 4] & _LOW
        )

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def grow(self, row: cython.Py_ssize_t) -> cython.int:
        """Make room for a row of the book, and as many again."""
        rows: cython.Py_ssize_t = 2 * (row + 1)
        sizes = numpy.zeros(rows, numpy.uint16)
        octets = numpy.zeros(rows * self.stride, numpy.uint8)
        sizes[: len(self.row_sizes)] = self.row_sizes
        octets[: len(self.octets)] = self.octets
        self.row_sizes, self.octets = memoryview(sizes), memoryview(octets)
        return 0

    def forget(self) -> None:
        """Keep no message: the books were changed by records."""
        self.row_sizes = memoryview(numpy.zeros(len(self.row_sizes), numpy.uint16))

    def message(self, instrument: int, order: int) -> bytes | None:
        """Return the latest message about an open order; None where none is kept."""
        book: cython.Py_ssize_t = self.book.book_of(instrument, False, 0)
        row: cython.Py_ssize_t = -1 if book < 0 else self.book.find_order(book, order)
        if row < 0 or row >= len(self.row_sizes) or self.row_sizes[row] == 0:
            return None
        first: cython.Py_ssize_t = row * self.stride
        return bytes(self.octets[first : first + self.row_sizes[row]])
