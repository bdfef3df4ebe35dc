"""Definitions of channels: what each carries, and which addresses carry it.

A publisher and its receivers share one TOML file. A channel has an id, which is its topic;
addresses appear only in the file, never in a message:

    [[channel]]
    id = "equities-1"
    carries = [{ content = "equities", letters = ["A-D", ["SA", "SN"]] }]
    a = { group = "239.10.1.1", port = 31001, source = "10.1.0.5" }
    b = { group = "239.10.2.1", port = 31001, source = "10.2.0.5" }
    retransmission = "equities"

    [[retransmission]]
    id = "equities"
    line = { group = "239.10.3.1", port = 31001, source = "10.1.0.5" }
    server = "10.1.0.5:31900"

Letters are first letters ("A-D": A to D), or a half-open range (["SA", "SN"], without "SN"). An
instrument is carried by the channel that lists its symbol, else by the one whose letters include
it; an entry with neither letters nor symbols carries the rest of its content, or of its kinds. An
entry without content carries what no entry of the instrument's content does. `warnings` lists what
is unwise; what cannot work is refused with the file's line.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from feedhandler.addresses import split_address
from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.toml_text import KeyPath, WrongKey, convert, parse_as, read_text, within
from feedhandler.ingest.groups import check_group

#: Upper limit on a definition's channels: a file of thousands is a mistake; each costs sockets.
CHANNELS_MAX = 1024
#: More channels than this get a warning: the recommendation is about 10.
CHANNELS_WISE = 20
#: A half-open range of symbols, from the first up to the second; "": open at that end.
Range = tuple[str, str]
#: Recommended ranges of groups: GLOP (RFC 3180), source-specific (RFC 4607), administratively
#: scoped (RFC 2365).
GLOP = ipaddress.IPv4Network("233.0.0.0/8")
SOURCE_SPECIFIC = ipaddress.IPv4Network("232.0.0.0/8")
SCOPED = ipaddress.IPv4Network("239.0.0.0/8")
_SPAN = re.compile(r"([^-\s]+)-([^-\s]+)\Z")

Port = Annotated[int, Meta(ge=1, le=65535)]
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]


class Address(Struct, frozen=True, kw_only=True):
    """A multicast group and port, and its sender; several sources are separated by commas."""

    group: str
    port: Port
    source: str = ""


class Retransmission(Struct, frozen=True, kw_only=True):
    """Addresses for requests and for retransmissions, of all channels that name it.

    line         the group that answers are sent to
    join         receivers join it "always", or when "needed": from a loss on until all is recovered
    server       `host:port` of the server that takes Resend Requests by TCP
    requests     the request topic: the group that requests are sent to, where not by TCP
    market_data  `host:port` of the server of Market Data Requests, which has the books' state
    """

    id: Id
    line: Address | None = None
    join: Literal["always", "needed"] = "always"
    server: str = ""
    requests: Address | None = None
    market_data: str = ""

    @property
    def asked(self) -> bool:
        """Whether requests can be made."""
        return bool(self.server) or self.requests is not None


class Carried(Struct, frozen=True, kw_only=True):
    """Instruments that a channel carries.

    content  their kind of content, such as equities or options
    letters  ranges of symbols: "A-D" by first letters, or [from, up to]; "": an open end
    symbols  single symbols
    kinds    kinds of instrument (SecurityType); none: all
    """

    content: str = ""
    letters: tuple[str | Range, ...] = ()
    symbols: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Its letters as half-open ranges."""
        return tuple(_range(letter) for letter in self.letters)


class Channel(Struct, frozen=True, kw_only=True):
    """One channel: a topic, its lines, and the instruments that it carries.

    sender          SenderCompID of its messages; "": left out
    target          TargetCompID; by default the id; "": left out
    retransmission  id of its retransmission group
    """

    id: Id
    a: Address
    b: Address | None = None
    carries: tuple[Carried, ...] = ()
    sender: str = ""
    target: str | None = None
    retransmission: str = ""

    @property
    def topic(self) -> str:
        """TargetCompID of its messages; "" where that is left out."""
        return self.id if self.target is None else self.target

    @property
    def lines(self) -> tuple[Address, ...]:
        """Its lines, one or two."""
        return (self.a,) if self.b is None else (self.a, self.b)


class _File(Struct, frozen=True, kw_only=True):
    channel: Annotated[tuple[Channel, ...], Meta(min_length=1, max_length=CHANNELS_MAX)]
    retransmission: tuple[Retransmission, ...] = ()


def _range(given: str | Range) -> Range:
    """Return letters as a range. Raises `ValueError` where it is empty."""
    if not isinstance(given, str):
        first, end = given
    elif span := _SPAN.match(given):
        first, end = span[1], _after(span[2])
    else:
        first, end = given, _after(given)
    if end and first >= end:
        raise ValueError(f"{given!r} is an empty range of letters")
    return first, end


def _after(prefix: str) -> str:
    """Return the lowest text above all that begin with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""


def holds(each: Range, symbol: str) -> bool:
    """Return whether a range includes a symbol."""
    return each[0] <= symbol and (not each[1] or symbol < each[1])


def _overlap(one: Range, other: Range) -> bool:
    return (not one[1] or other[0] < one[1]) and (not other[1] or one[0] < other[1])


class Channels:
    """The channels of one definition. Raises `WrongKey` where it cannot work.

    channels         by id
    retransmissions  groups by id
    warnings         a line for each unwise choice
    """

    def __init__(
        self, channels: tuple[Channel, ...], retransmissions: tuple[Retransmission, ...] = ()
    ) -> None:
        _check_ids(channels, retransmissions)
        _check_retransmissions(retransmissions)
        _check_topics(channels)
        for at, channel in enumerate(channels):
            _check_letters(channel, at)
            _check_addresses(channel, at)
            _check_apart(channels, at)
        self.channels = {channel.id: channel for channel in channels}
        self.retransmissions = {each.id: each for each in retransmissions}
        self.warnings = list(_warnings(channels, retransmissions))
        self._carried = [(carry, channel) for channel in channels for carry in channel.carries]
        self._by_symbol: dict[str, list[tuple[Carried, Channel]]] = {}
        for carried, channel in self._carried:
            for symbol in carried.symbols:
                self._by_symbol.setdefault(symbol, []).append((carried, channel))

    def of(self, symbol: str, content: str = "", kind: str = "") -> Channel | None:
        """Return the channel that carries an instrument; None where none does."""
        found = (self._of(symbol, each, kind) for each in dict.fromkeys((content, "")))
        return next((channel for channel in found if channel is not None), None)

    def _of(self, symbol: str, content: str, kind: str) -> Channel | None:
        """Return the channel that carries an instrument by an entry of exactly this content."""
        for carried, channel in self._by_symbol.get(symbol, ()):
            if _suits(carried, content, kind):
                return channel
        rest = None
        for carried, channel in self._carried:
            if not _suits(carried, content, kind):
                continue
            if any(holds(each, symbol) for each in carried.ranges):
                return channel
            if not carried.letters and not carried.symbols and (rest is None or carried.kinds):
                rest = channel
        return rest

    def chosen(self, ids: Sequence[str]) -> list[str]:
        """Return these ids; without any, all. Raises `UsageError` for one that is not here."""
        for id in ids:
            if id not in self.channels:
                known = ", ".join(self.channels)
                raise UsageError(f"there is no channel {id}", f"there are: {known}")
        return list(ids or self.channels)

    def retransmission_of(self, channel: Channel) -> Retransmission | None:
        """Return a channel's retransmission group; None where it has none."""
        return self.retransmissions.get(channel.retransmission)


def _suits(carried: Carried, content: str, kind: str) -> bool:
    return carried.content == content and (not carried.kinds or kind in carried.kinds)


def host_and_port(server: str) -> tuple[str, int]:
    """Split `host:port`. Raises `ConfigError` where it is not of that form."""
    try:
        return split_address(server, port_min=1)
    except ValueError:
        hint = "give host:port, such as 10.1.0.5:31900"
        raise ConfigError(f"{server!r} is no server", hint) from None


def read_channels(path: Path) -> Channels:
    """Read the definition in a file. Raises `ConfigError` with the line that is wrong."""
    return parse_channels(read_text(path, "give a definition of channels"), str(path))


def parse_channels(text: str, source: str) -> Channels:
    """Parse a definition as `read_channels`, from a text that `source` names."""
    return parse_as(text, source, "definition of channels", _channels)


def _channels(values: dict[str, Any]) -> Channels:
    file = convert(values, _File)
    return Channels(file.channel, file.retransmission)


# -- what cannot work
# --------------------------------------------------------------------------------


def _check_ids(channels: tuple[Channel, ...], retransmissions: tuple[Retransmission, ...]) -> None:
    for name, ids in (
        ("channel", [channel.id for channel in channels]),
        ("retransmission", [each.id for each in retransmissions]),
    ):
        for at, each in enumerate(ids):
            if each in ids[:at]:
                raise WrongKey((name, at, "id"), f"{each} is there already", "name them apart")
    known = {each.id for each in retransmissions}
    for at, channel in enumerate(channels):
        if channel.retransmission and channel.retransmission not in known:
            raise WrongKey(
                ("channel", at, "retransmission"),
                f"there is no retransmission group {channel.retransmission}",
                f"there are: {', '.join(sorted(known)) or 'none'}",
            )


def _check_retransmissions(retransmissions: tuple[Retransmission, ...]) -> None:
    for at, each in enumerate(retransmissions):
        if each.server and each.requests is not None:
            raise WrongKey(
                ("retransmission", at, "requests"),
                f"{each.id} takes requests by TCP already",
                "give it a server or a request topic",
            )
        if each.join == "needed" and each.line is None:
            raise WrongKey(
                ("retransmission", at, "join"), f"{each.id} has no group to join", "give it a line"
            )
        for key, server in (("server", each.server), ("market_data", each.market_data)):
            try:
                if server:
                    host_and_port(server)
            except ConfigError as error:
                path: KeyPath = ("retransmission", at, key)
                raise WrongKey(path, error.message, error.hint) from None
        for name, line in (("line", each.line), ("requests", each.requests)):
            if line is not None:
                with within("retransmission", at, name):
                    check_group(line.group, line.source)


def _check_topics(channels: tuple[Channel, ...]) -> None:
    """Check that channels which share a retransmission group have distinct topics.

    Nothing else distinguishes their messages there.
    """
    known: dict[tuple[str, str], str] = {}
    for at, channel in enumerate(channels):
        if not channel.retransmission:
            continue
        shared = any(
            o.retransmission == channel.retransmission for o in channels if o is not channel
        )
        key = channel.retransmission, channel.topic
        if shared and (not channel.topic or key in known):
            raise WrongKey(
                ("channel", at, "target"),
                f"channels that share {channel.retransmission} cannot be distinguished",
                "give each a target of its own",
            )
        known[key] = channel.id


def _check_letters(channel: Channel, at: int) -> None:
    for number, carried in enumerate(channel.carries):
        for index, letters in enumerate(carried.letters):
            try:
                _range(letters)
            except ValueError as error:
                raise WrongKey(
                    ("channel", at, "carries", number, "letters", index),
                    str(error),
                    'such as "A-D" or ["SA", "SN"]',
                ) from None


def _check_addresses(channel: Channel, at: int) -> None:
    for name, line in zip(("a", "b"), channel.lines, strict=False):
        with within("channel", at, name):
            check_group(line.group, line.source)
    if channel.b == channel.a:
        raise WrongKey(
            ("channel", at, "b"),
            f"{channel.a.group}:{channel.a.port} is line A already",
            "each line has a group or port of its own; or leave b out",
        )


def _check_apart(channels: tuple[Channel, ...], at: int) -> None:
    """Refuse what an earlier channel carries too."""
    for number, carried in enumerate(channels[at].carries):
        for other in channels[:at]:
            for carry in other.carries:
                if (fault := _common(carried, carry)) is not None:
                    raise WrongKey(
                        ("channel", at, "carries", number),
                        f"{fault} carried by {other.id} too",
                        "an instrument belongs to one channel",
                    )


def _common(one: Carried, other: Carried) -> str | None:
    """Return what two channels both carry, as text; None: nothing."""
    if one.content != other.content or (
        one.kinds and other.kinds and not {*one.kinds} & {*other.kinds}
    ):
        return None
    if both := {*one.symbols} & {*other.symbols}:
        return f"{min(both)} is"
    for range, letters in zip(one.ranges, one.letters, strict=True):
        if any(_overlap(range, theirs) for theirs in other.ranges):
            return f"some of {letters!r} are"
    # The rest of some kinds may have a channel beside that of all others.
    named = one.letters or one.symbols or other.letters or other.symbols
    if not named and bool(one.kinds) == bool(other.kinds):
        return f"the rest of {one.content!r} is" if one.content else "the rest is"
    return None


# -- what is unwise
# ------------------------------------------------------------------------------------


def _warnings(
    channels: tuple[Channel, ...], retransmissions: tuple[Retransmission, ...]
) -> Iterator[str]:
    if len(channels) > CHANNELS_WISE:
        yield f"{len(channels)} channels: few are recommended, about 10 with two lines each"
    alone = [each.id for each in channels if _is_single(each)]
    if len(alone) > 1:
        yield f"{len(alone)} channels carry a single instrument each: {', '.join(alone[:5])}"
    named = [
        (f"channel {c.id}, line {n}", a)
        for c in channels
        for n, a in zip("AB", c.lines, strict=False)
    ]
    named += [(f"retransmission {r.id}", r.line) for r in retransmissions if r.line]
    used = Counter((line.group, line.port) for _, line in named)
    for what, line in named:
        group = ipaddress.IPv4Address(line.group)
        if not any(group in range for range in (GLOP, SOURCE_SPECIFIC, SCOPED)):
            yield (
                f"{what}: {line.group} is outside 233/8 (GLOP, RFC 3180), 232/8 (source-specific)"
                " and 239/8 (administratively scoped)"
            )
        if not line.source:
            yield f"{what}: no source: every sender to the group is believed"
        if used[line.group, line.port] > 1:
            yield f"{what}: {line.group}:{line.port} carries something else too"
    for channel in channels:
        if channel.b is None:
            yield f"channel {channel.id} has one line: what it loses is lost"


def _is_single(channel: Channel) -> bool:
    symbols = sum(len(carried.symbols) for carried in channel.carries)
    return symbols == 1 and len(channel.carries) == 1 and not channel.carries[0].letters
