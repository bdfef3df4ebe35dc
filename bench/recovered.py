"""A subscriber that times recoveries: from the packet that showed a gap to the filled stream.

    python -m bench.recovered URL PATTERN GAP_WAIT_US

Prints `ready` once attached. On SIGTERM it prints one JSON line: how many gaps were filled, and
percentiles of the time from the kernel's stamp of the first packet behind a gap to the instant at
which this process has it, less `gap_wait_us`, in nanoseconds.
"""

import argparse
import asyncio
import json
import signal
import time

import numpy
import uvloop

import feedhandler

#: Offset of DeliveryFlag in the UTP-MD packet header, and what it is in a retransmitted packet.
FLAG_OFFSET, RETRANSMITTED = 14, 1


async def measure(url: str, pattern: str, gap_wait_us: int) -> None:
    """Receive until SIGTERM, then print the percentiles."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    took: list[int] = []

    async def receive() -> None:
        filled = False
        async for message in messages:
            if message.content != "packet":
                continue
            if message.body[FLAG_OFFSET] == RETRANSMITTED:
                filled = True
            elif filled:
                filled = False
                took.append(time.time_ns() - message.received_ns - gap_wait_us * 1000)

    async with feedhandler.subscribe(url, pattern, stamp=True) as messages:
        print("ready", flush=True)
        consumer = asyncio.create_task(receive())
        await asyncio.wait(
            [consumer, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        consumer.cancel()
    p50, p90, p99 = numpy.percentile(took or [0], (50, 90, 99)).tolist()
    print(
        json.dumps({"filled": len(took), "p50_ns": p50, "p90_ns": p90, "p99_ns": p99}), flush=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("pattern")
    parser.add_argument("gap_wait_us", type=int)
    arguments = parser.parse_args()
    uvloop.run(measure(arguments.url, arguments.pattern, arguments.gap_wait_us))
