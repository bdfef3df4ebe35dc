"""The structure of a feed description: its tables and keys, before their content is checked.

One struct for each TOML table, one attribute for each key; `codecs/FORMAT.md` says what each means.
An unknown key or a value of the wrong type is refused here, with its line in the file; `loader`
checks whether the parts fit each other, and finds the line of a fault with `DescriptionFile`.
"""

import functools
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.recovery import RecoveryDescription
from feedhandler.codecs.toml_text import KeyLines, KeyPath, WrongKey, convert, parse_toml, read_text

_HINT = "codecs/FORMAT.md lists every key"


class FieldDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One field: `{ type = "u32", name = "Price", price = "PriceScaleCode" }`.

    Without `at` it follows the field before it. `block` stands for the fields of a named block.
    """

    at: int | None = None
    type: str = ""
    name: str = ""
    rename: str = msgspec.field(default="", name="as")
    price: int | str | None = None
    exponent: str = ""
    decimals: dict[str, int] = {}
    null: int | None = None
    constant: int | None = None
    bits: dict[str, int | list[int]] = {}
    block: str = ""
    byte_order: Literal["", "big", "little"] = ""
    values: dict[str, str] = {}
    pad: Literal["", "nul", "space"] = ""
    doc: str = ""


class LengthDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The packet's length field: the whole packet has field + add bytes."""

    field: str
    add: int = 0


#: In place of `length` where a packet is the whole datagram.
NO_LENGTH = LengthDescription("")


class SequenceDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The sequence number: its field, what it counts, and the meaning of a heartbeat's.

    `unsequenced` is the number that is set aside for packets outside the sequence. Without a field,
    a packet has the number of its first message (`message.sequence`). `high` names bits of the
    header that stand above the field's.
    """

    field: str = ""
    high: str = ""
    counts: Literal["packets", "messages"] = "messages"
    first: int = 1
    heartbeat: Literal["next", "last", "none"] = "none"
    unsequenced: int | None = None


class KindDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The header field that distinguishes kinds of packets, and its values.

    `mask` has the bits of the field that give the kind. `header_size` is the size of the header of
    packets whose values are `short`, by default of all that are no data, where theirs is shorter.
    """

    field: str
    data: list[int]
    heartbeat: list[int] = []
    reset: list[int] = []
    control: list[int] = []
    mask: int | None = None
    header_size: int | None = None
    short: list[int] | None = None


class SendTimeDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The packet's send time: one field with a unit, or `field` in s with `nanoseconds`."""

    field: str
    unit: Literal["s", "ms", "us", "ns"]
    since: Literal["midnight", "epoch"]
    nanoseconds: str = ""


#: In place of `send_time` where packets do not carry when they were sent.
NO_SEND_TIME = SendTimeDescription("", "ns", "epoch")


class PacketDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The packet header."""

    header_size: int
    fields: list[FieldDescription]
    sequence: SequenceDescription
    length: LengthDescription = NO_LENGTH
    count: str | None = None
    end_of_session: int | None = None
    send_time: SendTimeDescription = NO_SEND_TIME
    several: bool = False
    align: int = 1
    kind: KindDescription | None = None
    service: str = ""
    session: str = ""
    flags: str = ""
    compressed_flags: list[int] = []
    constants: dict[str, int] = {}
    heartbeat_when_empty: bool = False
    reset_next: str = ""
    reset_message: int | str | None = None


class TypeDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Position of the message type; `second` is that of its second part, if that stands apart."""

    at: int
    type: str
    second: FieldDescription | None = None


class MessageDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The header of every message: `length`, and `type` unless the packet header has it.

    Without `length` a packet holds one message, unless `sized_by_type` says that each is as long as
    its layout. `fields` are those of the header that tools show.
    """

    header_size: int
    length: FieldDescription | None = None
    length_add: int = 0
    sized_by_type: bool = False
    type: TypeDescription | None = None
    align: int = 1
    sequence: FieldDescription | None = None
    block_length: FieldDescription | None = None
    fields: list[FieldDescription] = []


class TimeDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The fields of a message that make a full time, called `name` in records and columns."""

    name: str
    since: Literal["midnight", "epoch", "send_second", "clock"]
    seconds: str = ""
    milliseconds: str = ""
    microseconds: str = ""
    nanoseconds: str = ""


class ClockDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The message that gives a moment which later messages count from, until the next one."""

    type: int | str
    field: str
    unit: Literal["s", "ms", "us", "ns"]
    since: Literal["midnight", "epoch"]


class ReferenceDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The messages that give symbol indices their names (and price scales)."""

    type: int | str | list[int | str]
    index: str
    name: list[str]
    separator: str = "."
    scale: str | dict[str, str] = ""

    @property
    def scales(self) -> dict[str, str]:
        """The fields with decimal places, by what prices say to have them: `reference`, or of a
        table `reference.USE`."""
        if isinstance(self.scale, dict):
            return {f"reference.{use}": field for use, field in self.scale.items()}
        return {"reference": self.scale} if self.scale else {}


class GroupDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Elements that repeat from `at` to the end of the message."""

    name: str
    at: int
    size: int
    fields: list[FieldDescription]


class DimensionsDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Fields in front of a group's elements: their count, and the size of their fixed part."""

    size: int
    count: FieldDescription
    block_length: FieldDescription | None = None


class ConditionDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A condition for a part: the field's value is one of those, or has a bit of `mask`.

    `left`: where at least so many bytes of the message are left.
    """

    field: str = ""
    among: list[int | str] = msgspec.field(default_factory=list, name="in")
    mask: int = 0
    left: int = 0


class PartDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Part behind a message's fixed fields, or an element's: a group, a text or a block.

    Exactly one of `group`, `text` and `block` is its name.
    """

    group: str = ""
    text: str = ""
    block: str = ""
    name: str = ""
    when: ConditionDescription | None = None
    count: FieldDescription | str | None = None
    dimensions: str = ""
    element_length: LengthDescription | None = None
    length: str = ""
    size: int = 0
    fields: list[FieldDescription] = []
    parts: list["PartDescription"] = []
    doc: str = ""


class BlockDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Fields that several messages share."""

    name: str
    fields: list[FieldDescription]


#: What a rule of `[book]` says that its messages do.
BookAction = Literal[
    "add", "modify", "replace", "reduce", "execute", "delete", "clear", "trade", "level",
    "level_insert", "level_change", "level_remove", "delete_through", "delete_from",
    "quote", "quote_side", "quote_delete",
    "status", "directory", "snapshot_begin", "snapshot_end",
]  # fmt: skip


class SideDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The field that gives a side, and its values for each; others mean no side."""

    field: str
    buy: list[int | str]
    sell: list[int | str]


class StateDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The field with a trading status, and its values for each state."""

    field: str
    trading: list[int | str] = []
    halted: list[int | str] = []
    auction: list[int | str] = []
    quoting: list[int | str] = []
    closed: list[int | str] = []


class BookCondition(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A condition of a rule: the field has one of these values."""

    field: str
    among: list[int | str] = msgspec.field(name="in")


class QuoteSideDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Price and size of one side of a quote, and the conditions under which it is in the book."""

    price: str = ""
    size: str = ""
    when: list[BookCondition] = []


class TermDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where a directory message has one value of an instrument's definition.

    `field` names the field, of a text perhaps only `size` characters from `at` on; or `year`,
    `month`, `day` and `week` name the parts of a date. `scale`: a number's decimals, or the field
    that gives them. `none`: values that give nothing. `codes`: what values mean.
    """

    field: str = ""
    at: int = 0
    size: int = 0
    scale: int | str | None = None
    none: list[int | str] = []
    form: Literal["", "yyyymmdd", "yymmdd", "yyyymm", "days", "s", "ms", "us", "ns"] = ""
    year: str = ""
    month: str = ""
    day: str = ""
    week: str = ""
    codes: dict[str, list[int | str]] = {}


class BookRuleDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A rule of `[book]`: what some messages, or each element of one of their groups, do to it.

    `definition` has names of fields, or tables that `definition_builder` reads as
    `TermDescription`: so a fault in one is reported with its key and line.
    """

    messages: list[str]
    does: BookAction
    group: str = ""
    when: list[BookCondition] = []
    order: str | list[str] = ""
    new_order: str = ""
    side: SideDescription | Literal["buy", "sell"] | None = None
    price: str = ""
    size: str = ""
    level_size: str = ""
    level_orders: str = ""
    remaining: str = ""
    bid: QuoteSideDescription | None = None
    ask: QuoteSideDescription | None = None
    of: str = ""
    position: str = ""
    depth: int | str = 0
    definition: dict[str, Any] = {}
    state: StateDescription | None = None
    all: bool = False
    snapshot: bool = False
    also: bool = False
    doc: str = ""


class BookDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Changes of order books by messages; `event_time` names a `[[times]]` rule. `conflate`:
    whether a symbol's whole book may replace its changes; `order_ids`: whether the two sides of a
    book may have orders of the same id; `size_decimals`: sizes in records count units of
    10^-`size_decimals`; `depth`: levels of each side where no message gives them."""

    by: Literal["order", "level"]
    rules: list[BookRuleDescription]
    event_time: str = ""
    conflate: Literal["book", "never"] = "book"
    order_ids: Literal["unique", "per_side"] = "unique"
    size_decimals: int = 0
    depth: int = 0


class LayoutDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One message layout, or one control packet's body."""

    type: int | str
    name: str
    size: int | None = None
    fields: list[FieldDescription] = []
    parts: list[PartDescription] = []
    title: str = ""
    symbol: str = ""
    conflate: Literal["latest", "never", "book"] = "never"
    conflate_by: list[str] = []
    revokes: list[str] = []
    group: GroupDescription | None = None
    doc: str = ""


class FixDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A feed that is framed by FIX: its message types, and the tag that names instruments."""

    messages: dict[str, str]
    symbol_tag: int = 55


#: In place of `[packet]` and `[message]` where FIX frames the feed: no header, nothing at fixed
#: offsets. MsgSeqNum counts messages, and a heartbeat carries the next one.
FIX_PACKET = PacketDescription(
    header_size=0,
    fields=[],
    sequence=SequenceDescription(counts="messages", heartbeat="next"),
)
FIX_MESSAGE = MessageDescription(header_size=0)


class FeedDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole content of a description file."""

    name: str
    title: str
    key: str
    number: int
    zone: str
    byte_order: Literal["big", "little"]
    framing: Literal["binary", "fix"] = "binary"
    fix: FixDescription | None = None
    packet: PacketDescription = FIX_PACKET
    message: MessageDescription = FIX_MESSAGE
    messages: list[LayoutDescription] = []
    pad: Literal["nul", "space"] = "nul"
    blocks: list[BlockDescription] = []
    dimensions: dict[str, DimensionsDescription] = {}
    times: list[TimeDescription] = []
    controls: list[LayoutDescription] = []
    clock: ClockDescription | None = None
    reference: ReferenceDescription | None = None
    book: BookDescription | None = None
    recovery: RecoveryDescription | None = None
    include: str = ""
    source: str = ""
    day_begins_at: str = "00:00"


class DescriptionFile:
    """A description file: its parsed `description`, and the line of each key.

    A file may `include` another one, whose tables it takes over: its own keys win, and its own
    messages, controls and blocks stand for included ones of the same type or name. Raises
    `ConfigError` naming the file, the line, the key and the reason where one cannot be read, is no
    TOML, or has an unknown key, a missing one or a value of the wrong type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Path of the message or control being checked: ("messages", 3). Types may come twice.
        self.table: KeyPath = ()
        self._sources: list[_Source] = []
        self._values: dict[str, Any] = {}
        self._include(path, ())
        try:
            self.description = convert(self._values, FeedDescription)
        except WrongKey as wrong:
            raise self._refusal(wrong.path, self._shown(wrong.path), wrong) from None

    def _include(self, path: Path, around: tuple[Path, ...]) -> None:
        """Read a file, then what it includes; `around` are the files that include it."""
        source = _Source(path)
        for key, value in source.values.items():
            if key in _LISTS and isinstance(value, list):
                kept = self._values.setdefault(key, [])
                named = {_identity(key, each) for each in kept}
                for index, each in enumerate(value):
                    if _identity(key, each) not in named or key == "times":
                        source.indexes[key, len(kept)] = index
                        kept.append(each)
            elif isinstance(value, dict) and isinstance(self._values.get(key), dict):
                self._values[key] = {**value, **self._values[key]}
            else:
                self._values.setdefault(key, value)
        self._sources.append(source)
        included = source.values.get("include")
        if isinstance(included, str) and included:
            where = path.parent / included
            if where in (path, *around) or not where.is_file():
                reason = "includes itself" if where.is_file() else "no such file"
                raise self._refusal(("include",), "include", WrongKey((), f"{where}: {reason}"))
            self._include(where, (path, *around))

    def refusal(self, key: str, reason: str) -> ConfigError:
        """Return the error for `reason` at `key`, as in `messages[230].Price`, with its line."""
        path = self._find(key)
        return self._refusal(path, key, WrongKey(path, reason))

    def _refusal(self, path: KeyPath, key: str, wrong: WrongKey) -> ConfigError:
        what = _in_one_line(f"{key}: {wrong.reason}")
        for end in range(len(path), -1, -1):  # of what is missing, the table that lacks it
            for source in self._sources:
                own = source.path_of(path[:end])
                if own is not None:
                    where = f"{source.path}:{source.lines[own]}"
                    return ConfigError(f"{where}: {what}", _in_one_line(wrong.hint) or _HINT)
        return ConfigError(f"{self.path}:1: {what}", _in_one_line(wrong.hint) or _HINT)

    def _shown(self, path: KeyPath) -> str:
        """Return a path as in `messages[230].Price.at`: by types of messages, names of fields."""
        text, value = "", self._values
        for part in path:
            value = _item(value, part)
            if not isinstance(part, int):
                text += f".{part}" if text else part
            elif text.endswith(".fields") and isinstance(value, dict) and value.get("name"):
                text = text.removesuffix("fields") + str(value["name"])
            elif text.endswith(".parts") and isinstance(value, dict) and _part_name(value):
                text = text.removesuffix("parts") + _part_name(value)
            elif text in ("messages", "controls") and isinstance(value, dict) and "type" in value:
                text += f"[{value['type']}]"
            else:
                text += f"[{part}]"
        return text

    def _find(self, key: str) -> KeyPath:
        """Return the path of a key as `_shown` writes it, as far as the file has it."""
        path: KeyPath = ()
        value: Any = self._values
        for name, label in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", key):
            step = self._step(path, value, name, label)
            if not step:
                break
            for part in step:
                value = _item(value, part)
            path += step
        return path

    def _step(self, path: KeyPath, value: Any, name: str, label: str) -> KeyPath:
        if label and path in (("messages",), ("controls",)):
            types = [str(each.get("type")) for each in value]
            if self.table[:1] == path and types[int(self.table[1])] == label:
                return self.table[1:]
            return (types.index(label),) if label in types else ()
        if label:
            return (int(label),) if label.isdigit() else ()
        if not isinstance(value, dict):
            return ()
        if name in value:
            return (name,)
        parts = [_part_name(each) for each in value.get("parts", ())]
        if name in parts:
            return ("parts", parts.index(name))
        fields = [
            each.get("name") or each.get("type") or each.get("block")
            for each in value.get("fields", ())
        ]
        return ("fields", len(fields) - 1 - fields[::-1].index(name)) if name in fields else ()


#: Arrays of tables that a file and what it includes both add to.
_LISTS = ("messages", "controls", "blocks", "times")


class _Source:
    """One file of a description: its values, and which of the whole's tables are its own.

    `indexes` gives, for an array of tables and an index in the whole, the index in this file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.indexes: dict[tuple[str, int], int] = {}
        self._text = read_text(path, "name a feed description file")
        self.values = parse_toml(self._text, str(path), "feed description")

    @functools.cached_property
    def lines(self) -> KeyLines:
        """The line of each key, found when a fault is reported."""
        return KeyLines(self._text)

    def path_of(self, path: KeyPath) -> KeyPath | None:
        """Return the path in this file of a path in the whole; None where it is another file's."""
        if len(path) > 1 and path[0] in _LISTS and isinstance(path[1], int):
            index = self.indexes.get((path[0], path[1]))
            return None if index is None else (path[0], index, *path[2:])
        if path and path[0] not in self.values:
            return None
        table = self.values[str(path[0])] if path else None
        if len(path) > 1 and isinstance(table, dict):
            return path if path[1] in table else None
        return path


def _identity(key: str, table: Any) -> Any:
    """Return what a table in an array is known by, so that an own one replaces an included one."""
    if not isinstance(table, dict):
        return None
    return str(table.get("name" if key == "blocks" else "type"))


def _in_one_line(text: str) -> str:
    """Return a text with what cannot be printed as escapes, as names in quotes may have it."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _part_name(table: dict[str, Any]) -> str:
    return str(table.get("group") or table.get("text") or table.get("block") or "")


def _item(value: Any, part: str | int) -> Any:
    """Return what a table has under a key, or an array at an index; None where it has none."""
    if isinstance(part, int):
        return value[part] if isinstance(value, list) and part < len(value) else None
    return value.get(part) if isinstance(value, dict) else None
