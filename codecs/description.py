"""The structure of a feed description: its tables and keys, before their content is checked.

One struct for each TOML table, one attribute for each key; `codecs/FORMAT.md` says what each means.
An unknown key or a value of the wrong type is refused here, with its place in the file; `loader`
checks whether the parts fit each other, and finds the line of a fault with `DescriptionFile`.
"""

import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.toml_text import KeyLines, KeyPath, WrongKey, convert, parse_toml

_HINT = "codecs/FORMAT.md tells every key"


class FieldDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One field: `{ at = 16, type = "u32", name = "Price", price = "PriceScaleCode" }`."""

    at: int
    type: str
    name: str = ""
    rename: str = msgspec.field(default="", name="as")
    price: int | str | None = None
    values: dict[str, str] = {}
    pad: Literal["", "nul", "space"] = ""
    doc: str = ""


class LengthDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The packet's length field: the whole packet has field + add bytes."""

    field: str
    add: int = 0


class SequenceDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The sequence number: its field, what it counts, and the meaning of a heartbeat's.

    `unsequenced` is the number that is set aside for packets outside the sequence.
    """

    field: str
    counts: Literal["packets", "messages"]
    first: int = 1
    heartbeat: Literal["next", "last", "none"] = "none"
    unsequenced: int | None = None


class KindDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The header field that distinguishes kinds of packets, and its values."""

    field: str
    data: list[int]
    heartbeat: list[int] = []
    reset: list[int] = []
    control: list[int] = []


class SendTimeDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The packet's send time: one field with a unit, or `field` in s with `nanoseconds`."""

    field: str
    unit: Literal["s", "ms", "us", "ns"]
    since: Literal["midnight", "epoch"]
    nanoseconds: str = ""


class PacketDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The packet header."""

    header_size: int
    fields: list[FieldDescription]
    length: LengthDescription
    sequence: SequenceDescription
    count: str
    send_time: SendTimeDescription
    kind: KindDescription | None = None
    service: str = ""
    session: str = ""
    flags: str = ""
    compressed_flags: list[int] = []
    constants: dict[str, int] = {}
    heartbeat_when_empty: bool = False
    reset_next: str = ""


class MessageDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The header of every message: `length`, and `type` unless the packet header has it."""

    header_size: int
    length: FieldDescription
    length_add: int = 0
    type: FieldDescription | None = None


class TimeDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The fields of a message that make a full time, called `name` in records and columns."""

    name: str
    since: Literal["midnight", "epoch", "send_second"]
    seconds: str = ""
    milliseconds: str = ""
    microseconds: str = ""
    nanoseconds: str = ""


class ReferenceDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The message that gives symbol indices their names (and price scales)."""

    type: int | str
    index: str
    name: list[str]
    separator: str = "."
    scale: str = ""


class GroupDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Elements that repeat from `at` to the end of the message."""

    name: str
    at: int
    size: int
    fields: list[FieldDescription]


class LayoutDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One message layout, or one control packet's body."""

    type: int | str
    name: str
    size: int
    fields: list[FieldDescription] = []
    title: str = ""
    symbol: str = ""
    conflate: Literal["latest", "never", "book"] = "never"
    conflate_by: list[str] = []
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
    length=LengthDescription(""),
    sequence=SequenceDescription("", "messages", 1, "next"),
    count="",
    send_time=SendTimeDescription("", "ns", "epoch"),
)
FIX_MESSAGE = MessageDescription(header_size=0, length=FieldDescription(0, "u8"))


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
    times: list[TimeDescription] = []
    controls: list[LayoutDescription] = []
    reference: ReferenceDescription | None = None
    source: str = ""
    day_begins_at: str = "00:00"


class DescriptionFile:
    """A description file: its parsed `description`, and the line of each key.

    Raises `ConfigError` naming the file, the line, the key and the reason where it cannot be read,
    is no TOML, or has an unknown key, a missing one or a value of the wrong type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Path of the message or control being checked: ("messages", 3). Types may come twice.
        self.table: KeyPath = ()
        try:
            self._text = path.read_text(encoding="utf-8")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"{path}: cannot be read: {reason}", "name a feed description file"
            ) from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not UTF-8 text", "name a feed description file") from None
        self._values = parse_toml(self._text, str(path), "feed description")
        try:
            self.description = convert(self._values, FeedDescription)
        except WrongKey as wrong:
            raise self._refusal(wrong.path, self._shown(wrong.path), wrong) from None

    def refusal(self, key: str, reason: str) -> ConfigError:
        """Return the error for `reason` at `key`, as in `messages[230].Price`, with its line."""
        path = self._find(key)
        return self._refusal(path, key, WrongKey(path, reason))

    def _refusal(self, path: KeyPath, key: str, wrong: WrongKey) -> ConfigError:
        line = KeyLines(self._text)[path]
        return ConfigError(f"{self.path}:{line}: {key}: {wrong.reason}", wrong.hint or _HINT)

    def _shown(self, path: KeyPath) -> str:
        """Return a path as in `messages[230].Price.at`: by types of messages, names of fields."""
        text, value = "", self._values
        for part in path:
            value = _item(value, part)
            if not isinstance(part, int):
                text += f".{part}" if text else part
            elif text.endswith(".fields") and isinstance(value, dict) and value.get("name"):
                text = text.removesuffix("fields") + str(value["name"])
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
        fields = [each.get("name") or each.get("type") for each in value.get("fields", ())]
        return ("fields", len(fields) - 1 - fields[::-1].index(name)) if name in fields else ()


def _item(value: Any, part: str | int) -> Any:
    """Return what a table has under a key, or an array at an index; None where it has none."""
    if isinstance(part, int):
        return value[part] if isinstance(value, list) and part < len(value) else None
    return value.get(part) if isinstance(value, dict) else None
