"""A feed whose datagrams are whole FIX messages, with the interface of every `Feed`.

A datagram is decoded run by run (`feedhandler.codecs.fix_runs`): application messages become
`FixMessage`s, each administrative one a row of its own. Message types are numbers of one or two
bytes inside the product, as `Frame.message_type` has them, and texts to people. Symbols of more
than eight bytes are digests in the index (`runs.symbol_value`); decoded messages have their text.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from feedhandler.codecs import feed_table
from feedhandler.codecs.book_rules import BookRules
from feedhandler.codecs.description import FeedDescription
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed, Packet, merged
from feedhandler.codecs.fix.encode import encode
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.framing import LONG_TYPE
from feedhandler.codecs.fix_runs import LONG_SYMBOL_BIT
from feedhandler.codecs.kinds import PacketKind
from feedhandler.codecs.layouts import Block, Layout

if TYPE_CHECKING:
    from feedhandler.codecs.reference_data import ReferenceData

#: Types of the administrative messages: heartbeat to logout, logon, our time beacon.
ADMINISTRATIVE = frozenset({*range(0x30, 0x36), 0x41, 0x5542})
#: Tags whose values a row of JSON has under `seq` and `type`.
_SHOWN_ELSEWHERE = frozenset({34, 35})


def type_code(label: str) -> int:
    """Return a message type as the index has it: its byte, or its two bytes big-endian."""
    return int.from_bytes(label.encode("latin-1"), "big")


def type_text(code: int) -> str:
    """Return a message type as text; `?` for types that have no text of one or two bytes."""
    data = code.to_bytes(2, "big").lstrip(b"\0")
    return data.decode("latin-1") if data.isalnum() else "?"


def is_administrative(code: int) -> bool:
    """Return whether messages of this type take no number of the channel."""
    return code in ADMINISTRATIVE


def _label_of(message: bytes) -> bytes:
    """Return MsgType (35), which follows BeginString and BodyLength; b"" where nothing does."""
    return b"".join(message.split(b"\x01", 3)[2:3]).removeprefix(b"35=")


def _code_of(label: bytes) -> int:
    """Return MsgType's number; a longer type's is `LONG_TYPE`, whatever it begins with."""
    return int.from_bytes(label, "big") if len(label) <= 2 else LONG_TYPE


class FixMessage(msgspec.Struct, frozen=True):
    """One message: its type, the type's name, and all fields between BodyLength and CheckSum."""

    type: str
    name: str
    fields: tuple[tuple[int, bytes], ...]

    def get(self, tag: int) -> bytes | None:
        """Return the value of the first field `tag`, or None."""
        return next((value for number, value in self.fields if number == tag), None)

    def all(self, tag: int) -> list[bytes]:
        """Return the values of all fields `tag`, in order."""
        return [value for number, value in self.fields if number == tag]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values by tag, lists where a tag comes again; without tags 34, 35."""
        found: dict[str, Any] = {}
        for tag, value in self.fields:
            if tag in _SHOWN_ELSEWHERE:
                continue
            key, text = str(tag), value.decode("latin-1")
            if key not in found:
                found[key] = text
            elif isinstance(found[key], list):
                found[key].append(text)
            else:
                found[key] = [found[key], text]
        return found


class FixFeed(Feed):
    """A feed that is framed by FIX; `names`: the name of each described message type."""

    def __init__(
        self,
        description: FeedDescription,
        table_of: Callable[[ModuleType], feed_table.FeedTable],
        names: Mapping[int, str],
    ) -> None:
        header = Block("header", 0, [], description.byte_order)
        super().__init__(description, table_of, header, {}, {}, {})
        assert description.fix is not None
        self.names = dict(names)
        # Market Data messages say of themselves what they do to books.
        self.book = BookRules("order", (), names_symbols=True, conflates=False)
        self.symbols_are_text = True
        self.symbol_tag = description.fix.symbol_tag

    # -- what there is --------------------------------------------------------------------------

    @property
    def message_types(self) -> dict[int | str, list[Layout]]:
        """The described types; none has a layout."""
        return {type_text(code): [] for code in self.names}

    def type_name(self, code: int) -> str | None:
        """Return the description's name of a message type; None for one that it does not have."""
        return self.names.get(code)

    def type_label(self, code: int) -> int | str:
        """Return a message type as people write it: `W`, `AE`."""
        return type_text(code)

    def type_code(self, label: int | str) -> int:
        """Return the number of a message type. Raises `UsageError` for what can be none."""
        if isinstance(label, int):
            return label
        if not (1 <= len(label) <= 2 and label.isalnum() and label.isascii()):
            raise UsageError(f"{label!r} is no message type of {self.name}", self._types_hint())
        return type_code(label)

    def message_code(self, message: bytes | memoryview) -> int:
        """Return the number of a whole message's type; 0 of what is no message."""
        return _code_of(_label_of(bytes(message)))

    def layout(self, type: int | str, size: int | None = None) -> NoReturn:
        """Raise `UsageError`: FIX messages have no layouts."""
        raise UsageError(f"{self.name} has no layouts", "its messages frame themselves")

    def describe(self) -> dict[str, Any]:
        """Return a JSON-ready summary of the feed."""
        return {**super().describe(), "framing": "fix", "messages": len(self.names)}

    def symbol_name(self, symbol: int) -> str | None:
        """Return the text of a symbol as the scanner gives it; None for no symbol, or for several.

        Of a long one it is the digest in hexadecimal, since its text is only in the messages.
        """
        if symbol in (feed_table.NO_SYMBOL, feed_table.SEVERAL_SYMBOLS):
            return None
        if symbol >= LONG_SYMBOL_BIT:
            return f"{symbol:016x}"
        return super().symbol_name(symbol)

    # -- decoding -------------------------------------------------------------------------------

    def decode_packet(
        self,
        data: bytes,
        day: date | None = None,
        *,
        scales: Mapping[int, int] | None = None,
        known: "ReferenceData | None" = None,
    ) -> Packet:
        """Decode all messages of a datagram, without administrative ones.

        Kind and numbers are those of its application messages, or else of its first message. Raises
        `BadPacket` where the scanner rejects the datagram.
        """
        return merged(self._runs(bytes(data)))

    def _runs(self, data: bytes) -> Iterator[Packet]:
        """Yield the runs of a datagram. Raises `BadPacket`."""
        for at, header, index in self.scanned(data):
            yield self._run(data[at : at + header.length], header, index)

    def _run(
        self, data: bytes, header: feed_table.PacketHeader, index: feed_table.MessageIndex
    ) -> Packet:
        packet = Packet(
            kind=PacketKind(header.kind),
            sequence=header.sequence,
            next_sequence=header.next_sequence,
            session=0,
            service=0,
            flags=header.flags,
            send_time=header.send_time,
            send_time_ns=header.send_time or None,
            header={},
            messages=[],
            types=[],
            symbols=[],
            sequences=[],
        )
        if header.kind != PacketKind.DATA:
            packet.header = self.decode_message(data).to_dict()
        for i in range(index.count):
            at = index.offsets[i]
            packet.messages.append(self.decode_message(data[at : at + index.sizes[i]]))
            packet.types.append(type_text(index.types[i]))
            packet.symbols.append(index.symbols[i])
            packet.sequences.append(index.sequences[i])
        return packet

    def decode_message(
        self,
        message: bytes,
        *,
        type: int | str | None = None,
        day: date | None = None,
        scale: int | None = None,
        send_time: int | None = None,
        service: int = 0,
        known: "ReferenceData | None" = None,
    ) -> Any:
        """Return the `FixMessage` of one message whose framing is right.

        It has no fields where one of them is wrong.
        """
        data = bytes(message)
        found: list[tuple[int, bytes]] = []
        with contextlib.suppress(FixError):
            found = fields(data)
        label = _label_of(data)
        name = self.names.get(_code_of(label), "unknown")
        return FixMessage(label.decode("latin-1"), name, tuple(found))

    def to_dicts(
        self,
        data: bytes,
        day: date | None = None,
        *,
        names: Mapping[int, str] | None = None,
        scales: Mapping[int, int] | None = None,
        known: "ReferenceData | None" = None,
    ) -> list[dict[str, Any]]:
        """Return the messages of a datagram as JSON-ready dicts, administrative ones by their kind.

        The fields are by tag; `symbols` is there where a message names several. Raises `BadPacket`.
        """
        rows: list[dict[str, Any]] = []
        for packet in self._runs(bytes(data)):
            if packet.kind != PacketKind.DATA:
                rows.append({**self._control_dict(packet), **packet.header})
            for index, message in enumerate(packet.messages):
                symbols = [each.decode("latin-1") for each in message.all(self.symbol_tag)]
                several = list(dict.fromkeys(symbols))
                rows.append(
                    {
                        "seq": packet.sequences[index],
                        "service": 0,
                        "type": message.type,
                        "name": message.name,
                        "symbol": symbols[0] if symbols else None,
                        **({"symbols": several} if len(several) > 1 else {}),
                        **message.to_dict(),
                    }
                )
        return rows

    # -- encoding -------------------------------------------------------------------------------

    def encode_message(
        self,
        type: Any,
        /,
        fields: Any = (),
        *,
        sequence: int = 0,
        begin_string: bytes = b"FIXT.1.1",
        **named: Any,
    ) -> bytes:
        """Encode one whole message.

        `type` is a message type, its name in the description, or a decoded `FixMessage`; `fields`
        are (tag, value) pairs as `feedhandler.codecs.fix.encode` takes them, groups as lists of
        entries; `sequence` is MsgSeqNum (34), 0: none. Raises `UsageError` for an unknown type and
        for values that cannot be written.
        """
        if named:
            raise UsageError(
                f"{self.name} has no layouts with a field '{next(iter(named))}'",
                "give fields by tag: [(55, 'ABC'), (268, [...])]",
            )
        if isinstance(type, FixMessage):
            numbered = [pair for pair in type.fields[1:] if not (sequence and pair[0] == 34)]
            type, fields = type.type, [*numbered, *fields]
        header = [(34, sequence)] if sequence else []
        return encode([(35, self._type_text(type)), *header, *fields], begin_string)

    def _type_text(self, type: int | str) -> str:
        """Return the text of a message type given as text, as its name, or as its number."""
        named = next((code for code, name in self.names.items() if name == type), None)
        return type_text(self.type_code(type) if named is None else named)

    def encode_packet(self, *, messages: Any = (), **_: Any) -> bytes:
        """Return a datagram of whole messages."""
        return b"".join(messages)
