"""`feedhandler subscribe`: the stream of a gateway, for a reader or for a program.

One line for each market message, whatever the granularity of the subscription. Quality messages go
to stderr, as they concern the reader rather than the data; with `--quality` they are lines of the
stream, at their position in it.

Names and price scales are learnt from reference data on the way, as `decode` does. Where prices
need them, reference messages are asked for even if `--types` leaves them out, and not shown.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

import feedhandler
from feedhandler.amqp.identity import Login
from feedhandler.amqp.subscribing.inbox import Message, feed_of
from feedhandler.codecs import Feed, list_feeds, load_feed
from feedhandler.codecs.dbn import schema_of
from feedhandler.codecs.feed import split_packets
from feedhandler.terminal.console import ExitCode, complain, run_async, until_stopped

#: Printed lines reach a reading program this soon, even when there are few.
FLUSH_INTERVAL_S = 0.05
#: Ranges of a kind that a quality message on stderr shows, the latest.
RANGES_SHOWN_MAX = 8
#: Names of a normalised record's actions.
_ACTIONS = {
    "A": "add", "C": "cancel", "F": "fill", "M": "modify", "N": "none", "R": "clear", "T": "trade",
}  # fmt: skip
#: Keys that every line has of its own in the table view; the others follow as `key=value`.
_LEADING = ("key", "seq", "service", "type", "name", "symbol")


class Options(Struct, frozen=True, kw_only=True):
    """The gateways to attach to, the subscription, and what to print."""

    url: str
    pattern: str
    granularity: str | None = None
    types: tuple[str, ...] = ()
    count: int = 0
    stamp: bool = False
    quality: bool = False
    snapshot: bool = False
    reconnect: bool = True
    feed: str | None = None
    as_json: bool = False
    login: Login = Login()


def run(options: Options) -> int:
    """Print until `count` messages, a signal, or the gateway's end of the stream."""

    async def main(stop: asyncio.Event) -> int:
        await until_stopped(_print_messages(options, stop), stop)
        return ExitCode.OK

    return run_async(main, "uvloop")


async def _print_messages(options: Options, stop: asyncio.Event) -> None:
    feed = load_feed(options.feed) if options.feed else None
    pattern, granularity = split_granularity(options.pattern, options.granularity)
    unseen = reference_types(options.types, pattern, feed)
    output = Output(stop)
    printed = 0
    urls = options.url.split(",")
    async with feedhandler.subscribe(
        urls[0] if len(urls) == 1 else urls,
        pattern,
        as_=granularity,
        types=(*options.types, *unseen) or None,
        stamp=options.stamp,
        snapshot=options.snapshot,
        feed=feed,
        reconnect=options.reconnect,
        on_connection=ConnectionNotes().note,
        login=options.login,
    ) as messages:
        async for message in messages:
            for line in lines_of(message, options):
                if str(line["type"]) in unseen:
                    continue
                output.write(_json_line(line) if options.as_json else _text_line(line))
                printed += line["type"] != "quality"
                if 0 < options.count <= printed:
                    return


def reference_types(types: Sequence[str], pattern: str, feed: Feed | None) -> tuple[str, ...]:
    """Return the types of the reference messages to subscribe to beside `types`.

    Those of feeds that the pattern names and whose prices have no scale without them.
    """
    keys = {word.partition(".")[0] for word in pattern.partition("?")[0].split(",")}
    feeds = [feed] if feed else [each for each in map(load_feed, list_feeds()) if each.key in keys]
    return tuple(
        str(each.type_label(code))
        for each in feeds
        if types and each.needs_reference_scales
        for code in each.references
        if code not in map(each.type_code, types)
    )


class ConnectionNotes:
    """A writer of a line on stderr for each connection that is lost, and for each that is back."""

    def __init__(self) -> None:
        self._lost: set[str] = set()

    def note(self, event: feedhandler.ConnectionEvent) -> None:
        """Report what happened to one gateway's connection."""
        if not event.connected:
            self._lost.add(event.url)
            complain(f"lost {event.url}: {event.reason}")
        elif event.url in self._lost:
            self._lost.discard(event.url)
            resumed = ", which goes on where it was lost" if event.resumed else ""
            complain(f"attached to {event.url} again{resumed}")


def split_granularity(address: str, chosen: str | None) -> tuple[str, str]:
    """Return the address without its `as=`, and the granularity.

    That is the `chosen` one, else the address's, else `message`.
    """
    pattern, _, query = address.partition("?")
    words = [word for word in query.split("&") if word]
    said = [word.removeprefix("as=") for word in words if word.startswith("as=")]
    rest = "&".join(word for word in words if not word.startswith("as="))
    granularity = chosen or (said[-1] if said else "message")
    return pattern + (f"?{rest}" if rest else ""), granularity


class Output:
    """stdout, flushed soon after a write; a reader that is gone sets `stop`."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._due = False

    def write(self, line: str) -> None:
        """Write now, flush within `FLUSH_INTERVAL_S`."""
        sys.stdout.write(line)
        if not self._due:
            self._due = True
            self._loop.call_later(FLUSH_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        self._due = False
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            self._stop.set()


def lines_of(message: Message, options: Options) -> Iterator[dict[str, Any]]:
    """Yield a dict for each market message of one AMQP message, to be printed.

    A quality message is yielded with `options.quality`, else reported on stderr.
    """
    if message.content == "quality":
        if options.quality:
            yield {"key": message.key, "seq": None, "type": "quality", "symbol": None,
                   "name": "quality", **(message.quality or {})}  # fmt: skip
        else:
            _note_quality(message)
        return
    stamps: dict[str, int] = {}
    if options.stamp and message.received_ns:
        latency_us = (time.time_ns() - message.received_ns) // 1000
        stamps = {"received_ns": message.received_ns, "latency_us": latency_us}
    # In a snapshot only its LastSeqNum has a number, which the marker before it carries.
    position: dict[str, Any] = {"seq": None, "snapshot": True} if message.snapshot else {}
    if message.unsequenced:
        position = {"seq": None, "unsequenced": True}
    for fields in _market_messages(message):
        yield {"key": message.key, **stamps, **fields, **position}


def _records(message: Message) -> Iterator[dict[str, Any]]:
    """Yield normalised records, with their symbols' names."""
    records = message.records()
    schema, symbols = schema_of(records), message.symbols
    for record in records:
        fields = dict(zip(record.dtype.names, record.tolist(), strict=True))
        for name, value in fields.items():
            if isinstance(value, bytes):
                fields[name] = value.decode(errors="replace")
        del fields["length"], fields["rtype"]
        symbol = symbols.get(fields["instrument_id"]) or fields.get("raw_symbol")
        yield {"seq": fields.get("sequence"), "service": message.service, "type": schema,
               "name": _ACTIONS.get(fields.get("action", ""), ""), "symbol": symbol,
               "key": f"{message.key}.{symbol}" if symbol else message.key, **fields}  # fmt: skip


def _market_messages(message: Message) -> Iterator[dict[str, Any]]:
    if message.content == "records":
        yield from _records(message)
        return
    feed = feed_of(message)
    if message.content == "message":
        record = message.record()
        layout = getattr(record, "layout", None)
        yield {
            "seq": message.own_sequence,
            "service": message.service,
            "type": message.type,
            "name": layout.name if layout else "unknown",
            **record.to_dict(),
            "symbol": None if message.symbol == "-" else message.symbol,
        }
        return
    for packet in split_packets(feed, message.body):
        for fields in feed.to_dicts(packet, message.date, known=message.reference_data):
            yield {**fields, "service": message.service}


def _note_quality(message: Message) -> None:
    quality = message.quality or {}
    text = f"quality of {message.key.removesuffix('.quality')}: {quality.get('state')}"
    text += f" ({quality.get('reason')})"
    for kind in ("missing", "lost", "refreshed"):
        ranges = quality.get(kind, [])[-RANGES_SHOWN_MAX:]
        if ranges:
            text += f", {kind} " + ", ".join(f"{first}..{last}" for first, last in ranges)
    if "packets" in quality:
        text += f", {quality['packets']} packets, the state after {quality.get('last')}"
    complain(text)


def _json_line(line: dict[str, Any]) -> str:
    return msgspec.json.encode(line).decode() + "\n"


def _text_line(line: dict[str, Any]) -> str:
    fields = " ".join(f"{key}={value}" for key, value in line.items() if key not in _LEADING)
    sequence = "" if line["seq"] is None else line["seq"]
    return f"{line['key']:<24} {sequence:>9} {line['type']:>7} {line['name']:<20} {fields}\n"
