"""Fields and parts of a feed description, checked and built: the blocks of records.

`loader` asks for the fields of a header, a message or an element, and for the parts behind them.
What contradicts itself (fields that overlap, names that come twice, a scale that is no field) ends
the loading with a `ConfigError` of `FieldBuilder.refuse`.
"""

import re
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any, NoReturn

import msgspec

from feedhandler.codecs.description import (
    ConditionDescription,
    DescriptionFile,
    FieldDescription,
    GroupDescription,
    PartDescription,
)
from feedhandler.codecs.layouts import Block, Field, in_reference
from feedhandler.codecs.parts import Condition, Conditional, Dimensions, Group, Part, Text
from feedhandler.codecs.prices import COUNTS, DIGITS, EXPONENTS, SCALE_MAX, ScaleCodes, scale_codes

#: Largest whole message or packet of a u16 length, with room for what the length excludes.
SIZE_MAX = 65_575
#: Names of feeds, messages, fields and parts, once in snake_case.
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
#: The name of the symbol itself in records: a message's field has it only where it is the symbol.
SYMBOL = "symbol"
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*")
#: Types of fields: integers of 1 to 8 bytes, floating point, text, reserved bytes.
_TYPE = re.compile(
    r"(?P<integer>[ui])(?P<bits>8|16|24|32|40|48|56|64)|f(?P<float>32|64)"
    r"|(?P<other>[cx])(?P<size>[1-9]\d*)"
)
#: Names that records, or the JSON objects made of them, use for something else.
_RESERVED_NAMES = {"type", "seq", "service", "name", "layout", "wire", "to_dict"}


def snake_case(wire_name: str) -> str:
    """Convert `SourceTimeMicroSecs` to `source_time_micro_secs`; snake_case stays as it is."""
    return "_".join(word.lower() for word in _WORD.findall(wire_name))


def renamed(spec: FieldDescription, name: str) -> FieldDescription:
    """Return a field description under another name."""
    return msgspec.structs.replace(spec, name=name)


class FieldBuilder:
    """Builds the fields and parts of one description; `refuse` raises every refusal's error."""

    def __init__(self, file: DescriptionFile) -> None:
        self.file = file
        self.description = file.description
        self.byte_order = file.description.byte_order
        self.blocks = {block.name: block.fields for block in file.description.blocks}

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Raise the error for `reason` at `key`, with the file's name and line."""
        raise self.file.refusal(key, reason)

    def field(self, key: str, spec: FieldDescription) -> Field:
        """Build one field, its type parsed."""
        where = f"{key}.{spec.name or spec.type}"
        found = _TYPE.fullmatch("c1" if spec.type == "c" else spec.type)
        if found is None:
            self.refuse(
                where, f"unknown type {spec.type!r}: u8 to u64, i8 to i64, f32, f64, cN or xN"
            )
        kind = found["integer"] or found["other"] or "f"
        bits = found["bits"] or found["float"]
        width = int(bits) // 8 if bits else int(found["size"])
        name = spec.rename or snake_case(spec.name)
        if kind != "x" and (not IDENTIFIER.fullmatch(name) or iskeyword(name)):
            self.refuse(where, f"{name!r} cannot be an attribute: give a name with `as`")
        if (
            name in _RESERVED_NAMES
            and kind != "x"
            and key.split(".")[0] not in ("packet", "message")
        ):
            self.refuse(where, f"{name!r} is reserved: give another name with `as`")
        if spec.at is not None and spec.at < 0:
            self.refuse(where, f"offset {spec.at} is negative")
        for what, value in (
            ("a price", spec.price),
            ("an exponent's price", spec.exponent or None),
            ("null", spec.null),
            ("constant", spec.constant),
            ("in bits", spec.bits or None),
            (
                "in another byte order than its feed's",
                (spec.byte_order or None) if kind == "f" else None,
            ),
        ):
            if value is not None and kind not in "ui":
                self.refuse(where, f"only an integer can be {what}")
        price = spec.price
        if isinstance(price, str) and not in_reference(price):
            price = snake_case(price)
        return Field(
            name=name,
            wire=spec.name,
            at=spec.at or 0,
            size=width,
            kind=kind,
            price=price,
            exponent=snake_case(spec.exponent),
            null=spec.null,
            constant=spec.constant,
            bits=self._bits(where, spec, width),
            decimals=self._decimals(where, spec, kind, width),
            byte_order=spec.byte_order if spec.byte_order != self.byte_order else "",
            values=spec.values,
            pad=spec.pad or self.description.pad,
            doc=spec.doc,
        )

    def _decimals(
        self, where: str, spec: FieldDescription, kind: str, width: int
    ) -> ScaleCodes | None:
        """Return what the values of a scale's field mean, if the description says so."""
        if not spec.decimals:
            return None
        if kind not in "uic" or width != 1:
            self.refuse(where, "decimals are of a field of one byte")
        told: dict[int, int] = {}
        for value, places in spec.decimals.items():
            if not 0 <= places <= SCALE_MAX:
                self.refuse(f"{where}.decimals.{value}", f"{places} is not within 0..{SCALE_MAX}")
            if kind == "c" and len(value) == 1 and value.isascii():
                told[ord(value)] = places
            elif kind != "c" and re.fullmatch(r"-?\d{1,3}", value) and -128 <= int(value) <= 255:
                told[int(value) & 0xFF] = places
            else:
                self.refuse(f"{where}.decimals.{value}", f"{value!r} is no value of {spec.type}")
        return scale_codes(told)

    def _bits(self, where: str, spec: FieldDescription, width: int) -> dict[str, tuple[int, int]]:
        """Return the named bits of a field by attribute name: (lowest bit's number, how many)."""
        bits: dict[str, tuple[int, int]] = {}
        for wire, position in spec.bits.items():
            name = snake_case(wire)
            first, many = (position, 1) if isinstance(position, int) else (*position, 1)[:2]
            if not IDENTIFIER.fullmatch(name) or iskeyword(name) or name in _RESERVED_NAMES:
                self.refuse(f"{where}.bits.{wire}", f"{name!r} cannot be an attribute")
            if not (first >= 0 and many > 0 and first + many <= 8 * width):
                self.refuse(f"{where}.bits.{wire}", f"bits {position} are not within {8 * width}")
            bits[name] = (first, many)
        return bits

    def _expanded(self, key: str, specs: list[FieldDescription]) -> list[FieldDescription]:
        """Return the fields with those of named blocks in their place."""
        fields: list[FieldDescription] = []
        for field in specs:
            if not field.block:
                fields.append(field)
                continue
            where = f"{key}.{field.name or field.block}"
            if field.block not in self.blocks:
                self.refuse(where, f"no block {field.block!r}: {', '.join(self.blocks) or 'none'}")
            inner = self._expanded(where, self.blocks[field.block])
            for index, each in enumerate(inner):
                changes: dict[str, Any] = {}
                if field.at is not None:
                    if each.at is not None:
                        changes["at"] = field.at + each.at
                    elif index == 0:
                        changes["at"] = field.at
                if field.name and each.name:
                    changes["name"] = f"{field.name}.{each.name}"
                    changes["rename"] = (
                        f"{field.rename or snake_case(field.name)}_"
                        f"{each.rename or snake_case(each.name)}"
                    )
                    for scale in ("price", "exponent"):
                        named = getattr(each, scale)
                        if isinstance(named, str) and named and not in_reference(named):
                            changes[scale] = f"{field.name}.{named}"
                fields.append(msgspec.structs.replace(each, **changes))
        return fields

    def fields(
        self,
        key: str,
        specs: list[FieldDescription],
        begin: int,
        size: int | None,
        free: frozenset[int] = frozenset(),
    ) -> list[Field]:
        """Build fields by ascending offset, none overlapping, all within [begin, size) or `free`.

        A field without an offset follows the one before it. Without `size` they end where they end.
        `free` are bytes in front of `begin`.
        """
        fields: list[Field] = []
        at = begin
        for description in self._expanded(key, specs):
            field = self.field(key, description)
            if description.at is None:
                field = msgspec.structs.replace(field, at=at)
            at = field.at + field.size
            fields.append(field)
        fields.sort(key=lambda each: each.at)
        at = min(free, default=begin)
        names: set[str] = set()
        for field in fields:
            where = f"{key}.{field.wire or 'reserved'}"
            if field.at < begin and not free.issuperset(range(field.at, field.at + field.size)):
                at = begin
            if field.at < at:
                self.refuse(where, f"begins at {field.at}, inside what ends at {at}")
            at = field.at + field.size
            if size is not None and at > size:
                self.refuse(where, f"ends at {at}, outside the {size} bytes of {key}")
            if field.kind != "x":
                for name in (field.name, *field.bits):
                    if name in names:
                        self.refuse(where, f"the name {name!r} comes twice")
                    names.add(name)
        return fields

    def priced(self, key: str, fields: list[Field], outer: list[Field]) -> list[Field]:
        """Return the fields with what the scales of their prices mean, checked; `outer`: fields of
        the message around them, which may tell scales, too."""
        codes = {f.name: f for f in [*outer, *fields] if f.kind in "uic" and f.size == 1}
        return [self._with_codes(f"{key}.{field.wire}", field, codes) for field in fields]

    def _with_codes(self, where: str, field: Field, codes: Mapping[str, Field]) -> Field:
        """Return a field with its scale's codes, if it is a price and a field tells the scale."""
        if field.exponent:
            if field.exponent not in codes:
                self.refuse(where, f"its exponent {field.exponent!r} is no one-byte integer")
            return msgspec.structs.replace(field, scale_codes=EXPONENTS)
        if isinstance(field.price, int) and not 0 <= field.price <= SCALE_MAX:
            self.refuse(where, f"a scale of {field.price} is not within 0..{SCALE_MAX}")
        if not isinstance(field.price, str):
            return field
        if in_reference(field.price):
            reference = self.description.reference
            if reference is None or field.price not in reference.scales:
                wanted = field.price.replace("reference", "reference.scale", 1)
                self.refuse(where, f"no {wanted} is described")
            return field
        if field.price not in codes:
            self.refuse(where, f"its scale {field.price!r} is no one-byte integer")
        scale = codes[field.price]
        meant = scale.decimals or (DIGITS if scale.kind == "c" else COUNTS)
        return msgspec.structs.replace(field, scale_codes=meant)

    def block(
        self, key: str, name: str, size: int, specs: list[FieldDescription], begin: int
    ) -> Block:
        if not 0 <= size <= SIZE_MAX:
            self.refuse(f"{key}.size", f"{size} is not within 0..{SIZE_MAX}")
        fields = self.priced(key, self.fields(key, specs, begin, size), [])
        return Block(name, size, fields, self.byte_order)

    def parts(self, key: str, specs: list[PartDescription], outer: list[Field]) -> list[Part]:
        """Build the parts behind the fixed fields `outer`; those of elements with them."""
        parts: list[Part] = []
        for index, each in enumerate(specs):
            named = [name for name in (each.group, each.text, each.block) if name]
            if len(named) != 1:
                self.refuse(f"{key}.parts[{index}]", "name it by one of group, text and block")
            where = f"{key}.{named[0]}"
            if not IDENTIFIER.fullmatch(named[0]) or iskeyword(named[0]):
                self.refuse(where, f"{named[0]!r} must be snake_case")
            taken = {field.name for field in outer} | {part.name for part in parts}
            if named[0] in taken or named[0] in _RESERVED_NAMES:
                self.refuse(where, f"the name {named[0]!r} is taken")
            if parts and parts[-1].to_the_end:
                self.refuse(where, f"{parts[-1].name} goes on to the end of the message before it")
            parts.append(self._part(where, each, named[0], outer))
        return parts

    def _part(self, key: str, spec: PartDescription, name: str, outer: list[Field]) -> Part:
        when = self._condition(key, spec.when, outer)
        if spec.text:
            length = FieldDescription(type=spec.length, name=f"{name}_length")
            fields = self.fields(f"{key}.length", [length], 0, None)
            if fields[0].kind != "u":
                self.refuse(f"{key}.length", "must be an unsigned integer")
            return Text(name, Block(name, fields[0].size, fields, self.byte_order), when, spec.name)
        fields = self.fields(key, spec.fields, 0, spec.size or None)
        size = spec.size or max((field.at + field.size for field in fields), default=0)
        if not size:
            self.refuse(key, "has no fields")
        fields = self.priced(key, fields, outer)
        parts = self.parts(key, spec.parts, [*outer, *fields])
        elements = Block(name, size, fields, self.byte_order, parts=parts)
        if spec.block:
            return Conditional(name, elements, when)
        dimensions = self._dimensions(key, spec)
        count = ""
        if isinstance(spec.count, str):
            count = self.named_field(f"{key}.count", spec.count, outer)
        if spec.parts and dimensions is None and not count:
            self.refuse(key, "elements with parts need a count")
        element_length: Field | None = None
        if spec.element_length is not None:
            found = self.named_field(f"{key}.element_length", spec.element_length.field, fields)
            element_length = next(field for field in fields if found == field.name)
            if element_length.kind != "u":
                self.refuse(f"{key}.element_length", "must be an unsigned integer")
        return Group(
            name, elements, when, dimensions=dimensions, count=count, length=element_length,
            length_add=spec.element_length.add if spec.element_length else 0,
        )  # fmt: skip

    def last_group(
        self, key: str, spec: GroupDescription, outer: list[Field], size: int, more: bool
    ) -> Group:
        """Build the group that goes on to the end of the message."""
        key = f"{key}.group"
        if not IDENTIFIER.fullmatch(spec.name) or spec.name in {f.name for f in outer}:
            self.refuse(f"{key}.name", f"{spec.name!r} must be snake_case and not a field")
        if spec.size <= 0:
            self.refuse(f"{key}.size", "must be positive")
        end = max((field.at + field.size for field in outer), default=0)
        if spec.at < end:
            self.refuse(f"{key}.at", f"{spec.at} lies inside the fields before it, end {end}")
        if spec.at != size:
            self.refuse(f"{key}.at", f"{spec.at} is not the message's size, {size}")
        if more:
            self.refuse(key, "goes on to the end of the message: no parts can follow it")
        fields = self.fields(key, spec.fields, 0, spec.size)
        fields = self.priced(key, fields, outer)
        for field in fields:
            if field.name == SYMBOL:
                self.refuse(f"{key}.{field.wire}", "give another name with `as`")
        return Group(spec.name, Block(spec.name, spec.size, fields, self.byte_order))

    def _dimensions(self, key: str, spec: PartDescription) -> Dimensions | None:
        """Return what stands before a group's elements; None where their count stands elsewhere."""
        if isinstance(spec.count, FieldDescription):
            if spec.dimensions:
                self.refuse(f"{key}.count", "the dimensions tell the count already")
            named = renamed(spec.count, spec.count.name or "Count")
            count = self.fields(f"{key}.count", [named], 0, None)[0]
            return Dimensions(count.at + count.size, count, None, self.byte_order)
        if not spec.dimensions:
            return None
        known = self.description.dimensions
        if spec.dimensions not in known:
            names = ", ".join(known) or "none"
            self.refuse(f"{key}.dimensions", f"no dimensions {spec.dimensions!r}: {names}")
        chosen = known[spec.dimensions]
        where = f"dimensions.{spec.dimensions}"
        numbers = [renamed(chosen.count, chosen.count.name or "NumInGroup")]
        if chosen.block_length is not None:
            name = chosen.block_length.name or "BlockLength"
            numbers.append(renamed(chosen.block_length, name))
        fields = {each.wire: each for each in self.fields(where, numbers, 0, chosen.size)}
        length = fields[numbers[1].name] if len(numbers) > 1 else None
        return Dimensions(chosen.size, fields[numbers[0].name], length, self.byte_order)

    def _condition(
        self, key: str, spec: ConditionDescription | None, outer: list[Field]
    ) -> Condition | None:
        if spec is None:
            return None
        if not spec.field:
            if not spec.left:
                self.refuse(f"{key}.when", "needs `field` with `in` or `mask`, or `left`")
            return Condition(left=spec.left)
        if bool(spec.among) == bool(spec.mask):
            self.refuse(f"{key}.when", "needs one of `in` and `mask`")
        name = self.named_field(f"{key}.when", spec.field, outer)
        return Condition(name, tuple(spec.among), spec.mask, spec.left)

    def named_field(self, key: str, wire: str, fields: list[Field]) -> str:
        """Return the attribute of the field, or of the bits, that `wire` names."""
        for field in reversed(fields):
            if wire in (field.wire, field.name):
                return field.name
            if snake_case(wire) in field.bits:
                return snake_case(wire)
        self.refuse(key, f"{wire!r} names no field before it")
