"""One measuring subscriber process: counts, checks order, and times deliveries.

    python -m bench.subscriber URL PATTERN GRAIN [--stamp]
    python -m bench.subscriber URL PATTERN recovered --gap-wait-us N

Prints `ready` once attached. On SIGTERM it prints one JSON line: AMQP messages, market messages,
lost sequence numbers, and with `--stamp` the latency from the gateway's kernel receive stamp to
this process's read: percentiles in nanoseconds. As `recovered` it takes whole packets and says how
many gaps were filled, and percentiles of the time from the kernel's stamp of the first packet
behind a gap to the instant at which this process has it, less `gap_wait_us`.
"""

import argparse
import asyncio
import json
import signal
import time

import numpy
import uvloop

import feedhandler
from feedhandler.amqp.subscribing.columns import Batch
from feedhandler.amqp.subscribing.inbox import Message
from feedhandler.codecs.dbn import SCHEMAS
from feedhandler.histogram import percentiles_of
from feedhandler.lab.tally import Tally

#: Deliveries before the clock counts: connections warm up, caches fill.
WARM_UP_NS = 1_000_000_000
#: Offset of DeliveryFlag in the UTP-MD packet header, and what it is in a retransmitted packet.
FLAG_OFFSET, RETRANSMITTED = 14, 1


class Subscriber:
    """Subscriber that counts what it gets: the laboratory's tally, and market messages beside."""

    def __init__(self, grain: str, stamp: bool) -> None:
        self.grain = grain
        self.stamp = stamp
        self.market = 0
        #: Of normalised records, which the tally does not read.
        self.batches = self.body_bytes = 0
        self.tally = Tally()
        self.began_ns = 0

    def add(self, batch: Batch) -> None:
        """Count one read's deliveries."""
        now = time.time_ns()
        if not self.began_ns:
            self.began_ns = now
            self.tally.clock_from_ns = now + WARM_UP_NS
        self.tally.record(batch, now)
        if not self.stamp:
            self.market += batch.count if self.grain == "message" else len(batch)

    def add_records(self, message: Message) -> None:
        """Count one batch of normalised records: here one a market message."""
        if message.content == "records":
            records = message.records()
            self.market += len(records)
            self.batches += 1
            self.body_bytes += len(message.body)

    async def consume(self, messages: feedhandler.Subscriber) -> None:
        """Count all that comes."""
        if self.grain not in SCHEMAS:
            await messages.deliver(self.add)
            return
        async for message in messages:
            self.add_records(message)

    def report(self) -> dict[str, object]:
        """Return the figures as JSON-ready values."""
        tally = self.tally
        counts = tally.histogram.counts()
        p50, p90, p99 = percentiles_of(counts, 0.5, 0.9, 0.99)
        return {
            "amqp": tally.deliveries + self.batches,
            "market": self.market,
            "bytes": tally.body_bytes + self.body_bytes,
            "announced_lost": tally.announced,
            "p50_ns": p50,
            "p90_ns": p90,
            "p99_ns": p99,
            "max_ns": tally.histogram.maximum,
        }


class Recoveries:
    """Times recoveries: from the packet that showed a gap to the filled stream."""

    grain, stamp = "packet", True

    def __init__(self, gap_wait_us: int) -> None:
        self.gap_wait_ns = gap_wait_us * 1000
        self.took: list[int] = []

    async def consume(self, messages: feedhandler.Subscriber) -> None:
        """Measure the time of each gap that is filled."""
        filled = False
        async for message in messages:
            if message.content != "packet":
                continue
            if message.body[FLAG_OFFSET] == RETRANSMITTED:
                filled = True
            elif filled:
                filled = False
                self.took.append(time.time_ns() - message.received_ns - self.gap_wait_ns)

    def report(self) -> dict[str, object]:
        """The figures as JSON-ready values."""
        p50, p90, p99 = numpy.percentile(self.took or [0], (50, 90, 99)).tolist()
        return {"filled": len(self.took), "p50_ns": p50, "p90_ns": p90, "p99_ns": p99}


async def measure(url: str, pattern: str, subscriber: Subscriber | Recoveries) -> None:
    """Receive until SIGTERM, then print the report."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with feedhandler.subscribe(
        url, pattern, as_=subscriber.grain, stamp=subscriber.stamp
    ) as messages:
        print("ready", flush=True)

        consumer = asyncio.create_task(subscriber.consume(messages))
        await asyncio.wait(
            [consumer, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        consumer.cancel()
    print(json.dumps(subscriber.report()), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("pattern")
    parser.add_argument("grain")
    parser.add_argument("--stamp", action="store_true")
    parser.add_argument("--gap-wait-us", type=int)
    given = parser.parse_args()
    if given.grain == "recovered":
        uvloop.run(measure(given.url, given.pattern, Recoveries(given.gap_wait_us)))
    else:
        uvloop.run(measure(given.url, given.pattern, Subscriber(given.grain, given.stamp)))
