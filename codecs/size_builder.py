"""The table of message sizes of a feed whose messages do not carry theirs, built of its layouts."""

from feedhandler.codecs.feed_table import FeedTable
from feedhandler.codecs.field_builder import FieldBuilder
from feedhandler.codecs.layouts import Field, Layout
from feedhandler.codecs.parts import Condition, Conditional, Group, Part, Text

#: A part that is always there.
_ALWAYS = bytes([1]) * 256


class SizeBuilder:
    """Builds the sizes of one description; `fields` refuses what has no size."""

    def __init__(self, fields: FieldBuilder) -> None:
        self.message = fields.description.message
        self.byte_order = fields.byte_order
        self._refuse = fields.refuse

    def fill(self, table: FeedTable, layouts: dict[int, list[Layout]]) -> None:
        """Set the sizes of all message types, which the table has already."""
        key = "message.sized_by_type"
        if self.message.length is not None:
            self._refuse(key, "messages carry their length: leave one of both out")
        if self.message.type is None:
            self._refuse(key, "needs message.type")
        sizes = table.begin_sizes()
        sizes.big_endian = table.big_endian
        sizes.header_size = table.message_header_size
        sizes.block_at, sizes.block_size = table.block_at, table.block_size
        for code, (layout, *others) in layouts.items():
            if others:
                self._refuse(key, f"{layout.name} and {others[0].name} have one type: which size?")
            slot = table.slot_of(code)
            sizes.set_fixed(slot, layout.size)
            for part in layout.parts:
                where = f"{layout.name}.{part.name}"
                try:
                    sizes.add_part(slot, *self._part(where, layout, part))
                except ValueError as error:
                    self._refuse(key, str(error))

    def _part(self, where: str, layout: Layout, part: Part) -> tuple[list[int], bytes, int]:
        """Return what `SizeTable.add_part` wants to know of a part."""
        decides, values, mask = None, _ALWAYS, 0
        if part.when is not None:
            decides, values, mask = self._condition(where, layout, part.when)
        head, count, length, element = 0, None, None, part.elements.size
        if part.elements.parts:
            self._refuse(where, "has parts in its elements, so nothing says its size")
        if isinstance(part, Text):
            head, count, element = part.elements.size, part.elements.named[0], 1
        elif isinstance(part, Group):
            if part.length is not None or part.to_the_end:
                self._refuse(where, "has elements of no known size, or no count of them")
            if part.dimensions is not None:
                head, count = part.dimensions.size, part.dimensions.count
                length = part.dimensions.block_length
            else:
                count = self._fixed(where, layout, part.count)
                if count.name != part.count:
                    self._refuse(where, f"{part.count!r}, its count, is bits of a field")
        else:
            assert isinstance(part, Conditional)
        numbers = [
            *self._at(where, decides, 8), head, *self._at(where, count, 4),
            *self._at(where, length, 2), element,
        ]  # fmt: skip
        return numbers, values, mask

    def _condition(self, where: str, layout: Layout, when: Condition) -> tuple[Field, bytes, int]:
        """Return the field that decides, its values, and its bits, by which the part is there."""
        field = self._fixed(where, layout, when.field)
        if when.left:
            self._refuse(where, "`left` cannot decide a size")
        shift = field.bits.get(when.field, (0, 0))[0]
        if field.size == 1:
            values = bytes(
                when.holds({when.field: _as_read(field, when.field, byte)}, 0)
                for byte in range(256)
            )
            return field, values, 0
        if not when.mask:
            self._refuse(where, f"{field.wire} has more than one byte: `in` cannot decide a size")
        return field, _ALWAYS, when.mask << shift

    def _fixed(self, where: str, layout: Layout, name: str) -> Field:
        """Return the field, or that of the bits, which decides about a part."""
        for field in layout.named:
            if name and (name == field.name or name in field.bits):
                return field
        self._refuse(where, "depends on no fixed field of its message, so nothing says its size")

    def _at(self, where: str, field: Field | None, widest: int) -> tuple[int, int]:
        """Return where a field is, and its size."""
        if field is None:
            return 0, 0
        if field.size > widest or (field.byte_order and field.byte_order != self.byte_order):
            self._refuse(where, f"{field.wire} is too wide, or in another byte order")
        return field.at, field.size


def _as_read(field: Field, name: str, byte: int) -> int | str:
    """Return what records have of a field of one byte, or of its bits of that name."""
    if field.kind == "c":
        return chr(byte) if byte else ""
    if name in field.bits:
        shift, width = field.bits[name]
        return byte >> shift & (1 << width) - 1
    return byte - 256 if field.kind == "i" and byte > 127 else byte
