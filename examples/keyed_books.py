"""The books of a replayed session, kept by eight workers behind a keyed queue.

    python examples/keyed_books.py --seconds 2 --workers 8

A session is generated, and each of its messages about a symbol is put into a keyed queue of a
gateway; the key is the symbol, which the queue reads from the message by the feed's description.
Workers take messages side by side and apply each to its symbol's book in one market. Two messages
of one symbol are never with two workers, and come in their order: so a book needs no lock,
whichever worker has it. At the end each book is compared, byte for byte, with that of one reader
who went through the session by himself.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from local_gateway import LocalGateway

from feedhandler import Market, keyed
from feedhandler.codecs import feed_table, load_feed, scanner
from feedhandler.keyed.settings import Format
from feedhandler.ports import free_ports
from feedhandler.replay.captures.reading import Capture

FEED = load_feed("euronext-utp-md")
#: Service, symbol, message.
Update = tuple[int, int, bytes]


def session(path: Path, seconds: float, rate: str) -> None:
    """Generate a session; its rate says how many instruments there are, too."""
    words = ["generate", "--duration", f"{seconds}s", "--no-refresh", "--out", str(path)]
    command = [sys.executable, "-m", "feedhandler", *words, "--rate", rate]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def messages(path: Path) -> Iterator[Update]:
    """Yield each message about a symbol once: of two copies of a packet the first."""
    table, header, index = FEED.table, feed_table.PacketHeader(), feed_table.MessageIndex()
    latest: dict[int, int] = {}
    for datagram in Capture(path):
        data = datagram.payload
        if scanner.parse_header(table, data, 0, len(data), header):
            continue
        if header.sequence <= latest.get(header.service, 0):
            continue
        latest[header.service] = header.sequence
        if scanner.scan_messages(table, data, 0, header, index):
            continue
        for row in range(index.count):
            if index.symbols[row] != feed_table.NO_SYMBOL:
                at = index.offsets[row]
                message = bytes(data[at : at + index.sizes[row]])
                yield header.service, index.symbols[row], message


async def play(gateway: LocalGateway, updates: list[Update], workers: int) -> Market:
    """Put the messages, and have workers keep each symbol's book."""
    market = Market(FEED, keeps_messages=True)
    busy: set[int] = set()
    side_by_side = left = 0
    done = asyncio.Event()

    async def handler(message: keyed.Message) -> None:
        nonlocal side_by_side, left
        symbol = message.properties["symbol"]
        assert symbol not in busy, "one at a time of each symbol"
        busy.add(symbol)
        side_by_side = max(side_by_side, len(busy))
        await asyncio.sleep(0)
        market.apply_message(message.body, message.properties["service"])
        busy.remove(symbol)
        left += 1
        if left == len(updates):
            done.set()

    async with (
        keyed.consume(gateway.url, "books", handler, workers=workers),
        keyed.producer(gateway.url, "books", id="session") as put,
    ):
        for service, symbol, message in updates:
            await put.put_soon(message, properties={"service": service, "symbol": symbol})
        await put.flush()
        await done.wait()
    print(f"at most {side_by_side} workers at a time")
    return market


def main() -> int:
    """Run it; 0 where all books are the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of the session")
    parser.add_argument("--rate", default="20mbps", help="of the session's packets")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--port", type=int, help="the gateway's; else one that is free")
    options = parser.parse_args()
    definition = keyed.Definition(fields=("symbol",), format=Format.FEED, feed=FEED.name)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        session(folder / "session.pcap", options.seconds, options.rate)
        updates = list(messages(folder / "session.pcap"))
        alone = Market(FEED, keeps_messages=True)
        for service, _, message in updates:
            alone.apply_message(message, service)
        gateway = LocalGateway(folder, options.port or free_ports(1)[0], "books", key=definition)
        gateway.start()
        try:
            together = asyncio.run(play(gateway, updates, options.workers))
        finally:
            gateway.end(signal.SIGTERM)
    symbols = [symbol for symbol, number in alone.instruments().items() if number in alone.books]
    orders = same = 0
    for symbol in symbols:
        wanted = alone.book_messages(symbol)
        same += together.book_messages(symbol) == wanted
        orders += len(wanted)
    print(
        f"{len(updates):,} messages, {len(symbols):,} books with {orders:,} orders,"
        f" {same:,} of them byte for byte those of one reader"
    )
    return 0 if same == len(symbols) and orders else 1


if __name__ == "__main__":
    sys.exit(main())
