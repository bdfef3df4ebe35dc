"""Fields and parts of a feed description, checked and built: the blocks of records.

`loader` asks for the fields of a header, a message or an element, and for the parts behind them.
What contradicts itself (fields that overlap, names that come twice, a scale that is no field) ends
the loading with a `ConfigError` of `FieldBuilder.refuse`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
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
from feedhandler.codecs.field_values import (
    bounds,
    fault_of_integer,
    fault_of_text,
    nearest,
    snake_case,
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
#: Types of fields: integers of 1 to 8 bytes, floating point, text, reserved bytes.
_TYPE = re.compile(
    r"(?P<integer>[ui])(?P<bits>8|16|24|32|40|48|56|64)|f(?P<float>32|64)"
    r"|(?P<other>[cx])(?P<size>[1-9]\d{0,8})"
)
#: How schemas and other languages call types of ours, beside `uint8` and the like.
_FOREIGN_TYPES = {
    "uint": "u32", "int": "i32", "byte": "u8", "char": "c1",
    "float": "f32", "float32": "f32", "double": "f64", "float64": "f64",
}  # fmt: skip
#: Names that records, or the JSON objects and tables made of them, use for something else.
_RESERVED_NAMES = {
    "type", "seq", "service", "name", "layout", "wire", "to_dict", "send_time_ns", "captured_ns",
    "element",
}  # fmt: skip
#: Keys of a field that has a type, which mean nothing beside a `block`.
_OF_A_TYPE = (
    "type", "price", "exponent", "decimals", "null", "constant", "bits", "byte_order", "values",
    "pad",
)  # fmt: skip


def _type_meant(text: str) -> str:
    """Return `; did you mean u8?` for a type as others write it; "" for what is like none."""
    plain = text.lower().removesuffix("_t")
    plain = _FOREIGN_TYPES.get(plain) or re.sub(r"^u?int(?=\d)", lambda found: found[0][0], plain)
    return f"; did you mean {plain}?" if _TYPE.fullmatch(plain) else ""


def fault_of_name(name: str) -> str:
    """Return why records cannot have an attribute of this name; "" where they can."""
    if not IDENTIFIER.fullmatch(name) or iskeyword(name):
        return f"{name!r} cannot be an attribute"
    return f"{name!r} is reserved" if name in _RESERVED_NAMES else ""


def tells_time(field: Field) -> bool:
    """Return whether a `[[times]]` rule may name the field: an unsigned integer, or an `i64`."""
    return field.kind == "u" or (field.kind == "i" and field.size == 8)


def names_of(fields: Iterable[Field]) -> Iterator[str]:
    """Yield the attributes of fields and of their bits."""
    for field in fields:
        if field.kind != "x":
            yield field.name
            yield from field.bits


def is_price(field: Field) -> bool:
    """Return whether records have a `Price` of the field."""
    return field.price is not None or bool(field.exponent)


def type_text(field: Field) -> str:
    """Return a field's type as descriptions write it: `u32`, `c8`."""
    return f"{field.kind}{field.size if field.kind in 'cx' else 8 * field.size}"


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
        #: Names of scales as they are written, by their names in records.
        self._written: dict[str, str] = {}

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Raise the error for `reason` at `key`, with the file's name and line."""
        raise self.file.refusal(key, reason)

    def type_of(self, where: str, text: str) -> tuple[str, int]:
        """Return kind and bytes of a field's type. Refuses what is no type."""
        found = _TYPE.fullmatch("c1" if text == "c" else text)
        if found is None:
            known = "u8 to u64, i8 to i64, f32, f64, cN or xN"
            if not text:
                self.refuse(where, f"missing: its type, {known}")
            self.refuse(where, f"unknown type {text!r}: {known}{_type_meant(text)}")
        bits = found["bits"] or found["float"]
        width = int(bits) // 8 if bits else int(found["size"])
        if width > SIZE_MAX:
            self.refuse(where, f"{text!r} has more than {SIZE_MAX} bytes")
        return found["integer"] or found["other"] or "f", width

    def check_unsigned(self, key: str, text: str) -> None:
        """Refuse a type that is no unsigned integer."""
        if self.type_of(key, text)[0] != "u":
            self.refuse(key, f"must be an unsigned integer, not {text!r}")

    def field(self, key: str, spec: FieldDescription) -> Field:
        """Build one field, its type parsed."""
        where = f"{key}.{spec.name or spec.type}"
        kind, width = self.type_of(where, spec.type)
        name = spec.rename or snake_case(spec.name)
        self._check_field_name(where, spec, name, kind, key.split(".")[0])
        if spec.at is not None and not 0 <= spec.at <= SIZE_MAX:
            what = "negative" if spec.at < 0 else f"above {SIZE_MAX}"
            self.refuse(where, f"offset {spec.at} is {what}")
        self._check_meaning(where, spec, kind, width)
        price = spec.price
        if isinstance(price, str) and not in_reference(price):
            price = snake_case(price)
            self._written[price] = str(spec.price)
        exponent = snake_case(spec.exponent)
        self._written[exponent] = spec.exponent
        if name in (price, exponent) and kind != "x":
            self.refuse(where, "cannot carry its own scale")
        return Field(
            name=name,
            wire=spec.name,
            at=spec.at or 0,
            size=width,
            kind=kind,
            price=price,
            exponent=exponent,
            null=spec.null,
            constant=spec.constant,
            bits=self._bits(where, spec, width),
            decimals=self._decimals(where, spec, kind, width),
            byte_order=spec.byte_order if spec.byte_order != self.byte_order else "",
            values=spec.values,
            pad=spec.pad or self.description.pad,
            doc=spec.doc,
        )

    def _check_field_name(
        self, where: str, spec: FieldDescription, name: str, kind: str, table: str
    ) -> None:
        """Check that a field has a name that records can have; of reserved bytes it is a remark."""
        if kind == "x":
            return
        if not spec.name:
            self.refuse(where, "has no name: give it one, or for reserved bytes the type xN")
        fault = fault_of_name(name)
        if fault and not (name in _RESERVED_NAMES and table in ("packet", "message")):
            another = "another" if name in _RESERVED_NAMES else "a"
            self.refuse(where, f"{fault}: give {another} name with `as`")

    def _check_meaning(self, where: str, spec: FieldDescription, kind: str, width: int) -> None:
        """Check that what is said of a field's values can be said of its type."""
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
        for what, value in (("null", spec.null), ("constant", spec.constant)):
            fault = fault_of_integer(value, 8 * width, signed=kind == "i")
            if value is not None and fault:
                self.refuse(f"{where}.{what}", fault)
        if spec.price is not None and spec.exponent:
            self.refuse(where, "has a price and an exponent: which is its scale?")
        if spec.bits and (spec.price is not None or spec.exponent):
            self.refuse(where, "is a price, and so has no bits")

    def _decimals(
        self, where: str, spec: FieldDescription, kind: str, width: int
    ) -> ScaleCodes | None:
        """Return what the values of a scale's field mean, if the description says so."""
        if not spec.decimals:
            return None
        if kind not in "uic" or width != 1:
            self.refuse(where, "decimals are of a field of one byte")
        places_of: dict[int, int] = {}
        for value, places in spec.decimals.items():
            if not 0 <= places <= SCALE_MAX:
                self.refuse(f"{where}.decimals.{value}", f"{places} is not within 0..{SCALE_MAX}")
            if kind == "c" and len(value) == 1 and value.isascii():
                places_of[ord(value)] = places
            elif kind != "c" and re.fullmatch(r"-?\d{1,3}", value) and -128 <= int(value) <= 255:
                places_of[int(value) & 0xFF] = places
            else:
                self.refuse(f"{where}.decimals.{value}", f"{value!r} is no value of {spec.type}")
        return scale_codes(places_of)

    def _bits(self, where: str, spec: FieldDescription, width: int) -> dict[str, tuple[int, int]]:
        """Return the named bits of a field by attribute name: (lowest bit's number, how many)."""
        bits: dict[str, tuple[int, int]] = {}
        taken: dict[int, str] = {}
        for wire, position in spec.bits.items():
            name, key = snake_case(wire), f"{where}.bits.{wire}"
            if fault := fault_of_name(name):
                self.refuse(key, fault)
            run = [position, 1] if isinstance(position, int) else position
            if len(run) != 2:
                self.refuse(key, f"{position} is neither a bit nor [lowest bit, how many]")
            first, many = run
            if not (first >= 0 and many > 0 and first + many <= 8 * width):
                self.refuse(key, f"bits {position} are not within {8 * width}")
            for bit in range(first, first + many):
                if taken.setdefault(bit, wire) != wire:
                    self.refuse(key, f"bit {bit} belongs to {taken[bit]}")
            if name in bits:
                self.refuse(key, f"the name {name!r} comes twice")
            bits[name] = (first, many)
        return bits

    def _expanded(
        self, key: str, specs: list[FieldDescription], around: tuple[str, ...] = ()
    ) -> list[FieldDescription]:
        """Return the fields with those of named blocks in their place; `around` are the blocks that
        they stand in."""
        fields: list[FieldDescription] = []
        for field in specs:
            if not field.block:
                fields.append(field)
                continue
            where = f"{key}.{field.name or field.block}"
            if field.block not in self.blocks:
                known = ", ".join(self.blocks) or "none"
                near = nearest(field.block, self.blocks)
                self.refuse(where, f"no block {field.block!r}: {known}{near}")
            if field.block in around:
                self.refuse(where, f"the block {field.block!r} contains itself")
            for beside in _OF_A_TYPE:
                if getattr(field, beside) != getattr(FieldDescription(), beside):
                    self.refuse(f"{where}.{beside}", "means nothing beside a block")
            inner = self._expanded(where, self.blocks[field.block], (*around, field.block))
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
        room = SIZE_MAX if size is None else size
        at = min(free, default=begin)
        names: set[str] = set()
        for field in fields:
            where = f"{key}.{field.wire or 'reserved'}"
            if field.at < begin and not free.issuperset(range(field.at, field.at + field.size)):
                at = begin
            if field.at < at:
                self.refuse(where, f"begins at {field.at}, inside what ends at {at}")
            at = field.at + field.size
            if at > room:
                self.refuse(where, f"ends at {at}, outside the {room} bytes of {key}")
            if field.kind != "x":
                for name in (field.name, *field.bits):
                    if name in names:
                        self.refuse(where, f"the name {name!r} comes twice")
                    names.add(name)
        for field in fields:
            if is_price(field) and (raw := f"{field.name}_raw") in names:
                self.refuse(f"{key}.{field.wire}", f"{raw!r} is its integer's name in tables")
        return fields

    def priced(self, key: str, fields: list[Field], outer: list[Field]) -> list[Field]:
        """Return the fields with what the scales of their prices mean, checked; `outer`: fields of
        the message around them, which may give scales, too."""
        codes = {f.name: f for f in [*outer, *fields] if f.kind in "uic" and f.size == 1}
        return [self._with_codes(f"{key}.{field.wire}", field, codes) for field in fields]

    def _with_codes(self, where: str, field: Field, codes: Mapping[str, Field]) -> Field:
        """Return a field with its scale's codes, if it is a price and a field gives the scale."""
        if field.exponent:
            if field.exponent not in codes:
                self._refuse_scale(where, "exponent", self._written[field.exponent], codes)
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
            self._refuse_scale(where, "scale", self._written[field.price], codes)
        scale = codes[field.price]
        meant = scale.decimals or (DIGITS if scale.kind == "c" else COUNTS)
        return msgspec.structs.replace(field, scale_codes=meant)

    def _refuse_scale(
        self, where: str, what: str, name: str, codes: Mapping[str, Field]
    ) -> NoReturn:
        near = nearest(name, (field.wire for field in codes.values()))
        self.refuse(where, f"its {what} {name!r} is no one-byte integer{near}")

    def block(
        self, key: str, name: str, size: int, specs: list[FieldDescription], begin: int
    ) -> Block:
        """Build a block of `size` bytes; its fields begin at `begin`. Raises `ConfigError`."""
        self.check_size(f"{key}.header_size", size)
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
            taken = {*names_of(outer), *(part.name for part in parts), SYMBOL}
            if named[0] in taken or fault_of_name(named[0]):
                self.refuse(where, f"the name {named[0]!r} is taken")
            if parts and parts[-1].to_the_end:
                self.refuse(where, f"{parts[-1].name} goes on to the end of the message before it")
            parts.append(self._part(where, each, named[0], outer))
        return parts

    def _part(self, key: str, spec: PartDescription, name: str, outer: list[Field]) -> Part:
        when = self._condition(key, spec.when, outer)
        if spec.text:
            if not spec.length:
                self.refuse(f"{key}.length", "missing: the type of the number in front of the text")
            self.check_unsigned(f"{key}.length", spec.length)
            length = FieldDescription(type=spec.length, name=f"{name}_length")
            fields = self.fields(f"{key}.length", [length], 0, None)
            return Text(name, Block(name, fields[0].size, fields, self.byte_order), when, spec.name)
        self.check_size(f"{key}.size", spec.size)
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
        count = self._named_count(key, spec, outer)
        if spec.parts and dimensions is None and not count:
            self.refuse(key, "elements with parts need a count")
        element_length: Field | None = None
        if spec.element_length is not None:
            where, length_of = f"{key}.element_length", spec.element_length
            element_length, found = self._find(where, length_of.field, fields)
            if found != element_length.name or element_length.kind != "u":
                self.refuse(where, "must be an unsigned integer")
            self.check_added(f"{where}.add", length_of.add, size)
        return Group(
            name, elements, when, dimensions=dimensions, count=count, length=element_length,
            length_add=spec.element_length.add if spec.element_length else 0,
        )  # fmt: skip

    def _named_count(self, key: str, spec: PartDescription, outer: list[Field]) -> str:
        """Return the attribute with the number of elements; "" where none is named."""
        if not isinstance(spec.count, str):
            return ""
        field, name = self._find(f"{key}.count", spec.count, outer)
        if field.kind != "u" or is_price(field):
            self.refuse(f"{key}.count", f"{spec.count!r} must be an unsigned integer without scale")
        return name

    def check_added(self, key: str, add: int, least: int) -> None:
        """Refuse what a length leaves out, where that is more than the `least` that it counts."""
        if not -SIZE_MAX <= add <= least:
            self.refuse(key, f"{add} is not within {-SIZE_MAX}..{least}, all that is counted")

    def check_size(self, key: str, size: int) -> None:
        """Refuse a number of bytes that no message has."""
        if not 0 <= size <= SIZE_MAX:
            self.refuse(key, f"{size} is not within 0..{SIZE_MAX}")

    def last_group(
        self, key: str, spec: GroupDescription, outer: list[Field], size: int, more: bool
    ) -> Group:
        """Build the group that goes on to the end of the message."""
        key = f"{key}.group"
        if not IDENTIFIER.fullmatch(spec.name) or spec.name in names_of(outer):
            self.refuse(f"{key}.name", f"{spec.name!r} must be snake_case and not a field")
        if fault_of_name(spec.name) or spec.name == SYMBOL:
            self.refuse(f"{key}.name", f"the name {spec.name!r} is taken")
        self.check_size(f"{key}.size", spec.size)
        if spec.size == 0:
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
                self.refuse(f"{key}.count", "the dimensions have the count already")
            self.check_unsigned(f"{key}.count", spec.count.type)
            named = renamed(spec.count, spec.count.name or "Count")
            count = self.fields(f"{key}.count", [named], 0, None)[0]
            return Dimensions(count.at + count.size, count, None, self.byte_order)
        if not spec.dimensions:
            return None
        known = self.description.dimensions
        if spec.dimensions not in known:
            names = ", ".join(known) or "none"
            near = nearest(spec.dimensions, known)
            self.refuse(f"{key}.dimensions", f"no dimensions {spec.dimensions!r}: {names}{near}")
        chosen = known[spec.dimensions]
        where = f"dimensions.{spec.dimensions}"
        self.check_size(f"{where}.size", chosen.size)
        self.check_unsigned(f"{where}.count", chosen.count.type)
        numbers = [renamed(chosen.count, chosen.count.name or "NumInGroup")]
        if chosen.block_length is not None:
            self.check_unsigned(f"{where}.block_length", chosen.block_length.type)
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
        where = f"{key}.when"
        self.check_size(f"{where}.left", spec.left)
        if not spec.field:
            if not spec.left or spec.among or spec.mask:
                self.refuse(where, "needs `field` with `in` or `mask`, or `left`")
            return Condition(left=spec.left)
        if bool(spec.among) == bool(spec.mask):
            self.refuse(where, "needs one of `in` and `mask`")
        field, name = self._find(where, spec.field, outer)
        self._check_values(where, spec, field, name)
        return Condition(name, tuple(spec.among), spec.mask, spec.left)

    def _check_values(
        self, where: str, spec: ConditionDescription, field: Field, name: str
    ) -> None:
        """Check that the field, or its bits, can have the values, and one that is no None."""
        if field.kind == "f" or is_price(field):
            self.refuse(where, f"{spec.field!r} is neither an integer without scale nor text")
        if field.kind == "c":
            if spec.mask:
                self.refuse(f"{where}.mask", f"{spec.field!r} is text, which has no bits")
            for value in spec.among:
                if fault := _fault_of_label(value, field):
                    self.refuse(f"{where}.in", fault)
            return
        bits = field.bits.get(name, (0, 8 * field.size))[1]
        signed = field.kind == "i" and name == field.name
        most = bounds(bits)[1]
        if spec.mask and not 0 < spec.mask <= most:
            self.refuse(f"{where}.mask", f"{spec.mask} is not within 1..{most}: bits of the field")
        for value in spec.among:
            if fault := fault_of_integer(value, bits, signed=signed):
                self.refuse(f"{where}.in", fault)
            if name == field.name and value == field.null:
                self.refuse(f"{where}.in", f"{value} is the field's null, so it has no value then")

    def _find(self, key: str, wire: str, fields: list[Field]) -> tuple[Field, str]:
        """Return the field that `wire` names, or whose bits, and the attribute that it names."""
        for field in reversed(fields):
            if field.kind != "x" and wire in (field.wire, field.name):
                return field, field.name
            if snake_case(wire) in field.bits:
                return field, snake_case(wire)
        known = [name for field in fields for name in (field.wire, *field.bits)]
        self.refuse(key, f"{wire!r} names no field before it{nearest(wire, known)}")


def _fault_of_label(value: int | str, field: Field) -> str:
    """Return why text as records have it can never be `value`; "" where it can."""
    fault = fault_of_text(value, field.size)
    if not fault and field.size > 1 and str(value).endswith(" "):
        return f"{value!r} ends in padding, which text is read without"
    return fault
