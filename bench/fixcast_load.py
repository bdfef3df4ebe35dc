"""A publisher of FIX over multicast as a process of its own, for `bench_fixcast_publish`.

python -m bench.fixcast_load reads a `Load` as JSON from standard input, publishes its messages on
both lines and prints what that took, as JSON. With an `offered` rate it is given messages in parts
of `PART_NS`, and notes when: each of `given` has a number, from which on messages were given,
CLOCK_REALTIME in ns then and, from the scheduler, how long the process had waited for a processor
since it began, in ns. Receivers can see how long each waited, and for what.
"""

import asyncio
import json
import os
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from feedhandler.codecs.fix.envelope import envelope
from feedhandler.fixcast.channels import parse_channels
from feedhandler.fixcast.messages import Cutter
from feedhandler.fixcast.publisher import Publisher, PublisherSettings
from feedhandler.fixcast.sending import SendingSettings
from tests.support.processes import resident_bytes

CHANNEL = "c"
#: How often messages are given where a rate is offered.
PART_NS = 100_000
#: Messages handed over at once where none is.
WHOLE = 10_000
#: How often a long run looks at its memory.
LOOKS = 10


@dataclass(frozen=True)
class Load:
    """Load to publish: `count` messages, those of `file` again and again, to `groups` at `port`.

    offered  messages a second that the publisher is given; 0: as fast as it takes them
    cpu      the processor it runs on; -1: any
    """

    file: str
    count: int
    groups: tuple[str, str]
    port: int
    rate_bytes_s: int
    burst_bytes: int
    period_ns: int
    offered: int = 0
    cpu: int = -1


def book_updates(count: int, seed: int) -> list[bytes]:
    """Return book updates of 150 to 400 bytes after stamping: one to five entries each."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        symbol, groups = b"SYM%d" % rng.randrange(500), rng.randint(1, 5)
        entries = b"".join(
            b"279=%d\x01269=%d\x0155=%b\x01270=%d.%02d\x01271=%d00\x01346=%d\x01"
            % (
                rng.randrange(3), rng.randrange(2), symbol, rng.randint(10, 999),
                rng.randrange(100), rng.randint(1, 900), rng.randint(1, 40),
            )
            for _ in range(groups)
        )  # fmt: skip
        head = b"35=X\x0149=SOURCE\x0156=ALL\x0134=%d\x0152=20261124-10:00:00.%06d\x01" % (
            number + 1, number,
        )  # fmt: skip
        made.append(envelope(b"FIX.4.4", head + b"268=%d\x01%b" % (groups, entries)))
    return made


def definition(load: Load) -> str:
    """Return a definition of one channel on loopback."""
    lines = "".join(
        f'{name} = {{ group = "{group}", port = {load.port}, source = "127.0.0.1" }}\n'
        for name, group in zip("ab", load.groups, strict=True)
    )
    return (
        f'[[channel]]\nid = "{CHANNEL}"\nsender = "PUB"\ncarries = [{{ content = "x" }}]\n{lines}'
    )


def delay_ns(schedstat: int) -> int:
    """Return how long the process has been ready to run but did not run, in ns."""
    return int(os.pread(schedstat, 100, 0).split()[1])


async def _publish_paced(
    publisher: Publisher, messages: list[bytes], load: Load, schedstat: int
) -> list[tuple[int, int, int]]:
    """Publish at the offered rate, on an absolute schedule; which were given when."""
    given, done, number = [], 0, publisher.sender(CHANNEL).session.next
    begin_ns = time.monotonic_ns()
    while done < load.count:
        part = min(
            (time.monotonic_ns() - begin_ns) * load.offered // 1_000_000_000, load.count
        ) - done  # fmt: skip
        if part * 1_000_000_000 < PART_NS * load.offered and part + done < load.count:
            await asyncio.sleep(0)
            continue
        at = done % len(messages)
        run = messages[at : at + part]
        given.append((number + done, time.time_ns(), delay_ns(schedstat)))
        await publisher.publish_many(CHANNEL, run)
        done += len(run)
    given.append((number + done, time.time_ns(), delay_ns(schedstat)))
    return given


async def _publish_all(publisher: Publisher, messages: list[bytes], count: int) -> list[int]:
    """Publish as fast as the publisher takes them; the memory in between."""
    memory, done = [], 0
    while done < count:
        run = messages[: count - done]
        await publisher.publish_many(CHANNEL, run)
        done += len(run)
        if done * LOOKS // count > len(memory):
            memory.append(resident_bytes())
    return memory


async def publish(load: Load) -> dict[str, Any]:
    """Publish the load; what it took."""
    messages = list(Cutter().cut(Path(load.file).read_bytes()))[:WHOLE]
    settings = PublisherSettings(
        rate_bytes_s=load.rate_bytes_s, burst_bytes=load.burst_bytes,
        sending=SendingSettings(period_ns=load.period_ns),
    )  # fmt: skip
    given: list[tuple[int, int, int]] = []
    memory: list[int] = []
    async with Publisher(parse_channels(definition(load), "load"), [], settings) as publisher:
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        if load.offered:
            with open("/proc/self/schedstat", "rb") as file:
                given = await _publish_paced(publisher, messages, load, file.fileno())
        else:
            memory = await _publish_all(publisher, messages, load.count)
        seconds, spent = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        user = spent.ru_utime - used.ru_utime
        counts = dict(publisher.sender(CHANNEL).counts)
    return {
        "seconds": seconds, "user": user, "processor": user + spent.ru_stime - used.ru_stime,
        "messages": load.count, "given": given, "memory": memory, "counts": counts,
        "refused": dict(publisher.counts),
    }  # fmt: skip


def as_json(load: Load) -> str:
    """Return the load as JSON, which the publishing process reads."""
    return json.dumps(asdict(load))


def main() -> int:
    """Publish what standard input says."""
    load = Load(**json.loads(sys.stdin.read()))
    if load.cpu >= 0:
        os.sched_setaffinity(0, {load.cpu})
    print(json.dumps(asyncio.run(publish(load))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
