"""`feedhandler fixcast publish` and `receive`: FIX messages by multicast."""

import asyncio
import contextlib
import itertools
import operator
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from feedhandler.codecs.errors import PeerError, UsageError, unwritable
from feedhandler.fixcast.captured import CapturedChannel
from feedhandler.fixcast.channels import Channels, host_and_port, read_channels
from feedhandler.fixcast.market_data_service import requests_answered
from feedhandler.fixcast.messages import SOH, Cutter
from feedhandler.fixcast.publisher import Publisher, PublisherSettings
from feedhandler.fixcast.receiver import Receiver, ReceiverSettings, Stated
from feedhandler.fixcast.receiving import ChannelReceiver, described
from feedhandler.fixcast.reception import Deliver, Lost
from feedhandler.replay.captures.reading import Capture
from feedhandler.terminal.console import (
    STDIN,
    ExitCode,
    complain,
    host_faults,
    print_json,
    read_next,
    reading,
    run_async,
    until_stopped,
)
from feedhandler.terminal.outputs import refuse_filled, refuse_input

#: Messages of a capture that are published together.
_CAPTURED_TOGETHER = 200
#: What a receiver drops of all channels, by the name of its count: the words for it, and a hint.
_DROPPED = {
    "answers_in_clear": ("answers in clear that were not read", "is it the right server?"),
    "foreign_sources": (
        "datagrams from sources that the definition does not name", "compare the lines' source"
    ),
}  # fmt: skip
#: What to do where datagrams were not sent, by reason.
_UNSENT = {
    "answers_dropped": "receivers ask for more than the rate allows",
    "dropped": "the channel is full: raise the rate",
    "no_key": "no key is valid now: feedhandler fixcast keys list",
    "EAGAIN": "an interface takes nothing: see its link",
    "ENETUNREACH": "see the interface's route: ip route",
}
#: Interval at which a publisher's counts are looked at.
NOTICE_SECONDS = 1.0
_SYMBOL = re.compile(rb"\x0155=([^\x01]+)")


def _definition(path: Path) -> Channels:
    """Read the definition and print its warnings."""
    channels = read_channels(path)
    for warning in channels.warnings:
        complain(f"warning: {warning}")
    return channels


# -- publish -----------------------------------------------------------------------------


def publish(
    path: Path,
    messages: Path,
    channel: str,
    content: str,
    settings: PublisherSettings,
    requests: str = "",
) -> int:
    """Publish the messages of a file, or of standard input, until it ends.

    Meanwhile Market Data Requests are answered at the address `requests`, or the definition's, if
    any.
    """
    channels = _definition(path)
    ids = [channel] if channel else list(channels.channels)
    requests = requests or _market_data_of(channels, ids)
    address = host_and_port(requests) if requests else None
    with reading(messages, "give a file of FIX messages, or -") as file:
        return _publish(channels, file, messages, channel, content, settings, address)


def _publish(
    channels: Channels,
    file: IO[bytes],
    messages: Path,
    channel: str,
    content: str,
    settings: PublisherSettings,
    address: tuple[str, int] | None,
) -> int:
    async def main(stop: asyncio.Event) -> int:
        published: Counter[str] = Counter()
        ids = [channel] if channel else ()
        async with (
            Publisher(channels, ids, settings) as publisher,
            requests_answered(publisher, address, settings.channel_tag),
        ):
            noticing = asyncio.create_task(_notice_unsent(publisher))
            try:
                with host_faults():
                    async for given in _messages(file, messages, stop):
                        for to, run in _runs(channels, given, channel, content):
                            await publisher.publish_many(to, run)
                            published[to] += len(run)
            finally:
                noticing.cancel()
        for id, count in sorted(published.items()):
            print(f"channel {id}: {count:,} messages")
        for name, count in publisher.counts.items():
            complain(f"{count:,} datagrams were not sent: {name}")
        # A file was to be published to its end; standard input goes on until it is stopped.
        cut_short = stop.is_set() and messages != STDIN
        return ExitCode.INTERRUPTED if cut_short else ExitCode.OK

    return run_async(main)


async def _notice_unsent(publisher: Publisher) -> None:
    """Complain of datagrams that were not sent, once for each reason, as soon as there are any."""
    said: set[str] = set()
    while True:
        for name in sorted(publisher.counts.keys() - said):
            said.add(name)
            complain(f"datagrams were not sent: {name}", _UNSENT.get(name, ""))
        await asyncio.sleep(NOTICE_SECONDS)


def _market_data_of(channels: Channels, ids: Sequence[str]) -> str:
    """Return the definition's address for Market Data Requests of these channels; "" for none.

    Raises `UsageError` for more than one address: a publisher has one.
    """
    groups = [
        channels.retransmission_of(channels.channels[id]) for id in ids if id in channels.channels
    ]
    addresses = sorted({group.market_data for group in groups if group and group.market_data})
    if len(addresses) > 1:
        raise UsageError(
            f"Market Data Requests are to be answered at {' and '.join(addresses)}",
            "publish the channels of each by a process of its own, or give --requests",
        )
    return addresses[0] if addresses else ""


def _runs(
    channels: Channels, messages: list[bytes], channel: str, content: str
) -> Iterator[tuple[str, list[bytes]]]:
    """Yield runs of messages for one channel: the given one, or that of their instruments."""
    if channel:
        yield channel, messages
        return
    named = ((_channel_of(channels, message, content), message) for message in messages)
    for to, run in itertools.groupby(named, key=operator.itemgetter(0)):
        yield to, [message for _, message in run]


def _channel_of(channels: Channels, message: bytes, content: str) -> str:
    """Return the one channel of all instruments that a message names. Raises `UsageError`."""
    symbols = {symbol.decode("latin-1") for symbol in _SYMBOL.findall(message)}
    found = {channels.of(symbol, content) for symbol in symbols}
    if not symbols:
        raise UsageError("a message names no instrument (55)", "give its --channel")
    if len(found) > 1 or None in found:
        raise UsageError(
            f"no one channel carries {', '.join(sorted(symbols))}", _remedy(channels, content)
        )
    return next(each.id for each in found if each is not None)


def _remedy(channels: Channels, content: str) -> str:
    """Return what to give where the channel of a message is not known."""
    carried = (each.content for channel in channels.channels.values() for each in channel.carries)
    others = sorted({*carried} - {"", content})
    if others and not content:
        return f"give the content of its symbols, --content {' or '.join(others)}; or a --channel"
    return "give a --channel"


async def _messages(file: IO[bytes], path: Path, stop: asyncio.Event) -> AsyncIterator[list[bytes]]:
    """Yield the messages of a file, or of a capture of a channel, as many at a time as come.

    Until it ends or `stop` is set. Raises `UsageError` for what is no whole FIX message.
    """
    if captured := _captured(path):
        messages = iter(captured)
        while not stop.is_set() and (some := list(itertools.islice(messages, _CAPTURED_TOGETHER))):
            yield some
        if not stop.is_set() and (captured.lost or captured.wrong):
            complain(
                f"{path}: {captured.lost:,} messages are not in the capture, {captured.wrong:,} "
                "datagrams are not whole FIX messages"
            )
        return
    cutter = Cutter()
    while data := await until_stopped(read_next(file), stop):
        found: list[bytes] = []
        wrong = None
        try:
            found.extend(cutter.cut(data))
        except UsageError as error:
            wrong = UsageError(f"{path}: {error.message}", error.hint)
        if found:
            yield found
        if wrong is not None:
            raise wrong
    if cutter.held and not stop.is_set():
        raise UsageError(f"{path}: the last message is not whole", "give whole FIX messages")


def _captured(path: Path) -> CapturedChannel | None:
    """Open the file as a capture of a channel; None where it is no capture."""
    # A pipe, say, can be read only once.
    if path == STDIN or not path.is_file():
        return None
    try:
        return CapturedChannel(Capture(path))
    except PeerError:
        return None


# -- receive -----------------------------------------------------------------------------


def receive(
    path: Path,
    ids: Sequence[str],
    out: Path | None,
    count: int,
    as_json: bool,
    settings: ReceiverSettings,
) -> int:
    """Receive until Ctrl-C, or until `count` messages have come; `FOUND` where any were lost.

    Also where a channel is sealed, or where nothing of it could be opened. Raises `UsageError`
    where `out` has content already: a recording is never replaced.
    """
    if out is not None:
        refuse_input(out, path)
        refuse_filled(out)
    channels = _definition(path)
    # A named pipe opens once it has a reader: in the loop, signals would wait for that, too.
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_written(out)) if out else None
        return _receive(channels, ids, file, count, as_json, settings)


def _receive(
    channels: Channels,
    ids: Sequence[str],
    file: IO[bytes] | None,
    count: int,
    as_json: bool,
    settings: ReceiverSettings,
) -> int:
    async def main(stop: asyncio.Event) -> int:
        seen: Counter[str] = Counter()

        def on_events(channel: str, events: list[Any]) -> None:
            for event in events:
                if isinstance(event, Deliver):
                    if count and seen["messages"] >= count:
                        continue
                    seen["messages"] += 1
                    if file is not None:
                        file.write(event.body)
                    if count and seen["messages"] == count:
                        stop.set()
                elif isinstance(event, Lost):
                    seen["lost"] += event.last - event.first + 1
                elif isinstance(event, Stated):
                    seen["states"] += 1
                _show(channel, event, as_json, file is not None)
            if file is not None:
                file.flush()  # a reader wants it now

        def notice(channel: str, what: dict[str, object]) -> None:
            seen[str(what["event"])] += 1
            _notice(channel, what, as_json)

        gone: list[BrokenPipeError] = []
        shows = [_unless_gone(show, gone, stop) for show in (on_events, notice)]
        async with Receiver(channels, ids, settings, *shows) as receiver:
            await stop.wait()
        if gone:
            raise gone[0]
        shut = _drops(receiver, as_json)
        states = f", {seen['states']:,} states" if seen["states"] else ""
        print(f"{seen['messages']:,} messages, {seen['lost']:,} lost{states}", file=sys.stderr)
        return ExitCode.FOUND if seen["lost"] or seen["sealed"] or shut else ExitCode.OK

    return run_async(main)


def _unless_gone(
    show: Callable[[str, Any], None], gone: list[BrokenPipeError], stop: asyncio.Event
) -> Callable[[str, Any], None]:
    """Return `show`, which sets `stop` and appends to `gone` where nobody reads its output."""

    def shown(channel: str, what: Any) -> None:
        try:
            show(channel, what)
        except BrokenPipeError as error:
            gone.append(error)
            stop.set()

    return shown


def _notice(channel: str, what: dict[str, object], as_json: bool) -> None:
    """Report that a channel is sealed, or that signatures are false or missing."""
    if as_json:
        print_json({"channel": channel, **what})
        sys.stdout.flush()
    if what["event"] == "sealed":
        complain(f"channel {channel} is sealed", "give a folder with its keys: --keys")
    elif not as_json:
        complain(f"channel {channel}: alarm: {what['number']} datagrams: {what['what']}")


def _drops(receiver: Receiver, as_json: bool) -> bool:
    """Print what was dropped, by reason; return whether nothing of a sealed channel was opened."""
    shut = False
    for name, (what, hint) in _DROPPED.items():
        if not (count := receiver.counts[name]):
            continue
        if as_json:
            print_json({"event": "dropped", "reasons": {name: count}})
        else:
            complain(f"{what}: {count:,}", hint)
    for id, channel in receiver.receivers.items():
        drops = _dropped(channel)
        opener = receiver.openers.get(id)
        sealed = opener.drops if opener is not None else Counter[str]()
        reasons = dict(sorted((drops + sealed).items()))
        if reasons and as_json:
            print_json({"channel": id, "event": "dropped", "reasons": reasons})
        elif reasons:
            shown = ", ".join(f"{name} {count:,}" for name, count in reasons.items())
            complain(f"channel {id}: dropped: {shown}")
        if opener is not None and sealed and not opener.opened:
            shut = True
            complain(
                f"channel {id}: no datagram could be read with these keys",
                "fetch the channel's keys; compare the clocks",
            )
    return shut


def _dropped(channel: ChannelReceiver) -> Counter[str]:
    """Count what a channel brought and was not read, by reason, beside seals."""
    drops = Counter({name: channel.reception.counts[name] for name in ("older_epoch", "wrong")})
    wrong = {name: count for name, count in channel.counts.items() if name.startswith("wrong_")}
    return drops + Counter(wrong)


def _show(channel: str, event: Any, as_json: bool, recorded: bool) -> None:
    """Print an event; messages that are recorded are not printed too."""
    if isinstance(event, Deliver) and recorded:
        return
    if isinstance(event, Stated):
        _show_state(channel, event, as_json)
    elif as_json:
        print_json({"channel": channel, **described(event)})
    elif isinstance(event, Deliver):
        text = event.body.replace(b"\x01", b"|").decode("utf-8", "backslashreplace")
        sys.stdout.write(f"{channel} {event.number} {text}\n")
    else:
        line = described(event)
        values = " ".join(f"{name}={value}" for name, value in line.items() if name != "event")
        sys.stdout.write(f"{channel} {line['event']} {values}\n")
    sys.stdout.flush()


def _show_state(channel: str, event: Stated, as_json: bool) -> None:
    """Print the books' state: its message number, its snapshots, and the messages since."""
    figures = {"as_of": event.as_of, "number": event.number, "securities": len(event.states)}
    messages = [*event.states, *(body for _, body in event.since)]
    if as_json:
        texts = [each.replace(SOH, b"|").decode("utf-8", "backslashreplace") for each in messages]
        print_json({"channel": channel, "event": "state", **figures, "messages": texts})
        return
    values = " ".join(f"{name}={value}" for name, value in figures.items())
    sys.stdout.write(f"{channel} state {values}\n")
    for message in messages:
        text = message.replace(SOH, b"|").decode("utf-8", "backslashreplace")
        sys.stdout.write(f"{channel} state {text}\n")


@contextlib.contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = path.open("wb")
    except OSError as error:
        raise unwritable(path, error) from error
    with file:
        yield file
