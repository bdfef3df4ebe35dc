"""One program for all venues: order events of any feed as numpy, pandas and DBN records.

    python examples/venue_records.py --feed nasdaq-totalview-itch
    python examples/venue_records.py --feed memx-memoir

A simulated exchange publishes orders in the feed's own messages on two multicast lines of this
machine, each of which loses datagrams. A gateway makes one stream of the lines, and normalised
records of that; a subscriber takes them (`as_="mbo"`). Nothing below this line knows the venue.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

import databento_dbn
import numpy
import pandas

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import PRICE_SCALE
from feedhandler.config import AmqpConfig, ChannelConfig, Config, GatewaySettings, LineConfig
from feedhandler.config.show import to_toml
from feedhandler.replay.exchange.simulated import Exchange, ExchangePlan
from feedhandler.replay.generating.order_session import CHANNEL
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.terminal.children import Family

PATIENCE_S = 120.0
#: After the exchange's end, nothing for so long means that there is no more.
QUIET_S = 3.0


class Taken:
    """Records that a subscriber received, symbols by instrument, and the bytes of both."""

    def __init__(self) -> None:
        self.records: list[numpy.ndarray] = []
        self.symbols: dict[int, str] = {}
        self.bodies: list[bytes] = []
        self.attached, self.came = asyncio.Event(), asyncio.Event()

    async def follow(self, url: str, pattern: str) -> None:
        """Keep all that comes, until it is cancelled."""
        async with feedhandler.subscribe(url, pattern, as_="mbo", quality=False) as messages:
            self.attached.set()
            async for message in messages:
                self.records.append(message.records())
                self.symbols = message.symbols
                self.bodies.append(message.body)
                self.came.set()

    async def until_quiet(self) -> None:
        """Wait until nothing more comes."""
        while True:
            self.came.clear()
            try:
                await asyncio.wait_for(self.came.wait(), QUIET_S)
            except TimeoutError:
                return


def table_of(records: numpy.ndarray, symbols: dict[int, str]) -> pandas.DataFrame:
    """Tabulate trades by symbol: how many, how much, and the last price."""
    frame = pandas.DataFrame(records)
    frame["symbol"] = frame["instrument_id"].map(symbols)
    frame["price"] = frame["price"] / PRICE_SCALE
    trades = frame[frame["action"] == b"T"].groupby("symbol")
    return trades.agg(trades=("size", "count"), volume=("size", "sum"), last=("price", "last"))


async def main(feed: str, seconds: float, service: int, port: int, port_base: int) -> None:
    plan = ExchangePlan(
        feed=feed,
        seconds=seconds,
        messages_per_s=2000.0,
        instruments=5,
        faults=(LineFaults(loss=0.05), LineFaults(loss=0.05)),
        spare_shared=True,
        base_ports=(port_base, port_base + 1000),
    )
    addresses = [(name, *plan.address(name, CHANNEL)) for name in "AB"]
    lines = tuple(LineConfig(name=n, group=group, port=number) for n, group, number in addresses)
    config = Config(
        gateway=GatewaySettings(feed=feed),
        amqp=AmqpConfig(listen=f"127.0.0.1:{port}", records=True),
        channels=(ChannelConfig(service=service, lines=lines),),
    )
    taken, ready = Taken(), asyncio.Event()

    def on_error(line: str) -> None:
        if ": ready: " in line:
            ready.set()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.toml"
        path.write_text(to_toml(config), encoding="utf-8")
        async with Family() as family:
            await family.start("gateway", "-m", "feedhandler", "run", str(path), on_error=on_error)
            await family.until(ready, PATIENCE_S, "starting the gateway")
            key = load_feed(feed).key
            following = asyncio.create_task(taken.follow(f"amqp://127.0.0.1:{port}", f"{key}.#"))
            await family.until(taken.attached, PATIENCE_S, "attaching to the gateway")
            await asyncio.to_thread(Exchange(plan).run)
            await taken.until_quiet()
            following.cancel()
    records = numpy.concatenate(taken.records)
    print(table_of(records, taken.symbols).to_string())
    decoder = databento_dbn.DBNDecoder(has_metadata=False)
    decoder.write(b"".join(taken.bodies))
    read = [each for each in decoder.decode() if isinstance(each, databento_dbn.MBOMsg)]
    if [each.order_id for each in read] != records["order_id"].tolist():
        raise SystemExit("Databento's library reads other records")
    print(f"{len(records):,} records, the same by Databento's own library")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--feed", default="nasdaq-totalview-itch")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--service", type=int, default=1, help="as the feed's packets say it")
    parser.add_argument("--port", type=int, default=5672, help="of the gateway")
    parser.add_argument("--port-base", type=int, default=30_000, help="of the exchange's lines")
    options = parser.parse_args()
    asyncio.run(
        main(options.feed, options.seconds, options.service, options.port, options.port_base)
    )
