"""The structure of a feed description: what a TOML file may say, before any of it is believed.

One struct a TOML table, one attribute a key; `codecs/FORMAT.md` tells what each means. An unknown
key or a value of the wrong type is refused here, with its place in the file; whether the parts fit
each other is `loader`'s to check.
"""

from pathlib import Path
from typing import Literal

import msgspec

from feedhandler.codecs.errors import ConfigError


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
    """The packet's length: whole packet = field + add."""

    field: str
    add: int = 0


class SequenceDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The sequence number: its field, what it counts, what a heartbeat's means, and which number
    is set aside for packets outside the sequence."""

    field: str
    counts: Literal["packets", "messages"]
    first: int = 1
    heartbeat: Literal["next", "last", "none"] = "none"
    unsequenced: int | None = None


class KindDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The field that tells kinds of packets apart, and its values."""

    field: str
    data: list[int]
    heartbeat: list[int] = []
    reset: list[int] = []
    control: list[int] = []


class SendTimeDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """When the packet was sent: one field with a unit, or `field` in s and `nanoseconds` beside."""

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
    max_size: int = 1_500


class MessageDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What every message begins with: `length`, and `type` unless the packet header tells it."""

    header_size: int
    length: FieldDescription
    length_add: int = 0
    type: FieldDescription | None = None


class TimeDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How fields of a message make a full time, called `name` in records and columns."""

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


class FeedDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A whole description file."""

    name: str
    title: str
    key: str
    number: int
    zone: str
    byte_order: Literal["big", "little"]
    packet: PacketDescription
    message: MessageDescription
    messages: list[LayoutDescription]
    pad: Literal["nul", "space"] = "nul"
    times: list[TimeDescription] = []
    controls: list[LayoutDescription] = []
    reference: ReferenceDescription | None = None
    source: str = ""
    day_begins_at: str = "00:00"


def read_description(path: Path) -> FeedDescription:
    """The structure of the description file at `path`.

    Raises `ConfigError` naming the file, the key and the reason.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", "name a feed description file"
        ) from error
    try:
        return msgspec.toml.decode(raw, type=FeedDescription)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}", "codecs/FORMAT.md tells every key") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{path}: not TOML: {error}", "mend the file's syntax") from error
