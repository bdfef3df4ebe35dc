# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Compressing a refresh packet's body, the same bytes on every machine.

What zlib writes depends on its version and make, and a generated session must not. So this writes
zlib streams (RFC 1950) of one block with the fixed codes (RFC 1951, section 3.2.6): the latest
place where the next three bytes stood before, within `REACH`, as far as it goes. For market data
messages, alike but for some bytes, that takes a sixth more bytes than zlib's fastest level and a
third of its time.
"""

import cython
import numpy

#: How far back a match may lie, and the longest stretch of bytes that is compressed.
REACH = 4_095
BYTES_MAX = 1 << 15
#: Slots of the table that finds the latest place of three bytes.
HASH = 1 << 12

_REACH, _HASH = cython.declare(cython.int, REACH), cython.declare(cython.int, HASH)
_LENGTHS = (3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99,
            115, 131, 163, 195, 227, 258)  # fmt: skip
_DISTANCES = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025,
              1537, 2049, 3073, 4097)  # fmt: skip


@cython.final
@cython.cclass
class Deflater:
    """Compresses; one can be used again and again. Keeps nothing between calls."""

    literal_code: cython.uint[::1]
    literal_size: cython.uchar[::1]
    length_code: cython.uint[::1]
    length_size: cython.uchar[::1]
    distance_code: cython.uint[::1]
    distance_size: cython.uchar[::1]
    heads: cython.int[::1]
    out: cython.uchar[::1]
    at: cython.Py_ssize_t
    held: cython.ulonglong
    bits: cython.int

    def __init__(self) -> None:
        codes, sizes = zip(*map(_literal, range(286)), strict=True)
        self.literal_code = memoryview(numpy.array(codes, numpy.uintc))
        self.literal_size = memoryview(numpy.array(sizes, numpy.uint8))
        codes, sizes = zip(*(_run(i, codes, sizes) for i in range(259)), strict=True)
        self.length_code = memoryview(numpy.array(codes, numpy.uintc))
        self.length_size = memoryview(numpy.array(sizes, numpy.uint8))
        codes, sizes = zip(*map(_distance, range(REACH + 1)), strict=True)
        self.distance_code = memoryview(numpy.array(codes, numpy.uintc))
        self.distance_size = memoryview(numpy.array(sizes, numpy.uint8))
        self.heads = memoryview(numpy.zeros(HASH, numpy.intc))
        # The fixed codes never make a byte longer than nine bits.
        self.out = memoryview(numpy.zeros(BYTES_MAX * 9 // 8 + 64, numpy.uint8))

    @cython.locals(
        view=cython.const_uchar[::1], size=cython.Py_ssize_t, i=cython.Py_ssize_t,
        run=cython.int, back=cython.Py_ssize_t, slot=cython.int, low=cython.uint, high=cython.uint,
    )  # fmt: skip
    def compress(self, data: bytes) -> bytes:
        """`data` as a zlib stream. Raises `ValueError` for more than `BYTES_MAX` bytes."""
        size = len(data)
        if size > BYTES_MAX:
            raise ValueError(f"{size} bytes are too many")
        view = memoryview(data)
        self.out[0], self.out[1] = 0x78, 0x01
        self.at, self.held, self.bits = 2, 3, 3
        for i in range(_HASH):
            self.heads[i] = -_REACH - 1
        low, high = 1, 0
        i = 0
        while i < size:
            run = 0
            if i + 2 < size:
                slot = (
                    view[i] * 506_832_829 + view[i + 1] * 65_599 + view[i + 2] * 257
                ) >> 4 & 4095
                back = self.heads[slot]
                self.heads[slot] = i
                if i - back <= _REACH:
                    while run < 258 and i + run < size and view[back + run] == view[i + run]:
                        run += 1
            if run >= 3:
                self._put(self.length_code[run], self.length_size[run])
                self._put(self.distance_code[i - back], self.distance_size[i - back])
            else:
                run = 1
                self._put(self.literal_code[view[i]], self.literal_size[view[i]])
            back = i + run
            while i < back:
                low += view[i]
                high += low
                i += 1
                if i < back and i + 2 < size:
                    self.heads[_slot(view[i], view[i + 1], view[i + 2])] = i
            if i & 0x7FF < run:
                low, high = low % 65_521, high % 65_521
        self._put(self.literal_code[256], self.literal_size[256])
        if self.bits:
            self._put(0, 7)
        low, high = low % 65_521, high % 65_521
        for i in range(2):
            self.out[self.at + i] = high >> (8 - 8 * i) & 0xFF
            self.out[self.at + 2 + i] = low >> (8 - 8 * i) & 0xFF
        return bytes(self.out[0 : self.at + 4])

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def _put(self, code: cython.uint, size: cython.int) -> cython.int:
        """`size` bits, the lowest first."""
        self.held |= cython.cast(cython.ulonglong, code) << self.bits
        self.bits += size
        while self.bits >= 8:
            self.out[self.at] = self.held & 0xFF
            self.at += 1
            self.held >>= 8
            self.bits -= 8
        return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _slot(a: cython.int, b: cython.int, c: cython.int) -> cython.int:
    """Where the table has the latest place of three bytes."""
    return (a * 2_654_435 + b * 40_503 + c * 641) >> 3 & 4095


def _reversed(code: int, size: int) -> int:
    """Huffman codes go out highest bit first, everything else lowest first."""
    return int(f"{code:0{size}b}"[::-1], 2)


def _literal(symbol: int) -> tuple[int, int]:
    """The fixed code of a literal or length symbol, reversed, and its bits."""
    first, base, size = next(
        row
        for row in ((280, 0xC0, 8), (256, 0, 7), (144, 0x190, 9), (0, 0x30, 8))
        if symbol >= row[0]
    )
    return _reversed(base + symbol - first, size), size


def _run(length: int, codes: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, int]:
    """Code and extra bits of a match's length."""
    if length < 3:
        return 0, 0
    place = max(i for i, first in enumerate(_LENGTHS) if first <= length)
    extra = 0 if place < 8 or place == 28 else place // 4 - 1
    size = sizes[257 + place]
    return codes[257 + place] | (length - _LENGTHS[place]) << size, size + extra


def _distance(distance: int) -> tuple[int, int]:
    """Code and extra bits of a match's distance."""
    if distance < 1:
        return 0, 0
    place = max(i for i, first in enumerate(_DISTANCES) if first <= distance)
    extra = 0 if place < 4 else place // 2 - 1
    return _reversed(place, 5) | (distance - _DISTANCES[place]) << 5, 5 + extra
