# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Sizes of messages that do not carry their length: the layout of their type says it.

A `SizeTable` has for each message type the bytes of its fixed fields, and the parts behind them in
order, each as a few numbers: under which condition it is there, how many elements it has, and how
long one is. `layout_size` adds them up for one message.

Promises: reads no byte beyond those that are there; allocates nothing. The compiled module and this
file, interpreted, agree on every input.
"""

import cython

from feedhandler.codecs.visibility import Public

#: Parts of all message types of a feed together.
PARTS_MAX = 1024
#: Numbers that describe a part (`SizeTable.add_part`).
PART_NUMBERS = 8


@cython.cclass
class SizeTable:
    """The sizes of a feed's messages by the slot of their type in the `FeedTable`.

    `header_size` and `block_at`, `block_size`: where messages give how many bytes of fixed fields
    follow their header (size 0: they do not, and `fixed` has their bytes).
    """

    big_endian: Public[cython.bint]
    header_size: Public[cython.int]
    block_at: Public[cython.int]
    block_size: Public[cython.int]
    part_count: Public[cython.int]
    fixed: cython.uint[256]
    first_part: cython.int[256]
    part_end: cython.int[256]
    parts: cython.int[1024][8]
    mask: cython.ulonglong[1024]
    among: cython.uchar[1024][256]

    def __init__(self) -> None:
        self.big_endian = False
        self.header_size = self.block_at = self.block_size = 0
        self.part_count = 0
        if not cython.compiled:
            self.fixed = [0] * 256
            self.first_part = [0] * 256
            self.part_end = [0] * 256
            self.parts = [[0] * PART_NUMBERS for _ in range(PARTS_MAX)]
            self.mask = [0] * PARTS_MAX
            self.among = [bytearray(256) for _ in range(PARTS_MAX)]

    def set_fixed(self, slot: cython.uchar, size: cython.uint) -> None:
        """Set the bytes of the fixed fields of a slot's messages; `add_part` adds what follows."""
        self.fixed[slot] = size
        self.first_part[slot] = self.part_end[slot] = self.part_count

    def add_part(
        self, slot: cython.uchar, numbers: list[int], values: bytes, mask: cython.ulonglong
    ) -> None:
        """Add a part to the slot that `set_fixed` was called for last.

        `numbers`, of each field its offset and its size (0: there is none): the field that decides
        whether the part is there, counted from the message's first byte; the bytes in front of the
        elements; the number of elements, counted from those bytes, or where there are none from the
        message's first; in those bytes the size of an element; that size where it is not given.
        The part is there where `mask` has a bit of the deciding field; with a mask of 0 where
        `values`, 256 bytes, has 1 for its value. Raises ValueError for more than `PARTS_MAX`.
        """
        index: cython.int
        if self.part_count >= PARTS_MAX:
            raise ValueError(f"more than {PARTS_MAX} parts of messages")
        for index in range(PART_NUMBERS):
            self.parts[self.part_count][index] = numbers[index]
        for index in range(256):
            self.among[self.part_count][index] = values[index]
        self.mask[self.part_count] = mask
        self.part_count += 1
        self.part_end[slot] = self.part_count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _integer(
    first: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.int, big: cython.bint
) -> cython.ulonglong:
    """Return the unsigned integer of `size` bytes at `at`."""
    value: cython.ulonglong = 0
    index: cython.int
    for index in range(size):
        value = (value << 8) | first[at + (index if big else size - 1 - index)]
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def layout_size(
    sizes: SizeTable, first: cython.p_const_uchar, slot: cython.int, room: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the size of the message of a slot that begins at `first`, its parts included.

    `room` bytes are there, the message's header among them; the answer is `room` + 1 where the
    message does not end within them. One of slot 0, an unknown type, takes all of them: nothing
    says where it ends.
    """
    big: cython.bint = sizes.big_endian
    fixed: cython.Py_ssize_t = sizes.fixed[slot]
    index: cython.int
    if slot == 0:
        return room
    if sizes.block_size:
        fixed = sizes.header_size + cython.cast(
            cython.Py_ssize_t, _integer(first, sizes.block_at, sizes.block_size, big)
        )
    size: cython.Py_ssize_t = fixed
    for index in range(sizes.first_part[slot], sizes.part_end[slot]):
        if size > room:
            return room + 1
        part: cython.p_int = sizes.parts[index]
        if part[1]:
            if part[0] + part[1] > fixed:
                continue  # a shorter block of an earlier version has no such field
            value: cython.ulonglong = _integer(first, part[0], part[1], big)
            if sizes.mask[index]:
                if not value & sizes.mask[index]:
                    continue
            elif not sizes.among[index][value & 0xFF]:
                continue
        if size + part[2] > room:
            return room + 1
        count: cython.Py_ssize_t = 1
        element: cython.Py_ssize_t = part[7]
        if part[4]:
            at: cython.Py_ssize_t = size + part[3] if part[2] else part[3]
            if part[2] == 0 and at + part[4] > fixed:
                continue
            count = _integer(first, at, part[4], big)
        if part[6]:
            element = _integer(first, size + part[5], part[6], big)
        size += part[2] + count * element
    return size if size <= room else room + 1
