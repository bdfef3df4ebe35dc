"""Fields of a message by name, resolved to where they stand: what rules of `[book]` name.

`FieldLookup` looks in the element of a rule's group first, then in its message, and refuses what is
not there with the nearest name that is.
"""

from collections.abc import Iterable, Iterator
from typing import NoReturn, Protocol

import msgspec

from feedhandler.codecs.book_rules import FieldLocation, Test
from feedhandler.codecs.field_values import fault_of_integer, fault_of_text, nearest, snake_case
from feedhandler.codecs.layouts import Block, ByteOrder, Field, Layout, in_reference
from feedhandler.codecs.parts import Group
from feedhandler.codecs.prices import COUNTS, DIGITS

#: Keys whose fields may be floating point.
_REALS = {"price", "size", "remaining"}


class Refuse(Protocol):
    """Raises `ConfigError` for a key, with the reason."""

    def __call__(self, key: str, reason: str) -> NoReturn: ...


def location_of(field: Field, byte_order: ByteOrder, *, in_element: bool = False) -> FieldLocation:
    """Return where a field stands, without its scale; `byte_order` is the feed's."""
    width = 8 * field.size
    return FieldLocation(
        at=field.at,
        size=field.size,
        big=(field.byte_order or byte_order) == "big" or field.kind == "c",
        signed=field.kind == "i",
        text=field.kind == "c",
        floating=field.kind == "f",
        in_element=in_element,
        null=None if field.null is None else field.null & ((1 << width) - 1),
    )


class FieldLookup:
    """Finds fields by name: in the element of a rule's group first, then in its message."""

    def __init__(
        self, layout: Layout, group: Group | None, byte_order: ByteOrder, refuse: Refuse
    ) -> None:
        self.layout = layout
        self.group = group
        self.byte_order = byte_order
        self.refuse = refuse
        self.blocks: list[tuple[Block, bool]] = [(layout, False)]
        if group is not None:
            self.blocks.insert(0, (group.elements, True))

    def location(self, key: str, name: str) -> FieldLocation:
        """Return where a field or named bits stand. Raises `ConfigError` where there are none."""
        location, field, in_element = self._found(key, name)
        if location.size > 8:
            self.refuse(key, f"{name!r} has more than 8 bytes")
        if field.kind == "f" and key.rpartition(".")[2] not in _REALS:
            self.refuse(key, f"{name!r} is floating point, which prices and sizes may be")
        return self._scaled(location, field, in_element)

    def number(self, key: str, name: str) -> FieldLocation:
        """Return where a number stands: a field or named bits that are no text."""
        found = self.location(key, name)
        if found.text:
            self.refuse(key, f"{name!r} is text, and must be an integer")
        return found

    def term(self, key: str, name: str) -> FieldLocation:
        """Return where a value of a definition stands: text of any size, or a number."""
        location, field, in_element = self._found(key, name)
        return location if location.text else self._scaled(location, field, in_element)

    def scaled_by(self, key: str, location: FieldLocation, name: str) -> FieldLocation:
        """Return the location with decimals that the field of this name gives."""
        scale, _, _ = self._found(key, name)
        if scale.size > 1 or scale.floating:
            self.refuse(key, f"{name!r} is no field of one byte")
        return msgspec.structs.replace(
            location, scale_location=scale, scale_codes=(DIGITS if scale.text else COUNTS).decimals
        )

    def test(self, key: str, field: str, among: Iterable[int | str]) -> Test:
        """Return the condition that a field has one of these values."""
        location = self.location(key, field)
        values = [value for label in among for value in self.values(key, location, label)]
        if not values:
            self.refuse(key, "names no value: the rule could never fire")
        return Test(location, tuple(values))

    def values(self, key: str, location: FieldLocation, label: int | str) -> list[int]:
        """Return a label as the unsigned integers that mean it: text with either padding."""
        if location.text:
            if fault := fault_of_text(label, location.size):
                self.refuse(key, fault)
            data = str(label).encode()
            return [int.from_bytes(data.ljust(location.size, pad), "big") for pad in (b"\0", b" ")]
        width = location.width or 8 * location.size
        if fault := fault_of_integer(label, width, signed=location.signed):
            self.refuse(key, fault)
        assert isinstance(label, int), "which is no fault"
        return [label & ((1 << width) - 1)]

    def symbol(self) -> FieldLocation | None:
        """Return where the symbol stands: in the element, or else in the message."""
        layout = self.layout
        if layout.symbols is not None:
            group, field = layout.symbols
            if group is self.group:
                return location_of(field, self.byte_order, in_element=True)
        if layout.symbol:
            return location_of(layout.by_name[layout.symbol], self.byte_order)
        return None

    def _found(self, key: str, name: str) -> tuple[FieldLocation, Field, bool]:
        found = self._find(name)
        if found is None:
            names = [each for block, _ in self.blocks for each in _names(block)]
            where = f"{self.layout.name!r} has no field {name!r}"
            self.refuse(key, where + nearest(name, names))
        return found

    def _find(self, name: str) -> tuple[FieldLocation, Field, bool] | None:
        for block, in_element in self.blocks:
            for field in block.named:
                location = location_of(field, self.byte_order, in_element=in_element)
                if name in (field.wire, field.name):
                    return location, field, in_element
                for bits in (name, snake_case(name)):
                    if bits in field.bits:
                        shift, width = field.bits[bits]
                        return _with_bits(location, shift, width), field, in_element
        return None

    def _scaled(self, location: FieldLocation, field: Field, in_element: bool) -> FieldLocation:
        """Return the location with the scale of its field's prices."""
        name = field.exponent or field.price
        if name is None:
            return location
        if isinstance(name, int):
            return msgspec.structs.replace(location, decimals=name)
        if in_reference(name):
            return msgspec.structs.replace(location, scale_name=name)
        found = self._find(name)
        assert found is not None, "the loader has checked the scale's field"
        assert field.scale_codes is not None, "prices whose scale a field gives have its codes"
        decimals = field.scale_codes.decimals
        return msgspec.structs.replace(location, scale_location=found[0], scale_codes=decimals)


def _with_bits(location: FieldLocation, shift: int, width: int) -> FieldLocation:
    return FieldLocation(
        location.at,
        location.size,
        location.big,
        in_element=location.in_element,
        shift=shift,
        width=width,
    )


def _names(block: Block) -> Iterator[str]:
    for field in block.named:
        yield field.wire
        yield from field.bits
