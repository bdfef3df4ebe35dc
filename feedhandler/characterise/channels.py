"""The map of lines to channels: given by a file, or guessed from numbers and bytes; no I/O.

A channel is one space of sequence numbers; its lines (A, B) carry the same packets on groups and
ports of their own. Where a feed's packets name their service, that is the channel. Where they do
not, as NYSE's, only the group and port identify the channel, through a `ChannelMap`.

The guess: two destinations are lines of one channel where the same numbers carry the same bytes at
about the same time on both; else they are different channels. `Samples` keeps some of the numbered
packets of each destination: those whose numbers' hashes are the least, so that all destinations
keep the same numbers however unlike their traffic and wherever captures are cut. Samples of slices
are merged, so slices may be sampled by different workers.

A file (`parse_channel_map`) is TOML with the tables of the gateway's configuration, which is one:

    [[channel]]
    name = "tape A"          # or service = 1, as in the gateway
    [[channel.line]]
    name = "A"
    group = "233.75.215.1"
    port = 50001
"""

import ipaddress
import tomllib
import zlib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from feedhandler.characterise.skew import APART_NS_MAX
from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.feed_table import FeedTable
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.replay.captures.packet_headers import read_headers
from feedhandler.replay.captures.reading import DatagramBatch, address_text

Array = np.ndarray[Any, Any]
#: A channel's label: the service that its packets name, or a name.
Label = int | str

#: Numbers that are kept of a destination, after thinning out.
SAMPLES_MAX = 2_048
#: Spreads numbers (the golden ratio's fraction).
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)


def endpoint_text(endpoint: int) -> str:
    """Format an endpoint (`group << 16 | port`) as `group:port`."""
    return f"{address_text(endpoint >> 16)}:{endpoint & 0xFFFF}"


class ChannelMap(Struct, frozen=True):
    """Endpoints are `group << 16 | port`, and a channel's number is its first line's endpoint.

    firsts      by endpoint, its channel's number
    names       by channel's number, how it is called
    lines       by endpoint, how the line is called, in the order of the lines; none: A, B
    refresh     endpoints that carry snapshots
    by_service  packets name their service, which is the channel: only lines' names are from here
    """

    origin: Literal["given", "guessed"]
    firsts: dict[int, int] = {}
    names: dict[int, Label] = {}
    lines: dict[int, str] = {}
    refresh: tuple[int, ...] = ()
    by_service: bool = False

    def key(self, endpoint: int, service: int) -> int:
        """Return the channel number of a packet with this endpoint and service."""
        return service if self.by_service else self.firsts.get(endpoint, endpoint)

    def label(self, key: int) -> Label:
        """Return the channel's label: its service or name, else its first line's address."""
        if self.by_service:
            return key
        return self.names.get(key, endpoint_text(key))


def key_of(channels: ChannelMap | None, endpoint: int, service: int) -> int:
    """Return the channel number of a packet; without a map, its service."""
    return service if channels is None else channels.key(endpoint, service)


def tally_keys(channels: ChannelMap | None) -> dict[int, int] | None:
    """Return the channel number by endpoint, for `Tally`; None where packets name services."""
    return None if channels is None or channels.by_service else channels.firsts


def keys_of(channels: ChannelMap | None, endpoint: Array, service: Array) -> Array:
    """Return the channel numbers of many packets (i64[n]), as `key_of` does for one."""
    if channels is None or channels.by_service:
        return service.astype(np.int64)
    distinct, inverse = np.unique(endpoint.astype(np.int64), return_inverse=True)
    firsts = [channels.firsts.get(each, each) for each in distinct.tolist()]
    return np.array(firsts, np.int64)[inverse]


# -- given by a file ----------------------------------------------------------------------------


class _Line(Struct):
    name: str
    group: str
    port: Annotated[int, Meta(ge=1, le=65_535)]


class _Channel(Struct):
    line: Annotated[list[_Line], Meta(min_length=1)]
    name: str = ""
    service: int | None = None
    refresh_line: list[_Line] = []


class _File(Struct):
    channel: Annotated[list[_Channel], Meta(min_length=1)]


def parse_channel_map(text: str, source: str, *, by_service: bool) -> ChannelMap:
    """Parse a channel map from TOML (see the module's text).

    Raises `ConfigError`, whose message calls the text `source`.
    """
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{source} is no channel map: {error}",
            "give [[channel]] tables with [[channel.line]]s: name, group, port",
        ) from None
    firsts: dict[int, int] = {}
    names: dict[int, Label] = {}
    lines: dict[int, str] = {}
    refresh: list[int] = []
    for number, channel in enumerate(file.channel, 1):
        label: Label | None = channel.name or channel.service
        if label is None:
            raise ConfigError(f"{source}: channel {number} has no name", "give name or service")
        if label in names.values() and not by_service:
            raise ConfigError(f"{source}: two channels are called {label}", "give each its name")
        first = _endpoint(channel.line[0], source)
        names[first] = label
        for line in [*channel.line, *channel.refresh_line]:
            endpoint = _endpoint(line, source)
            if endpoint in firsts and not by_service:
                raise ConfigError(
                    f"{source}: {endpoint_text(endpoint)} is a line of two channels",
                    "each line has a group or port of its own",
                )
            firsts[endpoint] = first
            if line in channel.line:
                lines[endpoint] = line.name
        refresh += [_endpoint(line, source) for line in channel.refresh_line]
    if by_service:
        return ChannelMap("given", lines=lines, refresh=tuple(refresh), by_service=True)
    return ChannelMap("given", firsts, names, lines, tuple(refresh))


def _endpoint(line: _Line, source: str) -> int:
    try:
        return int(ipaddress.IPv4Address(line.group)) << 16 | line.port
    except ValueError:
        raise ConfigError(
            f"{source}: {line.group!r} is no IPv4 address", "for example 239.101.1.4"
        ) from None


# -- guessed -------------------------------------------------------------------------------------


class Sample(Struct):
    """A sample of one destination's packets.

    It has those whose number's hash begins with `level` zero bits: `packets` holds by number the
    CRC-32 of the packet's bytes behind the header, and its time in ns.
    """

    level: int = 0
    packets: dict[int, tuple[int, int]] = {}

    def thin_out(self, level: int = 0) -> None:
        """Raise the level to at least `level`, and until at most `SAMPLES_MAX` packets are left."""
        while self.level < level or len(self.packets) > SAMPLES_MAX:
            self.level += 1
            kept = _chosen(np.fromiter(self.packets, np.uint64, len(self.packets)), self.level)
            self.packets = {
                number: packets
                for (number, packets), keep in zip(self.packets.items(), kept.tolist(), strict=True)
                if keep
            }


def _chosen(numbers: Array, level: int) -> Array:
    """Return which numbers are kept at a level (bool[n])."""
    if level == 0:
        return np.ones(len(numbers), bool)
    return (numbers * _FACTOR) >> np.uint64(64 - level) == 0


class Samples(Struct):
    """Some of the numbered packets of every destination; see the module's text."""

    of: dict[int, Sample] = {}

    def add(self, table: FeedTable, batch: DatagramBatch) -> None:
        """Sample the numbered packets of the next batch of datagrams."""
        headers = read_headers(table, batch.data, batch.offset, batch.length)
        mine = (headers.verdict == Reject.FINE) & (headers.kind == PacketKind.DATA)
        mine &= (headers.compressed == 0) & (headers.next_sequence > headers.sequence)
        rows = np.flatnonzero(mine)
        endpoints = batch.destination.astype(np.int64)[rows] << 16 | batch.destination_port[rows]
        for endpoint in np.unique(endpoints).tolist():
            sample = self.of.setdefault(endpoint, Sample())
            here = rows[endpoints == endpoint]
            here = here[_chosen(headers.sequence[here], sample.level)]
            for row, number in zip(here.tolist(), headers.sequence[here].tolist(), strict=True):
                if number not in sample.packets:
                    start = int(batch.offset[row]) + table.header_size
                    body = batch.data[start : int(batch.offset[row]) + int(batch.length[row])]
                    sample.packets[number] = (zlib.crc32(body), int(batch.time_ns[row]))
            sample.thin_out()

    def merge(self, other: "Samples") -> None:
        """Merge the samples of the stretch that follows."""
        for endpoint, later in other.of.items():
            sample = self.of.setdefault(endpoint, Sample())
            level = max(sample.level, later.level)
            sample.packets = {**later.packets, **sample.packets}
            sample.level = min(sample.level, later.level)
            sample.thin_out(level)

    def guess(self) -> ChannelMap | None:
        """Guess the channels from the samples; None where no destination has sequence numbers."""
        endpoints = sorted(self.of)
        if not endpoints:
            return None
        firsts = {endpoint: endpoint for endpoint in endpoints}
        for index, later in enumerate(endpoints):
            for first in endpoints[:index]:
                if firsts[first] == first and self._agree(_of(firsts, first), later):
                    firsts = _joined(firsts, first, later)
        channels = sorted(set(firsts.values()))
        # A single channel keeps the number 0, the service of packets that name none.
        names: dict[int, Label] = {channels[0]: 0} if len(channels) == 1 else {}
        return ChannelMap("guessed", firsts, names)

    def _agree(self, some: Iterable[int], other: int) -> bool:
        """Check whether `other` carries the packets of one of several destinations."""
        return any(_alike(self.of[each].packets, self.of[other].packets) for each in some)


def _of(firsts: dict[int, int], first: int) -> list[int]:
    return [endpoint for endpoint, its in firsts.items() if its == first]


def _joined(firsts: dict[int, int], first: int, later: int) -> dict[int, int]:
    """Join the channels of two destinations under the lower of their numbers."""
    old = {firsts[first], firsts[later]}
    return {endpoint: min(old) if its in old else its for endpoint, its in firsts.items()}


def _alike(one: dict[int, tuple[int, int]], other: dict[int, tuple[int, int]]) -> bool:
    """Check whether most of the shared numbers have the same bytes at nearly the same time."""
    shared = one.keys() & other.keys()
    same = 0
    for number in shared:
        (bytes_one, time_one), (bytes_other, time_other) = one[number], other[number]
        same += bytes_one == bytes_other and abs(time_one - time_other) <= APART_NS_MAX
    return same > 0 and 2 * same >= len(shared)
