"""A subscriber that writes a ledger: the demo's other end, run as a process of its own.

    feedhandler ledger-client URL PATTERN GRANULARITY FEED LEDGER

It writes a ledger of every message it gets, of every loss announced to it and of every snapshot
that makes losses good (but not of the snapshot's messages: they repeat a state, and are no
deliveries). It reports to its parent on stdout, one JSON object a line: `{"attached": true}` once,
`{"received": n}` several times a second, and at the end, after SIGTERM, `{"latency": {bucket:
count, ...}}`, the histogram of the time from the gateway's kernel receive stamp to the read here.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import feedhandler
from feedhandler.amqp.subscribing.inbox import Message
from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.feed import split_packets
from feedhandler.histogram import Histogram
from feedhandler.replay.exchange.ledger import LedgerWriter
from feedhandler.terminal.console import ExitCode, print_json, run_async, until_stopped

#: How often the parent gets the count of messages.
REPORT_INTERVAL_S = 0.2


class LedgerClient:
    """A writer of messages and announcements into a ledger, and of latencies into a histogram."""

    def __init__(self, feed: Feed, ledger: LedgerWriter) -> None:
        self.latency = Histogram()
        self._feed = feed
        self._ledger = ledger
        #: Services whose snapshot is under way: their messages are part of it.
        self._in_snapshot: set[int] = set()

    @property
    def received(self) -> int:
        """Market messages so far."""
        return self._ledger.messages

    def record(self, message: Message) -> None:
        """Record one AMQP message."""
        if message.content == "quality":
            self._note(message.quality or {})
            return
        if message.service in self._in_snapshot:
            return
        self.latency.record(time.time_ns() - message.received_ns)
        if message.content == "message":
            self._ledger.received_message(
                message.service, message.sequence, message.number, message.body
            )
            return
        for packet in split_packets(self._feed, message.body):
            self._ledger.received_packet(packet, message.service)

    def _note(self, quality: dict[str, Any]) -> None:
        """Record a quality message: the start of a service, losses, and those made good."""
        service, reason = quality["service"], quality["reason"]
        for first, last in quality.get("lost", []):
            self._ledger.lost(service, first, last)
        for first, last in quality.get("withdrawn", []):
            self._ledger.withdrawn(service, first, last)
        if reason in ("start", "reset") and quality["since"] is not None:
            self._ledger.start(service, quality["since"])
        elif reason == "attached" and quality["since"] is not None:
            self._ledger.start(service, quality["next"])
        elif reason == "snapshot-begin":
            self._in_snapshot.add(service)
        elif reason == "snapshot-end":
            self._in_snapshot.discard(service)
            self._ledger.refreshed(service, quality["last"])


async def receive(
    url: str, pattern: str, granularity: str, feed: Feed, path: Path, stop: asyncio.Event
) -> int:
    """Write the ledger until `stop`; what has arrived by then is written."""
    with LedgerWriter(path, feed) as ledger:
        books = LedgerClient(feed, ledger)
        async with feedhandler.subscribe(
            url, pattern, as_=granularity, stamp=True, feed=feed
        ) as messages:
            _print({"attached": True})
            reporting = asyncio.create_task(_report(books))
            try:
                await until_stopped(_receive_all(messages, books), stop)
            finally:
                reporting.cancel()
    counts = books.latency.counts()
    _print({"received": books.received})
    _print({"latency": {int(bucket): int(counts[bucket]) for bucket in counts.nonzero()[0]}})
    return ExitCode.OK


async def _receive_all(messages: Any, books: LedgerClient) -> None:
    async for message in messages:
        books.record(message)


async def _report(books: LedgerClient) -> None:
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        _print({"received": books.received})


def _print(what: dict[str, Any]) -> None:
    print_json(what)
    sys.stdout.flush()


def run(url: str, pattern: str, granularity: str, feed_name: str, path: Path) -> int:
    """Receive until SIGTERM, as a process of its own; the ledger goes to `path`."""
    feed = load_feed(feed_name)
    return run_async(lambda stop: receive(url, pattern, granularity, feed, path, stop), "uvloop")
