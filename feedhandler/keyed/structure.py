"""The structure of a keyed queue's messages, and which of their values are the key.

A `Structure` says where values stand (in JSON, in a FIX message, in a feed's message, in AMQP's
own sections) and how
they make keys: all of them together (`composite`; one field is a composite of one), two in either
order (`pair`), or each by itself (`any`: messages that share one value are served one after the
other). `Structure.keys` reads a message; one that does not fit is a `Misfit` with the reason.

Equal values. A number is a number however it is written: in JSON 7, 7.0 and 7e0 are one value, in
AMQP every width of integer. Text is text: "7" is not 7, and "7.0" is not "7". FIX
values are text. Text is compared by its code points, without normalisation. Binary, booleans,
UUIDs and timestamps are kinds of their own, equal to nothing else. An object or an array is no
value of a key, nor are null and numbers that are not finite.

The queue uses not the value but its digest: 128 bits, by a secret that each queue draws when it is
made, so that no client can construct keys that collide.
"""

import hashlib
import secrets
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from feedhandler.codecs.errors import FeedhandlerError, UsageError
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.codecs.layouts import Layout, Record
from feedhandler.keyed.settings import Format, Rule

DIGEST_BYTES = 16
#: Longest value that is part of a key, encoded.
VALUE_BYTES_MAX = 4096
#: Longest message that is read for its key; what is longer does not fit.
READ_BYTES_MAX = 1 << 20
#: Fields of a FIX message that is read for its key.
FIX_FIELDS_MAX = 8192
#: Longest integer that is part of a key.
INTEGER_BITS_MAX = 256
#: Fields that a key may have; dispatch has as many key slots (`feedhandler.keyed.dispatch`).
FIELDS_MAX = 8


class Misfit(ValueError):
    """A message that is not of the queue's structure, or has no key; the text says why."""


# -- values -----------------------------------------------------------------------------------


def _integer(value: int) -> bytes:
    """Encode an integer as `_number` does, but faster: most keys are integers."""
    if value.bit_length() > INTEGER_BITS_MAX:
        raise Misfit(f"a number of the key has more than {INTEGER_BITS_MAX} bits")
    digits = str(abs(value))
    kept = digits.rstrip("0")
    return (
        f"n{'-' if value < 0 else ''}{kept}e{len(digits) - len(kept)}".encode() if kept else b"n0"
    )


def _number(value: int | Decimal) -> bytes:
    """Encode a number as its significant digits, as `-12e-2`."""
    if isinstance(value, int):
        return _integer(value)
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise Misfit("a number of the key is not finite")
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    if not kept:
        return b"n0"
    return f"n{'-' if sign else ''}{kept}e{exponent + len(text) - len(kept)}".encode()


def encoded(value: Any) -> bytes:
    """Encode a value so that equal bytes mean equal values; see the module. Raises Misfit."""
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int | Decimal):
        return _number(value)
    if isinstance(value, float):
        return _number(Decimal(value))
    if isinstance(value, str):
        return b"t" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"x" + value
    if isinstance(value, uuid.UUID):
        return b"u" + value.bytes
    raise Misfit("null is no key" if value is None else f"a {type(value).__name__} is no key")


def _joined(values: Iterable[bytes]) -> bytes:
    """Join several values to one: different lists of values give different bytes."""
    return b"".join(len(value).to_bytes(4, "big") + value for value in values)


# -- where values stand -----------------------------------------------------------------------

_ABSENT = object()


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise Misfit("a number that is out of all bounds") from None


_value = msgspec.json.Decoder(float_hook=_decimal)
_array = msgspec.json.Decoder(list[msgspec.Raw])
_NOTHING = msgspec.Raw(b"")
#: A value as JSON has it, at most: each byte of it may be written as an escape of six.
_TEXT_BYTES_MAX = 6 * VALUE_BYTES_MAX + 2


class _Step:
    """A step of a path into JSON: a name in an object, or an index in an array. Only what it leads
    to is decoded."""

    def __init__(self, name: str) -> None:
        fields = [("value", msgspec.Raw, msgspec.field(name=name, default=_NOTHING))]
        self._object = msgspec.json.Decoder(msgspec.defstruct("Object", fields))
        self._index = int(name) if name.isdecimal() and len(name) < 10 else None

    def __call__(self, data: Any) -> Any:
        try:
            found: Any = self._object.decode(data)
            return found.value
        except msgspec.ValidationError:  # it is no object
            if self._index is None or memoryview(data)[:1] != b"[":
                return _NOTHING
        items = _array.decode(data)
        return items[self._index] if self._index < len(items) else _NOTHING


def _read_json(data: bytes, paths: tuple[tuple[_Step, ...], ...]) -> list[Any]:
    data = data.lstrip(b" \t\r\n")
    try:
        return [_at_path(data, path) for path in paths]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Misfit(f"no JSON: {error}") from None


def _at_path(data: Any, path: tuple[_Step, ...]) -> Any:
    for step in path:
        data = step(data)
        if data is _NOTHING:
            return _ABSENT
    first = bytes(memoryview(data)[:1])
    if first == b"{":
        return {}  # no value of a key, whatever is in it
    if first == b"[":
        return []
    if len(memoryview(data)) > _TEXT_BYTES_MAX:
        raise Misfit(f"a value of the key is longer than {VALUE_BYTES_MAX:,} bytes")
    return _value.decode(data)


def _read_fix(data: bytes, tags: tuple[int, ...]) -> list[Any]:
    values: dict[int, bytes] = {}
    try:
        for tag, value in fields(data, FIX_FIELDS_MAX):
            if tag in tags and values.setdefault(tag, value) != value:
                raise Misfit(f"field {tag} comes twice, with two values")
    except FixError as error:
        if error.reason == FixReject.INDEX_FULL:
            raise Misfit(f"a key is looked for in {FIX_FIELDS_MAX:,} fields at most") from None
        raise Misfit(f"no FIX message: {error}") from None
    return [values.get(tag, _ABSENT) for tag in tags]


def _json_path(name: str) -> tuple[_Step, ...]:
    """Parse `account.id`, `legs.0.account`: names in objects, and indexes in arrays. Raises
    UsageError."""
    steps = tuple(name.split("."))
    if not all(steps):
        raise UsageError(f"{name!r} is no path of JSON: names with dots between, as account.id")
    return tuple(map(_Step, steps))


def _fix_tag(name: str) -> int:
    if not name.isdigit() or not int(name):
        raise UsageError(f"{name!r} is no tag of FIX: a number, as 55")
    return int(name)


def _read_amqp(data: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    return [data.get(name, _ABSENT) for name in names]


def _amqp_name(name: str) -> str:
    """Complete `application.account`, `properties.group-id`, `annotations.x-opt-account`; a name
    without one of these prefixes is an application property's."""
    if name.partition(".")[0] in ("application", "properties", "annotations"):
        return name
    return f"application.{name}"


def _feed_field(name: str) -> str:
    if not name.isidentifier():
        raise UsageError(f"{name!r} is no field of a feed's messages: a name, as symbol")
    return name


def _read_nothing(data: Any, paths: Any) -> list[Any]:
    raise Misfit("its feed is not known")


class _FeedReader:
    """Reads the fields of a feed's messages, each whole, as in a packet. `symbol` is the field that
    the feed declares as the symbol, whatever its name."""

    def __init__(self, name: str) -> None:
        from feedhandler.codecs import load_feed  # a queue of other messages needs no feeds

        self._feed = load_feed(name)

    def __call__(self, data: Any, names: tuple[str, ...]) -> list[Any]:
        try:
            record = self._feed.decode_message(data)
            fields = record.to_dict() if isinstance(record, Record) else {}
        except (FeedhandlerError, ValueError, IndexError) as error:
            raise Misfit(f"no message of {self._feed.name}: {error}") from None
        layout = record.layout if isinstance(record, Record) else None
        if isinstance(layout, Layout) and layout.symbol:
            fields["symbol"] = getattr(record, layout.symbol)
        return [fields.get(name, _ABSENT) for name in names]


_READERS: dict[Format, tuple[Callable[[str], Any], Callable[[Any, Any], list[Any]]]] = {
    Format.JSON: (_json_path, _read_json),
    Format.FIX: (_fix_tag, _read_fix),
    Format.AMQP: (_amqp_name, _read_amqp),
    Format.FEED: (_feed_field, _read_nothing),
}


# -- the whole --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Structure:
    """The format of messages (`format`, and `feed` for a feed's), which values make the key
    (`fields`), and how (`rule`)."""

    format: Format
    fields: tuple[str, ...]
    rule: Rule = Rule.COMPOSITE
    feed: str = ""
    _paths: Any = field(init=False, repr=False, compare=False)
    _read: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.fields) <= FIELDS_MAX:
            raise UsageError(f"a key has 1 to {FIELDS_MAX} fields")
        if len(set(self.fields)) < len(self.fields):
            raise UsageError("a field of the key is named twice")
        if self.rule is Rule.PAIR and len(self.fields) != 2:
            raise UsageError("rule `pair` takes two fields")
        if (self.format is Format.FEED) != bool(self.feed):
            raise UsageError("`feed` names the feed of format feed, and of no other")
        path_of, read = _READERS[self.format]
        object.__setattr__(self, "_paths", tuple(map(path_of, self.fields)))
        object.__setattr__(self, "_read", _FeedReader(self.feed) if self.feed else read)

    @property
    def key_slots(self) -> int:
        """Number of keys that a message has at most."""
        return len(self.fields) if self.rule is Rule.ANY else 1

    def shown(self, data: Any) -> str:
        """Return the values that make a message's key, for display. Raises `Misfit`."""
        values = zip(self.fields, self._read(data, self._paths), strict=True)
        return ", ".join(
            f"{name} = {value.decode(errors='replace') if isinstance(value, bytes) else value}"
            for name, value in values
        )

    def keys(self, data: Any) -> list[bytes]:
        """Read a message's keys, encoded: one, or with rule `any` as many as there are fields.

        `data`: its body; with format `amqp` its values by name. Raises `Misfit` where the message
        is not of this structure, or lacks a value.
        """
        if len(data) > READ_BYTES_MAX:
            raise Misfit(f"{len(data):,} bytes: a key is looked for in {READ_BYTES_MAX:,} at most")
        values = []
        for name, value in zip(self.fields, self._read(data, self._paths), strict=True):
            if value is _ABSENT:
                raise Misfit(f"it has no {name}")
            try:
                values.append(encoded(value))
            except Misfit as error:
                raise Misfit(f"{name}: {error}") from None
            if len(values[-1]) > VALUE_BYTES_MAX:
                raise Misfit(f"{name} is longer than {VALUE_BYTES_MAX:,} bytes")
        if self.rule is Rule.ANY:
            return values
        return [_joined(sorted(values) if self.rule is Rule.PAIR else values)]


class Digester:
    """Digests of keys, by a queue's secret (none given: a random one)."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret or secrets.token_bytes(32)

    def digests(self, keys: Iterable[bytes]) -> bytes:
        """Return the digests of a message's keys, concatenated: two words (uint64) each, as
        `Dispatch.enqueue` takes them."""
        secret = self._secret
        return b"".join(
            [hashlib.blake2b(key, digest_size=DIGEST_BYTES, key=secret).digest() for key in keys]
        )
