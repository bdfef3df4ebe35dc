"""Message layouts: bytes to a record and back.

A `Layout` is built by the loader from a description that it has checked. It knows the offset of
every field and owns a record class (`msgspec.Struct`) whose attributes are the fields' names in
snake_case, plus the full times that the feed's time rules make of them. Reserved bytes have no
attribute: they are written as zeros and skipped in reading, as is whatever follows the layout.

Decoded values: integers as they are; text up to its first NUL, without trailing spaces; single
characters (`c1`) as they are, NUL as ""; fields with a price scale as `Price` (of unknown scale
where the message's scale code is above `SCALE_MAX`); repeated groups as tuples of element records.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import msgspec

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.prices import SCALE_MAX, Price, to_raw
from feedhandler.codecs.times import TimeContext, TimeReader

#: struct letters of the integer types, by name as in a description.
INTEGER_TYPES = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
}
_CHARACTERS = ["" if code == 0 else chr(code) for code in range(256)]


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
    """`u` or `i` integer, `c` text, `x` reserved bytes"""
    price: int | str | None = None
    """decimal places, or the name of the field that holds them, or `reference`"""
    values: dict[str, str] = {}
    pad: str = "nul"
    doc: str = ""

    @property
    def code(self) -> str:
        """The field's format for the `struct` module."""
        if self.kind == "c":
            return f"{self.size}s"
        if self.kind == "x":
            return f"{self.size}x"
        letter = {1: "b", 2: "h", 4: "i", 8: "q"}[self.size]
        return letter.upper() if self.kind == "u" else letter


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
            else:
                plain[name] = value
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
    return value


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
        byte_order: str,
        times: Sequence[tuple[str, TimeReader]] = (),
        group_name: str = "",
    ) -> None:
        self.name = name
        self.size = size
        self.fields = tuple(fields)
        self.times = tuple(times)
        self.byte_order = byte_order
        self.group_name = group_name
        self.named = [field for field in self.fields if field.kind != "x"]
        self.by_name = {field.name: field for field in self.named}
        self._struct = struct.Struct(self._format(byte_order))
        self._characters = [
            i for i, field in enumerate(self.named) if field.kind == "c" and field.size == 1
        ]
        self._texts = [
            i for i, field in enumerate(self.named) if field.kind == "c" and field.size > 1
        ]
        self._prices = self._price_places()
        self.record = self._record_class()

    def _format(self, byte_order: str) -> str:
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

    def _price_places(self) -> list[tuple[int, int | None, int | None, str]]:
        """Return the position and the scale of each price.

        The scale is a constant, the position of the field that holds it, or the name under which
        the caller gives it.
        """
        positions = {field.name: i for i, field in enumerate(self.named)}
        places: list[tuple[int, int | None, int | None, str]] = []
        for i, field in enumerate(self.named):
            if isinstance(field.price, int):
                places.append((i, field.price, None, ""))
            elif field.price is not None:
                places.append((i, None, positions.get(field.price), field.price))
        return places

    def _record_class(self) -> type[Record]:
        members: list[tuple[str, Any, Any]] = []
        for field in self.named:
            if field.price is not None:
                members.append((field.name, Price, Price(0, None)))
            elif field.kind == "c":
                members.append((field.name, str, ""))
            else:
                members.append((field.name, int, 0))
        if self.group_name:
            members.append((self.group_name, tuple, ()))
        members.extend((name, int | None, None) for name, _ in self.times)
        title = "".join(word.capitalize() for word in self.name.split("_"))
        record = msgspec.defstruct(
            title, members, bases=(Record,), namespace={"layout": self}, gc=bool(self.group_name)
        )
        return cast(type[Record], record)

    def values(
        self, data: bytes, at: int, context: TimeContext, scales: Mapping[str, int | None]
    ) -> list[Any]:
        """Return the record's values, in order, of the block at `at`, without the group.

        `scales` gives the decimal places of prices whose scale is not in the message.
        """
        raw: list[Any] = list(self._struct.unpack_from(data, at))
        times = [reader(raw, context) for _, reader in self.times]
        for i in self._characters:
            raw[i] = _CHARACTERS[raw[i][0]]
        for i in self._texts:
            raw[i] = _text(raw[i])
        if self._prices:
            for i, constant, place, name in self._prices:
                if place is not None:
                    constant = raw[place]
                elif name:
                    constant = scales.get(name)
                if constant is not None and not 0 <= constant <= SCALE_MAX:
                    constant = None  # nonsense on the wire: the price has no value
                raw[i] = Price(raw[i], constant)
        return raw + times if times else raw

    def pack(self, values: Mapping[str, Any], scales: Mapping[str, int | None]) -> bytes:
        """Encode the block. Fields not in `values` are 0 or blank.

        Raises `UsageError` for a name that is no field and for a value that does not fit.
        """
        if not values.keys() <= self.by_name.keys():
            unknown = sorted(values.keys() - self.by_name.keys())
            raise UsageError(
                f"{self.name} has no field {', '.join(unknown)}",
                f"its fields are {', '.join(self.by_name)}",
            )
        packed: list[Any] = []
        for field in self.named:
            value = values.get(field.name)
            if field.kind == "c":
                packed.append(self._pack_text(field, value or ""))
            elif value is None:
                packed.append(0)
            elif field.price is not None and type(value) is not int:
                packed.append(to_raw(value, self._scale(field, values, scales), field.name))
            else:
                packed.append(value)
        try:
            return self._struct.pack(*packed)
        except struct.error as error:
            raise UsageError(
                f"{self.name}: {self._culprit(packed)}: {error}", "give a value that fits the field"
            ) from error

    def _culprit(self, packed: Sequence[Any]) -> str:
        for field, value in zip(self.named, packed, strict=True):
            try:
                struct.pack("<" + field.code, value)
            except struct.error:
                return f"{field.name} = {value!r}"
        return "values"

    def _scale(
        self, field: Field, values: Mapping[str, Any], scales: Mapping[str, int | None]
    ) -> int | None:
        if isinstance(field.price, int):
            return field.price
        name = str(field.price)
        if name in self.by_name:
            return int(values.get(name) or 0)
        return scales.get(name)

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
    """The layout of one message type (or control packet): a block and perhaps a repeated group.

    `conflate` says what replaces such a message where it waits too long: a newer one of the same
    symbol and the same fields `conflate_by` (`latest`), the symbol's book (`book`), or nothing
    (`never`).
    """

    def __init__(
        self,
        name: str,
        size: int,
        fields: Sequence[Field],
        byte_order: str,
        *,
        code: int,
        label: int | str,
        title: str = "",
        doc: str = "",
        symbol: str = "",
        conflate: str = "never",
        conflate_by: Sequence[str] = (),
        times: Sequence[tuple[str, TimeReader]] = (),
        group: Block | None = None,
        group_at: int = 0,
    ) -> None:
        self.code = code
        self.label = label
        self.title = title
        self.doc = doc
        self.symbol = symbol
        self.conflate = conflate
        self.conflate_by = tuple(conflate_by)
        self.group = group
        self.group_at = group_at
        super().__init__(name, size, fields, byte_order, times, group.name if group else "")

    def decode(
        self,
        data: bytes,
        at: int,
        size: int,
        context: TimeContext,
        scales: Mapping[str, int | None],
    ) -> Record:
        """Decode the message of `size` bytes at `at`; `size` must be at least `self.size`."""
        values = self.values(data, at, context, scales)
        if self.group is not None:
            count = len(self.named)
            values.insert(count, self._elements(data, at, size, context, scales, values))
        return self.record(*values)

    def _elements(
        self,
        data: bytes,
        at: int,
        size: int,
        context: TimeContext,
        scales: Mapping[str, int | None],
        values: Sequence[Any],
    ) -> tuple[Record, ...]:
        group = self.group
        assert group is not None
        known = {**scales, **dict(zip(self.by_name, values, strict=False))}
        return tuple(
            group.record(*group.values(data, element, context, known))
            for element in range(at + self.group_at, at + size - group.size + 1, group.size)
        )

    def encode(self, values: Mapping[str, Any], scales: Mapping[str, int | None]) -> bytearray:
        """Encode the message, its own header still zero. Full times in `values` are ignored."""
        own = dict(values)
        for name, _ in self.times:
            own.pop(name, None)
        elements = own.pop(self.group_name, ()) if self.group_name else ()
        data = bytearray(self.pack(own, scales))
        if self.group is not None:
            known = {**scales, **{k: v for k, v in own.items() if isinstance(v, int)}}
            for element in elements:
                plain = record_values(element) if isinstance(element, Record) else element
                data += self.group.pack(plain, known)
        return data


def record_values(record: Record) -> dict[str, Any]:
    """Return a record's attributes by name, one level deep."""
    return {name: getattr(record, name) for name in record.__struct_fields__}
