"""Dictionaries of FIX: tags and their types, messages and groups and their members.

Ours are small TOML files beside this module (`fix44`, `fix50sp2`: market data and sessions). A
user's own may be TOML of the same form or a QuickFIX data dictionary in XML, with a second one for
the transport where the first has no header (FIX50SP2.xml with FIXT11.xml). `Dictionary.table` is
the compiled form that the index walks (`feedhandler.codecs.fix.index`).
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from feedhandler.codecs.errors import ConfigError, reason_of
from feedhandler.codecs.fix import kinds
from feedhandler.codecs.fix.index import TAGS_MAX, FixTable

#: Most bytes of a dictionary: that of the whole of FIX Latest has about 3 million.
FILE_BYTES_MAX = 16 << 20
#: Most levels of parts within parts, so that a part that contains itself ends.
DEPTH_MAX = 16
#: The folder of our own dictionaries.
FOLDER = Path(__file__).with_name("dictionaries")

#: Types of fields, by the names of the specification and of QuickFIX.
TYPES = {
    **dict.fromkeys(("STRING", "EXCHANGE", "LANGUAGE", "XMLDATA", "UTC", "TENOR"), kinds.STRING),
    **dict.fromkeys(("TZTIMEONLY", "TZTIMESTAMP", "LOCALMKTTIME", "XID", "XIDREF"), kinds.STRING),
    **dict.fromkeys(("MULTIPLESTRINGVALUE", "PATTERN", "RESERVED1000PLUS"), kinds.STRING),
    **dict.fromkeys(("CHAR", "RESERVED100PLUS", "RESERVED4000PLUS"), kinds.CHAR),
    **dict.fromkeys(("MULTIPLECHARVALUE", "MULTIPLEVALUESTRING"), kinds.MULTIPLE_CHAR),
    **dict.fromkeys(("INT", "TAGNUM"), kinds.INT),
    **dict.fromkeys(("LENGTH", "SEQNUM", "DAYOFMONTH", "DAY-OF-MONTH"), kinds.NUMBER),
    "NUMINGROUP": kinds.GROUP_COUNT,
    **dict.fromkeys(("FLOAT", "QTY", "QUANTITY", "PRICE", "PRICEOFFSET"), kinds.DECIMAL),
    **dict.fromkeys(("AMT", "PERCENTAGE"), kinds.DECIMAL),
    "BOOLEAN": kinds.BOOLEAN,
    "DATA": kinds.DATA,
    "UTCTIMESTAMP": kinds.TIMESTAMP,
    **dict.fromkeys(("UTCDATEONLY", "UTCDATE", "LOCALMKTDATE", "DATE"), kinds.DATE),
    "UTCTIMEONLY": kinds.TIME,
    **dict.fromkeys(("MONTHYEAR", "MONTH-YEAR"), kinds.MONTH_YEAR),
    "CURRENCY": kinds.CURRENCY,
    "COUNTRY": kinds.COUNTRY,
}
_TOKEN = re.compile(
    r"\s*(?:@(?P<part>\w+)|(?P<tag>[1-9]\d*)(?P<must>!?)(?P<open>\()?|(?P<close>\)))"
)


class Field(msgspec.Struct, frozen=True):
    """A field of the dictionary.

    `values` are its allowed values, empty where any is allowed; `data` is the tag of the data field
    that has to follow a length field, else 0.
    """

    tag: int
    name: str
    kind: int
    values: tuple[str, ...] = ()
    data: int = 0


class Member(msgspec.Struct, frozen=True):
    """A field of a message or of a group.

    `group` are the fields of its entries where it counts a repeating group, the first one the
    delimiter.
    """

    tag: int
    required: bool = False
    group: tuple["Member", ...] = ()


class Message(msgspec.Struct, frozen=True):
    """A type of message, without header and trailer."""

    code: str
    name: str
    members: tuple[Member, ...]


class Dictionary(msgspec.Struct, frozen=True, dict=True):
    """All fields and messages of one version of FIX, or the part of it that one venue uses."""

    name: str
    fields: dict[int, Field]
    messages: dict[str, Message]
    header: tuple[Member, ...]
    trailer: tuple[Member, ...]

    @cached_property
    def table(self) -> FixTable:
        """The compiled form. User-defined tags (5000 and above) pass unless they are known."""
        made: FixTable = make_table(self)
        return made

    @cached_property
    def tags(self) -> dict[str, int]:
        """Tags by the names of their fields."""
        return {field.name: field.tag for field in self.fields.values()}

    def name_of(self, tag: int) -> str:
        """Return the field's name, or its tag where the dictionary does not have it."""
        return self.fields[tag].name if tag in self.fields else str(tag)


def load_dictionary(source: str | Path, transport: str | Path | None = None) -> Dictionary:
    """Load one of our dictionaries by name (`fix50sp2`), or a file.

    A file is TOML of our form, or QuickFIX's XML, with `transport` beside it where header and
    session are in a file of their own. Raises `ConfigError` for a file that cannot be read or is no
    dictionary.
    """
    path = Path(source)
    if path.suffix not in (".toml", ".xml") and not path.exists():
        path = FOLDER / f"{source}.toml"
    if transport and path.suffix != ".xml":
        raise ConfigError(
            f"{source} has its own header and session", "a transport is for a dictionary in XML"
        )
    text = _read(path, str(source))
    if path.suffix == ".xml":
        return read_xml(text, str(path), _read(Path(transport)) if transport else None)
    return read_toml(text, str(path), path.parent)


def dictionary_names() -> list[str]:
    """Return the names of our own dictionaries, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "fields")


def _read(path: Path, named: str = "") -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read the FIX dictionary {named or path}: {reason_of(error)}",
            f"ours are {', '.join(dictionary_names())}; others are files, .toml or .xml",
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {FILE_BYTES_MAX:,} bytes", "is it a dictionary?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8", "save it as UTF-8") from None


def _kind(name: str, where: str) -> int:
    kind = TYPES.get(name.upper())
    if kind is None:
        raise ConfigError(f"{where}: no type {name!r}", f"types are {', '.join(sorted(TYPES))}")
    return kind


def read_toml(text: str, where: str, folder: Path = FOLDER) -> Dictionary:
    """Read a dictionary of our own form; `include` in it names a file in `folder` with more fields.

    Raises `ConfigError` for text that is none.
    """
    try:
        data = tomllib.loads(text)
        fields = dict(data.get("fields", {}))
        if include := data.get("include"):
            more = tomllib.loads(_read(folder / include))
            fields = {**more.get("fields", {}), **fields}
        reader = _Layouts(where, data.get("parts", {}), {})
        reader.fields = {
            int(tag): _toml_field(int(tag), said, where) for tag, said in fields.items()
        }
        messages = {}
        for code, said in data["messages"].items():
            name, _, layout = said.partition(":")
            messages[code] = Message(code, name.strip(), reader.members(layout))
        header, trailer = reader.members(data["header"]), reader.members(data["trailer"])
        return Dictionary(data["name"], reader.fields, messages, header, trailer)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {error}", "see docs/fix.md for the form") from None
    except KeyError as error:
        raise ConfigError(f"{where}: {error} is missing", "see docs/fix.md for the form") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: it is not a FIX dictionary: {error}", "see docs/fix.md for the form"
        ) from None


def _toml_field(tag: int, said: str, where: str) -> Field:
    name, type_name, *values = said.split()
    data = 0
    if values and values[0].startswith(">"):
        data = int(values.pop(0)[1:])
    return Field(tag, name, _kind(type_name, f"{where}: field {tag}"), tuple(values), data)


class _Layouts:
    """Parses layouts of messages: tags, groups in brackets, parts by name."""

    def __init__(self, where: str, parts: Mapping[str, str], fields: dict[int, Field]) -> None:
        self.where = where
        self.parts = parts
        self.fields = fields

    def members(self, text: str) -> tuple[Member, ...]:
        """Return the members that a layout names. Raises `ConfigError` for other text."""
        tokens = self._tokens(text, 0)
        members = tuple(self._members(tokens, 0))
        return members

    def _tokens(self, text: str, depth: int) -> Iterator[re.Match[str]]:
        """Yield the tokens of the text, each part replaced by its own tokens."""
        if depth > DEPTH_MAX:
            raise ConfigError(f"{self.where}: parts nest too deep", "does a part contain itself?")
        at, text = 0, text.rstrip()
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                raise ConfigError(f"{self.where}: no layout: {text[at : at + 30]!r}", "tags, ( )")
            at = token.end()
            if token["part"] is None:
                yield token
            elif token["part"] not in self.parts:
                raise ConfigError(f"{self.where}: no part {token['part']!r}", "see [parts]")
            else:
                yield from self._tokens(self.parts[token["part"]], depth + 1)

    def _members(self, tokens: Iterator[re.Match[str]], depth: int) -> Iterator[Member]:
        for token in tokens:
            if token["close"]:
                if depth == 0:
                    raise ConfigError(f"{self.where}: a bracket too many", "count the brackets")
                return
            tag = int(token["tag"])
            if tag not in self.fields:
                raise ConfigError(f"{self.where}: no field {tag}", "add it to [fields]")
            group = tuple(self._members(tokens, depth + 1)) if token["open"] else ()
            yield Member(tag, bool(token["must"]), group)
        if depth:
            raise ConfigError(f"{self.where}: a bracket does not close", "count the brackets")


def read_xml(text: str, where: str, transport: str | None = None) -> Dictionary:
    """Read a QuickFIX data dictionary; header, trailer and session may come from `transport`.

    Raises `ConfigError` for text that is none.
    """
    readers = [_Xml(each, where) for each in (text, transport) if each is not None]
    fields: dict[int, Field] = {}
    messages: dict[str, Message] = {}
    for reader in reversed(readers):
        fields |= {field.tag: field for field in reader.by_name.values()}
        messages |= reader.messages()
    header = next((found for each in reversed(readers) if (found := each.part("header"))), ())
    trailer = next((found for each in reversed(readers) if (found := each.part("trailer"))), ())
    if not header:
        raise ConfigError(f"{where} has no header", "name the transport's dictionary as well")
    return Dictionary(readers[0].name, fields, messages, header, trailer)


class _Xml:
    """Parses one QuickFIX data dictionary."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        try:
            self.root = ElementTree.fromstring(text)
        except ElementTree.ParseError as error:
            raise ConfigError(f"{where}: {error}", "a QuickFIX data dictionary is wanted") from None
        said = self.root.attrib
        pack = said.get("servicepack", "0")
        self.name = f"{said.get('type', 'FIX')}.{said.get('major', '?')}.{said.get('minor', '?')}"
        self.name += f"SP{pack}" if pack != "0" else ""
        self.by_name = {field.name: field for field in self._fields()}
        self.components = {
            self._said(each, "name"): each for each in self.root.iterfind("components/*")
        }

    def _said(self, element: Any, name: str) -> str:
        found = element.get(name)
        if not found:
            raise ConfigError(f"{self.where}: <{element.tag}> has no {name}", "see QuickFIX's form")
        return str(found)

    def _fields(self) -> Iterator[Field]:
        read = [
            (self._said(each, "name"), self._said(each, "number"), self._said(each, "type"), each)
            for each in self.root.iterfind("fields/field")
        ]
        numbers = {name: int(number) for name, number, _, _ in read if number.isdecimal()}
        data = {number for name, number, kind, _ in read if kind.upper() in ("DATA", "XMLDATA")}
        for name, number, kind, each in read:
            if name not in numbers:
                raise ConfigError(f"{self.where}: {number!r} is no tag", "tags are numbers")
            values = tuple(self._said(value, "enum") for value in each.iterfind("value"))
            follows = 0
            for ending in ("Length", "Len"):
                stem = name.removesuffix(ending)
                if kind.upper() in ("LENGTH", "INT") and stem != name and stem in numbers:
                    follows = numbers[stem] if str(numbers[stem]) in data else 0
            yield Field(int(number), name, _kind(kind, f"{self.where}: {name}"), values, follows)

    def messages(self) -> dict[str, Message]:
        """Return the messages by type."""
        messages = {}
        for each in self.root.iterfind("messages/message"):
            code = self._said(each, "msgtype")
            messages[code] = Message(code, self._said(each, "name"), tuple(self._members(each, 0)))
        return messages

    def part(self, name: str) -> tuple[Member, ...]:
        """Return the members of header or trailer; empty where there are none."""
        found = self.root.find(name)
        return () if found is None else tuple(self._members(found, 0))

    def _members(self, element: Any, depth: int) -> Iterator[Member]:
        if depth > DEPTH_MAX:
            raise ConfigError(
                f"{self.where}: components nest too deep", "does a component contain itself?"
            )
        for each in element:
            name = self._said(each, "name")
            must = each.get("required", "N").upper() == "Y"
            if each.tag == "component":
                if name not in self.components:
                    raise ConfigError(f"{self.where}: no component {name!r}", "see <components>")
                for member in self._members(self.components[name], depth + 1):
                    # What a part requires is required only of messages that require the part.
                    yield member if must else Member(member.tag, False, member.group)
                continue
            if name not in self.by_name:
                raise ConfigError(f"{self.where}: no field {name!r}", "see <fields>")
            group = tuple(self._members(each, depth + 1)) if each.tag == "group" else ()
            yield Member(self.by_name[name].tag, must, group)


def make_table(dictionary: Dictionary, kind: Callable[[int, int], Any] = FixTable) -> Any:
    """Return the form of the dictionary that the index walks: a `FixTable`, or another `kind`.

    Raises `ConfigError` for tags outside 1 to 65,535, for which that form has no slot.
    """
    tags = sorted(dictionary.fields)
    data = [field.data for field in dictionary.fields.values()]
    if tags and (tags[0] < 1 or min(data) < 0):
        raise ConfigError(f"{dictionary.name}: {min(tags[0], *data)} is no tag", "they begin at 1")
    if tags and max(tags[-1], *data) >= TAGS_MAX:
        raise ConfigError(
            f"{dictionary.name}: tag {max(tags[-1], *data)} is above {TAGS_MAX - 1}",
            "leave it out",
        )
    scopes = _Scopes()
    types = {
        code: scopes.number((*dictionary.header, *message.members, *dictionary.trailer))
        for code, message in dictionary.messages.items()
    }
    table = kind(len(tags) + 1, len(scopes.found))
    for slot, tag in enumerate(tags, 1):
        field = dictionary.fields[tag]
        single = [value for value in field.values if len(value) == 1 and ord(value) < 256]
        table.set_field(tag, slot, field.kind, field.data)
        if single:
            table.set_values(slot, single, len(single) == len(field.values))
    for part, members in ((1, dictionary.header), (2, dictionary.trailer)):
        for member in _all_of(members):
            table.set_part(member.tag, part)
    envelope = {member.tag for member in (*dictionary.header, *dictionary.trailer)}
    for scope, number in scopes.found.items():
        table.set_scope(number, scope[0].tag if scope else 0)
        for member in scope:
            child = scopes.number(member.group) if member.group else -1
            table.add_member(number, member.tag, child)
    for code, number in types.items():
        if len(text := code.encode()) <= 2:
            table.set_type(text, number)
        for member in dictionary.messages[code].members:
            if member.required and member.tag not in envelope:
                table.add_required(number, member.tag)
    return table


def _all_of(members: tuple[Member, ...]) -> Iterator[Member]:
    """Yield the members, and those of their groups."""
    for member in members:
        yield member
        yield from _all_of(member.group)


class _Scopes:
    """Numbers the scopes, the members of each message and group; equal ones share a number."""

    def __init__(self) -> None:
        self.found: dict[tuple[Member, ...], int] = {}

    def number(self, members: tuple[Member, ...]) -> int:
        """Return the number of these members; number them, and those of their groups, if new."""
        if members not in self.found:
            self.found[members] = len(self.found)
            for member in members:
                if member.group:
                    self.number(member.group)
        return self.found[members]
