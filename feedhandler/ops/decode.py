"""`feedhandler decode`: every message of a capture, for a reader or for a program.

Packets that are not of the feed are counted by reason and reported at the end: how many there were,
and for the first ones the datagram's number and what exactly is wrong with it.
"""

import datetime
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from feedhandler.codecs import Feed, ReferenceData, load_feed
from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.explain import explain
from feedhandler.replay.captures.reading import Datagram
from feedhandler.terminal.captures import ReadablePart, open_capture, report_reading
from feedhandler.terminal.console import ExitCode, complain, progress
from feedhandler.terminal.feed_guess import first_payloads, fitting_hint
from feedhandler.terminal.outputs import refuse_existing, refuse_input, refuse_nowhere

#: Keys that every line has of its own in the table view; the others follow as `key=value`.
_LEADING = ("captured_ns", "seq", "service", "type", "name", "symbol")
#: The type of packets without messages.
_CONTROL = ("heartbeat", "reset", "control", "unsequenced", "skip")
#: Digits of the greatest symbol that is a number.
_SYMBOL_DIGITS = 20
#: Rejected packets of each reason, the first ones, whose faults are explained one by one.
FAULTS_SHOWN_MAX = 3


class Options(Struct, frozen=True, kw_only=True):
    """The capture to decode, which messages to show, and how."""

    capture: Path
    feed: str
    service: int | None = None
    symbol: str | None = None
    types: tuple[str, ...] = ()
    limit: int = 0
    day: datetime.date | None = None
    names: bool = False
    control: bool = False
    as_json: bool = False
    records: str = ""
    form: str = ""
    out: str = "-"
    overwrite: bool = False


def run(options: Options) -> int:
    """Decode; `FOUND` where the capture is cut short, damaged, or holds what is not the feed's."""
    feed = load_feed(options.feed)
    if options.records or options.form:
        return _run_records(feed, options)
    if options.out != "-":
        raise UsageError("messages are printed, not written to a file", "name records: --as mbo")
    decoder = Decoder(feed, options)
    feed.longer.clear()  # of what was decoded before
    capture = open_capture(options.capture)
    write_line = _json_line if options.as_json else _text_line
    shown = 0
    with progress(f"decoding {capture.path.name}", total=1.0) as advance:
        read = ReadablePart(capture, advance)
        for message in decoder.messages(iter(read)):
            sys.stdout.write(write_line(message))
            shown += 1
            if shown == options.limit:
                break
    report_reading(capture)
    is_whole = not options.limit or shown < options.limit
    cut = is_whole and read.complain_of_rest()
    for name, (found, described) in feed.longer.items():
        complain(
            f"{name}: {found} bytes where {described} are described: what is behind them is unread",
            "a later version of the feed may have more fields: feedhandler feeds check",
        )
    unknown = [] if shown else _undescribed(feed, options.types)
    if unknown:
        complain(
            f"no message has type {' or '.join(unknown)}, which {feed.name} does not describe",
            f"its types: feedhandler feeds {feed.name}",
        )
    if decoder.rejected and not decoder.packets:
        # Another feed's capture: the faults of single packets do not matter.
        count, reasons = decoder.rejected.total(), ", ".join(decoder.rejected)
        hint = fitting_hint(first_payloads(read)) or "see --feed"
        complain(f"{count:,} datagrams are no {feed.name} packets: {reasons}", hint)
    else:
        for reason, count in decoder.rejected.items():
            complain(f"{count:,} datagrams are no {feed.name} packets: {reason}", "see --feed")
            for fault in decoder.faults[reason]:
                complain(fault)
    return ExitCode.FOUND if cut or decoder.rejected or unknown else ExitCode.OK


def _undescribed(feed: Feed, types: Iterable[str]) -> list[str]:
    """Return those of `types` that the feed's description has no message of, and no control."""
    described = {str(label) for label in feed.message_types} | {*_CONTROL}
    return [each for each in types if str(feed.type_label(feed.type_code(each))) not in described]


def _run_records(feed: Feed, options: Options) -> int:
    """Write normalised records instead."""
    from feedhandler.ops.decode_records import STDOUT, write_records

    chosen = (options.service is not None, options.symbol, options.types, options.limit)
    shown = (options.names, options.control, options.as_json)
    if any(chosen) or any(shown):
        raise UsageError(
            "records are made of all messages of a capture",
            "leave out --service, --symbol, --types, --limit, --names, --control and --json",
        )
    if options.out != STDOUT:
        refuse_input(Path(options.out), options.capture, Path(options.feed))
        refuse_existing(options.overwrite, Path(options.out))
        refuse_nowhere(Path(options.out), "--out")
    capture = open_capture(options.capture)
    with progress(f"decoding {capture.path.name}", total=1.0) as advance:
        read = ReadablePart(capture, advance)
        source = write_records(
            iter(read),
            feed,
            options.records or "mbo",
            options.form or "csv",
            options.out,
            options.day,
        )
    report_reading(capture)
    cut = read.complain_of_rest()
    if source.rejected:
        complain(f"{source.rejected:,} datagrams are no {feed.name} packets", "see --feed")
    if source.refreshes:
        complain(
            f"{source.refreshes:,} packets of refresh lines were passed over",
            "their snapshots have numbers of their own; records are those of the live lines",
        )
    if source.fallen_back:
        complain(
            f"numbers fell far back {source.fallen_back:,} times: what had come was passed over",
            "if the publisher began anew without a reset, cut the capture there",
        )
    return ExitCode.FOUND if cut or source.rejected else ExitCode.OK


class Decoder:
    """A filter: datagrams in, the messages that were asked for out, as dicts.

    `packets` counts those of the feed, `rejected` the others by reason; `faults` has lines on the
    first ones of each, `FAULTS_SHOWN_MAX` at most.
    """

    def __init__(self, feed: Feed, options: Options) -> None:
        self.packets = 0
        self.rejected: Counter[str] = Counter()
        self.faults: dict[str, list[str]] = {}
        self._feed = feed
        self._options = options
        self._types = {feed.type_label(feed.type_code(label)) for label in options.types}
        self._known = ReferenceData(feed)

    def messages(self, datagrams: Iterator[Datagram]) -> Iterator[dict[str, Any]]:
        """Yield every wanted message, with the time at which it was captured (ns since 1970)."""
        for number, datagram in enumerate(datagrams, 1):
            day = self._options.day or self._feed.trading_day.of(datagram.time_ns)
            try:
                found = self._feed.to_dicts(datagram.payload, day, known=self._known)
            except BadPacket as error:
                self._reject(error.reason.name.lower(), number, datagram)
                continue
            self.packets += 1
            for message in found:
                if self._wanted(message):
                    yield {"captured_ns": datagram.time_ns, **self._named(message)}

    def _reject(self, reason: str, number: int, datagram: Datagram) -> None:
        """Count a rejected packet; of the first ones of each reason explain the fault."""
        self.rejected[reason] += 1
        examples = self.faults.setdefault(reason, [])
        if len(examples) < FAULTS_SHOWN_MAX:
            fault = explain(self._feed, datagram.payload)
            examples.append(
                f"{reason}: datagram {number:,} ({_clock(datagram.time_ns)}, "
                f"{datagram.group}:{datagram.port}, {len(datagram.payload)} bytes): {fault}"
            )

    def _wanted(self, message: dict[str, Any]) -> bool:
        options = self._options
        if message["type"] in _CONTROL and not options.control:
            return False
        if self._types and message["type"] not in self._types:
            return False
        if options.service is not None and message["service"] != options.service:
            return False
        if options.symbol is None:
            return True
        named = (message["symbol"], self._name_of(message), *message.get("symbols", ()))
        return options.symbol in named

    def _name_of(self, message: dict[str, Any]) -> str | None:
        symbol = message["symbol"]
        is_number = symbol and symbol.isdecimal() and len(symbol) <= _SYMBOL_DIGITS
        return self._known.names.get(int(symbol)) if is_number else None

    def _named(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._options.names and (name := self._name_of(message)):
            message["symbol"] = name
        return message


def _json_line(message: dict[str, Any]) -> str:
    return msgspec.json.encode(message).decode() + "\n"


def _text_line(message: dict[str, Any]) -> str:
    fields = " ".join(f"{key}={_shown(value)}" for key, value in message.items()
                      if key not in _LEADING)  # fmt: skip
    return (
        f"{_clock(message['captured_ns'])} {message['service']:>5} "
        f"{message['seq']:>9} {message['type']:>9} {message['name']:<24} "
        f"{message['symbol'] or '-':<10} {fields}\n"
    )


def _clock(time_ns: int) -> str:
    """Format a time (ns since 1970) as the time of day, UTC, to the nanosecond."""
    moment = datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.UTC)
    return f"{moment:%H:%M:%S}.{time_ns % 10**9:09}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{len(value)}]"
    return "''" if value == "" else str(value)
