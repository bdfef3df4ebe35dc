"""`feedhandler feeds import`: a description made of an SBE schema (FIX Simple Binary Encoding 1.0).

Composites are flattened: a decimal becomes one price, other members are fields of their own, called
`Field.member`. What is not on the wire (constants) stands as a comment. What a description cannot
say is a `Note` with its line in the schema; what is wrong in the schema itself ends the work with a
`ConfigError`. A schema says nothing of packets: their header is one of `beginning.sbe_packet`.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from xml.parsers import expat

import msgspec

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import ConfigError, UsageError, reason_of
from feedhandler.codecs.field_values import snake_case
from feedhandler.codecs.toml_text import toml_value
from feedhandler.ops.feeds.beginning import NUMBER, sbe_packet, write_description
from feedhandler.terminal.console import ExitCode, complain

#: Largest schema, and how deep its elements may stand in each other.
SCHEMA_BYTES_MAX = 64 << 20
DEPTH_MAX = 50
#: How deep composites may stand in each other.
NESTED_MAX = 10
#: Integers of an array that become fields of their own; longer arrays are read past.
ARRAY_MAX = 16
#: Attributes of records that mean something else.
_RESERVED = {"type", "seq", "service", "name", "layout", "wire", "to_dict", "symbol"}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
#: Primitive types of SBE: type in a description, size, null value.
_PRIMITIVES: dict[str, tuple[str, int, int | None]] = {
    "char": ("c", 1, None),
    **{f"int{8 * size}": ("i", size, -(1 << 8 * size - 1)) for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": ("u", size, (1 << 8 * size) - 1) for size in (1, 2, 4, 8)},
    "float": ("f", 4, None),
    "double": ("f", 8, None),
}
#: Keys of time rules by the schema's `timeUnit`, and by the constant of a composite's `unit`.
_TIME_KEYS = {
    "second": "seconds", "millisecond": "milliseconds", "microsecond": "microseconds",
    "nanosecond": "nanoseconds", "0": "seconds", "3": "milliseconds", "6": "microseconds",
    "9": "nanoseconds",
}  # fmt: skip
#: FIX tags of fields that name an instrument, the better one first, and of the event's time.
_SYMBOL_TAGS = ("48", "55")
_TIME_TAG = "60"


class Element(msgspec.Struct):
    """An element of the schema, its name without the namespace, and its line."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = []
    text: str = ""

    def get(self, key: str, default: str = "") -> str:
        """Return an attribute's text."""
        return self.attributes.get(key, default)

    def all(self, *tags: str) -> Iterator["Element"]:
        """Yield the children that are called so."""
        return (child for child in self.children if child.tag in tags)


class Slot(msgspec.Struct):
    """A field on the wire: bytes, the keys of its description, its offset behind `begin`."""

    name: str
    at: int
    size: int
    keys: dict[str, Any]
    exponent: str = ""
    """the member with the exponent of this price"""


class SbePrefix(NamedTuple):
    """Fields in front of the SBE header: fields, their bytes, what the length leaves out."""

    fields: list[str]
    size: int
    add: int


_LENGTH = '{ type = "u16", name = "MessageLength" }'
_PREFIXES = {
    "cme": SbePrefix([_LENGTH.replace("Length", "Size")], 2, 0),
    "b3": SbePrefix([_LENGTH, '{ type = "u16", name = "EncodingType", constant = 0xEB50 }'], 4, 0),
    "memx": SbePrefix([_LENGTH], 2, 2),
    "moldudp64": SbePrefix([_LENGTH], 2, 2),
}
#: Framings whose own numbers are big-endian.
_BIG_ENDIAN = {"memx", "moldudp64"}


def run(path: Path, framing: str, out: str) -> int:
    """Write the description of the schema at `path`; `FOUND` where it does not say all of it."""
    name = _slug(Path(out).stem if out not in ("", "-") else path.stem)
    importer = Importer(path, name, framing)
    text = importer.description()
    target = out or f"{name}.toml"
    refusal = _refusal(text, target)
    write_description(text, target)
    for line, note in sorted(importer.notes):
        complain(f"{path}:{line}: {note}")
    if refusal:
        complain(f"the description does not load yet: {refusal}", "mend it there")
    return ExitCode.FOUND if importer.notes or refusal else ExitCode.OK


def _refusal(text: str, target: str) -> str:
    """Return why the loader refuses the description, with its line in `target`; "" if not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "description.toml"
        path.write_text(text, encoding="utf-8")
        try:
            load_feed(path)
        except ConfigError as error:
            return error.message.replace(str(path), target)
    return ""


def _slug(text: str) -> str:
    words = "-".join(re.findall("[a-z0-9]+", text.lower()))
    return words if words[:1].isalpha() else f"feed-{words}".rstrip("-")


def read_schema(path: Path) -> Element:
    """Return the root of the XML file at `path`.

    Raises `UsageError` where it cannot be read, and `ConfigError`, with its line, where it is no
    XML or has a DOCTYPE: no entity is ever expanded.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= SCHEMA_BYTES_MAX else None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason_of(error)}", "name a schema") from None
    if data is None:
        raise UsageError(f"{path}: larger than {SCHEMA_BYTES_MAX:,} bytes", "name a schema")
    parser = expat.ParserCreate()
    parser.buffer_text = True
    root = Element("", {}, 0)
    open_elements = [root]

    def begin(name: str, attributes: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if len(open_elements) > DEPTH_MAX:
            raise _wrong(path, line, f"more than {DEPTH_MAX} elements in each other")
        element = Element(_local(name), {_local(k): v for k, v in attributes.items()}, line)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(name: str) -> None:
        open_elements.pop()

    def text(data: str) -> None:
        open_elements[-1].text += data

    def doctype(*_: Any) -> None:
        raise _wrong(path, parser.CurrentLineNumber, "has a DOCTYPE, which is not read")

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise _wrong(path, error.lineno, f"no XML: {expat.ErrorString(error.code)}") from None
    except (LookupError, ValueError) as error:  # an encoding that Python does not know
        raise _wrong(path, 1, f"no XML: {error}") from None
    return root.children[0]


def _local(name: str) -> str:
    return name.rpartition(":")[2]


def _wrong(path: Path, line: int, reason: str) -> ConfigError:
    return ConfigError(f"{path}:{line}: {reason}", "give a message schema of SBE 1.0")


class _CannotSay(Exception):
    """A part of a schema that no description expresses, nor anything behind it: line and reason."""


class Importer:
    """Turns one schema into a description; `notes` are (line, what could not be said)."""

    def __init__(self, path: Path, name: str, framing: str) -> None:
        self.path = path
        self.name = name
        self.framing = framing
        self.notes: list[tuple[int, str]] = []
        self.root = read_schema(path)
        if self.root.tag != "messageSchema":
            self.refuse(self.root, f"<{self.root.tag}> is no messageSchema of SBE")
        self.byte_order = "big" if self.root.get("byteOrder") == "bigEndian" else "little"
        if framing in _BIG_ENDIAN and self.byte_order != "big":
            raise UsageError(
                f"{path}:{self.root.line}: a little-endian schema: {framing} is big-endian, and a "
                "description has one byte order for all headers",
                "choose another --framing",
            )
        self.types = {
            child.get("name"): child for types in self.root.all("types") for child in types.children
        }
        for element in self._everything(self.root):
            if element.tag == "include":
                self.note(element, "an include is not followed: put what it names into the schema")
        self.names: set[str] = set()
        self.numbers: set[int] = set()
        self.header_size = self._depth = 0
        self.dimensions: dict[str, list[str]] = {}
        self.times: dict[tuple[str, str], None] = {}

    def refuse(self, element: Element, reason: str) -> NoReturn:
        """Raise the error of what is wrong in the schema."""
        raise _wrong(self.path, element.line, reason)

    def note(self, element: Element, text: str) -> None:
        """Remember what the description cannot say; once for each element."""
        if (element.line, text) not in self.notes:
            self.notes.append((element.line, text))

    def _everything(self, element: Element) -> Iterator[Element]:
        for child in element.children:
            yield child
            yield from self._everything(child)

    def number(self, element: Element, key: str, default: int | None = None) -> int:
        """Return an attribute that is an integer of at least 0."""
        text = element.get(key)
        if not text and default is not None:
            return default
        if not re.fullmatch(r"\d{1,9}", text.strip()):
            self.refuse(element, f"{key} {text!r} is no number")
        return int(text)

    # -- the whole ------------------------------------------------------------------------------

    def description(self) -> str:
        """Return the description as TOML."""
        header = self._message_header()
        messages = [text for each in self.root.all("message") for text in self._message(each)]
        if not messages:
            self.refuse(self.root, "has no message")
        lines = [*self._head(), sbe_packet(self.framing), *header, ""]
        for name, dimensions in self.dimensions.items():
            lines += [f"[dimensions.{name}]", *dimensions, ""]
        for wire, key in self.times:
            lines += ["[[times]]", 'name = "event_time_ns"', 'since = "epoch"']
            lines += [f"{key} = {toml_value(wire)}", ""]
        return "\n".join(lines + messages).rstrip() + "\n"

    def _head(self) -> list[str]:
        title = self.root.get("description") or self.root.get("package") or self.name
        version = self.root.get("semanticVersion") or self.root.get("version")
        source = f"SBE schema {self.root.get('id')}, version {version}"
        return [
            f"# {_line(title)}: made of an SBE schema, framed as {self.framing}.",
            "#",
            "# Names are the schema's. What it does not give is to be filled in: zone, number, and",
            "# of each message whether a newer one replaces it (`conflate`). Every key is in",
            "# codecs/FORMAT.md; `feedhandler feeds check` holds it against real packets.",
            "",
            f"name = {toml_value(self.name)}",
            f"title = {toml_value(_line(title))}",
            f"key = {toml_value(self.name)}",
            f"number = {NUMBER} # one that no other feed in use has",
            'zone = "UTC" # of the exchange',
            f'byte_order = "{self.byte_order}"',
            f"source = {toml_value(source)}",
            "",
        ]

    def _message_header(self) -> list[str]:
        """Return `[message]`; set the header's size."""
        name = self.root.get("headerType", "messageHeader")
        element = self._composite(self.root, name)
        slots, _, size = self._members(element)
        known = {slot.name: slot for slot in slots}
        prefix = _PREFIXES[self.framing]
        self.header_size = prefix.size + size
        fields = list(prefix.fields)
        constants = {"schemaId": self.root.get("id"), "version": self.root.get("version", "0")}
        for slot in slots:
            if (value := constants.get(slot.name, "")).isdecimal():
                slot.keys["constant"] = int(value)
            slot.keys.pop("null", None)
        fields += self._fields(slots, prefix.size, prefix.size, set())
        positions = {}
        for key in ("blockLength", "templateId"):
            if key not in known or known[key].keys["type"] not in ("u8", "u16", "u32"):
                self.refuse(element, f"the message header has no unsigned {key}")
            slot = known[key]
            positions[key] = f'{{ at = {prefix.size + slot.at}, type = "{slot.keys["type"]}" }}'
        if known["templateId"].size > 2:
            self.refuse(element, "a templateId of more than two bytes cannot be described")
        add = [f"length_add = {prefix.add}"] if prefix.add else []
        return [
            "[message]",
            f"header_size = {self.header_size}",
            'length = { at = 0, type = "u16" }',
            *add,
            f"type = {positions['templateId']}",
            f"block_length = {positions['blockLength']}",
            *_list("fields", fields),
        ]

    def _composite(self, asking: Element, name: str) -> Element:
        element = self.types.get(name)
        if element is None or element.tag != "composite":
            self.refuse(asking, f"no composite {name!r}")
        return element

    # -- types ----------------------------------------------------------------------------------

    def _slots(self, element: Element, field: Element) -> tuple[list[Slot], int]:
        """Return what a value of the type or composite `element` has on the wire, and its bytes.

        `field` is what has that type, whose presence and null value come first. One slot that has
        no member's name is the field itself.
        """
        if element.tag == "composite":
            return self._composite_slots(element, field)
        presence = field.get("presence") or element.get("presence", "required")
        if presence == "constant":
            return [], 0
        if element.tag in ("enum", "set"):
            return self._coded(element, field, presence)
        if element.tag != "type":
            self.refuse(field, f"<{element.tag}> is no type")
        return self._simple(element, field, presence)

    def _type(self, asking: Element, name: str) -> Element:
        """Return the type of that name; a primitive one where the schema has none such."""
        if name in self.types:
            return self.types[name]
        if name in _PRIMITIVES:
            return Element("type", {"name": name, "primitiveType": name}, asking.line)
        self.refuse(asking, f"no type {name!r}")

    def _simple(self, element: Element, field: Element, presence: str) -> tuple[list[Slot], int]:
        primitive = element.get("primitiveType")
        if primitive not in _PRIMITIVES:
            self.refuse(element, f"{primitive!r} is no primitive type")
        kind, size, null = _PRIMITIVES[primitive]
        many = self.number(element, "length", 1)
        if kind == "c":
            keys: dict[str, Any] = {"type": f"c{many}"}
            return ([Slot("", 0, many, keys)] if many else []), many
        keys = {"type": f"{kind}{8 * size}"}
        given = field.get("nullValue") or element.get("nullValue")
        if kind == "f" and given not in ("", "NaN"):
            self.note(field, f"{_called(field)}: nullValue {given} of {primitive} is read as it is")
        if null is not None and (presence == "optional" or _is_later(field)):
            keys["null"] = self._null(element, given, keys["type"]) if given else null
        if many == 1:
            return [Slot("", 0, size, keys)], size
        if many > ARRAY_MAX:
            self.note(field, f"{_called(field)}: an array of {many} {primitive} is read past")
            return [Slot("", 0, many * size, {"type": f"x{many * size}"})], many * size
        slots = [Slot(str(n + 1), n * size, size, dict(keys)) for n in range(many)]
        return slots, many * size

    def _integer(self, element: Element, text: str) -> int:
        try:
            return int(text, 0)
        except ValueError:
            if len(text) == 1:
                return ord(text)
            self.refuse(element, f"{text!r} is no integer")

    def _null(self, element: Element, text: str, kind: str) -> int:
        """Return a null value that is given, which must fit its type."""
        null, bits = self._integer(element, text), int(kind[1:])
        least, most = (0, 1 << bits) if kind[0] == "u" else (-(1 << bits - 1), 1 << bits - 1)
        if not least <= null < most:
            self.refuse(element, f"nullValue {null} does not fit into {kind}")
        return null

    def _coded(self, element: Element, field: Element, presence: str) -> tuple[list[Slot], int]:
        """Return the slot of an enum or a set."""
        encoding = self._type(element, element.get("encodingType"))
        if encoding.tag != "type":
            self.refuse(element, "its encodingType is no simple type")
        asked = dict(field.attributes)
        asked["presence"] = field.get("presence") or encoding.get("presence", presence)
        slots, size = self._simple(encoding, Element("", asked, field.line), asked["presence"])
        if len(slots) != 1 or slots[0].keys["type"][0] not in "uic":
            self.refuse(element, "its encodingType is no single character or integer")
        keys = slots[0].keys
        is_text = keys["type"].startswith("c")
        if element.tag == "set":
            if is_text:
                self.refuse(element, "the encodingType of a set is no unsigned integer")
            keys.pop("null", None)  # all bits set are a value; a set has no null
            bits = {}
            for choice in element.all("choice"):
                if not 0 <= (bit := self._integer(choice, choice.text.strip())) < 8 * size:
                    self.refuse(choice, f"bit {bit} is not within {8 * size}")
                bits[choice.get("name")] = bit
            if bits:
                keys["bits"] = bits
            return slots, size
        values = {}
        for value in element.all("validValue"):
            text = value.text if is_text and value.text.isspace() else value.text.strip()
            code = text[:1] if is_text else str(self._integer(value, text))
            values[code] = value.get("name")
        if values:
            keys["values"] = values
        return slots, size

    def _composite_slots(self, element: Element, field: Element) -> tuple[list[Slot], int]:
        """Return the members of a composite; a decimal as one price, a single member as itself."""
        slots, constants, size = self._members(element)
        named = {slot.name: slot for slot in slots}
        mantissa = named.get("mantissa")
        if mantissa is not None and mantissa.keys["type"][0] not in "ui":
            mantissa = None
        if mantissa is not None and (field.get("presence") == "optional" or _is_later(field)):
            kind = mantissa.keys["type"]
            null = _PRIMITIVES[f"{'uint' if kind[0] == 'u' else 'int'}{kind[1:]}"][2]
            if field.get("nullValue"):
                null = self._null(field, field.get("nullValue"), kind)
            mantissa.keys.setdefault("null", null)
        if mantissa is not None and "exponent" in constants:
            decimals = -self._integer(element, constants["exponent"])
            if 0 <= decimals <= 18:
                mantissa.keys["price"] = decimals
            else:
                text = f"a decimal of exponent {-decimals} stays an integer"
                self.note(field, f"{_called(field)}: {text}")
            mantissa.name = ""
        elif mantissa is not None and "exponent" in named:
            mantissa.name = ""
            if named["exponent"].size == 1:
                mantissa.exponent = "exponent"
            else:
                self.note(
                    field, f"{_called(field)}: an exponent of more than one byte scales nothing"
                )
        elif len(slots) == 1:
            slots[0].name = ""
        return slots, size

    def _members(self, element: Element) -> tuple[list[Slot], dict[str, str], int]:
        """Return a composite's members on the wire, its constants, and its bytes."""
        slots: list[Slot] = []
        constants: dict[str, str] = {}
        at = 0
        if self._depth > NESTED_MAX:
            self.refuse(element, f"more than {NESTED_MAX} composites in each other")
        self._depth += 1
        for member in element.all("type", "enum", "set", "composite", "ref"):
            name = member.get("name")
            inner = self._type(member, member.get("type")) if member.tag == "ref" else member
            found, size = self._slots(inner, member)
            if not found and not size and inner.tag != "composite":
                constants[name] = self._constant(inner, member)
                continue
            offset = self.number(member, "offset", at)
            if offset < at:
                self.refuse(member, f"{name} begins at {offset}, inside what ends at {at}")
            for slot in found:
                slot.at += offset
                slot.name = f"{name}.{slot.name}" if slot.name else name
                slot.exponent = f"{name}.{slot.exponent}" if slot.exponent else ""
                slots.append(slot)
            at = offset + size
        self._depth -= 1
        return slots, constants, at

    def _constant(self, element: Element, field: Element) -> str:
        """Return the value of a constant, which is not on the wire."""
        reference = field.get("valueRef") or element.get("valueRef")
        if not reference:
            return field.text.strip() or element.text.strip()
        name, _, value = reference.partition(".")
        values = self.types.get(name, element).all("validValue")
        found = [each.text.strip() for each in values if each.get("name") == value]
        return found[0] if found else reference

    # -- messages -------------------------------------------------------------------------------

    def _message(self, element: Element) -> list[str]:
        """Return a message as lines; none where its number cannot be said."""
        number, name = self.number(element, "id"), element.get("name")
        if number > 65_535:
            self.note(element, f"{name}: number {number} is beyond 65,535, and left out")
            return []
        if number in self.numbers:
            self.refuse(element, f"{name}: number {number} comes twice")
        self.numbers.add(number)
        own = _unique(_attribute(name), self.names)
        self.names.add(own)
        names: set[str] = set()
        symbol = self._symbol(element)
        begin = self.header_size
        fields, end, comments = self._block(element, begin, begin, names, symbol, times=True)
        size = begin + self.number(element, "blockLength", end - begin)
        if size < end:
            self.refuse(element, f"{name}: blockLength {size - begin}, fields end at {end - begin}")
        lines = ["[[messages]]", f"type = {number}", f'name = "{own}"']
        if doc := _doc(element):
            lines.append(f"doc = {toml_value(doc)}")
        if size > end:
            lines.append(f"size = {size}")
        if symbol:
            lines.append(f"symbol = {toml_value(symbol)}")
        lines += _list("fields", fields)
        lines += [f"# {comment}" for comment in comments]
        lines.append("")
        for part in element.all("group", "data"):
            kept = dict(self.dimensions)
            try:
                lines += self._part(part, "messages.parts", names, symbol)
            except _CannotSay as error:
                self.dimensions = kept
                self.note(part, f"{name}: {error}: nothing from here on is read")
                break
        return lines

    def _symbol(self, element: Element) -> str:
        """Return the field that names the instrument, by its FIX tag; "" where none does."""
        parents = [(element, "")]
        for group in list(element.all("group"))[:1]:
            if not any(group.all("group", "data")):
                parents.append((group, f"{_attribute(group.get('name'))}."))
        for around, prefix in parents:
            for tag in _SYMBOL_TAGS:
                for field in around.all("field"):
                    if field.get("id") == tag and self._can_be_symbol(field):
                        return prefix + field.get("name")
        return ""

    def _can_be_symbol(self, field: Element) -> bool:
        slots, _ = self._slots(self._type(field, field.get("type")), field)
        if len(slots) != 1 or slots[0].name:
            return False
        kind = slots[0].keys["type"][0]
        return kind in "ui" or (kind == "c" and slots[0].size <= 255)

    def _block(
        self,
        element: Element,
        begin: int,
        base: int,
        names: set[str],
        symbol: str,
        *,
        times: bool = False,
    ) -> tuple[list[str], int, list[str]]:
        """Return fields as lines, the byte behind them, and comments on constants.

        `base` is the position of offset 0, `begin` that of the first field.
        """
        slots: list[Slot] = []
        comments: list[str] = []
        at = begin
        for field in element.all("field"):
            name = field.get("name")
            declared = self._type(field, field.get("type"))
            found, size = self._slots(declared, field)
            if not found and not size:
                value = self._constant(declared, field)
                comments.append(_line(f"not on the wire: {name} = {value}"))
                continue
            offset = base + self.number(field, "offset", at - base)
            if offset < at:
                self.refuse(
                    field, f"{name} begins at {offset - base}, inside what ends at {at - base}"
                )
            doc = _doc(field) or _doc(declared)
            for slot in found:
                slot.name = f"{name}.{slot.name}" if slot.name else name
                slot.exponent = f"{name}.{slot.exponent}" if slot.exponent else ""
                slot.at += offset
                if doc and slot is found[0]:
                    slot.keys["doc"] = doc
            slots += found
            if times and field.get("id") == _TIME_TAG:
                self._time(field, declared, found)
            at = offset + size
        return self._fields(slots, begin, 0, names, symbol), at, comments

    def _time(self, field: Element, declared: Element, found: list[Slot]) -> None:
        """Add the time rule of the field with the event's time."""
        unit = field.get("timeUnit") or declared.get("timeUnit")
        if declared.tag == "composite":
            _, constants, _ = self._members(declared)
            unit = constants.get("unit", unit)
        key = _TIME_KEYS.get(unit or "nanosecond")
        kind = found[0].keys["type"]
        if key is None:
            self.note(field, f"{_called(field)}: a time in units of {unit} is no event's time")
        elif len(found) > 1 or kind not in ("u32", "u64", "i64"):
            what = f"{len(found)} fields" if len(found) > 1 else kind
            self.note(
                field, f"{_called(field)}: a time of {what} is no event's time: u32, u64 or i64 is"
            )
        else:
            self.times[found[0].name, key] = None

    def _fields(
        self, slots: list[Slot], begin: int, base: int, names: set[str], symbol: str = ""
    ) -> list[str]:
        """Return slots as inline tables, `at` where there is a gap; add their names to `names`."""
        fields = []
        at = begin
        for slot in slots:
            keys: dict[str, Any] = {}
            offset = base + slot.at
            if offset != at:
                keys["at"] = offset
            at = offset + slot.size
            keys["type"] = slot.keys["type"]
            if not keys["type"].startswith("x"):
                keys |= self._field_names(slot, names, symbol)
            if slot.exponent:
                keys["exponent"] = slot.exponent
            fields.append(_inline(keys | slot.keys))
        return fields

    def _field_names(self, slot: Slot, names: set[str], symbol: str) -> dict[str, Any]:
        """Return `name`, and `as` where the name cannot be an attribute; those of bits likewise."""
        keys = {"name": slot.name}
        plain = snake_case(slot.name)
        is_symbol = slot.name == symbol and plain == "symbol"
        attribute = plain if is_symbol else _unique(_attribute(slot.name), names)
        names.add(attribute)
        if attribute != plain:
            keys["as"] = attribute
        bits = {}
        for wire, position in slot.keys.get("bits", {}).items():
            name = _attribute(wire)
            taken = name in names or name != snake_case(wire)
            bits[f"{slot.name}.{wire}" if taken else wire] = position
            names.add(f"{attribute}_{name}" if taken else name)
        if bits:
            slot.keys["bits"] = bits
        return keys

    # -- parts ----------------------------------------------------------------------------------

    def _part(self, element: Element, table: str, names: set[str], symbol: str) -> list[str]:
        """Return a group or a text as lines. Raises `_CannotSay`."""
        wire = element.get("name")
        name = _unique(_attribute(wire), names)
        names.add(name)
        doc = "; ".join(filter(None, [wire if snake_case(wire) != name else "", _doc(element)]))
        keys = [f"doc = {toml_value(doc)}"] if doc else []
        if element.tag == "data":
            return [f"[[{table}]]", f'text = "{name}"', *self._text(element), *keys, ""]
        dimensions = self._dimensions(element)
        inner: set[str] = set()
        own = symbol.partition(".")[2] if symbol.startswith(f"{name}.") else ""
        fields, end, comments = self._block(element, 0, 0, inner, own)
        size = self.number(element, "blockLength", end)
        if size < end:
            self.refuse(element, f"{wire}: blockLength {size}, fields end at {end}")
        if not size:
            raise _CannotSay(f"{wire} at line {element.line} is a group without fields of its own")
        lines = [f"[[{table}]]", f'group = "{name}"', f'dimensions = "{dimensions}"', *keys]
        if size > end:
            lines.append(f"size = {size}")
        lines += _list("fields", fields)
        lines += [f"# {comment}" for comment in comments] + [""]
        taken = names | inner  # a part is called as no field around it
        for part in element.all("group", "data"):
            lines += self._part(part, f"{table}.parts", taken, "")
        return lines

    def _text(self, element: Element) -> list[str]:
        """Return the length of a text as lines."""
        composite = self._composite(element, element.get("type"))
        slots, _, size = self._members(composite)
        length = next((slot for slot in slots if slot.name == "length"), None)
        if length is None or length.keys["type"][0] != "u" or length.size != size:
            raise _CannotSay(f"{element.get('name')} at line {element.line} has no unsigned length")
        return [f'length = "{length.keys["type"]}"']

    def _dimensions(self, element: Element) -> str:
        """Return the name of a group's dimensions, which are added to those of the description."""
        composite = self._composite(element, element.get("dimensionType", "groupSizeEncoding"))
        name = _attribute(composite.get("name"))
        slots, _, size = self._members(composite)
        known = {slot.name: slot for slot in slots}
        lines = [f"size = {size}"]
        for key, member in (("block_length", "blockLength"), ("count", "numInGroup")):
            slot = known.get(member)
            if slot is None or slot.keys["type"][0] != "u":
                self.refuse(composite, f"has no unsigned {member}")
            field = {"at": slot.at, "type": slot.keys["type"], "name": member}
            lines.append(f"{key} = {_inline(field)}")
        self.dimensions[name] = lines
        return name


def _attribute(wire: str) -> str:
    """Return the name of an attribute for a name of the schema."""
    name = re.sub(r"\W", "", snake_case(wire), flags=re.ASCII)
    if not name[:1].isalpha():
        name = f"field_{name}".rstrip("_")
    return f"{name}_" if iskeyword(name) or name in _RESERVED else name


def _unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number where it is taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def _is_later(field: Element) -> bool:
    """Return whether messages of earlier versions lack the field: it then has no value."""
    return field.get("sinceVersion") not in ("", "0")


def _called(element: Element) -> str:
    return element.get("name") or element.tag


def _line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _doc(element: Element) -> str:
    """Return the remark on an element: its description, and the versions that have it."""
    since, gone = element.get("sinceVersion"), element.get("deprecated")
    parts = [
        _line(element.get("description")),
        f"since version {since}" if since not in ("", "0") else "",
        f"deprecated from version {gone}" if gone else "",
    ]
    return "; ".join(part for part in parts if part)


def _inline(keys: Mapping[str, Any]) -> str:
    """Return an inline table."""
    return f"{{ {', '.join(f'{_key(key)} = {_value(value)}' for key, value in keys.items())} }}"


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)


def _value(value: Any) -> str:
    return _inline(value) if isinstance(value, dict) else toml_value(value)


def _list(key: str, items: list[str]) -> list[str]:
    """Return an array of inline tables as lines, one a line."""
    return [f"{key} = [", *(f"    {item}," for item in items), "]"] if items else [f"{key} = []"]
