"""A plan of channels: instruments spread by content, letters and measured volume over few channels.

`plan` takes the volume of each instrument's messages and returns one share for each channel. The
ideal is that every content has channels of its own, each a contiguous range of symbols; for an even
spread that is relaxed in this order:

1. contents apart, letters contiguous 2. contents side by side: a channel may carry the end of one
and the beginning of the next 3. the heaviest instruments by themselves: they are listed, and put
where there is room

and the first of these whose heaviest channel is no more than `SHARE_MAX` of the mean is taken.
Where every instrument has at most `SHARE_MAX` - 1 of the mean, the third always reaches that; an
instrument with more volume than a channel may have cannot be split, and then the best plan that was
found is returned.
"""

import csv
import ipaddress
import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from feedhandler.codecs.errors import UsageError, reason_of
from feedhandler.codecs.toml_text import toml_value
from feedhandler.fixcast.channels import CHANNELS_MAX, Range, holds

#: The recommended number of channels; with both lines twice as many groups.
CHANNELS_USUAL = 10
#: Upper limit on the heaviest channel's volume, as a share of the mean.
SHARE_MAX = Fraction(6, 5)
#: Upper limit on a plan's instruments: what a day of all of the world's venues has.
INSTRUMENTS_MAX = 4_000_000
#: Upper limit on the channels that `definition` writes: the last byte of an address.
GROUPS_MAX = 254
#: Steps in which the number of listed heaviest instruments grows.
_STEPS = 24


class Volume(NamedTuple):
    """The volume of one instrument's messages, in bytes or messages of a usual day."""

    content: str
    symbol: str
    volume: int


@dataclass
class Share:
    """Content of one channel, and its volume: ranges and single symbols of each content."""

    ranges: dict[str, list[Range]] = field(default_factory=lambda: defaultdict(list))
    symbols: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    volume: int = 0

    def carries(self, content: str, symbol: str) -> bool:
        """Return whether one of its ranges includes an instrument.

        A listed one is carried by the share that lists it instead.
        """
        return any(holds(each, symbol) for each in self.ranges.get(content, ()))

    @property
    def contents(self) -> list[str]:
        """Contents of which it carries something."""
        return sorted({*self.ranges, *self.symbols})


class Plan(NamedTuple):
    """The shares of the channels; `step`: which of the three ways of spreading gave them."""

    shares: list[Share]
    step: int

    @property
    def heaviest(self) -> Fraction:
        """The heaviest channel's volume, as a share of the mean; 0 where all volumes are 0."""
        total = sum(share.volume for share in self.shares)
        heaviest = max(share.volume for share in self.shares)
        return Fraction(heaviest * len(self.shares), total) if total else Fraction(0)

    @property
    def is_even(self) -> bool:
        """Whether no channel is above `SHARE_MAX` of the mean."""
        return self.heaviest <= SHARE_MAX

    def heaviest_of(self, volumes: Iterable[Volume]) -> Fraction:
        """Return `heaviest` for other volumes of the same instruments: those of a busy minute."""
        listed = {
            (content, symbol): at
            for at, share in enumerate(self.shares)
            for content, symbols in share.symbols.items()
            for symbol in symbols
        }
        loads = [0] * len(self.shares)
        for content, symbol, volume in volumes:
            at = listed.get((content, symbol))
            if at is None:
                at = next(
                    number for number, share in enumerate(self.shares)
                    if share.carries(content, symbol)
                )  # fmt: skip
            loads[at] += volume
        return Plan([Share(volume=load) for load in loads], self.step).heaviest


def channels_at_most(volumes: Iterable[Volume]) -> int:
    """Return how many channels the heaviest instrument allows.

    With more, the one that carries it is above `SHARE_MAX` of the mean, however the others are
    spread.
    """
    weights = [volume.volume for volume in volumes]
    heaviest = max(weights, default=0)
    if not heaviest:
        return CHANNELS_MAX
    return min(int(SHARE_MAX * sum(weights) / heaviest), CHANNELS_MAX)


def plan(volumes: Iterable[Volume], channels: int = CHANNELS_USUAL) -> Plan:
    """Spread instruments over channels.

    Raises `UsageError` where there are no instruments, more than `INSTRUMENTS_MAX` or fewer than
    channels, where one comes twice or has a negative volume.
    """
    known = sorted(volumes)
    _check(known, channels)
    found = [_apart(known, channels), _side_by_side(known, channels)]
    for each in found:
        if each is not None and each.is_even:
            return each
    best = min((each for each in found if each is not None), key=lambda each: each.heaviest)
    for count in _counts(len(known)):
        each = _heaviest_alone(known, channels, count)
        if each.is_even:
            return each
        best = min(best, each, key=lambda each: each.heaviest)
    return best


def _check(known: list[Volume], channels: int) -> None:
    if not 1 <= channels <= CHANNELS_MAX:
        raise UsageError(f"cannot plan {channels} channels", f"1 to {CHANNELS_MAX}")
    if len(known) < channels:
        raise UsageError(
            f"{len(known)} instruments cannot fill {channels} channels", "ask for fewer channels"
        )
    if len(known) > INSTRUMENTS_MAX:
        raise UsageError(f"more than {INSTRUMENTS_MAX:,} instruments", "plan for a part of them")
    for one, other in itertools.pairwise(known):
        if one[:2] == other[:2]:
            where = f" in {one.content}" if one.content else ""
            raise UsageError(f"{one.symbol} comes twice{where}", "add its volumes up")
    if negative := next((each for each in known if each.volume < 0), None):
        raise UsageError(f"{negative.symbol} has a negative volume", "volumes are 0 or more")


def _counts(most: int) -> Iterator[int]:
    """Yield how many of the heaviest are listed: 1, 2, 3, soon in larger steps, then all."""
    count = 1
    for _ in range(_STEPS):
        if count >= most:
            break
        yield count
        count += max(1, count // 2)
    yield most


# -- the three ways --------------------------------------------------------------------------------


def _apart(known: list[Volume], channels: int) -> Plan | None:
    """Give each content channels of its own; None where there are more contents than channels."""
    contents = {
        content: list(each) for content, each in itertools.groupby(known, lambda each: each.content)
    }
    if len(contents) > channels:
        return None
    counts = dict.fromkeys(contents, 1)
    cuts = {content: _cut(each, 1) for content, each in contents.items()}
    for _ in range(channels - len(contents)):
        # One more channel for the content that has the heaviest one and can be cut.
        able = [content for content in contents if counts[content] < len(contents[content])]
        heaviest = max(able, key=lambda content: max(map(_weight, cuts[content])))
        counts[heaviest] += 1
        cuts[heaviest] = _cut(contents[heaviest], counts[heaviest])
    return Plan([_share(part, known) for parts in cuts.values() for part in parts], 1)


def _side_by_side(known: list[Volume], channels: int) -> Plan:
    """Put all instruments in one row, and cut it."""
    return Plan([_share(part, known) for part in _cut(known, channels)], 2)


def _heaviest_alone(known: list[Volume], channels: int, count: int) -> Plan:
    """List the `count` heaviest instruments, and cut the others to fill the room that is left.

    The listed ones go, the heaviest first, each into the lightest channel.
    """
    order = sorted(known, key=lambda each: (-each.volume, each.content, each.symbol))
    listed, rest = order[:count], sorted(order[count:])
    shares = [Share() for _ in range(channels)]
    for each in listed:
        lightest = min(shares, key=lambda share: share.volume)
        lightest.symbols[each.content].append(each.symbol)
        lightest.volume += each.volume
    parts = _cut_around(rest, [share.volume for share in shares])
    for share, part in zip(shares, parts, strict=True):
        if part:
            share.ranges = _ranges(part, rest)
            share.volume += _weight(part)
        for symbols in share.symbols.values():
            symbols.sort()
    return Plan(shares, 3)


# -- cutting a row ---------------------------------------------------------------------------------


def _weight(part: Sequence[Volume]) -> int:
    return sum(each.volume for each in part)


def _cut(row: Sequence[Volume], parts: int) -> list[Sequence[Volume]]:
    """Cut the row into contiguous, non-empty parts, the heaviest as light as possible."""
    low, high = max(each.volume for each in row), _weight(row)
    while low < high:
        middle = (low + high) // 2
        if len(_fill(row, middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    ends = _fill(row, low)
    _split_to(ends, parts, row)
    return [row[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def _fill(row: Sequence[Volume], most: int) -> list[int]:
    """Return the ends of parts that are filled up to `most` each."""
    ends, total = [], 0
    for at, each in enumerate(row):
        if at and total + each.volume > most:
            ends.append(at)
            total = 0
        total += each.volume
    return [*ends, len(row)]


def _split_to(ends: list[int], parts: int, row: Sequence[Volume]) -> None:
    """Cut parts in two, those with most instruments first, until there are enough."""
    while len(ends) < parts:
        begins = [0, *ends[:-1]]
        size, at = max(
            (end - begin, at) for at, (begin, end) in enumerate(zip(begins, ends, strict=True))
        )
        ends.insert(at, begins[at] + size // 2)


def _cut_around(row: Sequence[Volume], loads: Sequence[int]) -> list[Sequence[Volume]]:
    """Cut the row into contiguous parts, some empty, one for each load.

    The heaviest sum of a load and its part is as small as possible.
    """
    low, high = max(loads), max(loads) + _weight(row)
    while low < high:
        middle = (low + high) // 2
        if sum(map(len, _fill_around(row, loads, middle))) == len(row):
            high = middle
        else:
            low = middle + 1
    return _fill_around(row, loads, low)


def _fill_around(row: Sequence[Volume], loads: Sequence[int], most: int) -> list[Sequence[Volume]]:
    """Return parts that fill each load up to `most`, as far as the row goes, or the loads do."""
    parts, begin = [], 0
    for load in loads:
        end = begin
        while end < len(row) and load + row[end].volume <= most:
            load += row[end].volume
            end += 1
        parts.append(row[begin:end])
        begin = end
    return parts


def _share(part: Sequence[Volume], row: Sequence[Volume]) -> Share:
    return Share(_ranges(part, row), volume=_weight(part))


def _ranges(part: Sequence[Volume], row: Sequence[Volume]) -> dict[str, list[Range]]:
    """Return a part of a row as ranges of symbols, by content.

    They leave no gap between the part and the next.
    """
    ranges: dict[str, list[Range]] = defaultdict(list)
    before, after = _around(part, row)
    for content, each in itertools.groupby(part, lambda each: each.content):
        symbols = [volume.symbol for volume in each]
        first = last = ""
        if before is not None and before.content == content:
            first = _border(before.symbol, symbols[0])
        if after is not None and after.content == content:
            last = _border(symbols[-1], after.symbol)
        ranges[content].append((first, last))
    return ranges


def _around(part: Sequence[Volume], row: Sequence[Volume]) -> tuple[Volume | None, Volume | None]:
    """Return the instruments before and after a part of a sorted row."""
    begin = bisect_left(row, part[0])
    end = begin + len(part)
    return row[begin - 1] if begin else None, row[end] if end < len(row) else None


def _border(below: str, above: str) -> str:
    """Return the shortest beginning of `above` that is higher than `below`."""
    beginnings = (above[:size] for size in range(1, len(above) + 1))
    return next(beginning for beginning in beginnings if beginning > below)


# -- volumes in, definitions out -------------------------------------------------------------------


def read_volumes(path: Path) -> list[Volume]:
    """Read volumes from a CSV file with the columns `symbol`, `volume` and optionally `content`.

    Raises `UsageError` with the line that is wrong.
    """
    try:
        return _rows(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason_of(error)}", "check the path") from None
    except (UnicodeDecodeError, csv.Error):
        raise UsageError(
            f"{path}: is no table of volumes", "a capture needs --feed; a table is CSV in UTF-8"
        ) from None


def _rows(path: Path) -> list[Volume]:
    # Spreadsheets put a byte order mark in front of the first column's name.
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        columns = set(rows.fieldnames or ())
        if not {"symbol", "volume"} <= columns:
            raise UsageError(
                f"{path}: no columns symbol and volume", "the first line names the columns"
            )
        found = []
        lines: dict[tuple[str, str], int] = {}
        for row in rows:
            symbol, volume = row["symbol"] or "", row["volume"] or ""
            if not symbol or not volume.isdecimal():
                raise UsageError(
                    f"{path}:{rows.line_num}: {symbol or 'no symbol'}: {volume!r} is no volume",
                    "a whole number of bytes or messages",
                )
            content = row.get("content") or ""
            first = lines.setdefault((content, symbol), rows.line_num)
            if first != rows.line_num:
                raise UsageError(
                    f"{path}:{rows.line_num}: {symbol} comes twice"
                    f"{f' in {content}' if content else ''}, first at line {first}",
                    "add its volumes up",
                )
            found.append(Volume(content, symbol, int(volume)))
    return found


def definition(planned: Plan, prefix: str, port: int, sources: tuple[str, str]) -> str:
    """Return a definition of channels, as TOML.

    Groups are `prefix`.1.n for line A and `prefix`.2.n for line B, such as 239.10.1.1; a source
    that is "" is left out. Raises `UsageError` for invalid addresses and too many channels.
    """
    _check_addresses(prefix, sources)
    if len(planned.shares) > GROUPS_MAX:
        raise UsageError(f"more than {GROUPS_MAX} channels have no room in {prefix}.1.0/24")
    text = ""
    for number, share in enumerate(planned.shares, 1):
        text += f"[[channel]]\nid = {toml_value(_name(share, number))}\n"
        for line, (key, source) in enumerate(zip("ab", sources, strict=True), 1):
            group = toml_value(f"{prefix}.{line}.{number}")
            said = f", source = {toml_value(source)}" if source else ""
            text += f"{key} = {{ group = {group}, port = {port}{said} }}\n"
        for content in share.contents:
            text += "[[channel.carries]]\n" + (
                f"content = {toml_value(content)}\n" if content else ""
            )
            if ranges := share.ranges.get(content):
                text += f"letters = {toml_value(tuple(ranges))}\n"
            if symbols := share.symbols.get(content):
                text += f"symbols = {toml_value(tuple(symbols))}\n"
        text += "\n"
    return text


def _check_addresses(prefix: str, sources: tuple[str, str]) -> None:
    try:
        known = ipaddress.IPv4Address(f"{prefix}.1.1").is_multicast
    except ValueError:
        known = False
    if not known:
        raise UsageError(
            f"{prefix!r} begins no multicast groups",
            "two numbers, 224.0 to 239.255, such as 239.10",
        )
    for source in filter(None, sources):
        try:
            ipaddress.IPv4Address(source)
        except ValueError:
            raise UsageError(
                f"{source!r} is no source", "an IPv4 address, such as 10.1.0.5"
            ) from None


def _name(share: Share, number: int) -> str:
    """Return an id for a channel: its content, where it has only one, and its number."""
    content = share.contents[0] if len(share.contents) == 1 else "mixed"
    letters = "".join(
        letter if letter.isascii() and letter.isalnum() else "-" for letter in content
    )
    return f"{letters[:50] or 'channel'}-{number}"
