"""The persistent queue against the disk, SQLite and RabbitMQ: accept, deliver, recover, cancel.

All on the same disk, in one run, one after the other for each message size, and twice in turn:

    ceiling     pwrite and fdatasync of segments of 64 KiB, 256 KiB and 1 MiB on a zero-filled file
    SQLite      WAL, synchronous=FULL, one commit for as many messages as a segment of ours holds
    RabbitMQ 4  a quorum queue with confirms beside `durable`, a durable classic queue beside `fast`
    ours        durable: put_many(64) of several producers; put of 64 producers; get and delivered
    ours, 256   the same put_many with segments of 256 KiB; else they are of up to 1 MiB

Accepting in SQLite is an insert, delivering a select and a delete in order, which is durable too,
as `delivered` is in ours. What `fast` is worth is measured the same way.
"""

import asyncio
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.journal_broker import rates
from bench.peers import Absent, broker
from feedhandler.journal import BlockingQueue, PersistentQueue, QueueSettings
from feedhandler.journal.engine import Engine

SIZES = (1024, 2048, 4096, 8192, 10240)
SEGMENTS = (64 << 10, 256 << 10, 1 << 20)
PRODUCERS, MANY = 8, 64
SINGLE_PRODUCERS = 64
#: Bytes accepted for each figure; a broker gets as many messages at most.
BYTES, QUICK_BYTES = 96 << 20, 8 << 20
BROKER_MESSAGES, BROKER_BYTES = 20_000, 48 << 20
ROUNDS = 2
PENDING, QUICK_PENDING = 1_000_000, 20_000
CANCELS = 1000
#: Bars: of the ceiling at 4 KiB and above; messages a second at 1 KiB; times one sync; seconds.
BAR_CEILING, BAR_MANY, BAR_PUT, BAR_P99 = 0.6, 300_000, 120_000, 4.0
BAR_RABBITMQ = 5.0
SMOKE: dict[str, object] = {"SIZES": (1024,), "CANCELS": 50}
BAR_PENDING_S, BAR_DELIVERED_S, BAR_CANCEL_US = 2.0, 0.2, 50.0


def ceiling(folder: Path, segment: int, total: int) -> tuple[float, float]:
    """Return bytes a second of segments written and synced in turn, and one's median time."""
    path = folder / "raw"
    count = total // segment
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for at in range(0, count * segment, 1 << 20):
            os.pwrite(descriptor, bytes(1 << 20), at)
        os.fsync(descriptor)
        data, times = os.urandom(segment), []
        for number in range(count):
            began = time.perf_counter()
            os.pwrite(descriptor, data, number * segment)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return segment * count / sum(times), statistics.median(times)


def sqlite(folder: Path, size: int, count: int) -> tuple[float, float]:
    """Return messages a second accepted, and delivered."""
    path = folder / "peer.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=full")
    database.execute("create table queue (id integer primary key autoincrement, content blob)")
    each = max(QueueSettings().journal_bytes // size, 1)
    contents = [(os.urandom(size),) for _ in range(each)]
    began = time.perf_counter()
    for _ in range(count // each):
        database.execute("begin")
        database.executemany("insert into queue (content) values (?)", contents)
        database.execute("commit")
    accepted = time.perf_counter() - began
    began = time.perf_counter()
    while rows := database.execute("select * from queue order by id limit ?", (each,)).fetchall():
        database.execute("delete from queue where id <= ?", (rows[-1][0],))
    delivered = time.perf_counter() - began
    database.close()
    for file in folder.glob("peer.db*"):
        file.unlink()
    done = count // each * each
    return done / accepted, done / delivered


def settings(total: int, durability: str = "durable", journal: int = 1 << 20) -> QueueSettings:
    """Return settings with enough blocks, made beforehand."""
    return QueueSettings(
        blocks=total // (56 << 20) + 3, durability=durability, journal_bytes=journal
    )


async def _accept_and_deliver(
    folder: Path, size: int, count: int, durability: str, journal: int = 1 << 20
) -> tuple[float, float]:
    """Return messages a second: put_many of several producers, then get_many and delivered."""
    batch = [os.urandom(size) for _ in range(MANY)]
    chosen = settings(size * count, durability, journal)
    async with PersistentQueue.open(folder, chosen) as queue:

        async def produce() -> None:
            for _ in range(count // MANY // PRODUCERS):
                await queue.put_many(batch)

        async def consume() -> None:
            nonlocal left
            while left > 0:
                left -= MANY
                items = await queue.get_many(MANY)
                await queue.delivered(*(item.id for item in items))

        left = done = count // MANY // PRODUCERS * PRODUCERS * MANY
        began = time.perf_counter()
        await asyncio.gather(*(produce() for _ in range(PRODUCERS)))
        accepted = time.perf_counter() - began
        began = time.perf_counter()
        await asyncio.gather(*(consume() for _ in range(PRODUCERS)))
        delivered = time.perf_counter() - began
        assert queue.statistics()["pending"] == 0
    shutil.rmtree(folder)
    return done / accepted, done / delivered


async def _single(folder: Path, size: int, count: int) -> tuple[float, float]:
    """Return messages a second by `put` of 64 producers, and a put's 99th percentile in s."""
    content, waits = os.urandom(size), []
    async with PersistentQueue.open(folder, settings(size * count)) as queue:

        async def produce() -> None:
            for _ in range(count // SINGLE_PRODUCERS):
                began = time.perf_counter()
                await queue.put(content)
                waits.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(produce() for _ in range(SINGLE_PRODUCERS)))
        took = time.perf_counter() - began
    shutil.rmtree(folder)
    waits.sort()
    return len(waits) / took, waits[int(len(waits) * 0.99)]


def recovery(folder: Path, count: int) -> dict[str, float]:
    """Return seconds to open a queue whose process was killed, and a cancel's microseconds."""
    batch = [os.urandom(1024) for _ in range(256)]
    chosen = settings(count * 1060)
    with BlockingQueue(folder, chosen) as queue:
        for _ in range(count // 256):
            queue.put_many(batch)
        _abandon(queue.engine)
    pending, engine = _opened(folder, chosen)
    step = max(count // CANCELS // 2, 1)
    began = time.perf_counter()
    for number in range(1, count - 256, step):
        engine.cancel(number)
    cancel_s = (time.perf_counter() - began) / len(range(1, count - 256, step))
    for first in range(1, count, 4096):
        numbers = (n for n in range(first, min(first + 4096, count)) if n % 100)
        engine.deliver(numbers)
        engine.flush()
    _abandon(engine)
    delivered, engine = _opened(folder, chosen)
    engine.close()
    shutil.rmtree(folder)
    return {"pending_s": pending, "delivered_s": delivered, "cancel_us": cancel_s * 1e6}


def _abandon(engine: Engine) -> None:
    """End as a killed process does: nothing more is written."""
    engine._files.close()
    engine._owner.release()
    engine.close = lambda: None  # type: ignore[method-assign]


def _opened(folder: Path, chosen: QueueSettings) -> tuple[float, Engine]:
    began = time.perf_counter()
    engine = Engine(folder, chosen)
    return time.perf_counter() - began, engine


def _round(folder: Path, size: int, total: int) -> dict[str, float]:
    """Run one turn of everything at one size."""
    count = total // size
    figures: dict[str, float] = {}
    for segment in SEGMENTS:
        speed, one = ceiling(folder, segment, min(total, 32 << 20))
        figures[f"ceiling_{segment >> 10}"] = speed / size
        figures[f"sync_{segment >> 10}_s"] = one
    figures["sqlite"], figures["sqlite_delivered"] = sqlite(folder, size, count)
    for durability in ("durable", "fast"):
        accepted, delivered = uvloop.run(
            _accept_and_deliver(folder / "queue", size, count, durability)
        )
        figures[durability], figures[f"{durability}_delivered"] = accepted, delivered
    figures["durable_256"], _ = uvloop.run(
        _accept_and_deliver(folder / "queue", size, count, "durable", 256 << 10)
    )
    figures["put"], figures["put_p99_s"] = uvloop.run(_single(folder / "queue", size, count // 2))
    return figures


def rabbitmq(
    messages: int = BROKER_MESSAGES, bytes_max: int = BROKER_BYTES
) -> dict[int, dict[str, float]]:
    """Return RabbitMQ's figures by size. Raises `Absent` where it is not installed."""
    table: dict[int, dict[str, float]] = {}
    with broker("rabbitmq4") as made:
        for size in SIZES:
            one = table[size] = {}
            for kind in ("quorum", "classic"):
                count = min(messages, bytes_max // size)
                one[kind], one[f"{kind}_delivered"] = rates(made, kind, size, count)
    return table


def run(quick: bool = False) -> dict[str, Any]:
    """Measure the tables, ratios, and recovery."""
    peers: dict[int, dict[str, float]] = {}
    try:
        peers = rabbitmq(BROKER_MESSAGES // 10, BROKER_BYTES // 10) if quick else rabbitmq()
    except Absent as absent:
        print(f"  without RabbitMQ: {absent}")
    if quick:
        found = measure(peers, QUICK_BYTES, 1, QUICK_PENDING)
    else:
        found = measure(peers)
    return {**found, "problems": []}


def measure(
    peers: dict[int, dict[str, float]],
    total: int = BYTES,
    rounds: int = ROUNDS,
    pending: int = PENDING,
) -> dict[str, Any]:
    """Return ours and SQLite's figures by size beside `peers` of those sizes: medians of `rounds`
    turns of `total` bytes; and recovery of `pending` messages."""
    root = Path("out")
    root.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="journal-", dir=root))
    table: dict[int, dict[str, float]] = {}
    try:
        for size in SIZES:
            turns = [_round(folder, size, total) for _ in range(rounds)]
            table[size] = {
                name: statistics.median(turn[name] for turn in turns) for name in turns[0]
            }
            table[size] |= peers.get(size, {})
            _report(size, table[size])
        found = recovery(folder / "queue", pending)
    finally:
        shutil.rmtree(folder)
    print(
        f"  recovery of {pending:,} pending 1 KiB messages"
        f" {found['pending_s']:.3f} s (bar {BAR_PENDING_S}), 99 % of them delivered"
        f" {found['delivered_s']:.3f} s (bar {BAR_DELIVERED_S}); cancel by id"
        f" {found['cancel_us']:.1f} us before the disk (bar {BAR_CANCEL_US})"
    )
    return {"sizes": table, "recovery": found}


def _report(size: int, one: dict[str, float]) -> None:
    """Print one size's line."""
    kib = size // 1024
    print(
        f"  {kib:2} KiB accepted: put_many {one['durable']:9,.0f}/s,"
        f" {one['durable'] / one['ceiling_1024']:.0%} of the disk's {one['ceiling_1024']:,.0f} at"
        f" 1 MiB; with segments of 256 KiB {one['durable_256']:,.0f}/s,"
        f" {one['durable_256'] / one['ceiling_256']:.0%} of its {one['ceiling_256']:,.0f}"
        f" (bar {BAR_CEILING:.0%} from 4 KiB); {one['durable'] / one['sqlite']:.2f} times SQLite"
        + (f" (bar {BAR_MANY:,}/s)" if kib == 1 else "")
    )
    segment = next(one for one in SEGMENTS if size * SINGLE_PRODUCERS <= one)
    sync = one[f"sync_{segment >> 10}_s"]
    print(
        f"         put of 64 producers {one['put']:9,.0f}/s, p99 {one['put_p99_s'] / sync:.1f}"
        f" syncs of {segment >> 10} KiB (bar {BAR_P99:.0f})"
        + (f" (bar {BAR_PUT:,}/s)" if kib == 1 else "")
        + f"; fast {one['fast'] / one['durable']:.2f} times durable"
    )
    print(
        f"         delivered {one['durable_delivered']:9,.0f}/s,"
        f" {one['durable_delivered'] / one['sqlite_delivered']:.2f} times SQLite"
    )
    if "quorum" in one:
        times = [
            one[ours] / one[peer]
            for ours, peer in (
                ("durable", "quorum"),
                ("durable_delivered", "quorum_delivered"),
                ("fast", "classic"),
                ("fast_delivered", "classic_delivered"),
            )
        ]
        print(
            f"         times RabbitMQ's quorum queue: accepted {times[0]:.1f}, delivered"
            f" {times[1]:.1f} (bar {BAR_RABBITMQ:.0f}); fast, its classic queue: {times[2]:.1f},"
            f" {times[3]:.1f}"
        )
