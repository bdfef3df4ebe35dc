"""Parts of a message behind its fixed fields: groups, texts, and blocks under a condition.

A `Layout`, and each element of a group, is a `Block` of fixed fields and a sequence of parts, each
of which begins where the one before ends. A part reads its value from the bytes and writes it back:

Group        elements that repeat: as often as a count says that stands before them or among the
             fields, or to the end of the message; a tuple of records
Text         text of a length that stands before it; a `str`
Conditional  fields that are there under a condition; a record, or None

`known` holds the values of the fields that were read before, by name, from the message inwards.
"""

import abc
import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.layouts import (
    Block,
    ByteOrder,
    CutShort,
    Field,
    Leaf,
    Record,
    record_values,
)
from feedhandler.codecs.times import DecodeContext


class Condition(msgspec.Struct, frozen=True):
    """A part's condition: a field's value, its bits, or what is left of the message."""

    field: str = ""
    among: tuple[int | str, ...] = ()
    mask: int = 0
    left: int = 0

    def holds(self, known: Mapping[str, Any], left: int) -> bool:
        """Return whether the part is there, `left` bytes before the message's end."""
        if left < self.left:
            return False
        if not self.field:
            return True
        value = known.get(self.field)
        if value is None:
            return False
        return bool(value & self.mask) if self.mask else value in self.among

    def prepare(self, values: dict[str, Any]) -> None:
        """Set the field so that the condition holds, where `values` has no value for it."""
        if self.field and self.mask:
            values[self.field] = int(values.get(self.field) or 0) | self.mask
        elif self.field and not values.get(self.field):
            values[self.field] = self.among[0]


class Dimensions(msgspec.Struct, frozen=True):
    """Fields in front of a group's elements: `count` of them, and the size of their fixed part."""

    size: int
    count: Field
    block_length: Field | None
    byte_order: ByteOrder

    def read(self, data: bytes, at: int) -> tuple[int, int | None]:
        """Return the number of elements, and the size of each; None where that is not given."""
        count = self._integer(data, at, self.count)
        if self.block_length is None:
            return count, None
        return count, self._integer(data, at, self.block_length)

    def write(self, count: int, size: int) -> bytes:
        """Return the bytes. Raises `UsageError` where there are too many elements."""
        data = bytearray(self.size)
        for field, value in ((self.count, count), (self.block_length, size)):
            if field is not None:
                if value >= 1 << 8 * field.size:
                    raise UsageError(f"{value} is too much for {field.size} bytes")
                data[field.at : field.at + field.size] = field.integer_bytes(value, self.byte_order)
        return bytes(data)

    def leaves(self, data: bytes, at: int) -> Iterator[Leaf]:
        """Yield its fields."""
        for field in sorted(
            filter(None, (self.block_length, self.count)), key=lambda each: each.at
        ):
            yield Leaf(field.wire, at + field.at, field.size, self._integer(data, at, field))

    def _integer(self, data: bytes, at: int, field: Field) -> int:
        return field.integer(data[at + field.at : at + field.at + field.size], self.byte_order)


class Part(abc.ABC):
    """Base of all parts: a `name`, and `nothing`, the value of one that is not there."""

    nothing: Any = None
    #: Whether its elements fill the message to its end.
    to_the_end = False
    #: Whether it is a group of even elements that nothing before it decides about.
    is_plain_group = False

    def __init__(self, name: str, elements: Block, when: Condition | None = None) -> None:
        self.name = name
        self.elements = elements
        self.when = when

    @abc.abstractmethod
    def read(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any], context: DecodeContext
    ) -> tuple[Any, int]:
        """Return the part's value and the first byte behind it. Raises `CutShort`."""

    @abc.abstractmethod
    def leaves(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any]
    ) -> Generator[Leaf, None, int]:
        """Yield its fields as they stand in the bytes, and return the byte behind the part."""

    def prepare(self, value: Any, values: dict[str, Any]) -> None:
        """Set what the fields before the part have to say of it, where `values` do not."""
        if self.when is not None and value != self.nothing:
            self.when.prepare(values)

    @abc.abstractmethod
    def write(self, value: Any, known: Mapping[str, Any]) -> bytes:
        """Return the part's bytes. Raises `UsageError` for values that do not fit."""

    def _is_absent(self, known: Mapping[str, Any], left: int) -> bool:
        return self.when is not None and not self.when.holds(known, left)


class Group(Part):
    """Elements that repeat.

    `dimensions` precede them; or `count` names the field with their number; without both they go
    on to the message's end, and what is too short for another one is left. `length` is the field
    of an element that gives its size, without `length_add`: a longer element of a later version is
    read as far as it is known.
    """

    nothing: Any = ()

    def __init__(
        self,
        name: str,
        elements: Block,
        when: Condition | None = None,
        *,
        dimensions: Dimensions | None = None,
        count: str = "",
        length: Field | None = None,
        length_add: int = 0,
    ) -> None:
        super().__init__(name, elements, when)
        self.dimensions = dimensions
        self.count = count
        self.length = length
        self.length_add = length_add
        #: The field that names each element's symbol, where one does.
        self.symbol: Field | None = None
        self.to_the_end = dimensions is None and not count
        self.is_plain_group = not count and when is None and not elements.parts and length is None

    def read(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any], context: DecodeContext
    ) -> tuple[tuple[Record, ...], int]:
        """Return the elements and the first byte behind them. Raises `CutShort`."""
        if self._is_absent(known, end - at):
            return (), at
        number, size, at = self._begin(data, at, end, known)
        records: list[Record] = []
        for _ in range(number):
            size = self._size(data, at, size, end)
            self._check(at, size, end, len(records), number)
            if size < self.elements.size and context.note_short is not None:
                context.note_short(self.name, at, size, self.elements.size)
            inner = known
            if self.symbol is not None and context.scales_of is not None:
                begin = at + self.symbol.at
                scales = context.scales_of(self.symbol, data[begin : begin + self.symbol.size])
                inner = {**known, **scales}
            element, at = self.elements.read(data, at, end, size, context, inner)
            records.append(element)
        return tuple(records), at

    def leaves(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any]
    ) -> Generator[Leaf, None, int]:
        """Yield the fields of the dimensions and of each element."""
        if self._is_absent(known, end - at):
            return at
        if self.dimensions is not None and end - at >= self.dimensions.size:
            yield from self.dimensions.leaves(data, at)
        number, size, at = self._begin(data, at, end, known)
        for each in range(number):
            size = self._size(data, at, size, end)
            self._check(at, size, end, each, number)
            at = yield from self.elements.leaves(data, at, end, size, known)
        return at

    def _begin(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any]
    ) -> tuple[int, int, int]:
        """Return the number of elements, the size of a fixed part, and the first one's offset."""
        size = self.elements.size
        if self.dimensions is not None:
            if end - at < self.dimensions.size:
                raise CutShort(f"the dimensions of {self.name}")
            number, block_size = self.dimensions.read(data, at)
            return number, size if block_size is None else block_size, at + self.dimensions.size
        if self.count:
            return int(known.get(self.count) or 0), size, at
        return (end - at) // size, size, at

    def _size(self, data: bytes, at: int, size: int, end: int) -> int:
        """Return the size of the element at `at`: its own, or else `size`."""
        field = self.length
        if field is None or at + field.at + field.size > end:
            return size
        raw = data[at + field.at : at + field.at + field.size]
        return max(field.integer(raw, self.elements.byte_order) + self.length_add, field.at + 1)

    def _check(self, at: int, size: int, end: int, index: int, number: int) -> None:
        if end - at < size:
            raise CutShort(f"element {index + 1} of {number} of {self.name}")

    def prepare(self, value: Any, values: dict[str, Any]) -> None:
        """Set the field with the number of elements, where it is not given."""
        super().prepare(value, values)
        if self.count and not values.get(self.count):
            values[self.count] = len(value)

    def write(self, value: Sequence[Any], known: Mapping[str, Any]) -> bytes:
        """Return the bytes of the elements, which are records or mappings, dimensions first."""
        if not value and self._is_absent(known, 0):
            return b""
        head = b""
        if self.dimensions is not None:
            head = self.dimensions.write(len(value), self.elements.size)
        return head + b"".join(self._element(each, known) for each in value)

    def _element(self, value: Any, known: Mapping[str, Any]) -> bytes:
        """Return the bytes of one element, its own length set."""
        data = _written(self.elements, value, known)
        if self.length is None:
            return data
        try:
            length = self.length.integer_bytes(
                len(data) - self.length_add, self.elements.byte_order
            )
        except struct.error:
            reason = (
                f"an element of {self.name} has {len(data)} bytes, which its length cannot express"
            )
            raise UsageError(reason) from None
        return data[: self.length.at] + length + data[self.length.at + self.length.size :]


class Text(Part):
    """Text of a length that stands before it; `elements` is the block with that length alone."""

    nothing: Any = ""

    def __init__(
        self, name: str, elements: Block, when: Condition | None = None, wire: str = ""
    ) -> None:
        super().__init__(name, elements, when)
        self.wire = wire or name

    def read(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any], context: DecodeContext
    ) -> tuple[str, int]:
        """Return the text and the first byte behind it. Raises `CutShort`."""
        if self._is_absent(known, end - at):
            return "", at
        at, behind = self._span(data, at, end)
        return data[at:behind].decode("latin-1"), behind

    def leaves(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any]
    ) -> Generator[Leaf, None, int]:
        """Yield length and text."""
        if self._is_absent(known, end - at):
            return at
        begin, behind = self._span(data, at, end)
        yield from self.elements.leaves(data, at, end, begin - at, known)
        if behind > begin:
            yield Leaf(self.wire, begin, behind - begin, data[begin:behind].decode("latin-1"))
        return behind

    def _span(self, data: bytes, at: int, end: int) -> tuple[int, int]:
        """Return the text's first byte and the one behind it."""
        begin = at + self.elements.size
        if begin > end:
            raise CutShort(f"the length of {self.name}")
        behind = begin + self.elements.wire_values(data, at)[0]
        if behind > end:
            raise CutShort(f"{self.name} of {behind - begin} bytes")
        return begin, behind

    def write(self, value: str | bytes, known: Mapping[str, Any]) -> bytes:
        """Return length and text."""
        if not value and self._is_absent(known, 0):
            return b""
        data = value.encode("latin-1", "replace") if isinstance(value, str) else bytes(value)
        return self.elements.pack({self.elements.named[0].name: len(data)}, {}) + data


class Conditional(Part):
    """Fields that are there under the condition `when`, or always."""

    def read(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any], context: DecodeContext
    ) -> tuple[Record | None, int]:
        """Return the record, or None, and the first byte behind it. Raises `CutShort`."""
        if self._is_absent(known, end - at):
            return None, at
        self._check(at, end)
        return self.elements.read(data, at, end, self.elements.size, context, known)

    def leaves(
        self, data: bytes, at: int, end: int, known: Mapping[str, Any]
    ) -> Generator[Leaf, None, int]:
        """Yield the fields."""
        if self._is_absent(known, end - at):
            return at
        self._check(at, end)
        return (yield from self.elements.leaves(data, at, end, self.elements.size, known))

    def _check(self, at: int, end: int) -> None:
        if end - at < self.elements.size:
            raise CutShort(self.name)

    def write(self, value: Any, known: Mapping[str, Any]) -> bytes:
        """Return the bytes of the record or mapping; none for None, where that may be absent."""
        if value is None:
            return b"" if self.when is not None else self.elements.nulls
        return _written(self.elements, value, known)


def _written(block: Block, value: Any, known: Mapping[str, Any]) -> bytes:
    plain = record_values(value) if isinstance(value, Record) else value
    return block.write(plain, known)
