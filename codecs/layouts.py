"""Message layouts: bytes to a record and back.

A `Layout` is built by the loader from a description that it has checked. It knows the offset of
every field and owns a record class (`msgspec.Struct`) whose attributes are the fields' names in
snake_case, plus the full times that the feed's time rules make of them. Reserved bytes have no
attribute: they are written as zeros and skipped in reading, as is whatever follows the layout.

Decoded values: integers as they are; text up to its first NUL, without trailing spaces; single
characters (`c1`) as they are, NUL as ""; fields with a price scale as `Price` (of unknown scale
where the message's scale code means nothing); a field's null value as None. Bits that a
description names are read-only attributes of the record, beside the field that they are part of.
What follows the fixed fields (groups, texts, conditional blocks) is in `parts`.
"""

import functools
import math
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

import msgspec

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.prices import Price, ScaleCodes, to_raw
from feedhandler.codecs.times import DecodeContext, TimeReader

if TYPE_CHECKING:
    from feedhandler.codecs.parts import Group, Part

ByteOrder = Literal["big", "little"]

#: struct letters of integers, by size; other sizes are converted one by one.
_LETTERS = {1: "b", 2: "h", 4: "i", 8: "q"}
_CHARACTERS = ["" if code == 0 else chr(code) for code in range(256)]


def in_reference(price: int | str | None) -> bool:
    """Return whether reference data gives a price's decimals: `reference`, `reference.USE`."""
    return isinstance(price, str) and price.partition(".")[0] == "reference"


class Field(msgspec.Struct, frozen=True):
    """One field of a layout.

    `at` counts from the message's first byte (a control packet's: from the end of the packet
    header; an element's: from the element's first byte).
    """

    name: str
    wire: str
    at: int
    size: int
    kind: str
    """`u` or `i` integer, `f` floating point, `c` text, `x` reserved bytes"""
    price: int | str | None = None
    """decimal places, or the name of the field that holds them, or `reference`, `reference.USE`"""
    values: dict[str, str] = {}
    pad: str = "nul"
    doc: str = ""
    exponent: str = ""
    """the field with the price's power of ten: as many decimals as it is below 0"""
    null: int | None = None
    """the integer that means that there is no value"""
    constant: int | None = None
    """what is written where no value is given"""
    bits: dict[str, tuple[int, int]] = {}
    """named bits: the lowest one's number, and how many they are"""
    byte_order: Literal["", "big", "little"] = ""
    """the field's own, where it differs from its block's"""
    decimals: ScaleCodes | None = None
    """of a scale's field: what its values mean, where they are codes"""
    scale_codes: ScaleCodes | None = None
    """of a price whose scale a field of the message gives: what that field's values mean"""

    @property
    def code(self) -> str:
        """The field's format for the `struct` module; `s` for integers that it does not know."""
        if self.kind == "x":
            return f"{self.size}x"
        if self.kind == "c" or self.is_odd:
            return f"{self.size}s"
        if self.kind == "f":
            return "f" if self.size == 4 else "d"
        letter = _LETTERS[self.size]
        return letter.upper() if self.kind == "u" else letter

    @property
    def is_odd(self) -> bool:
        """Return whether it is an integer that `struct` cannot read together with the others."""
        return self.kind in "ui" and (self.size not in _LETTERS or bool(self.byte_order))

    @property
    def absent(self) -> float:
        """Value written where none is given: the constant, else the null value, else 0; of
        floating point, NaN."""
        if self.kind == "f":
            return math.nan
        if self.constant is not None:
            return self.constant
        return 0 if self.null is None else self.null

    def integer(self, data: bytes, byte_order: ByteOrder) -> int:
        """Return the integer in `data`, by the field's own byte order or else by `byte_order`."""
        return int.from_bytes(data, self.byte_order or byte_order, signed=self.kind == "i")

    def integer_bytes(self, value: int, byte_order: ByteOrder) -> bytes:
        """Return the bytes of an integer. Raises `struct.error` where it does not fit."""
        order = self.byte_order or byte_order
        try:
            return int(value).to_bytes(self.size, order, signed=self.kind == "i")
        except OverflowError:
            raise struct.error(f"does not fit into {self.size} bytes") from None


class Leaf(NamedTuple):
    """One field of a packet as it stands in the bytes: name, first byte, size and value.

    `at` counts from the packet's first byte. Bits are leaves of their own, at their field's offset.
    """

    name: str
    at: int
    size: int
    value: Any


class CutShort(Exception):
    """A message that ends inside one of its parts, which the text names."""


class Record(msgspec.Struct):
    """Base of every decoded message, control body and group element."""

    layout: ClassVar["Block"]

    def wire(self) -> dict[str, Any]:
        """Return the field values under the specification's own names, prices as wire integers."""
        return {
            field.wire: _raw_value(getattr(self, field.name))
            for field in self.layout.fields
            if field.kind != "x"
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values.

        Prices are floats (a price of unknown scale: its integer under `<name>_raw`), groups are
        lists, full times integers in ns.
        """
        plain: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, Price):
                if value.known:
                    plain[name] = float(value)
                else:
                    plain[f"{name}_raw"] = value.raw
            elif isinstance(value, tuple):
                plain[name] = [element.to_dict() for element in value]
            elif isinstance(value, Record):
                plain[name] = value.to_dict()
            else:
                plain[name] = value
        for name in self.layout.bit_names:
            plain[name] = getattr(self, name)
        return plain


class UnknownMessage(msgspec.Struct):
    """A message that could be framed but not decoded; `data` is the whole message.

    Its type is not in the description, or it is shorter than its layout (`reason` says which).
    """

    type: int | str
    data: bytes
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: the reason, and the bytes in hexadecimal."""
        return {"reason": self.reason, "data": self.data.hex()}


def _raw_value(value: Any) -> Any:
    if isinstance(value, Price):
        return value.raw
    if isinstance(value, tuple):
        return [element.wire() for element in value]
    if isinstance(value, Record):
        return value.wire()
    return value


def _bit_property(field: str, shift: int, width: int) -> property:
    """Return the attribute of named bits of a field; None where the field is None."""

    def read(record: Any) -> int | None:
        value = getattr(record, field)
        return None if value is None else (value >> shift) & ((1 << width) - 1)

    return property(read)


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].rstrip(b" ").decode("latin-1")


class Block:
    """A run of fields with fixed offsets: a message's fixed part, a control body, an element.

    `size` counts from offset 0; bytes before the first field (a message's own header) and between
    fields are skipped in reading and written as zeros.
    """

    def __init__(
        self,
        name: str,
        size: int,
        fields: Sequence[Field],
        byte_order: ByteOrder,
        times: Sequence[tuple[str, TimeReader]] = (),
        parts: "Sequence[Part]" = (),
    ) -> None:
        self.name = name
        self.size = size
        self.fields = tuple(fields)
        self.times = tuple(times)
        self.byte_order = byte_order
        self.parts = tuple(parts)
        self.named = [field for field in self.fields if field.kind != "x"]
        self.by_name = {field.name: field for field in self.named}
        self._struct = struct.Struct(self._format(byte_order))
        self._characters = [
            i for i, field in enumerate(self.named) if field.kind == "c" and field.size == 1
        ]
        self._texts = [
            i for i, field in enumerate(self.named) if field.kind == "c" and field.size > 1
        ]
        self._floats = [i for i, field in enumerate(self.named) if field.kind == "f"]
        self._odd = [(i, field) for i, field in enumerate(self.named) if field.is_odd]
        self._nulls = [
            (i, field.null) for i, field in enumerate(self.named) if field.null is not None
        ]
        self._prices = self._price_scales()
        self.bit_names = [name for field in self.named for name in field.bits]
        self.record = self._record_class()

    def _format(self, byte_order: ByteOrder) -> str:
        codes = [">" if byte_order == "big" else "<"]
        at = 0
        for field in self.fields:
            if field.at > at:
                codes.append(f"{field.at - at}x")
            codes.append(field.code)
            at = field.at + field.size
        if self.size > at:
            codes.append(f"{self.size - at}x")
        return "".join(codes)

    def _price_scales(self) -> list[tuple[int, int | None, int | None, str, ScaleCodes | None]]:
        """Return the position and the scale of each price.

        The scale is a constant, the position of the field that holds it, or the name under which
        the caller gives it; the last two are read by their codes, if there are any.
        """
        positions = {field.name: i for i, field in enumerate(self.named)}
        scales: list[tuple[int, int | None, int | None, str, ScaleCodes | None]] = []
        for i, field in enumerate(self.named):
            name = field.exponent or field.price
            if isinstance(name, int):
                scales.append((i, name, None, "", None))
            elif name is not None:
                scales.append((i, None, positions.get(name), name, field.scale_codes))
        return scales

    def _record_class(self) -> type[Record]:
        members: list[tuple[str, Any, Any]] = []
        for field in self.named:
            if field.price is not None or field.exponent:
                members.append((field.name, Price, Price(0, None)))
            elif field.kind == "c":
                members.append((field.name, str, ""))
            elif field.kind == "f":
                members.append((field.name, float | None, None))
            elif field.null is not None:
                members.append((field.name, int | None, None))
            else:
                members.append((field.name, int, field.constant or 0))
        members.extend((part.name, Any, part.nothing) for part in self.parts)
        members.extend((name, int | None, None) for name, _ in self.times)
        title = "".join(word.capitalize() for word in self.name.split("_"))
        namespace: dict[str, Any] = {"layout": self}
        for field in self.named:
            for name, (shift, width) in field.bits.items():
                namespace[name] = _bit_property(field.name, shift, width)
        record = msgspec.defstruct(
            title, members, bases=(Record,), namespace=namespace, gc=bool(self.parts)
        )
        return cast(type[Record], record)

    def values(
        self, data: bytes, at: int, context: DecodeContext, scales: Mapping[str, Any]
    ) -> list[Any]:
        """Return the record's values, in order, of the block at `at`, without the group.

        `scales` gives the decimal places of prices whose scale is not in the message.
        """
        raw: list[Any] = list(self._struct.unpack_from(data, at))
        for i, field in self._odd:
            raw[i] = field.integer(raw[i], self.byte_order)
        times = [reader(raw, context) for _, reader in self.times]
        for i in self._characters:
            raw[i] = _CHARACTERS[raw[i][0]]
        for i in self._texts:
            raw[i] = _text(raw[i])
        if self._prices:
            for i, decimals, index, name, codes in self._prices:
                if name:
                    decimals = scales.get(name) if index is None else raw[index]
                if codes is not None:
                    decimals = codes.decimals_of(decimals)
                raw[i] = Price(raw[i], decimals)
        for i in self._floats:
            if raw[i] != raw[i]:  # NaN
                raw[i] = None
        for i, null in self._nulls:
            value = raw[i]
            if (value.raw if isinstance(value, Price) else value) == null:
                raw[i] = None
        return raw + times if times else raw

    def read(
        self,
        data: bytes,
        at: int,
        end: int,
        fixed: int,
        context: DecodeContext,
        scales: Mapping[str, int | None],
    ) -> tuple[Record, int]:
        """Decode the record at `at`, of whose bytes the first `fixed` are its fixed part.

        Returns it with the first byte behind its parts. A fixed part that is shorter than the block
        (of an earlier version) is read as if nulls followed. Raises `CutShort` where a part does
        not end by `end`.
        """
        if fixed >= self.size:
            values = self.values(data, at, context, scales)
        else:
            whole = data[at : at + fixed] + self.nulls[fixed:]
            values = self.values(whole, 0, context, scales)
        at += fixed
        if not self.parts:
            return self.record(*values), at
        count = len(self.named)
        known = self.known(values, scales)
        for part in self.parts:
            value, at = part.read(data, at, end, known, context)
            values.insert(count, value)
            count += 1
        return self.record(*values), at

    def known(self, values: Sequence[Any], outer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of fields and bits by name, in front of those of the record around."""
        known = {**outer, **dict(zip(self.by_name, values, strict=False))}
        for field in self.named:
            value = known[field.name]
            for name, (shift, width) in field.bits.items():
                known[name] = None if value is None else (value >> shift) & ((1 << width) - 1)
        return known

    @functools.cached_property
    def _blank(self) -> list[Any]:
        """Values packed of a block of which no field is given."""
        return [
            self._pack_text(field, "") if field.kind == "c" else field.absent
            for field in self.named
        ]

    @functools.cached_property
    def _indexed(self) -> dict[str, tuple[int, Field]]:
        """Each field by its name, with its index among the others."""
        return {field.name: (i, field) for i, field in enumerate(self.named)}

    @functools.cached_property
    def nulls(self) -> bytes:
        """The bytes of a block whose fields have no values: null values, else zeros."""
        return self.pack({field.name: None for field in self.named if field.null is not None}, {})

    def leaves(
        self, data: bytes, at: int, end: int, fixed: int, known: Mapping[str, Any]
    ) -> Generator[Leaf, None, int]:
        """Yield each field of the record at `at`, as in `read`, and return the byte behind it.

        Values are the wire's: prices as integers, no nulls. Fields that the fixed part is too short
        for are left out.
        """
        whole = data[at : at + fixed].ljust(self.size, b"\0")
        raw = self.wire_values(whole, 0)
        for field, value in zip(self.named, raw, strict=True):
            if field.at + field.size > fixed:
                continue
            if not field.bits:
                yield Leaf(field.wire, at + field.at, field.size, value)
            for name, (shift, width) in field.bits.items():
                bits = (value >> shift) & ((1 << width) - 1)
                yield Leaf(name, at + field.at, field.size, bits)
        at += fixed
        inner = self.known(raw, known)
        for part in self.parts:
            at = yield from part.leaves(data, at, end, inner)
        return at

    def wire_values(self, data: bytes, at: int) -> list[Any]:
        """Return the fields' values as on the wire: integers, and text without blanks."""
        raw: list[Any] = list(self._struct.unpack_from(data, at))
        for i, field in self._odd:
            raw[i] = field.integer(raw[i], self.byte_order)
        for i in self._characters:
            raw[i] = _CHARACTERS[raw[i][0]]
        for i in self._texts:
            raw[i] = _text(raw[i])
        return raw

    def pack(self, values: Mapping[str, Any], scales: Mapping[str, int | None]) -> bytes:
        """Encode the block. Fields not in `values` are 0 or blank.

        Raises `UsageError` for a name that is no field and for a value that does not fit.
        """
        values = self._with_bits(values)
        if not values.keys() <= self.by_name.keys():
            unknown = sorted(values.keys() - self.by_name.keys())
            raise UsageError(
                f"{self.name} has no field {', '.join(unknown)}",
                f"its fields are {', '.join(self.by_name)}",
            )
        # Most messages give few of a block's fields: only those are looked at.
        packed, indexed = self._blank.copy(), self._indexed
        for name, value in values.items():
            if value is None:
                continue
            i, field = indexed[name]
            if field.kind == "c":
                packed[i] = self._pack_text(field, value or "")
            elif (field.price is not None or field.exponent) and type(value) is not int:
                packed[i] = to_raw(value, self._scale(field, values, scales), name)
            else:
                packed[i] = value
        try:
            whole = packed.copy() if self._odd else packed
            for i, field in self._odd:
                whole[i] = field.integer_bytes(packed[i], self.byte_order)
            return self._struct.pack(*whole)
        except (struct.error, OverflowError) as error:
            raise UsageError(
                f"{self.name}: {self._culprit(packed)}: {error}", "give a value that fits the field"
            ) from error

    def write(self, values: Mapping[str, Any], scales: Mapping[str, int | None]) -> bytes:
        """Encode the record with its parts. Full times in `values` are ignored.

        Counts of groups and conditions of blocks are set to fit what is given, where they are not
        given themselves. Raises `UsageError` as `pack` does.
        """
        own = dict(values)
        for name, _ in self.times:
            own.pop(name, None)
        given = [(part, own.pop(part.name, part.nothing)) for part in self.parts]
        for part, value in given:
            part.prepare(value, own)
        fixed = self.pack(own, scales)
        if not given:
            return fixed
        known = {**scales, **self.known(self.wire_values(fixed, 0), {})}
        return fixed + b"".join(part.write(value, known) for part, value in given)

    def _with_bits(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values with named bits put into the fields that they are part of."""
        given = [name for name in self.bit_names if name in values]
        if not given:
            return values
        whole = {name: value for name, value in values.items() if name not in self.bit_names}
        for field in self.named:
            for name, (shift, width) in field.bits.items():
                if name in given:
                    mask = (1 << width) - 1
                    if not 0 <= int(values[name] or 0) <= mask:
                        raise UsageError(
                            f"{self.name}: {name} = {values[name]!r} has more than {width} bits",
                            f"give a value of 0..{mask}",
                        )
                    kept = int(whole.get(field.name) or 0) & ~(mask << shift)
                    whole[field.name] = kept | int(values[name] or 0) << shift
        return whole

    def _culprit(self, packed: Sequence[Any]) -> str:
        for field, value in zip(self.named, packed, strict=True):
            try:
                if field.is_odd:
                    field.integer_bytes(value, self.byte_order)
                else:
                    struct.pack("<" + field.code, value)
            except (struct.error, OverflowError):
                return f"{field.name} = {value!r}"
        return "values"

    def _scale(
        self, field: Field, values: Mapping[str, Any], scales: Mapping[str, int | None]
    ) -> int | None:
        if isinstance(field.price, int):
            return field.price
        name = field.exponent or str(field.price)
        value = values.get(name, 0) if name in self.by_name else scales.get(name)
        return value if field.scale_codes is None else field.scale_codes.decimals_of(value)

    def _pack_text(self, field: Field, value: str) -> bytes:
        data = value.encode("latin-1", "replace") if isinstance(value, str) else bytes(value)
        if len(data) > field.size:
            raise UsageError(
                f"{self.name}: {field.name} = {value!r} is longer than {field.size} bytes",
                "shorten the text",
            )
        # A single character is decoded unchanged, so its blank is NUL whatever the padding.
        blank = b" " if field.pad == "space" and field.size > 1 else b"\0"
        return data.ljust(field.size, blank)


class Layout(Block):
    """The layout of one message type (or control packet): a block, and what follows it.

    `conflate` says what replaces such a message where it waits too long: a newer one of the same
    symbol and the same fields `conflate_by` (`latest`), the symbol's book (`book`), or nothing
    (`never`). `revokes` are the names of messages that no longer hold when it comes. `fixed_size`,
    where messages give how long their fixed part is, reads it from a whole message's bytes.
    """

    def __init__(
        self,
        name: str,
        size: int,
        fields: Sequence[Field],
        byte_order: ByteOrder,
        *,
        code: int,
        label: int | str,
        title: str = "",
        doc: str = "",
        symbol: str = "",
        conflate: str = "never",
        conflate_by: Sequence[str] = (),
        revokes: Sequence[str] = (),
        times: Sequence[tuple[str, TimeReader]] = (),
        parts: "Sequence[Part]" = (),
        symbols: "tuple[Group, Field] | None" = None,
        fixed_size: Callable[[bytes, int], int] | None = None,
        least_size: int | None = None,
    ) -> None:
        self.code = code
        self.label = label
        self.title = title
        self.doc = doc
        self.symbol = symbol
        self.conflate = conflate
        self.conflate_by = tuple(conflate_by)
        self.revokes = tuple(revokes)
        #: The group whose elements name the symbols, and the field that does.
        self.symbols = symbols
        if symbols is not None:
            symbols[0].symbol = symbols[1]
        self.fixed_size = fixed_size
        #: Messages shorter than this are left undecoded.
        self.least_size = size if least_size is None else least_size
        super().__init__(name, size, fields, byte_order, times, parts)

    @property
    def group(self) -> Block | None:
        """The elements that stand right behind the fixed fields; None where there are none such.

        They are counted in front of them, or go on to the message's end.
        """
        part = self.parts[0] if self.parts else None
        return part.elements if part is not None and part.is_plain_group else None

    def decode(
        self,
        data: bytes,
        at: int,
        size: int,
        context: DecodeContext,
        scales: Mapping[str, int | None],
    ) -> Record:
        """Decode the message of `size` bytes at `at`; `size` must be at least `least_size`.

        Raises `CutShort` where it ends inside a part.
        """
        if self.fixed_size is None and not self.parts:  # most messages
            return self.record(*self.values(data, at, context, scales))
        fixed = self.fixed(data, at, size)
        return self.read(data, at, at + size, fixed, context, scales)[0]

    def fixed(self, data: bytes, at: int, size: int) -> int:
        """Return the bytes of the message's fixed part, its header included.

        Raises `CutShort` where it would reach past the message.
        """
        if self.fixed_size is None:
            return self.size
        fixed = self.fixed_size(data, at)
        if fixed > size:
            raise CutShort(f"its fixed part of {fixed} bytes")
        return fixed

    def encode(self, values: Mapping[str, Any], scales: Mapping[str, int | None]) -> bytearray:
        """Encode the message, its own header still zero. Full times in `values` are ignored."""
        return bytearray(self.write(values, scales))


def record_values(record: Record) -> dict[str, Any]:
    """Return a record's attributes by name, one level deep."""
    return {name: getattr(record, name) for name in record.__struct_fields__}
